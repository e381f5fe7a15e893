// UTF-8 reading, writing and repair.
#ifndef LLMC_RUNTIME_TEXT_UTF8_H_
#define LLMC_RUNTIME_TEXT_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// What stands at the front of some bytes.
struct Utf8Char {
  enum Kind { kValid, kInvalid, kTruncated } kind;
  size_t bytes;        // length of the character, or of the longest wrong or cut-off part of one; at least 1
  char32_t codepoint;  // kValid only
};

// ReadUtf8 of what begins with no ASCII character.
Utf8Char ReadLongUtf8(absl::string_view bytes);

// Reads the first character of `bytes`, which must not be empty. kTruncated: more bytes could make it valid.
inline Utf8Char ReadUtf8(absl::string_view bytes) {
  const auto first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {Utf8Char::kValid, 1, first};
  return ReadLongUtf8(bytes);
}

void AppendUtf8(char32_t codepoint, std::string* out);

bool IsOneChar(absl::string_view bytes);

bool IsValidUtf8(absl::string_view bytes);

// Moves all of `pending` that is decided to `out`; each wrong sequence becomes one U+FFFD (as the Unicode standard
// recommends). With `last` a cut-off character at the end is wrong too; else it stays in `pending`.
void DrainUtf8(std::string* pending, bool last, std::string* out);

// `bytes` with every wrong sequence replaced by U+FFFD.
std::string RepairUtf8(absl::string_view bytes);

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_UTF8_H_
