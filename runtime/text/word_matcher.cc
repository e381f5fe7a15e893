#include "runtime/text/word_matcher.h"

#include <oniguruma.h>

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/text/utf8.h"

namespace llmc {

const char kGpt2WordPattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

// Sets of characters that the patterns name.
enum CharSet : uint8_t {
  kLetter = 1,   // \p{L}
  kNumber = 2,   // \p{N}
  kSpace = 4,    // \s
  kNewline = 8,  // [\r\n]
  kUpper = 16,   // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLower = 32,   // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  kNoOther = kLetter | kNumber | kSpace,
};

// The sets as Oniguruma has them, whose Unicode version need not be that of other libraries here.
class CharSets {
 public:
  CharSets() {
    const struct {
      const char* name;
      uint8_t sets;
    } properties[] = {{"Lu", kLetter | kUpper},
                      {"Lt", kLetter | kUpper},
                      {"Ll", kLetter | kLower},
                      {"M", kUpper | kLower},
                      {"Lm", kLetter | kUpper | kLower},
                      {"Lo", kLetter | kUpper | kLower},
                      {"N", kNumber}};
    OnigEncoding encoding = ONIG_ENCODING_UTF8;
    for (const auto& [name, sets] : properties) {
      const auto* begin = reinterpret_cast<const OnigUChar*>(name);
      auto* end = const_cast<OnigUChar*>(begin) + std::char_traits<char>::length(name);
      ctypes_.push_back({encoding->property_name_to_ctype(encoding, const_cast<OnigUChar*>(begin), end), sets});
    }
    ctypes_.push_back({ONIGENC_CTYPE_SPACE, kSpace});
    for (char32_t c = 0; c < kTableSize; ++c) table_[c] = LookUp(c);
    table_['\r'] |= kNewline;
    table_['\n'] |= kNewline;
  }

  uint8_t Of(char32_t c) const { return c < kTableSize ? table_[c] : LookUp(c); }

 private:
  static constexpr char32_t kTableSize = 0x10000;
  struct Ctype {
    int ctype;
    uint8_t sets;
  };

  uint8_t LookUp(char32_t c) const {
    OnigEncoding encoding = ONIG_ENCODING_UTF8;
    uint8_t sets = 0;
    for (const Ctype& known : ctypes_) {
      if (encoding->is_code_ctype(c, static_cast<unsigned>(known.ctype)) != 0) sets |= known.sets;
    }
    return sets;
  }

  std::vector<Ctype> ctypes_;
  std::array<uint8_t, kTableSize> table_;
};

// A place in a text.
class Cursor {
 public:
  Cursor(absl::string_view text, size_t at) : sets_(Sets()), text_(text), at_(at) { Read(); }

  size_t at() const { return at_; }
  bool is_end() const { return at_ == text_.size(); }
  // The sets of the character here; none at the end of the text.
  uint8_t sets() const { return current_; }
  bool Is(char c) const { return !is_end() && text_[at_] == c; }
  // Whether a character is here that is no letter, number or space.
  bool IsOther() const { return !is_end() && (current_ & kNoOther) == 0; }
  void Advance() {
    at_ += bytes_;
    Read();
  }
  void SkipAll(uint8_t sets) {
    while ((current_ & sets) != 0) Advance();
  }
  void SkipOthers() {
    while (IsOther()) Advance();
  }

 private:
  static const CharSets& Sets() {
    static const auto* sets = new CharSets();
    return *sets;
  }
  void Read() {
    current_ = 0;
    bytes_ = 0;
    if (is_end()) return;
    const auto first = static_cast<uint8_t>(text_[at_]);
    if (first < 0x80) {
      bytes_ = 1;
      current_ = sets_.Of(first);
      return;
    }
    const Utf8Char c = ReadUtf8(text_.substr(at_));
    bytes_ = c.bytes;
    current_ = sets_.Of(c.codepoint);
  }

  const CharSets& sets_;
  absl::string_view text_;
  size_t at_;
  size_t bytes_ = 0;
  uint8_t current_ = 0;
};

// The end of 's 't 're 've 'm 'll 'd at `at`, or `at` if none is there.
size_t ContractionEnd(absl::string_view text, size_t at, bool any_case) {
  if (at + 1 >= text.size() || text[at] != '\'') return at;
  // U+017F is an s of another case.
  if (any_case && text.substr(at + 1, 2) == "\xC5\xBF") return at + 3;
  const auto lower = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char first = lower(at + 1), second = lower(at + 2);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
  const bool is_long = (first == 'l' && second == 'l') || ((first == 'v' || first == 'r') && second == 'e');
  return is_long ? at + 3 : at;
}

// What the alternatives for white space have in common.
enum class SpaceRule {
  kPlain,         // \s+(?!\S)|\s+
  kLines,         // \s*[\r\n]+|\s+(?!\S)|\s+
  kLinesButLast,  // the same, but white space up to the end of the text is one word
};

size_t SpaceEnd(absl::string_view text, size_t at, SpaceRule rule) {
  Cursor cursor(text, at);
  size_t last = at, line_end = at;  // the last character of the white space; the end of its last line
  while ((cursor.sets() & kSpace) != 0) {
    last = cursor.at();
    const bool is_newline = (cursor.sets() & kNewline) != 0;
    cursor.Advance();
    if (is_newline) line_end = cursor.at();
  }
  if (rule == SpaceRule::kLinesButLast && cursor.is_end()) return cursor.at();
  if (rule != SpaceRule::kPlain && line_end > at) return line_end;
  return cursor.is_end() || last == at ? cursor.at() : last;
}

size_t Gpt2Word(absl::string_view text, size_t at) {
  if (const size_t end = ContractionEnd(text, at, /*any_case=*/false); end > at) return end;
  Cursor cursor(text, at);
  if (cursor.Is(' ')) cursor.Advance();
  if (const uint8_t set = cursor.sets() & (kLetter | kNumber); set != 0) {
    cursor.SkipAll(set);
    return cursor.at();
  }
  if (!cursor.IsOther()) return SpaceEnd(text, at, SpaceRule::kPlain);
  cursor.SkipOthers();
  return cursor.at();
}

// Numbers of up to `digits`, ` ?[^\s\p{L}\p{N}]+` with line ends (and slashes) behind, or white space.
template <int digits, SpaceRule rule, bool slashes>
size_t NoLetterWord(absl::string_view text, size_t at) {
  Cursor cursor(text, at);
  if ((cursor.sets() & kNumber) != 0) {
    for (int i = 0; i < digits && (cursor.sets() & kNumber) != 0; ++i) cursor.Advance();
    return cursor.at();
  }
  if (cursor.Is(' ')) cursor.Advance();
  if (!cursor.IsOther()) return SpaceEnd(text, at, rule);
  cursor.SkipOthers();
  while ((cursor.sets() & kNewline) != 0 || (slashes && cursor.Is('/'))) cursor.Advance();
  return cursor.at();
}

// Of cl100k, Llama 3 and Qwen2.
template <int digits, SpaceRule rule>
size_t Cl100kWord(absl::string_view text, size_t at) {
  if (const size_t end = ContractionEnd(text, at, /*any_case=*/true); end > at) return end;
  Cursor cursor(text, at);
  if ((cursor.sets() & (kLetter | kNumber | kNewline)) == 0) cursor.Advance();
  if ((cursor.sets() & kLetter) != 0) {
    cursor.SkipAll(kLetter);
    return cursor.at();
  }
  return NoLetterWord<digits, rule, /*slashes=*/false>(text, at);
}

// [upper]*[lower]+ at `at`; `at` if it does not match. The sets overlap: where no lower character is behind the upper
// ones, the match gives some back, and ends behind the last that is both.
size_t UpperLowerEnd(absl::string_view text, size_t at) {
  Cursor cursor(text, at);
  size_t last_both = at;
  while ((cursor.sets() & kUpper) != 0) {
    const bool is_both = (cursor.sets() & kLower) != 0;
    cursor.Advance();
    if (is_both) last_both = cursor.at();
  }
  if ((cursor.sets() & kLower) == 0) return last_both;
  cursor.SkipAll(kLower);
  return cursor.at();
}

// [upper]+[lower]* at `at`; `at` if it does not match.
size_t UpperEnd(absl::string_view text, size_t at) {
  Cursor cursor(text, at);
  if ((cursor.sets() & kUpper) == 0) return at;
  cursor.SkipAll(kUpper);
  cursor.SkipAll(kLower);
  return cursor.at();
}

// Of o200k, and of Mistral's tekken.
template <int digits, bool contractions>
size_t O200kWord(absl::string_view text, size_t at) {
  Cursor cursor(text, at);
  const bool has_prefix = (cursor.sets() & (kLetter | kNumber | kNewline)) == 0;
  size_t behind = at;
  if (has_prefix) {
    cursor.Advance();
    behind = cursor.at();
  }
  for (const auto match : {UpperLowerEnd, UpperEnd}) {
    size_t begin = behind;
    size_t end = match(text, begin);
    if (end == begin && has_prefix)
      end = match(text, begin = at);  // the prefix may be a mark, which is upper and lower
    if (end > begin) return contractions ? ContractionEnd(text, end, /*any_case=*/true) : end;
  }
  return NoLetterWord<digits, SpaceRule::kLines, /*slashes=*/true>(text, at);
}

struct KnownPattern {
  const char* text;
  bool rust_syntax;
  WordMatcher matcher;
};

const KnownPattern kKnownPatterns[] = {
    {kGpt2WordPattern, false, Gpt2Word},
    {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", true, Gpt2Word},
    // Qwen2
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false, Cl100kWord<1, SpaceRule::kLines>},
    // Llama 3
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false, Cl100kWord<3, SpaceRule::kLines>},
    {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n])"
     R"(|\s+(?!\S)|\s)",
     true, Cl100kWord<3, SpaceRule::kLinesButLast>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     true, O200kWord<3, true>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
     R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     false, O200kWord<3, true>},
    {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
     R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
     R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     true, O200kWord<1, false>},
};

}  // namespace

WordMatcher FindWordMatcher(absl::string_view pattern, bool rust_syntax) {
  for (const KnownPattern& known : kKnownPatterns) {
    if (known.text == pattern && known.rust_syntax == rust_syntax) return known.matcher;
  }
  return nullptr;
}

}  // namespace llmc
