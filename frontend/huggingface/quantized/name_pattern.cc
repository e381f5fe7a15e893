#include "frontend/huggingface/quantized/name_pattern.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"

namespace llmc::hf {
namespace {

constexpr size_t kMaxPattern = 1024, kMaxProgram = 8192;
constexpr int kMaxDepth = 32, kMaxRepeat = 64;

}  // namespace

class NamePatternParser {
 public:
  using Instruction = NamePattern::Instruction;
  using Kind = Instruction::Kind;
  using Program = std::vector<Instruction>;

  explicit NamePatternParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Program> Run() {
    if (text_.size() > kMaxPattern) return Refuse("it is longer than 1024 characters");
    ASSIGN_OR_RETURN(Program program, Alternatives(0));
    if (at_ < text_.size()) return Refuse("a ) stands alone");
    program.push_back({.kind = Kind::kMatch});
    return program;
  }

 private:
  absl::Status Refuse(absl::string_view why) const {
    return absl::UnimplementedError(absl::StrCat("the pattern ", Quoted(text_), " is not supported: ", why));
  }
  bool Take(char c) {
    const bool is_it = at_ < text_.size() && text_[at_] == c;
    if (is_it) ++at_;
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
      if (Take('?') && !Take(':')) return Refuse("of groups (?…) only (?:…) is known");
      ASSIGN_OR_RETURN(Program inner, Alternatives(depth + 1));
      if (!Take(')')) return Refuse("a ( is not closed");
      return inner;
    }
    if (c == '^') return Program{{.kind = Kind::kBegin}};
    if (c == '$') return Program{{.kind = Kind::kEnd}};
    if (c == '*' || c == '+' || c == '?' || c == '{') return Refuse("there is nothing to repeat");
    Instruction one = {.kind = Kind::kOneOf};
    if (c == '.') {
      one.chars.set();
    } else if (c == '[') {
      RETURN_IF_ERROR(CharacterClass(&one.chars));
    } else if (c == '\\') {
      RETURN_IF_ERROR(Escaped(&one.chars));
    } else {
      one.chars.set(static_cast<unsigned char>(c));
    }
    return Program{one};
  }

  absl::Status Escaped(std::bitset<256>* chars) {
    if (at_ == text_.size()) return Refuse("it ends with a backslash");
    const char c = text_[at_++];
    if (c == 'd' || c == 'w') {
      for (int i = 0; i < 128; ++i) {
        if (std::isdigit(i) != 0 || (c == 'w' && (std::isalpha(i) != 0 || i == '_')))
          chars->set(static_cast<size_t>(i));
      }
      return absl::OkStatus();
    }
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      return Refuse(absl::StrCat("\\", std::string(1, c), " is not known"));
    chars->set(static_cast<unsigned char>(c));
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
      for (int i = static_cast<unsigned char>(low); i <= static_cast<unsigned char>(high); ++i) {
        chars->set(static_cast<size_t>(i));
      }
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
  size_t at_ = 0;
};

absl::StatusOr<NamePattern> NamePattern::Parse(absl::string_view text) {
  NamePattern pattern;
  ASSIGN_OR_RETURN(pattern.program_, NamePatternParser(text).Run());
  return pattern;
}

// Marks what can be reached from an instruction without a character.
void NamePattern::Follow(size_t at, size_t place, size_t size, std::vector<bool>* reached) const {
  std::vector<size_t> open = {at};
  while (!open.empty()) {
    const size_t i = open.back();
    open.pop_back();
    if ((*reached)[i]) continue;
    (*reached)[i] = true;
    const Instruction& instruction = program_[i];
    const auto go = [&](int32_t by) { open.push_back(static_cast<size_t>(static_cast<int64_t>(i) + by)); };
    if (instruction.kind == Instruction::Kind::kSplit) {
      go(instruction.next);
      go(instruction.or_else);
    }
    if (instruction.kind == Instruction::Kind::kBegin && place == 0) go(1);
    if (instruction.kind == Instruction::Kind::kEnd && place == size) go(1);
  }
}

bool NamePattern::MatchesBeginning(absl::string_view name) const {
  std::vector<bool> now(program_.size()), next(program_.size());
  Follow(0, 0, name.size(), &now);
  for (size_t place = 0;; ++place) {
    if (now.back()) return true;  // the last instruction is kMatch
    if (place == name.size()) return false;
    std::fill(next.begin(), next.end(), false);
    for (size_t i = 0; i < program_.size(); ++i) {
      const bool fits = now[i] && program_[i].kind == Instruction::Kind::kOneOf &&
                        program_[i].chars[static_cast<unsigned char>(name[place])];
      if (fits) Follow(i + 1, place + 1, name.size(), &next);
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
