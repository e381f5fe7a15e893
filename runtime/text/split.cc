#include "runtime/text/split.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

// Joins each match that follows a non-match (in the order given) to it; `spans` runs backwards for the next one.
std::vector<TextSpan> JoinMatches(const std::vector<TextSpan>& spans) {
  std::vector<TextSpan> out;
  bool previous_match = false;
  for (const TextSpan& span : spans) {
    if (span.is_match && !previous_match && !out.empty()) {
      out.back() = {std::min(out.back().begin, span.begin), std::max(out.back().end, span.end), false};
    } else {
      out.push_back(span);
    }
    previous_match = span.is_match;
  }
  return out;
}

std::vector<TextSpan> JoinRuns(const std::vector<TextSpan>& spans) {
  std::vector<TextSpan> out;
  for (const TextSpan& span : spans) {
    if (!out.empty() && out.back().is_match == span.is_match) {
      out.back().end = span.end;
    } else {
      out.push_back(span);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonNode& node, absl::string_view otherwise) {
  ASSIGN_OR_RETURN(const std::string name, node.GetString("behavior", otherwise));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  return node.Error(
      absl::StrCat("behavior must be Removed, Isolated, Contiguous, MergedWithPrevious or "
                   "MergedWithNext, is \"",
                   name, "\""));
}

void Cut(const Piece& piece, std::vector<TextSpan> spans, SplitBehavior behavior, std::vector<Piece>* out) {
  if (behavior == SplitBehavior::kContiguous) spans = JoinRuns(spans);
  if (behavior == SplitBehavior::kMergedWithPrevious) spans = JoinMatches(spans);
  if (behavior == SplitBehavior::kMergedWithNext) {
    std::reverse(spans.begin(), spans.end());
    spans = JoinMatches(spans);
    std::reverse(spans.begin(), spans.end());
  }
  for (const TextSpan& span : spans) {
    if (span.is_match && behavior == SplitBehavior::kRemoved) continue;
    out->push_back({piece.text.substr(span.begin, span.end - span.begin), piece.at_start && span.begin == 0});
  }
}

std::vector<TextSpan> FindChars(absl::string_view text, bool (*is_match)(char32_t)) {
  std::vector<TextSpan> spans;
  size_t between = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = ReadUtf8(text.substr(at));
    if (is_match(c.codepoint)) {
      if (between < at) spans.push_back({between, at, false});
      spans.push_back({at, at + c.bytes, true});
      between = at + c.bytes;
    }
    at += c.bytes;
  }
  if (between < text.size()) spans.push_back({between, text.size(), false});
  return spans;
}

}  // namespace llmc
