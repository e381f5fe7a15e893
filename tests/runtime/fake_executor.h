// Language models whose answers are plain to compute, for tests of what is above them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/engine/executor.h"

namespace llmc {

// The logits after a sequence are a hash of all its tokens, which are read back through the page table, so that any
// mistake in pages, positions or batches gives other logits. A step fails that writes to a page of another sequence, or
// finds other tokens in its own pages than it computed. Steps and sequences that fail leave wrong tokens behind.
class FakeExecutor : public SynchronousExecutor {
 public:
  static constexpr int64_t kVocabulary = 50;

  explicit FakeExecutor(int64_t num_pages, int64_t max_context = 256)
      : limits_{.vocab_size = kVocabulary,
                .pools = {{.num_pages = num_pages, .page_size = 4}},
                .max_context = max_context,
                .max_step_tokens = 64,
                .max_sequences = 16,
                .shares_pages = true} {
    AddSlots();
  }

  const ExecutorLimits& limits() const override { return limits_; }

  void EndSequence(int64_t sequence) override {
    SynchronousExecutor::EndSequence(sequence);
    sequences_.erase(sequence);
    ended.push_back(sequence);
  }

  // Tokens see so many positions up to their own; 0: all. The logits are of what the last one sees.
  void set_window(int64_t window) { limits_.pools[0].window = window; }
  // Some layers see so many positions, and have pages of their own.
  void AddWindow(int64_t num_pages, int64_t window, int64_t page_size = 4) {
    limits_.pools.push_back({.num_pages = num_pages, .page_size = page_size, .window = window});
    AddSlots();
  }
  static absl::Span<const int32_t> LastOf(absl::Span<const int32_t> tokens, int64_t window) {
    const auto size = static_cast<int64_t>(tokens.size());
    return tokens.subspan(window == 0 ? 0 : std::max<int64_t>(0, size - window));
  }

  static std::vector<float> LogitsAfter(absl::Span<const int32_t> tokens) {
    uint64_t hash = 0x243F6A8885A308D3;
    for (int32_t token : tokens) hash = Mix(hash + static_cast<uint64_t>(token) + 1);
    std::vector<float> logits;
    for (int64_t v = 0; v < kVocabulary; ++v) logits.push_back(static_cast<float>(Mix(hash + v) % 1000) / 125.0f);
    return logits;
  }

  int64_t steps = 0, num_copies = 0;
  int64_t fail_at_step = -1;
  int64_t fail_sequence = -1;  // fails alone
  std::vector<int64_t> ended;

 protected:
  absl::StatusOr<Logits> ComputeLogits(const StepInput& input) override {
    ++steps;
    num_copies += static_cast<int64_t>(input.copies.size());
    for (const PageCopy& copy : input.copies) {
      const int64_t size = limits_.pools[copy.pool].page_size;
      for (int64_t i = 0; i < size; ++i) {
        slots_[copy.pool][copy.to * size + i] = slots_[copy.pool][copy.from * size + i];
      }
    }
    for (const Chunk& chunk : input.chunks) {
      if (absl::Status status = Begin(chunk); !status.ok()) return status;
    }
    const bool fails = steps == fail_at_step;
    for (const Chunk& chunk : input.chunks) {
      if (absl::Status status = Write(chunk, fails || chunk.sequence == fail_sequence); !status.ok()) return status;
    }
    if (fails) return absl::InternalError("the device is on fire");
    Logits logits{.vocab_size = kVocabulary};
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      if (sequences_[input.chunks[i].sequence].failed) {
        logits.failed[i] = absl::InternalError("this sequence is on fire");
      } else if (absl::Status status = Read(input.chunks[i], &logits); !status.ok()) {
        return status;
      }
    }
    return logits;
  }

 private:
  struct Slot {
    int64_t position = -1;
    int32_t token = -1;
  };
  struct Sequence {
    bool failed = false;
    std::vector<int32_t> tokens;
    std::vector<std::vector<int32_t>> pages;  // by pool
  };

  static uint64_t Mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }

  void AddSlots() { slots_.emplace_back(limits_.pools.back().num_pages * limits_.pools.back().page_size); }

  Slot& At(const Chunk& chunk, int64_t position, size_t pool) {
    const int64_t size = limits_.pools[pool].page_size, page = chunk.pages[pool][position / size];
    return slots_[pool][page * size + position % size];
  }

  int64_t FirstSeen(int64_t position, size_t pool) const {
    const int64_t window = limits_.pools[pool].window;
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
  }

  // Finds the tokens that others left for a sequence that begins behind them.
  absl::Status Begin(const Chunk& chunk) {
    if (chunk.begins) sequences_[chunk.sequence] = {};
    Sequence& sequence = sequences_[chunk.sequence];
    sequence.pages.clear();
    for (const auto& table : chunk.pages) sequence.pages.emplace_back(table.begin(), table.end());
    for (int64_t position = 0; chunk.begins && position < chunk.position; ++position) {
      int32_t& token = sequence.tokens.emplace_back(-1);  // what no pool needs to hold
      for (size_t pool = 0; pool < chunk.pages.size(); ++pool) {
        if (position < FirstSeen(chunk.position, pool)) continue;
        const Slot& slot = At(chunk, position, pool);
        if (token < 0) token = slot.token;
        if (slot.position == position && slot.token == token) continue;
        return absl::InternalError(absl::StrCat("sequence ", chunk.sequence, " begins behind position ", position,
                                                ", which is not in its pages of pool ", pool));
      }
    }
    if (static_cast<int64_t>(sequence.tokens.size()) == chunk.position) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("sequence ", chunk.sequence, " goes on at position ", chunk.position,
                                            " after ", sequence.tokens.size(), " tokens"));
  }

  absl::Status Write(const Chunk& chunk, bool fails) {
    Sequence& sequence = sequences_[chunk.sequence];
    sequence.failed = sequence.failed || fails;
    const int64_t end = chunk.position + static_cast<int64_t>(chunk.ids.size());
    for (size_t pool = 0; pool < chunk.pages.size(); ++pool) {
      const int64_t size = limits_.pools[pool].page_size;
      for (int64_t i = chunk.position / size; i < PagesFor(end, size); ++i) {
        const int32_t page = chunk.pages[pool][i];
        for (const auto& [other, state] : sequences_) {
          if (other == chunk.sequence) continue;
          const std::vector<int32_t>& pages = state.pages[pool];
          const auto seen = pages.begin() + FirstSeen(state.tokens.size(), pool) / size;
          if (std::count(seen, pages.end(), page) == 0) continue;
          return absl::InternalError(
              absl::StrCat("sequence ", chunk.sequence, " writes to page ", page, ", which sequence ", other, " has"));
        }
      }
    }
    for (const int32_t id : chunk.ids) {
      const auto position = static_cast<int64_t>(sequence.tokens.size());
      const int32_t token = sequence.failed ? (id + 1) % static_cast<int32_t>(kVocabulary) : id;
      for (size_t pool = 0; pool < chunk.pages.size(); ++pool) At(chunk, position, pool) = {position, token};
      sequence.tokens.push_back(id);
    }
    return absl::OkStatus();
  }

  absl::Status Read(const Chunk& chunk, Logits* logits) {
    const std::vector<int32_t>& expected = sequences_[chunk.sequence].tokens;
    std::vector<int32_t> tokens;
    int64_t first = chunk.position;
    for (size_t pool = 0; pool < chunk.pages.size(); ++pool) first = std::min(first, FirstSeen(chunk.position, pool));
    for (int64_t position = first; position < static_cast<int64_t>(expected.size()); ++position) {
      for (size_t pool = 0; pool < chunk.pages.size(); ++pool) {
        const Slot& slot = At(chunk, position, pool);
        if (position < FirstSeen(chunk.position, pool)) continue;
        if (slot.position == position && slot.token == expected[position]) continue;
        return absl::InternalError(
            absl::StrCat("position ", position, " of sequence ", chunk.sequence, " was overwritten in pool ", pool));
      }
      tokens.push_back(expected[position]);
      const bool wanted =
          chunk.logits == WantedLogits::kAll
              ? position >= chunk.position
              : chunk.logits == WantedLogits::kLast && position + 1 == static_cast<int64_t>(expected.size());
      if (!wanted) continue;
      const std::vector<float> row = LogitsAfter(LastOf(tokens, limits_.pools[0].window));
      logits->values.insert(logits->values.end(), row.begin(), row.end());
      ++logits->rows;
    }
    return absl::OkStatus();
  }

  ExecutorLimits limits_;
  std::vector<std::vector<Slot>> slots_;   // by pool
  std::map<int64_t, Sequence> sequences_;  // that have not ended
};

// Says a given sequence of tokens, whatever the prompt: the token after position p is script[p + 1 - prompt length].
class ScriptedExecutor : public SynchronousExecutor {
 public:
  ScriptedExecutor(int64_t prompt_length, std::vector<int32_t> script, int64_t vocab_size)
      : limits_{.vocab_size = vocab_size,
                .pools = {{.num_pages = 64, .page_size = 16}},
                .max_context = 1024,
                .max_step_tokens = 1024,
                .max_sequences = 8},
        prompt_length_(prompt_length),
        script_(std::move(script)) {}

  const ExecutorLimits& limits() const override { return limits_; }

  float filler = 0;  // the logit of every other token

 protected:
  absl::StatusOr<Logits> ComputeLogits(const StepInput& input) override {
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

 private:
  ExecutorLimits limits_;
  int64_t prompt_length_;
  std::vector<int32_t> script_;
};

// Takes no time and samples the token 2.
class NullExecutor : public Executor {
 public:
  explicit NullExecutor(int64_t max_sequences)
      : limits_{.vocab_size = 100,
                .pools = {{.num_pages = 1 << 16, .page_size = 16}},
                .max_context = 1 << 14,
                .max_step_tokens = 1 << 14,
                .max_sequences = max_sequences,
                .max_steps_in_flight = 2,
                .shares_pages = true} {}

  const ExecutorLimits& limits() const override { return limits_; }
  absl::Status Submit(const StepInput& input) override {
    sizes_.push_back(input.chunks.size());
    return CheckStepInput(limits_, input);
  }
  absl::StatusOr<StepResult> Collect() override {
    StepResult result{.sampled = std::vector<SampledToken>(sizes_.front(), {.token = 2})};
    sizes_.pop_front();
    return result;
  }

 private:
  ExecutorLimits limits_;
  std::deque<size_t> sizes_;
};

// Runs the steps of another executor late, as a device does: a step in Collect, with what Submit was given, and the end
// of a sequence after the steps that were submitted before it. The tokens of a step are not known before its Collect.
class LateExecutor : public Executor {
 public:
  explicit LateExecutor(Executor* executor, int64_t depth = 2) : executor_(executor), limits_(executor->limits()) {
    limits_.max_steps_in_flight = depth;
  }

  const ExecutorLimits& limits() const override { return limits_; }

  absl::Status Submit(const StepInput& input) override {
    if (num_steps_ == limits_.max_steps_in_flight) return absl::InvalidArgumentError("too many steps in flight");
    if (absl::Status status = CheckStepInput(limits_, input); !status.ok()) return status;
    auto step = std::make_unique<Step>();
    step->input.copies = input.copies;
    for (const Chunk& chunk : input.chunks) {
      step->ids.emplace_back(chunk.ids.begin(), chunk.ids.end());
      for (const auto& table : chunk.pages) step->pages.emplace_back(table.begin(), table.end());
      const Sampling sampling = chunk.sampling == nullptr ? Sampling{} : *chunk.sampling;
      step->histories.emplace_back(sampling.history.begin(), sampling.history.end());
      step->samplings.push_back(sampling);
    }
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      Chunk chunk = input.chunks[i];
      chunk.ids = step->ids[i];
      for (size_t pool = 0; pool < chunk.pages.size(); ++pool) {
        chunk.pages[pool] = step->pages[i * chunk.pages.size() + pool];
      }
      step->samplings[i].history = step->histories[i];
      if (chunk.sampling != nullptr) chunk.sampling = &step->samplings[i];
      step->input.chunks.push_back(chunk);
    }
    ++num_steps_;
    work_.push_back({.step = std::move(step)});
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Collect() override {
    if (num_steps_ == 0) return absl::FailedPreconditionError("no step is in flight");
    RunEnds();
    const auto step = std::move(work_.front().step);
    work_.pop_front();
    --num_steps_;
    auto result = executor_->RunStep(step->input);
    RunEnds();
    return result;
  }

  void EndSequence(int64_t sequence) override {
    work_.push_back({.ended = sequence});
    if (num_steps_ == 0) RunEnds();
  }

 private:
  struct Step {
    StepInput input;
    std::vector<std::vector<int32_t>> ids, pages, histories;
    std::vector<Sampling> samplings;
  };
  struct Work {
    std::unique_ptr<Step> step;
    int64_t ended = 0;  // if there is no step
  };

  void RunEnds() {
    for (; !work_.empty() && work_.front().step == nullptr; work_.pop_front()) {
      executor_->EndSequence(work_.front().ended);
    }
  }

  Executor* executor_;
  ExecutorLimits limits_;
  std::deque<Work> work_;
  int64_t num_steps_ = 0;
};

}  // namespace llmc
