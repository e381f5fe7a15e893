// Perplexity of a language model on a text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
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
  Executor* base = nullptr;                                    // a model of the same tokens to compare with, if set
};

// How far what a model says of the next token is from what a base says, over the scored tokens.
struct BaseComparison {
  // KL(base || model) = sum over the vocabulary of p_base * (log p_base - log p_model), in nats; of log-softmax in f32.
  double mean_kl = 0;
  double agreement = 0;  // the share of tokens for which both find the same token likeliest (of equal ones the first)
  double base_perplexity = 0;  // of the base on the same windows
};

struct PerplexityResult {
  double perplexity = 0;      // exp(mean_log_loss)
  double mean_log_loss = 0;   // nats per scored token
  int64_t scored_tokens = 0;  // windows * (window - 1)
  int64_t windows = 0;
  std::optional<BaseComparison> comparison;  // if there is a base
};

// Cuts `ids` into consecutive windows and drops the rest. Each token of a window but the first is scored given the
// window so far. With a base the windows run one after the other, each by the base first; of one window, (window - 1) *
// vocabulary numbers of f32 are kept. InvalidArgument: there is no whole window, or the window is longer than the
// model's context, or the logits are not finite; the base has another vocabulary, or so many numbers are above 8 GiB,
// or the model rules out a token that the base does not, so that the divergence is infinite.
absl::StatusOr<PerplexityResult> Perplexity(Executor* executor, absl::Span<const int32_t> ids,
                                            const PerplexityOptions& options);

// The ids of a corpus, without special tokens. "<|endoftext|>" separates its documents; a tokenizer that does not know
// this token gets them joined by a blank line (JoinDocuments).
absl::StatusOr<std::vector<int32_t>> EncodeCorpus(const Tokenizer& tokenizer, absl::string_view text);
// The documents without line breaks at their ends, joined by "\n\n". A text without "<|endoftext|>" stays as it is.
std::string JoinDocuments(absl::string_view text);

}  // namespace llmc
