// Compile-time checks of rule texts: a rule that misspells an op, an attribute or a name, or gives an op the wrong
// number of results or operands, does not compile.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "ir/ops.h"

namespace llmc {

// Not constexpr: calling it while a constant is computed is the compile error, and `why` is what the error shows.
void BadRule(const char* why);

namespace rule_text {

inline constexpr int kMaxFields = 16;
inline constexpr int kMaxNames = 96;

struct OpForm {
  std::string_view name;
  int results = 0;
  int min_operands = 0;
  int max_operands = 0;  // a large number for variadic ops
  int num_attrs = 0;
  std::array<std::string_view, kMaxFields> attrs;
};

constexpr std::string_view Std(absl::string_view text) { return {text.data(), text.size()}; }

template <class Op>
constexpr OpForm FormOf() {
  OpForm form{.name = Std(Op::kInfo.name), .results = Op::kInfo.results, .attrs = {}};
  auto add = [&](const auto& field) {
    if (field.kind == FieldKind::kAttr) {
      form.attrs[form.num_attrs++] = Std(field.name);
      return;
    }
    if (field.kind != FieldKind::kOptionalOperand) ++form.min_operands;
    form.max_operands += field.kind == FieldKind::kVariadic ? 1 << 20 : 1;
  };
  std::apply([&](const auto&... field) { (add(field), ...); }, Op::Fields());
  return form;
}
template <class... Ops>
constexpr std::array<OpForm, sizeof...(Ops)> FormsOf(OpList<Ops...>) {
  return {FormOf<Ops>()...};
}
inline constexpr auto kForms = FormsOf(AllOps{});

// By value: under the sanitizers, GCC cannot compare addresses while it compiles.
constexpr std::optional<OpForm> FindForm(std::string_view name) {
  for (const OpForm& form : kForms) {
    if (form.name == name) return form;
  }
  return std::nullopt;
}

struct Names {
  std::array<std::string_view, kMaxNames> list;
  int size = 0;
  constexpr bool Has(std::string_view name) const {
    for (int i = 0; i < size; ++i) {
      if (list[i] == name) return true;
    }
    return false;
  }
  constexpr void Add(std::string_view name) {
    if (Has(name)) return;
    if (size == kMaxNames) BadRule("a rule has too many names");
    list[size++] = name;
  }
};

// What the left side of a rule binds.
struct Bindings {
  Names values;   // every value name
  Names results;  // those that stand left of '='
  Names attrs;    // "$eps"
  int borders = 0;
};

// "%y in $k" or "$k reads %n": how nodes meet a kernel.
struct Border {
  bool reads = false;  // the kernel reads the value; else it makes it
  std::string_view value;
};
constexpr std::optional<Border> ParseBorder(std::string_view line);

// What ops are written by their trait: ":elementwise".
inline constexpr std::string_view kTraits[] = {":elementwise", ":view"};
constexpr bool IsTrait(std::string_view word) {
  for (const std::string_view trait : kTraits) {
    if (trait == word) return true;
  }
  return false;
}

class Scanner {
 public:
  constexpr explicit Scanner(std::string_view text) : text_(text) {}
  constexpr void Skip() {
    while (!text_.empty() && (text_[0] == ' ' || text_[0] == '\t')) text_.remove_prefix(1);
  }
  constexpr char Peek() {
    Skip();
    return text_.empty() ? '\0' : text_[0];
  }
  constexpr bool Eat(char c) {
    if (Peek() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  constexpr std::string_view Word() {
    Skip();
    size_t n = 0;
    while (n < text_.size() && IsWord(text_[n])) ++n;
    const std::string_view word = text_.substr(0, n);
    text_.remove_prefix(n);
    return word;
  }
  // An attribute's value: up to ',' or '}' outside of brackets.
  constexpr std::string_view Literal() {
    Skip();
    size_t n = 0;
    for (int depth = 0; n < text_.size(); ++n) {
      const char c = text_[n];
      if (depth == 0 && (c == ',' || c == '}')) break;
      depth += c == '[' || c == '(' ? 1 : c == ']' || c == ')' ? -1 : 0;
    }
    std::string_view literal = text_.substr(0, n);
    text_.remove_prefix(n);
    while (!literal.empty() && literal.back() == ' ') literal.remove_suffix(1);
    return literal;
  }

 private:
  static constexpr bool IsWord(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '%' ||
           c == '@' || c == '$' || c == '.' || c == ':';
  }
  std::string_view text_;
};

constexpr std::optional<Border> ParseBorder(std::string_view line) {
  Scanner scan(line);
  const std::string_view first = scan.Word(), middle = scan.Word(), last = scan.Word();
  if (middle == "in" && last == "$k") return Border{false, first};
  if (middle == "reads" && first == "$k") return Border{true, last};
  return std::nullopt;
}

// One line of a rule. `define` and `use` are called with each name. `traits`: it may have a trait for an op.
template <class Define, class Use, class UseAttr>
constexpr void CheckLine(std::string_view text, bool traits, Define define, Use use, UseAttr use_attr) {
  Scanner scan(text);
  Names results;
  std::string_view word = scan.Word();
  if (!word.empty() && (word[0] == '%' || word[0] == '@')) {
    results.Add(word);
    while (scan.Eat(',')) results.Add(scan.Word());
    if (!scan.Eat('=')) BadRule("expected '=' after the results");
    word = scan.Word();
  }
  if (traits && IsTrait(word)) {
    if (results.size != 1) BadRule("a trait stands for ops of one result");
    if (scan.Peek() == '%') use(scan.Word());
    if (scan.Peek() != '\0') BadRule("unexpected text after a trait");
    define(results.list[0]);
    return;
  }
  const std::optional<OpForm> form = FindForm(word);
  if (!form.has_value()) {
    BadRule("unknown op");
    return;
  }
  if (form->results != results.size) BadRule("wrong number of results");
  int operands = 0;
  for (char c = scan.Peek(); c == '%' || c == '@' || c == '_'; c = scan.Peek()) {
    const std::string_view name = scan.Word();
    if (name != "_") use(name);
    ++operands;
    if (!scan.Eat(',')) break;
  }
  if (operands < form->min_operands || operands > form->max_operands) BadRule("wrong number of operands");
  if (scan.Eat('{')) {
    do {
      const std::string_view key = scan.Word();
      bool known = false;
      for (int i = 0; i < form->num_attrs; ++i) known = known || form->attrs[i] == key;
      if (!known) BadRule("unknown attribute");
      if (!scan.Eat('=')) BadRule("expected '=' after an attribute's name");
      const std::string_view value = scan.Literal();
      if (value.empty()) BadRule("an attribute has no value");
      if (value[0] == '$') use_attr(value);
    } while (scan.Eat(','));
    if (!scan.Eat('}')) BadRule("expected '}' after the attributes");
  }
  if (scan.Peek() != '\0') BadRule("unexpected text at the end of a line");
  for (int i = 0; i < results.size; ++i) define(results.list[i]);
}

template <class F>
constexpr void ForEachLine(std::string_view text, F f) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (line.find_first_not_of(" \t") != std::string_view::npos) f(line);
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
}

// `lowers`: of a rule with border lines and traits.
constexpr Bindings CheckFind(std::string_view text, bool lowers) {
  Bindings bound;
  int lines = 0;
  ForEachLine(text, [&](std::string_view line) {
    if (lowers && ParseBorder(line).has_value()) {
      ++bound.borders;
      return;
    }
    ++lines;
    CheckLine(
        line, lowers,
        [&](std::string_view name) {
          if (bound.values.Has(name)) BadRule("a name is defined twice, or used before its definition");
          bound.values.Add(name);
          bound.results.Add(name);
        },
        [&](std::string_view name) { bound.values.Add(name); }, [&](std::string_view name) { bound.attrs.Add(name); });
  });
  if (lines == 0) BadRule("the rule finds nothing");
  ForEachLine(text, [&](std::string_view line) {
    const std::optional<Border> border = lowers ? ParseBorder(line) : std::nullopt;
    if (!border.has_value()) return;
    if (!bound.values.Has(border->value)) BadRule("a border line names no value of the rule");
    if (border->reads != bound.results.Has(border->value)) BadRule("a kernel reads what the rule defines, or makes it");
  });
  return bound;
}

// `bound.attrs` must hold the names that Let defines, too.
constexpr void CheckReplace(std::string_view text, const Bindings& bound) {
  Names known;  // what a line may use: inputs of the left side, and what earlier lines define
  for (int i = 0; i < bound.values.size; ++i) {
    if (!bound.results.Has(bound.values.list[i])) known.Add(bound.values.list[i]);
  }
  ForEachLine(text, [&](std::string_view line) {
    CheckLine(
        line, /*traits=*/false,
        [&](std::string_view name) {
          if (known.Has(name)) BadRule("the right side defines a name twice, or defines an input");
          known.Add(name);
        },
        [&](std::string_view name) {
          if (!known.Has(name)) BadRule("unbound name on the right side");
        },
        [&](std::string_view name) {
          if (!bound.attrs.Has(name)) BadRule("unbound attribute on the right side");
        });
  });
}

}  // namespace rule_text
}  // namespace llmc
