#include "ir/text_lexer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace llmc::text_internal {
namespace {

bool IsWordChar(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-' || c == '/' || c == '$'; }

}  // namespace

void Lexer::SkipSpace() {
  while (pos_ < text_.size()) {
    if (absl::ascii_isspace(text_[pos_])) {
      ++pos_;
    } else if (text_.substr(pos_, 2) == "//") {
      while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
    } else {
      return;
    }
  }
}

// A word may have slashes in it, but two of them start a comment.
size_t Lexer::WordEnd(size_t begin) const {
  size_t end = begin;
  while (end < text_.size() && IsWordChar(text_[end]) && text_.substr(end, 2) != "//") ++end;
  return end;
}

bool Lexer::AtEnd() {
  SkipSpace();
  return pos_ >= text_.size();
}

char Lexer::Peek() { return AtEnd() ? '\0' : text_[pos_]; }

bool Lexer::Eat(char c) {
  if (Peek() != c || c == '\0') return false;
  ++pos_;
  return true;
}

bool Lexer::EatWord(absl::string_view word) {
  SkipSpace();
  if (text_.substr(pos_, word.size()) != word) return false;
  if (WordEnd(pos_) != pos_ + word.size()) return false;
  pos_ += word.size();
  return true;
}

absl::Status Lexer::Expect(char c) {
  if (Eat(c)) return absl::OkStatus();
  return Error(absl::StrCat("expected '", std::string(1, c), "'"));
}

absl::StatusOr<std::string> Lexer::Word() {
  SkipSpace();
  const size_t begin = std::exchange(pos_, WordEnd(pos_));
  if (begin == pos_) return Error("expected a name");
  return std::string(text_.substr(begin, pos_ - begin));
}

absl::StatusOr<std::string> Lexer::ValueName() {
  const char sigil = Peek();
  const size_t begin = pos_, end = WordEnd(begin + 1);
  if ((sigil == '_' && end > begin + 1) || (sigil != '_' && sigil != '%' && sigil != '@')) {
    return Error("expected a value such as %x or @w");
  }
  if (sigil != '_' && text_.substr(begin + 1, 1) == "\"") {
    ++pos_;
    absl::StatusOr<std::string> name = QuotedString();
    if (!name.ok()) return name;
    if (name->empty()) return ErrorAt(begin, "a value's name is empty");
    return absl::StrCat(std::string(1, sigil), *name);
  }
  if (sigil != '_' && end == begin + 1) return Error("a value's name is empty");
  pos_ = end;
  return std::string(text_.substr(begin, end - begin));
}

absl::StatusOr<std::string> Lexer::QuotedString() {
  if (!Eat('"')) return Error("expected a string");
  std::string out;
  while (pos_ < text_.size() && text_[pos_] != '"' && text_[pos_] != '\n') {
    if (text_[pos_] != '\\') {
      out.push_back(text_[pos_++]);
      continue;
    }
    const char escaped = pos_ + 1 < text_.size() ? text_[pos_ + 1] : '\0';
    if (escaped == '"' || escaped == '\\') {
      out.push_back(escaped);
      pos_ += 2;
    } else if (escaped == 'x' && pos_ + 3 < text_.size() && absl::ascii_isxdigit(text_[pos_ + 2]) &&
               absl::ascii_isxdigit(text_[pos_ + 3])) {
      out.push_back(static_cast<char>(std::stoi(std::string(text_.substr(pos_ + 2, 2)), nullptr, 16)));
      pos_ += 4;
    } else {
      return Error("a string has an unknown escape");
    }
  }
  if (pos_ >= text_.size() || text_[pos_] != '"') return Error("a string does not end on its line");
  ++pos_;
  return out;
}

std::string QuoteString(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out.push_back(c);
    }
  }
  return out + "\"";
}

std::string ValueText(absl::string_view name) {
  if (name.size() > 1 && std::all_of(name.begin() + 1, name.end(), IsWordChar)) return std::string(name);
  return absl::StrCat(name.substr(0, 1), QuoteString(name.substr(1)));
}

absl::StatusOr<std::string> Lexer::Balanced(absl::string_view stops) {
  SkipSpace();
  const size_t begin = pos_;
  int depth = 0;
  while (pos_ < text_.size()) {
    const char c = text_[pos_];
    if (c == '"') {
      if (absl::StatusOr<std::string> skipped = QuotedString(); !skipped.ok()) return skipped;
      continue;
    }
    if (depth == 0 && (c == ',' || absl::StrContains(stops, c))) break;
    depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    if (depth < 0) break;
    ++pos_;
  }
  absl::string_view out = absl::StripAsciiWhitespace(text_.substr(begin, pos_ - begin));
  if (out.empty()) return Error("expected a value");
  return std::string(out);
}

absl::StatusOr<std::string> Lexer::TypeText() {
  SkipSpace();
  const size_t begin = pos_;
  while (pos_ < text_.size() && text_[pos_] != ']' && text_[pos_] != '\n') ++pos_;
  if (pos_ >= text_.size() || text_[pos_] != ']') return ErrorAt(begin, "expected a type such as f32[T, 64]");
  ++pos_;
  return std::string(text_.substr(begin, pos_ - begin));
}

absl::StatusOr<std::string> Lexer::StateTypeText() {
  SkipSpace();
  const size_t begin = pos_, open = text_.find('{', begin), line = std::min(text_.find('\n', begin), text_.size());
  const size_t close = open > line ? text_.npos : text_.find('}', open);
  if (close == text_.npos) {
    return ErrorAt(begin, "expected a state such as paged[N, 16] {k: f32[2, 64], v: f32[2, 64]}");
  }
  pos_ = close + 1;
  return std::string(text_.substr(begin, pos_ - begin));
}

absl::Status Lexer::ValueNames(std::vector<std::string>* names, std::vector<size_t>* offsets) {
  do {
    offsets->push_back(NextOffset());
    ASSIGN_OR_RETURN(std::string name, ValueName());
    names->push_back(std::move(name));
  } while (Eat(','));
  return absl::OkStatus();
}

absl::StatusOr<Statement> Lexer::ParseStatement() {
  Statement out;
  if (const char c = Peek(); c == '%' || c == '@') {
    RETURN_IF_ERROR(ValueNames(&out.line.results, &out.result_offsets));
    RETURN_IF_ERROR(Expect('='));
  }
  out.offset = NextOffset();
  out.line.line = LineOf(pos_);
  ASSIGN_OR_RETURN(std::string op, Word());
  out.line.op = std::move(op);
  if (const char c = Peek(); c == '%' || c == '@' || c == '_') {
    RETURN_IF_ERROR(ValueNames(&out.line.operands, &out.operand_offsets));
  }
  // The brace of a block never follows an op.
  if (Eat('{')) {
    do {
      ASSIGN_OR_RETURN(std::string key, Word());
      RETURN_IF_ERROR(Expect('='));
      ASSIGN_OR_RETURN(std::string value, Balanced("}"));
      out.line.attrs.emplace_back(std::move(key), std::move(value));
    } while (Eat(','));
    RETURN_IF_ERROR(Expect('}'));
  }
  if (Eat(':')) {
    out.type_offset = NextOffset();
    do {
      ASSIGN_OR_RETURN(std::string type, TypeText());
      out.types.push_back(std::move(type));
    } while (Eat(','));
  }
  if (EatWord("loc")) {
    ASSIGN_OR_RETURN(std::string loc, QuotedString());
    out.loc = std::move(loc);
  }
  return out;
}

int Lexer::LineOf(size_t offset) {
  if (offset < counted_) {
    counted_ = 0;
    line_ = 1;
  }
  line_ += static_cast<int>(std::count(text_.begin() + counted_, text_.begin() + std::min(offset, text_.size()), '\n'));
  counted_ = std::min(offset, text_.size());
  return line_;
}

absl::Status Lexer::ErrorAt(size_t offset, absl::string_view message) const {
  offset = std::min(offset, text_.size());
  const int line = 1 + static_cast<int>(std::count(text_.begin(), text_.begin() + offset, '\n'));
  const size_t before = offset == 0 ? absl::string_view::npos : text_.rfind('\n', offset - 1);
  const size_t begin = before == absl::string_view::npos ? 0 : before + 1;
  const absl::string_view source = text_.substr(begin, std::min(text_.find('\n', begin), text_.size()) - begin);
  const size_t from = offset - begin > 160 ? offset - begin - 80 : 0;  // very long lines show the part that matters
  return absl::InvalidArgumentError(absl::StrFormat("%s:%d: %s\n%5d |%s\n      |%s^", file_, line, message, line,
                                                    source.substr(from, 200), std::string(offset - begin - from, ' ')));
}

}  // namespace llmc::text_internal
