#include "runtime/chat/lexer.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/chat/unicode.h"
#include "runtime/text/utf8.h"

namespace llmc::jinja {
namespace {

// Longer ones first.
constexpr absl::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                            "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool IsDigitByte(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }

// Digits with single underscores between them, from `at` on: where they end.
size_t EndOfDigits(absl::string_view text, size_t at, bool (*is_digit)(char)) {
  size_t end = at;
  while (end < text.size()) {
    if (is_digit(text[end])) {
      ++end;
    } else if (end > at && text[end] == '_' && end + 1 < text.size() && is_digit(text[end + 1])) {
      end += 2;
    } else {
      break;
    }
  }
  return end;
}

// Python's unicode_escape, on a text whose other characters than ASCII are escaped first: a backslash before one is
// thus a backslash before a backslash.
class Unescaper {
 public:
  Unescaper(absl::string_view text, Budget* budget) : text_(text), budget_(budget) {}

  std::string Run() {
    while (at_ < text_.size()) {
      if (text_[at_] != '\\') {
        result_ += text_[at_++];
      } else {
        ++at_;
        Escape();
      }
    }
    return std::move(result_);
  }

 private:
  void Escape() {
    const auto c = static_cast<unsigned char>(text_[at_]);
    if (c >= 0x80) {
      const auto [code, bytes] = CodePointAt(text_, at_);
      const std::string hex = absl::AsciiStrToLower(absl::StrCat(absl::Hex(static_cast<uint32_t>(code))));
      const size_t digits = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
      absl::StrAppend(&result_, "\\",
                      code < 0x100     ? "x"
                      : code < 0x10000 ? "u"
                                       : "U",
                      std::string(digits - hex.size(), '0'), hex);
      at_ += bytes;
      return;
    }
    ++at_;
    constexpr absl::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    if (const size_t simple = kFrom.find(static_cast<char>(c)); simple != absl::string_view::npos) {
      result_ += kTo[simple];
    } else if (c == '\n') {
      // The line goes on.
    } else if (c == 'x' || c == 'u' || c == 'U') {
      Code(c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
    } else if (c >= '0' && c <= '7') {
      --at_;
      size_t digits = 0;
      while (digits < 3 && at_ + digits < text_.size() && text_[at_ + digits] >= '0' && text_[at_ + digits] <= '7') {
        ++digits;
      }
      Code(digits, 8);
    } else if (c == 'N') {
      budget_->Refuse("the escape \\N{...} of a string is not supported; write the character itself");
    } else {
      result_ += '\\';
      result_ += static_cast<char>(c);
    }
  }

  void Code(size_t digits, int base) {
    const absl::string_view text = text_.substr(at_, digits);
    uint32_t code = 0;
    const auto is_digit = [base](char c) {
      return base == 8 ? c >= '0' && c <= '7' : absl::ascii_isxdigit(static_cast<unsigned char>(c));
    };
    if (text.size() != digits || !std::all_of(text.begin(), text.end(), is_digit)) {
      budget_->Fail("a string has an escape with too few digits");
    }
    for (const char c : text) {
      const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
      code = code * static_cast<uint32_t>(base) + static_cast<uint32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      budget_->Fail("a string has an escape that is no character");
    }
    AppendUtf8(code, &result_);
    at_ += digits;
  }

  absl::string_view text_;
  Budget* budget_;
  size_t at_ = 0;
  std::string result_;
};

class Lexer {
 public:
  Lexer(absl::string_view source, Budget* budget) : source_(source), budget_(budget) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) Root();
    Add(Token::kEnd, "");
    return std::move(tokens_);
  }

 private:
  bool At(absl::string_view text) const { return absl::StartsWith(source_.substr(at_), text); }
  void Add(Token::Kind kind, absl::string_view text) {
    budget_->Step();
    tokens_.push_back({kind, std::string(text), line_});
  }
  void Advance(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + bytes), '\n'));
    at_ += bytes;
    budget_->line = line_;
  }
  void SkipSpace() {
    while (at_ < source_.size()) {
      const auto [c, bytes] = CodePointAt(source_, at_);
      if (!IsSpace(c)) break;
      Advance(bytes);
    }
  }
  char TakeSign() {
    if (!At("-") && !At("+")) return 0;
    const char sign = source_[at_];
    Advance(1);
    return sign;
  }

  // The data from `begin` to `end`, which a tag with that sign follows.
  void AddData(size_t begin, size_t end, char sign, bool is_variable, bool line_starting) {
    absl::string_view data = source_.substr(begin, end - begin);
    if (sign == '-') {
      data = data.substr(0, StripSpace(data, false, true).second);
    } else if (sign != '+' && !is_variable) {
      // White space between the beginning of the line and a tag goes.
      const size_t newline = data.rfind('\n');
      const size_t line = newline == absl::string_view::npos ? 0 : newline + 1;
      const bool is_blank = StripSpace(data.substr(line), true, false).first == data.size() - line;
      if ((line > 0 || line_starting) && is_blank) data = data.substr(0, line);
    }
    if (!data.empty()) Add(Token::kData, data);
  }

  // Takes the end of a block, raw block or comment, if it is here: "+%}", "-%}" with white space, or "%}" with a
  // newline.
  bool TakeEnd(absl::string_view end, bool trims_newline) {
    const char sign = At("-") || (At("+") && trims_newline) ? source_[at_] : 0;
    const size_t signs = sign == 0 ? 0 : 1;
    if (!absl::StartsWith(source_.substr(at_ + signs), end)) return false;
    Advance(signs + end.size());
    const size_t from = at_;
    if (sign == '-') SkipSpace();
    if (sign == 0 && trims_newline && At("\n")) Advance(1);
    line_starting_ = at_ > from && source_[at_ - 1] == '\n';
    return true;
  }

  void Root() {
    const size_t begin = at_;
    size_t tag = begin;
    do {
      tag = source_.find('{', tag);
      if (tag == absl::string_view::npos || tag + 1 >= source_.size()) {
        Add(Token::kData, source_.substr(begin));
        Advance(source_.size() - begin);
        return;
      }
      ++tag;
    } while (source_[tag] != '{' && source_[tag] != '%' && source_[tag] != '#');
    const char what = source_[tag];
    Advance(tag + 1 - begin);
    const char sign = TakeSign();
    AddData(begin, tag - 1, sign, what == '{', line_starting_);
    line_starting_ = false;
    if (what == '#') {
      Comment();
    } else if (what == '{') {
      Inside(Token::kVariableBegin, Token::kVariableEnd);
    } else if (!Raw()) {
      Inside(Token::kBlockBegin, Token::kBlockEnd);
    }
  }

  void Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == absl::string_view::npos) budget_->Fail("a comment has no end: '#}' is missing");
    const bool has_sign = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+');
    Advance(end - at_ - (has_sign ? 1 : 0));
    TakeEnd("#}", true);
  }

  // After "{%": a whole raw block.
  bool Raw() {
    const size_t begin = at_;
    const int line = line_;
    const auto word = [this](absl::string_view name) {
      SkipSpace();
      if (!At(name)) return false;
      Advance(name.size());
      SkipSpace();
      return true;
    };
    if (!word("raw") || !TakeEnd("%}", false)) {
      at_ = begin;
      line_ = line;
      return false;
    }
    const size_t data = at_;
    const bool line_starting = line_starting_;
    for (size_t tag = source_.find("{%", at_); tag != absl::string_view::npos; tag = source_.find("{%", tag + 1)) {
      budget_->Step();
      Advance(tag + 2 - at_);
      const char sign = TakeSign();
      if (!word("endraw") || !TakeEnd("%}", true)) continue;
      AddData(data, tag, sign, false, line_starting);
      return true;
    }
    budget_->Fail("a raw block has no end: {% endraw %} is missing");
  }

  void Inside(Token::Kind begin, Token::Kind end) {
    Add(begin, "");
    const bool is_block = begin == Token::kBlockBegin;
    std::string open;  // the closing brackets that are due
    while (true) {
      if (open.empty() && TakeEnd(is_block ? "%}" : "}}", is_block)) break;
      SkipSpace();
      if (open.empty() && TakeEnd(is_block ? "%}" : "}}", is_block)) break;
      if (at_ >= source_.size()) {
        budget_->Fail(absl::StrCat("a tag has no end: '", is_block ? "%}" : "}}", "' is missing"));
      }
      if (!Number() && !Name() && !String()) Operator(&open);
    }
    Add(end, "");
  }

  bool Number() {
    if (!IsDigitByte(source_[at_])) return false;
    const absl::string_view rest = source_.substr(at_);
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    size_t end = EndOfDigits(rest, 0, IsDigitByte);
    const size_t whole = end;
    if (end + 1 < rest.size() && rest[end] == '.' && IsDigitByte(rest[end + 1])) {
      end = EndOfDigits(rest, end + 1, IsDigitByte);
    }
    if (end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      const size_t digits = end + 1 + (end + 1 < rest.size() && (rest[end + 1] == '+' || rest[end + 1] == '-') ? 1 : 0);
      if (digits < rest.size() && IsDigitByte(rest[digits])) end = EndOfDigits(rest, digits, IsDigitByte);
    }
    if (end > whole && !after_dot) {
      Add(Token::kFloat, absl::StrReplaceAll(rest.substr(0, end), {{"_", ""}}));
    } else {
      end = Integer(rest, whole);
    }
    Advance(end);
    return true;
  }

  // Returns its length. `decimal`: that of the digits here.
  size_t Integer(absl::string_view rest, size_t decimal) {
    const char mark = rest.size() > 1 ? absl::ascii_tolower(static_cast<unsigned char>(rest[1])) : ' ';
    const int base = rest[0] != '0' ? 10 : mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    size_t begin = 0, end = decimal;
    if (base != 10) {
      const auto is_digit = base == 16  ? +[](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); }
                            : base == 8 ? +[](char c) { return c >= '0' && c <= '7'; }
                                        : +[](char c) { return c == '0' || c == '1'; };
      begin = 2 + (rest.size() > 2 && rest[2] == '_' ? 1 : 0);
      end = EndOfDigits(rest, begin, is_digit);
      if (end == begin) return Integer(rest.substr(0, 1), 1);
    } else if (rest[0] == '0') {
      end = EndOfDigits(rest, 0, [](char c) { return c == '0'; });
    }
    const std::string digits = absl::StrReplaceAll(rest.substr(begin, end - begin), {{"_", ""}});
    int64_t value = 0;
    for (const char c : digits) {
      const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
      if (__builtin_mul_overflow(value, base, &value) ||
          __builtin_add_overflow(value, lower <= '9' ? lower - '0' : lower - 'a' + 10, &value)) {
        budget_->Refuse(absl::StrCat("the integer ", digits, " needs more than 64 bits, which is not supported"));
      }
    }
    Add(Token::kInteger, absl::StrCat(value));
    return end;
  }

  bool Name() {
    size_t end = at_;
    while (end < source_.size()) {
      const auto [c, bytes] = CodePointAt(source_, end);
      if (!IsWord(c)) break;
      end += bytes;
    }
    if (end == at_) return false;
    Add(Token::kName, source_.substr(at_, end - at_));
    Advance(end - at_);
    return true;
  }

  bool String() {
    const char quote = source_[at_];
    if (quote != '\'' && quote != '"') return false;
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) budget_->Fail("a string has no end");
    Add(Token::kString, Unescaper(source_.substr(at_ + 1, end - at_ - 1), budget_).Run());
    Advance(end + 1 - at_);
    return true;
  }

  void Operator(std::string* open) {
    const auto* found =
        std::find_if(std::begin(kOperators), std::end(kOperators), [this](absl::string_view op) { return At(op); });
    if (found == std::end(kOperators)) {
      const size_t bytes = CodePointAt(source_, at_).second;
      budget_->Fail(absl::StrCat("unexpected character '", source_.substr(at_, bytes), "'"));
    }
    constexpr absl::string_view kOpen = "([{", kClose = ")]}";
    if (const size_t opens = kOpen.find((*found)[0]); opens != absl::string_view::npos) {
      *open += kClose[opens];
    } else if (absl::StrContains(kClose, *found)) {
      if (open->empty()) budget_->Fail(absl::StrCat("unexpected '", *found, "'"));
      if (open->back() != (*found)[0]) {
        budget_->Fail(absl::StrCat("unexpected '", *found, "', expected '", std::string(1, open->back()), "'"));
      }
      open->pop_back();
    }
    Add(Token::kOperator, *found);
    Advance(found->size());
  }

  absl::string_view source_;
  Budget* budget_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(absl::string_view source, Budget* budget) {
  if (static_cast<int64_t>(source.size()) > budget->limits().source_bytes) {
    budget->Exhaust("bytes of template", budget->limits().source_bytes);
  }
  if (!IsValidUtf8(source)) budget->Fail("it is not valid UTF-8");
  std::string text = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  if (!text.empty() && text.back() == '\n') text.pop_back();
  budget->line = 1;
  return Lexer(text, budget).Run();
}

}  // namespace llmc::jinja
