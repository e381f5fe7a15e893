// Cutting a text along the matches of a pattern.
#ifndef LLMC_RUNTIME_TEXT_SPLIT_H_
#define LLMC_RUNTIME_TEXT_SPLIT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/json_node.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/regex.h"

namespace llmc {

// What becomes of a match: dropped, a piece of its own, one piece with the matches beside it, or joined to a neighbour.
enum class SplitBehavior { kRemoved, kIsolated, kContiguous, kMergedWithPrevious, kMergedWithNext };

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonNode& node, absl::string_view otherwise);

// Appends the pieces of `piece` cut at `spans` (which cover it).
void Cut(const Piece& piece, std::vector<TextSpan> spans, SplitBehavior behavior, std::vector<Piece>* out);

// Spans of the single characters for which `is_match(char32_t)` holds, and of what lies between.
std::vector<TextSpan> FindChars(absl::string_view text, bool (*is_match)(char32_t));

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_SPLIT_H_
