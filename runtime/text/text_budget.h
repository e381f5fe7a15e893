// What one call of the tokenizer may write and compute, so that no file makes a short text endless.
#ifndef LLMC_RUNTIME_TEXT_TEXT_BUDGET_H_
#define LLMC_RUNTIME_TEXT_TEXT_BUDGET_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace llmc {

// No text is longer anywhere, so positions fit int32_t.
inline constexpr size_t kMaxTextBytes = size_t{1} << 30;

class TextBudget {
 public:
  explicit TextBudget(size_t input_bytes) { Grant(input_bytes); }

  // Adds what a text of `input_bytes` may cost. 64 bytes for one cover any real chain: a step writes at most 22 (NFKD
  // with ByteLevel of U+FDFA), and most write as many as they read.
  void Grant(size_t input_bytes) {
    bytes_ += 64 * input_bytes;
    retries += 64 * input_bytes;
    microseconds += static_cast<int64_t>(4 * input_bytes);
  }

  // How long the next text may be.
  size_t left() const { return std::min(bytes_, kMaxTextBytes); }

  // Counts the bytes that a step has written.
  absl::Status Spend(size_t bytes) {
    if (bytes > left()) return absl::ResourceExhaustedError("the steps make far more text than they were given");
    bytes_ -= bytes;
    return absl::OkStatus();
  }

  // Of searches for patterns: steps back to an earlier choice, and processor time.
  uint64_t retries = 1'000'000;
  int64_t microseconds = 250'000;

 private:
  size_t bytes_ = size_t{1} << 20;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_TEXT_BUDGET_H_
