// Operations on texts that keep where each byte came from. Filters and methods are made of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/chat/interpreter.h"

namespace llmc::jinja {

Text PartOf(Interpreter& run, const Text& text, size_t begin, size_t end);
// Without the characters of `chars` at its ends; nullptr: without white space.
Text Strip(Interpreter& run, const Text& text, const std::string* chars, bool left, bool right);
// At most `most` times, -1: everywhere. An empty `from` stands before each character and at the end.
Text Replace(Interpreter& run, const Text& text, absl::string_view from, const Text& to, int64_t most);
// The parts between separators, at most `most` of which count (-1: all), from the left or the right. nullptr: runs of
// white space separate, and there is no empty part.
std::vector<Text> Split(Interpreter& run, const Text& text, const std::string* separator, int64_t most, bool right);
std::vector<Text> SplitLines(Interpreter& run, const Text& text, bool keep_ends);
Text Join(Interpreter& run, const std::vector<Text>& parts, const Text& separator);
// What `convert` makes of the text. Where only parts of it came from the conversation, all of the result counts so.
Text Convert(Interpreter& run, const Text& text, const std::function<std::string(absl::string_view)>& convert);
// Filled up to a width in code points: on the left for a part `left` in 2 of what is missing (0, 1 or 2).
Text Pad(Interpreter& run, const Text& text, int64_t width, absl::string_view fill, int left);

// With & < > ' and " as HTML writes them.
Text EscapeHtml(Interpreter& run, const Text& text);

Value StringList(Interpreter& run, std::vector<Text> parts);

}  // namespace llmc::jinja
