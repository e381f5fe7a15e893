#include "runtime/engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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

}  // namespace

absl::StatusOr<PerplexityResult> Perplexity(Executor* executor, absl::Span<const int32_t> ids,
                                            const PerplexityOptions& options) {
  const auto windows = Windows(ids, options);
  if (!windows.ok()) return windows.status();
  double loss = 0;
  int64_t done = 0;
  absl::Status status =
      VisitLogits(executor, *windows, [&](size_t window, int64_t position, absl::Span<const float> logits) {
        if (position + 1 == options.window) {
          if (options.on_window) options.on_window(++done, static_cast<int64_t>(windows->size()));
          return absl::OkStatus();
        }
        const double token_loss = LogSumExp(logits) - logits[(*windows)[window][position + 1]];
        if (!std::isfinite(token_loss)) {
          return absl::InvalidArgumentError(
              absl::StrCat("perplexity: the logits after token ", position, " of window ", window, " are not finite"));
        }
        loss += token_loss;
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  PerplexityResult result{.windows = static_cast<int64_t>(windows->size())};
  result.scored_tokens = result.windows * (options.window - 1);
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
