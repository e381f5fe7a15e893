// What runs the steps of a language model: on the host, on a device, or in a test.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace llmc {

// Which rows of logits a chunk of tokens gives.
enum class WantedLogits : uint8_t { kNone, kLast, kAll };

// The next tokens of one sequence: a piece of its prompt, or one token that was sampled.
struct Chunk {
  int64_t sequence = 0;             // a number that names the sequence from its first chunk to EndSequence
  absl::Span<const int32_t> ids;    // at least one
  int64_t position = 0;             // of ids[0]; all tokens before it were in earlier steps
  absl::Span<const int32_t> pages;  // the sequence's page table; covers at least position + ids.size() tokens
  WantedLogits logits = WantedLogits::kNone;
};

struct StepInput {
  std::vector<Chunk> chunks;  // of different sequences
};

// Rows of f32, in the order of the chunks.
struct Logits {
  // Chunks (by their index) that failed alone: they gave no rows, and their sequences cannot go on.
  std::map<size_t, absl::Status> failed;
  int64_t rows = 0;
  int64_t vocab_size = 0;
  std::vector<float> values;  // [rows, vocab_size]

  absl::Span<const float> row(int64_t r) const {
    return absl::MakeConstSpan(values).subspan(r * vocab_size, vocab_size);
  }
};

struct ExecutorLimits {
  int64_t vocab_size = 0;
  int64_t page_size = 0;    // tokens in a page
  int64_t num_pages = 0;    // page numbers are [0, num_pages)
  int64_t max_context = 0;  // tokens of a sequence
  int64_t max_step_tokens = 0;
  int64_t max_sequences = 0;  // in one step
};

// One thread at a time.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual const ExecutorLimits& limits() const = 0;
  // InvalidArgument if `input` breaks a limit, with no state changed. After any other error the contents of the
  // sequences in this step are undefined. What went wrong with some chunks only is in Logits::failed.
  virtual absl::StatusOr<Logits> RunStep(const StepInput& input) = 0;
  // The sequence will not be continued; its pages may belong to others from now on.
  virtual void EndSequence(int64_t /*sequence*/) {}
};

// InvalidArgument, naming the chunk, if the input breaks a limit: for executors to call first.
absl::Status CheckStepInput(const ExecutorLimits& limits, const StepInput& input);

int64_t PagesFor(int64_t tokens, int64_t page_size);

}  // namespace llmc
