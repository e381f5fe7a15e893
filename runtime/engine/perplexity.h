// Perplexity of a language model on a text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/engine/executor.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

struct PerplexityOptions {
  int64_t window = 512;                                        // tokens; at least 2
  int64_t max_windows = 0;                                     // only the first ones; 0: all
  std::function<void(int64_t done, int64_t total)> on_window;  // called after each window, if set
};

struct PerplexityResult {
  double perplexity = 0;      // exp(mean_log_loss)
  double mean_log_loss = 0;   // nats per scored token
  int64_t scored_tokens = 0;  // windows * (window - 1)
  int64_t windows = 0;
};

// Cuts `ids` into consecutive windows and drops the rest. Each token of a window but the first is scored given the
// window so far. InvalidArgument: there is no whole window, or the window is longer than the model's context or the
// logits are not finite.
absl::StatusOr<PerplexityResult> Perplexity(Executor* executor, absl::Span<const int32_t> ids,
                                            const PerplexityOptions& options);

// The ids of a corpus, without special tokens. "<|endoftext|>" separates its documents; a tokenizer that does not know
// this token gets them joined by a blank line (JoinDocuments).
absl::StatusOr<std::vector<int32_t>> EncodeCorpus(const Tokenizer& tokenizer, absl::string_view text);
// The documents without line breaks at their ends, joined by "\n\n". A text without "<|endoftext|>" stays as it is.
std::string JoinDocuments(absl::string_view text);

}  // namespace llmc
