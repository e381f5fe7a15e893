// Language models whose answers are plain to compute, for tests of what is above them.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/executor.h"

namespace llmc {

// The logits after a sequence are a hash of all its tokens, which are read back through the page table, so that any
// mistake in pages, positions or batches gives other logits.
class FakeExecutor : public Executor {
 public:
  static constexpr int64_t kVocabulary = 50;

  explicit FakeExecutor(int64_t num_pages, int64_t max_context = 256)
      : limits_{.vocab_size = kVocabulary,
                .page_size = 4,
                .num_pages = num_pages,
                .max_context = max_context,
                .max_step_tokens = 64,
                .max_sequences = 16},
        slots_(num_pages * limits_.page_size) {}

  const ExecutorLimits& limits() const override { return limits_; }

  absl::StatusOr<Logits> RunStep(const StepInput& input) override {
    if (absl::Status status = CheckStepInput(limits_, input); !status.ok()) return status;
    ++steps;
    if (steps == fail_at_step) return absl::InternalError("the device is on fire");
    for (const Chunk& chunk : input.chunks) Write(chunk);
    Logits logits{.vocab_size = kVocabulary};
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      if (input.chunks[i].sequence == fail_sequence) {
        logits.failed[i] = absl::InternalError("this sequence is on fire");
      } else if (absl::Status status = Read(input.chunks[i], &logits); !status.ok()) {
        return status;
      }
    }
    return logits;
  }

  void EndSequence(int64_t sequence) override { ended.push_back(sequence); }

  static std::vector<float> LogitsAfter(absl::Span<const int32_t> tokens) {
    uint64_t hash = 0x243F6A8885A308D3;
    for (int32_t token : tokens) hash = Mix(hash + static_cast<uint64_t>(token) + 1);
    std::vector<float> logits;
    for (int64_t v = 0; v < kVocabulary; ++v) logits.push_back(static_cast<float>(Mix(hash + v) % 1000) / 125.0f);
    return logits;
  }

  int64_t steps = 0;
  int64_t fail_at_step = -1;
  int64_t fail_sequence = -1;  // fails alone
  std::vector<int64_t> ended;

 private:
  struct Slot {
    int64_t sequence = -1;
    int64_t position = -1;
    int32_t token = -1;
  };

  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }

  Slot& At(const Chunk& chunk, int64_t position) {
    return slots_[chunk.pages[position / limits_.page_size] * limits_.page_size + position % limits_.page_size];
  }

  void Write(const Chunk& chunk) {
    for (size_t i = 0; i < chunk.ids.size(); ++i) {
      const int64_t position = chunk.position + static_cast<int64_t>(i);
      At(chunk, position) = {chunk.sequence, position, chunk.ids[i]};
    }
  }

  absl::Status Read(const Chunk& chunk, Logits* logits) {
    const int64_t length = chunk.position + static_cast<int64_t>(chunk.ids.size());
    std::vector<int32_t> tokens;
    for (int64_t position = 0; position < length; ++position) {
      const Slot& slot = At(chunk, position);
      if (slot.sequence != chunk.sequence || slot.position != position) {
        return absl::InternalError(absl::StrCat("position ", position, " of sequence ", chunk.sequence,
                                                " was overwritten by sequence ", slot.sequence));
      }
      tokens.push_back(slot.token);
      const bool wanted = chunk.logits == WantedLogits::kAll
                              ? position >= chunk.position
                              : chunk.logits == WantedLogits::kLast && position == length - 1;
      if (!wanted) continue;
      const std::vector<float> row = LogitsAfter(tokens);
      logits->values.insert(logits->values.end(), row.begin(), row.end());
      ++logits->rows;
    }
    return absl::OkStatus();
  }

  ExecutorLimits limits_;
  std::vector<Slot> slots_;
};

// Says a given sequence of tokens, whatever the prompt: the token after position p is script[p + 1 - prompt length].
class ScriptedExecutor : public Executor {
 public:
  ScriptedExecutor(int64_t prompt_length, std::vector<int32_t> script, int64_t vocab_size)
      : limits_{.vocab_size = vocab_size,
                .page_size = 16,
                .num_pages = 64,
                .max_context = 1024,
                .max_step_tokens = 1024,
                .max_sequences = 8},
        prompt_length_(prompt_length),
        script_(std::move(script)) {}

  const ExecutorLimits& limits() const override { return limits_; }

  absl::StatusOr<Logits> RunStep(const StepInput& input) override {
    if (absl::Status status = CheckStepInput(limits_, input); !status.ok()) return status;
    Logits logits{.vocab_size = limits_.vocab_size};
    for (const Chunk& chunk : input.chunks) {
      if (chunk.logits == WantedLogits::kNone) continue;
      const int64_t next = chunk.position + static_cast<int64_t>(chunk.ids.size()) - prompt_length_;
      std::vector<float> row(limits_.vocab_size, filler);
      row[next < static_cast<int64_t>(script_.size()) ? script_[next] : 0] = 10;
      logits.values.insert(logits.values.end(), row.begin(), row.end());
      ++logits.rows;
    }
    return logits;
  }

  float filler = 0;  // the logit of every other token

 private:
  ExecutorLimits limits_;
  int64_t prompt_length_;
  std::vector<int32_t> script_;
};

}  // namespace llmc
