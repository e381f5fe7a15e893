#include "frontend/huggingface/quantized/name_pattern.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"

namespace llmc::hf {
namespace {

constexpr size_t kMaxPattern = 1024, kMaxProgram = 8192;
constexpr size_t kPlaces = 64;  // of a name, about
constexpr int kMaxDepth = 32, kMaxRepeat = 64;

bool IsWord(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace

class NamePatternParser {
 public:
  using Instruction = NamePattern::Instruction;
  using Kind = Instruction::Kind;
  using Program = std::vector<Instruction>;

  // Programs of what is looked at ahead are added to `looks`.
  NamePatternParser(absl::string_view text, std::vector<Program>* looks) : text_(text), looks_(*looks) {}

  absl::StatusOr<Program> Run() {
    if (text_.size() > kMaxPattern) return Refuse("it is longer than 1024 characters");
    ignores_case_ = Take("(?i)");
    ASSIGN_OR_RETURN(Program program, Alternatives(0));
    if (at_ < text_.size()) return Refuse("a ) stands alone");
    program.push_back({.kind = Kind::kMatch});
    return program;
  }

 private:
  absl::Status Refuse(absl::string_view why) const {
    return absl::UnimplementedError(absl::StrCat("the pattern ", Quoted(text_), " is not supported: ", why));
  }
  bool Take(char c) { return Take(absl::string_view(&c, 1)); }
  bool Take(absl::string_view all) {
    const bool is_it = absl::StartsWith(text_.substr(at_), all);
    if (is_it) at_ += all.size();
    return is_it;
  }

  absl::StatusOr<Program> Alternatives(int depth) {
    if (depth > kMaxDepth) return Refuse("groups are nested too deeply");
    ASSIGN_OR_RETURN(Program all, Sequence(depth));
    while (Take('|')) {
      ASSIGN_OR_RETURN(Program other, Sequence(depth));
      // split(all, other); all, then over other
      const int32_t size = static_cast<int32_t>(all.size());
      all.insert(all.begin(), {.kind = Kind::kSplit, .chars = {}, .next = 1, .or_else = size + 2});
      all.push_back(Jump(static_cast<int32_t>(other.size()) + 1));
      all.insert(all.end(), other.begin(), other.end());
      if (all.size() > kMaxProgram) return Refuse("it is too long");
    }
    return all;
  }

  absl::StatusOr<Program> Sequence(int depth) {
    Program all;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      ASSIGN_OR_RETURN(Program one, One(depth));
      ASSIGN_OR_RETURN(one, Repeated(std::move(one)));
      all.insert(all.end(), one.begin(), one.end());
      if (all.size() > kMaxProgram) return Refuse("it is too long");
    }
    return all;
  }

  absl::StatusOr<Program> One(int depth) {
    const char c = text_[at_++];
    if (c == '(') {
      if (Take("?=")) return Look(depth, false);
      if (Take("?!")) return Look(depth, true);
      if (Take('?') && !Take(':')) {
        return Refuse("of groups (?…) only (?:…), (?=…), (?!…), and (?i) at the beginning, are known");
      }
      ASSIGN_OR_RETURN(Program inner, Alternatives(depth + 1));
      if (!Take(')')) return Refuse("a ( is not closed");
      return inner;
    }
    if (c == '^') return Program{{.kind = Kind::kBegin}};
    if (c == '$') return Program{{.kind = Kind::kEnd}};
    if (c == '*' || c == '+' || c == '?' || c == '{') return Refuse("there is nothing to repeat");
    if (c == '\\' && Take('b')) return Program{{.kind = Kind::kWordEdge}};
    if (c == '\\' && Take('B')) return Program{{.kind = Kind::kWordEdge, .negated = true}};
    Instruction one = {.kind = Kind::kOneOf};
    if (c == '.') {
      one.chars.set();
    } else if (c == '[') {
      RETURN_IF_ERROR(CharacterClass(&one.chars));
    } else if (c == '\\') {
      RETURN_IF_ERROR(Escaped(&one.chars));
    } else {
      Add(c, c, &one.chars);
    }
    return Program{one};
  }

  // What follows is looked at, and stays.
  absl::StatusOr<Program> Look(int depth, bool negated) {
    if (is_in_look_) return Refuse("a look ahead in another one");
    is_in_look_ = true;
    ASSIGN_OR_RETURN(Program inner, Alternatives(depth + 1));
    is_in_look_ = false;
    if (!Take(')')) return Refuse("a ( is not closed");
    inner.push_back({.kind = Kind::kMatch});
    looks_.push_back(std::move(inner));
    return Program{{.kind = Kind::kLook, .negated = negated, .look = looks_.size() - 1}};
  }

  void Add(char low, char high, std::bitset<256>* chars) const {
    for (int i = static_cast<unsigned char>(low); i <= static_cast<unsigned char>(high); ++i) {
      chars->set(static_cast<size_t>(i));
      if (!ignores_case_) continue;
      const auto c = static_cast<unsigned char>(i);
      chars->set(static_cast<unsigned char>(absl::ascii_tolower(c)));
      chars->set(static_cast<unsigned char>(absl::ascii_toupper(c)));
    }
  }

  absl::Status Escaped(std::bitset<256>* chars) {
    if (at_ == text_.size()) return Refuse("it ends with a backslash");
    const char c = text_[at_++], kind = absl::ascii_tolower(static_cast<unsigned char>(c));
    if (kind == 'd' || kind == 'w' || kind == 's') {
      for (int i = 0; i < 256; ++i) {
        const auto one = static_cast<unsigned char>(i);
        const bool is_one = kind == 'd'   ? absl::ascii_isdigit(one)
                            : kind == 'w' ? IsWord(static_cast<char>(one))
                                          : absl::ascii_isspace(one);
        if (is_one == (kind == c)) chars->set(one);
      }
      return absl::OkStatus();
    }
    if (IsWord(c) && c != '_') return Refuse(absl::StrCat("\\", std::string(1, c), " is not known"));
    Add(c, c, chars);
    return absl::OkStatus();
  }

  absl::Status CharacterClass(std::bitset<256>* chars) {
    const bool negated = Take('^');
    bool is_first = true;
    while (at_ < text_.size() && (text_[at_] != ']' || is_first)) {
      is_first = false;
      const char low = text_[at_++];
      if (low == '\\') {
        RETURN_IF_ERROR(Escaped(chars));
        continue;
      }
      char high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        high = text_[at_ + 1];
        at_ += 2;
      }
      Add(low, high, chars);
    }
    if (!Take(']')) return Refuse("a [ is not closed");
    if (negated) chars->flip();
    return absl::OkStatus();
  }

  // *, +, ?, {n}, {n,}, {n,m} behind it; lazy ones match the same names.
  absl::StatusOr<Program> Repeated(Program one) {
    int least = 1, most = 1;  // most < 0: any number
    if (Take('*')) {
      least = 0, most = -1;
    } else if (Take('+')) {
      most = -1;
    } else if (Take('?')) {
      least = 0;
    } else if (Take('{')) {
      const size_t end = text_.find('}', at_);
      if (end == absl::string_view::npos) return Refuse("a { is not closed");
      const absl::string_view inner = text_.substr(at_, end - at_);
      at_ = end + 1;
      const size_t comma = inner.find(',');
      if (!absl::SimpleAtoi(inner.substr(0, comma), &least)) return Refuse("of {…} only numbers are known");
      most = least;
      if (comma != absl::string_view::npos) {
        most = -1;
        const absl::string_view rest = inner.substr(comma + 1);
        if (!rest.empty() && !absl::SimpleAtoi(rest, &most)) return Refuse("of {…} only numbers are known");
      }
      if (least < 0 || least > kMaxRepeat || most > kMaxRepeat) return Refuse("more than 64 repetitions");
    } else {
      return one;
    }
    Take('?');
    if (at_ < text_.size() && (text_[at_] == '*' || text_[at_] == '+')) return Refuse("repetitions of repetitions");
    const int copies = most < 0 ? least + 1 : std::max(least, most);
    if (one.size() * static_cast<size_t>(copies) > kMaxProgram) return Refuse("it is too long");
    Program all;
    const auto add = [&] { all.insert(all.end(), one.begin(), one.end()); };
    for (int i = 0; i < least; ++i) add();
    const int32_t size = static_cast<int32_t>(one.size());
    if (most < 0) {
      all.push_back({.kind = Kind::kSplit, .chars = {}, .next = 1, .or_else = size + 2});
      add();
      all.push_back(Jump(-size - 1));
    }
    for (int i = least; i < most; ++i) {
      all.push_back({.kind = Kind::kSplit, .chars = {}, .next = 1, .or_else = size + 1});
      add();
    }
    if (all.size() > kMaxProgram) return Refuse("it is too long");
    return all;
  }

  static Instruction Jump(int32_t by) { return {.kind = Kind::kSplit, .chars = {}, .next = by, .or_else = by}; }

  absl::string_view text_;
  std::vector<Program>& looks_;
  size_t at_ = 0;
  bool ignores_case_ = false, is_in_look_ = false;
};

absl::StatusOr<NamePattern> NamePattern::Parse(absl::string_view text) {
  NamePattern pattern;
  ASSIGN_OR_RETURN(pattern.program_, NamePatternParser(text, &pattern.looks_).Run());
  return pattern;
}

size_t NamePattern::size() const {
  size_t all = program_.size();
  for (const Instruction& one : program_) {
    if (one.kind == Instruction::Kind::kLook) all += kPlaces * looks_[one.look].size();
  }
  return all;
}

bool NamePattern::Passes(const Instruction& instruction, absl::string_view name, size_t place) const {
  const auto is_word = [&](size_t i) { return i < name.size() && IsWord(name[i]); };
  switch (instruction.kind) {
    case Instruction::Kind::kBegin:
      return place == 0;
    case Instruction::Kind::kEnd:
      return place == name.size();
    case Instruction::Kind::kWordEdge:
      return ((place > 0 && is_word(place - 1)) != is_word(place)) != instruction.negated;
    case Instruction::Kind::kLook:
      return Fits(looks_[instruction.look], name, place) != instruction.negated;
    default:
      return false;
  }
}

// Marks what can be reached from an instruction without a character.
void NamePattern::Follow(const Program& program, size_t at, absl::string_view name, size_t place,
                         std::vector<bool>* reached) const {
  std::vector<size_t> open = {at};
  while (!open.empty()) {
    const size_t i = open.back();
    open.pop_back();
    if ((*reached)[i]) continue;
    (*reached)[i] = true;
    const Instruction& instruction = program[i];
    const auto go = [&](int32_t by) { open.push_back(static_cast<size_t>(static_cast<int64_t>(i) + by)); };
    if (instruction.kind == Instruction::Kind::kSplit) {
      go(instruction.next);
      go(instruction.or_else);
    } else if (Passes(instruction, name, place)) {
      go(1);
    }
  }
}

bool NamePattern::MatchesBeginning(absl::string_view name) const { return Fits(program_, name, 0); }

bool NamePattern::Fits(const Program& program, absl::string_view name, size_t begin) const {
  std::vector<bool> now(program.size()), next(program.size());
  Follow(program, 0, name, begin, &now);
  for (size_t place = begin;; ++place) {
    if (now.back()) return true;  // the last instruction is kMatch
    if (place == name.size()) return false;
    std::fill(next.begin(), next.end(), false);
    for (size_t i = 0; i < program.size(); ++i) {
      const bool fits = now[i] && program[i].kind == Instruction::Kind::kOneOf &&
                        program[i].chars[static_cast<unsigned char>(name[place])];
      if (fits) Follow(program, i + 1, name, place + 1, &next);
    }
    now.swap(next);
  }
}

bool IsInModule(absl::string_view name, absl::string_view pattern) {
  // The places in `pattern` that a beginning of `name` can lead to.
  std::vector<bool> at(pattern.size() + 1);
  const auto skip_stars = [&] {
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (at[i] && pattern[i] == '*') at[i + 1] = true;
    }
  };
  at[0] = true;
  skip_stars();
  for (const char c : name) {
    if (at.back() && c == '.') return true;
    std::vector<bool> next(at.size());
    for (size_t i = 0; i < pattern.size(); ++i) {
      if (!at[i]) continue;
      if (pattern[i] == '*') next[i] = true;
      if (pattern[i] == c) next[i + 1] = true;
    }
    at.swap(next);
    skip_stars();
  }
  return at.back();
}

bool IsListed(absl::string_view name, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    if (pattern.empty()) return false;
    if (IsInModule(name, pattern)) return true;
    const std::string dotted = absl::StrCat(".", pattern, ".");
    return absl::StrContains(absl::StrCat(".", name, "."), dotted);
  });
}

}  // namespace llmc::hf
