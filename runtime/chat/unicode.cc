#include "runtime/chat/unicode.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "absl/strings/match.h"
#include "runtime/text/utf8.h"

namespace llmc::jinja {
namespace {

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

uint32_t Category(char32_t c) { return U_MASK(u_charType(static_cast<UChar32>(c))); }

std::string ToUtf8(const icu::UnicodeString& text) {
  std::string bytes;
  text.toUTF8String(bytes);
  return bytes;
}

icu::UnicodeString FromUtf8(absl::string_view text) {
  return icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

// One character in title case, which may be several.
std::string TitleOf(absl::string_view character) {
  return ToUtf8(FromUtf8(character).toTitle(nullptr, icu::Locale::getRoot(), U_TITLECASE_NO_LOWERCASE));
}

// `strips` tells which characters go.
template <class Strips>
std::pair<size_t, size_t> Strip(absl::string_view text, bool left, bool right, const Strips& strips) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const auto [c, bytes] = CodePointAt(text, begin);
    if (!strips(c, text.substr(begin, bytes))) break;
    begin += bytes;
  }
  while (right && begin < end) {
    const size_t at = Before(text, end);
    if (!strips(CodePointAt(text, at).first, text.substr(at, end - at))) break;
    end = at;
  }
  return {begin, end};
}

}  // namespace

int64_t CodePoints(absl::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += IsContinuation(c) ? 0 : 1;
  return count;
}

size_t OffsetOf(absl::string_view text, int64_t code_point) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (!IsContinuation(text[i]) && code_point-- == 0) return i;
  }
  return text.size();
}

std::pair<char32_t, size_t> CodePointAt(absl::string_view text, size_t offset) {
  const auto byte = static_cast<unsigned char>(text[offset]);
  if (byte < 0x80) return {byte, 1};
  const Utf8Char c = ReadUtf8(text.substr(offset));
  return {c.codepoint, c.bytes};
}

size_t Before(absl::string_view text, size_t offset) {
  do {
    --offset;
  } while (offset > 0 && IsContinuation(text[offset]));
  return offset;
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  constexpr uint32_t kNot = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' || (Category(c) & kNot) == 0;
}

bool IsAlpha(char32_t c) { return (Category(c) & U_GC_L_MASK) != 0; }
bool IsDecimal(char32_t c) { return (Category(c) & U_GC_ND_MASK) != 0; }

bool IsDigit(char32_t c) {
  const int type = u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

bool IsNumeric(char32_t c) { return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE; }

bool IsUpper(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_UPPERCASE) != 0; }
bool IsLower(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_LOWERCASE) != 0; }
bool IsTitle(char32_t c) { return (Category(c) & U_GC_LT_MASK) != 0; }
bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }
bool IsWord(char32_t c) { return c == '_' || IsAlpha(c) || IsNumeric(c); }

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

std::string Upper(absl::string_view text) { return ToUtf8(FromUtf8(text).toUpper(icu::Locale::getRoot())); }
std::string Lower(absl::string_view text) { return ToUtf8(FromUtf8(text).toLower(icu::Locale::getRoot())); }

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  const size_t first = CodePointAt(text, 0).second;
  return TitleOf(text.substr(0, first)) + Lower(text).substr(Lower(text.substr(0, first)).size());
}

std::string TitleCase(absl::string_view text) {
  std::string result;
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const auto [c, bytes] = CodePointAt(text, i);
    const absl::string_view character = text.substr(i, bytes);
    result += in_word ? Lower(character) : TitleOf(character);
    in_word = IsCased(c);
    i += bytes;
  }
  return result;
}

std::string SwapCase(absl::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const auto [c, bytes] = CodePointAt(text, i);
    const absl::string_view character = text.substr(i, bytes);
    result += IsUpper(c) ? Lower(character) : IsLower(c) ? Upper(character) : std::string(character);
    i += bytes;
  }
  return result;
}

std::pair<size_t, size_t> StripSpace(absl::string_view text, bool left, bool right) {
  return Strip(text, left, right, [](char32_t c, absl::string_view) { return IsSpace(c); });
}

std::pair<size_t, size_t> StripChars(absl::string_view text, absl::string_view chars, bool left, bool right) {
  return Strip(text, left, right,
               [chars](char32_t, absl::string_view character) { return absl::StrContains(chars, character); });
}

}  // namespace llmc::jinja
