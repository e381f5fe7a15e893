// What Python knows of characters, by ICU's tables.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc::jinja {

// All texts are valid UTF-8.

int64_t CodePoints(absl::string_view text);
// Where the code point of that number begins; the size of `text` if there are no more.
size_t OffsetOf(absl::string_view text, int64_t code_point);
// The code point at a byte, and how many bytes it has.
std::pair<char32_t, size_t> CodePointAt(absl::string_view text, size_t offset);
// Where the code point that ends before `offset` begins.
size_t Before(absl::string_view text, size_t offset);

// As the methods of Python's str.
bool IsSpace(char32_t c);
bool IsPrintable(char32_t c);
bool IsAlpha(char32_t c);
bool IsDecimal(char32_t c);
bool IsDigit(char32_t c);
bool IsNumeric(char32_t c);
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsCased(char32_t c);
bool IsWord(char32_t c);       // \w of Python's re
bool IsLineBreak(char32_t c);  // of splitlines()

std::string Upper(absl::string_view text);
std::string Lower(absl::string_view text);
std::string Capitalize(absl::string_view text);
std::string TitleCase(absl::string_view text);  // every run of cased characters capitalized
std::string SwapCase(absl::string_view text);

// The text from which white space is stripped: [begin, end) of `text`.
std::pair<size_t, size_t> StripSpace(absl::string_view text, bool left, bool right);
// The same for the characters of `chars`.
std::pair<size_t, size_t> StripChars(absl::string_view text, absl::string_view chars, bool left, bool right);

}  // namespace llmc::jinja
