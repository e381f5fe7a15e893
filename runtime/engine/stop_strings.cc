#include "runtime/engine/stop_strings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"

namespace llmc {
namespace {

// The length of the longest end of `text` that begins `stop`, but is not all of it.
size_t PartialMatch(absl::string_view text, absl::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (absl::StartsWith(stop, text.substr(text.size() - length))) return length;
  }
  return 0;
}

}  // namespace

std::string StopStrings::Push(absl::string_view text) {
  if (found_) return "";
  held_.append(text.data(), text.size());
  // The one that is complete first ends the text, the longer of two, so that it does not matter how the text was cut.
  size_t begin = 0, end = std::string::npos, partial = 0;
  for (const std::string& stop : stops_) {
    partial = std::max(partial, PartialMatch(held_, stop));
    const size_t at = held_.find(stop);
    if (at == std::string::npos || at + stop.size() > end) continue;
    begin = at + stop.size() == end ? std::min(begin, at) : at;
    end = at + stop.size();
  }
  found_ = end != std::string::npos;
  std::string out = held_.substr(0, found_ ? begin : held_.size() - partial);
  held_ = found_ ? "" : held_.substr(out.size());
  return out;
}

std::string StopStrings::Finish() { return std::exchange(held_, ""); }

}  // namespace llmc
