#include "runtime/engine/perplexity.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "runtime/engine/sampler.h"
#include "runtime/engine/score.h"

namespace llmc {
namespace {

constexpr absl::string_view kDocumentEnd = "<|endoftext|>";

absl::string_view WithoutLineBreaks(absl::string_view text) {
  while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> Windows(absl::Span<const int32_t> ids,
                                                          const PerplexityOptions& options) {
  if (options.window < 2 || options.max_windows < 0) {
    return absl::InvalidArgumentError(absl::StrCat("perplexity: window is ", options.window,
                                                   ", must be at least 2; max_windows is ", options.max_windows,
                                                   ", must be at least 0"));
  }
  int64_t count = static_cast<int64_t>(ids.size()) / options.window;
  if (count == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("perplexity: the text has ", ids.size(), " tokens, a window needs ", options.window));
  }
  if (options.max_windows > 0) count = std::min(count, options.max_windows);
  std::vector<std::vector<int32_t>> windows;
  for (int64_t i = 0; i < count; ++i) {
    const auto window = ids.subspan(i * options.window, options.window);
    windows.emplace_back(window.begin(), window.end());
  }
  return windows;
}

using ScoredVisitor = absl::FunctionRef<absl::Status(int64_t position, absl::Span<const float> logits)>;

absl::Status NotFinite(int64_t position, size_t window) {
  return absl::InvalidArgumentError(
      absl::StrCat("perplexity: the logits after token ", position, " of window ", window, " are not finite"));
}

// The summed log loss of `windows`, whose first has the number `first`. `visit` gets the logits of each scored token.
absl::StatusOr<double> LogLoss(Executor* executor, absl::Span<const std::vector<int32_t>> windows, size_t first,
                               const std::function<void()>& on_window, ScoredVisitor visit) {
  double loss = 0;
  RETURN_IF_ERROR(VisitLogits(executor, windows, [&](size_t window, int64_t position, absl::Span<const float> logits) {
    if (position + 1 == static_cast<int64_t>(windows[window].size())) {
      on_window();
      return absl::OkStatus();
    }
    const double token_loss = LogSumExp(logits) - logits[windows[window][position + 1]];
    if (!std::isfinite(token_loss)) return NotFinite(position, first + window);
    loss += token_loss;
    return visit(position, logits);
  }));
  return loss;
}

// Compares the distributions of two models, window by window: what the base says is kept until the model says it.
class Comparer {
 public:
  Comparer(Executor* base, Executor* model) : base_(base), model_(model) {}

  absl::Status Check(int64_t window) const {
    const int64_t of_base = base_->limits().vocab_size, of_model = model_->limits().vocab_size;
    if (of_base != of_model) {
      return absl::InvalidArgumentError(absl::StrCat("perplexity: the base has a vocabulary of ", of_base,
                                                     " tokens, the model one of ", of_model,
                                                     "; compare models with the same tokenizer"));
    }
    if (window - 1 <= kMaxKeptBytes / static_cast<int64_t>(sizeof(float)) / of_model) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("perplexity: a window of ", window, " tokens has more than ",
                                                   kMaxKeptBytes >> 30, " GiB of log-probabilities of ", of_model,
                                                   " tokens to compare; give a smaller one"));
  }

  // The model's summed log loss.
  absl::StatusOr<double> Compare(absl::Span<const std::vector<int32_t>> windows,
                                 const std::function<void()>& on_window) {
    const int64_t vocab_size = model_->limits().vocab_size;
    double loss = 0;
    for (size_t i = 0; i < windows.size(); ++i) {
      log_probs_.resize((windows[i].size() - 1) * vocab_size);
      const auto row = [&](int64_t position) {
        return absl::MakeSpan(log_probs_).subspan(position * vocab_size, vocab_size);
      };
      const absl::Span<const std::vector<int32_t>> window = windows.subspan(i, 1);
      ASSIGN_OR_RETURN(const double of_base, LogLoss(
                                                 base_, window, i, [] {},
                                                 [&](int64_t position, absl::Span<const float> logits) {
                                                   LogSoftmax(logits, row(position));
                                                   return absl::OkStatus();
                                                 }));
      base_loss_ += of_base;
      ASSIGN_OR_RETURN(const double of_model,
                       LogLoss(model_, window, i, on_window, [&](int64_t position, absl::Span<const float> logits) {
                         Add(row(position), logits);
                         if (std::isfinite(kl_)) return absl::OkStatus();
                         return absl::InvalidArgumentError(absl::StrCat(
                             "perplexity: after token ", position, " of window ", i,
                             " the model rules out a token that the base does not: the KL divergence is infinite"));
                       }));
      loss += of_model;
    }
    return loss;
  }

  BaseComparison Result(int64_t scored_tokens) const {
    const auto count = static_cast<double>(scored_tokens);
    return {.mean_kl = std::max(0.0, kl_ / count),  // less is what was rounded off
            .agreement = static_cast<double>(num_agreed_) / count,
            .base_perplexity = std::exp(base_loss_ / count)};
  }

 private:
  static constexpr int64_t kMaxKeptBytes = int64_t{8} << 30;

  static void LogSoftmax(absl::Span<const float> logits, absl::Span<float> log_probs) {
    const double log_sum = LogSumExp(logits);
    for (size_t v = 0; v < logits.size(); ++v) log_probs[v] = static_cast<float>(logits[v] - log_sum);
  }

  void Add(absl::Span<const float> base, absl::Span<const float> logits) {
    model_log_probs_.resize(logits.size());
    LogSoftmax(logits, absl::MakeSpan(model_log_probs_));
    for (size_t v = 0; v < base.size(); ++v) {
      const double p = std::exp(base[v]);
      if (p > 0) kl_ += p * (static_cast<double>(base[v]) - model_log_probs_[v]);  // p log p of 0 is 0
    }
    const auto likeliest = [](absl::Span<const float> row) {
      return std::max_element(row.begin(), row.end()) - row.begin();
    };
    num_agreed_ += likeliest(base) == likeliest(logits) ? 1 : 0;
  }

  Executor* base_;
  Executor* model_;
  std::vector<float> log_probs_;        // of the base, of a window
  std::vector<float> model_log_probs_;  // of a token
  double kl_ = 0, base_loss_ = 0;
  int64_t num_agreed_ = 0;
};

}  // namespace

absl::StatusOr<PerplexityResult> Perplexity(Executor* executor, absl::Span<const int32_t> ids,
                                            const PerplexityOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::vector<int32_t>> windows, Windows(ids, options));
  int64_t done = 0;
  const auto on_window = [&] {
    if (options.on_window) options.on_window(++done, static_cast<int64_t>(windows.size()));
  };
  PerplexityResult result{.windows = static_cast<int64_t>(windows.size())};
  result.scored_tokens = result.windows * (options.window - 1);
  double loss = 0;
  if (options.base == nullptr) {
    const auto nothing = [](int64_t, absl::Span<const float>) { return absl::OkStatus(); };
    ASSIGN_OR_RETURN(loss, LogLoss(executor, windows, 0, on_window, nothing));
  } else {
    Comparer comparer(options.base, executor);
    RETURN_IF_ERROR(comparer.Check(options.window));
    ASSIGN_OR_RETURN(loss, comparer.Compare(windows, on_window));
    result.comparison = comparer.Result(result.scored_tokens);
  }
  result.mean_log_loss = loss / static_cast<double>(result.scored_tokens);
  result.perplexity = std::exp(result.mean_log_loss);
  return result;
}

std::string JoinDocuments(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, kDocumentEnd);
  if (parts.size() == 1) return std::string(text);
  return absl::StrJoin(parts, "\n\n",
                       [](std::string* out, absl::string_view part) { absl::StrAppend(out, WithoutLineBreaks(part)); });
}

absl::StatusOr<std::vector<int32_t>> EncodeCorpus(const Tokenizer& tokenizer, absl::string_view text) {
  const EncodeOptions options{.add_special_tokens = false, .parse_special_tokens = true};
  if (tokenizer.TokenId(kDocumentEnd).has_value()) return tokenizer.Encode(text, options);
  return tokenizer.Encode(JoinDocuments(text), options);
}

}  // namespace llmc
