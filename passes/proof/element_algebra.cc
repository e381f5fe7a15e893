#include "passes/proof/element_algebra.h"

#include <algorithm>
#include <cmath>

#include "ir/ops.h"

namespace llmc {

ElementValue IntegerElement(Dim value) { return {.kind = ElementValue::Kind::kInteger, .integer = std::move(value)}; }

namespace element {
namespace {

using Kind = ElementValue::Kind;
using Function = ElementValue::Function;

constexpr double kMostWhole = 9e15;  // integers up to here are doubles

// The two numbers of a mask, or of a truth value as 1 and 0.
Element AsMasked(const ElementValue& value) {
  if (value.kind == Kind::kMasked) return value;
  if (value.kind == Kind::kBool) {
    return ElementValue{.kind = Kind::kMasked, .condition = value.condition, .number = 1, .otherwise = 0};
  }
  return std::nullopt;
}

// `masked` with a function of its numbers, which grows with them if the lower one is only a bound.
template <class F>
Element Mapped(const ElementValue& masked, bool grows, F function) {
  if (masked.is_bound && !grows) return std::nullopt;
  ElementValue mapped = Masked(masked.condition, function(masked.number), function(masked.otherwise));
  mapped.is_bound = masked.is_bound;
  return mapped;
}

// Two masks, where what one of them hides is hidden.
Element SumOfMasks(const ElementValue& a, const ElementValue& b) {
  if (a.condition == b.condition) {
    ElementValue sum = Masked(a.condition, a.number + b.number, a.otherwise + b.otherwise);
    sum.is_bound = a.is_bound || b.is_bound;
    return sum;
  }
  const bool hide = a.number == 0 && b.number == 0 && a.otherwise <= 0 && b.otherwise <= 0;
  if (!hide) return std::nullopt;
  ElementValue sum = Masked(Both(a.condition, b.condition), 0, std::max(a.otherwise, b.otherwise));
  sum.is_bound = true;
  return sum;
}

Element ScaledTable(ElementValue table, const ElementValue& by) {
  if (const std::optional<double> number = NumberOf(by)) {
    table.outer *= *number;
    return table;
  }
  if (by.kind != Kind::kInteger || table.function != Function::kNone) return std::nullopt;
  table.factor = table.factor * by.integer;
  return table;
}

// A mask or number compared with a number.
template <class F>
Element Compare(const ElementValue& a, double b, F holds) {
  if (const std::optional<double> number = NumberOf(a)) return Bool(holds(*number, b));
  const Element masked = AsMasked(a);
  if (!masked.has_value() || masked->is_bound) return std::nullopt;
  const bool seen = holds(masked->number, b), otherwise = holds(masked->otherwise, b);
  if (seen == otherwise) return Bool(seen);
  const std::optional<Condition> condition = seen ? masked->condition : Negated(masked->condition);
  return condition.has_value() ? Element(Bool(*condition)) : std::nullopt;
}

}  // namespace

ElementValue Number(double number) { return {.kind = Kind::kNumber, .number = number}; }
ElementValue Bool(Condition condition) { return {.kind = Kind::kBool, .condition = std::move(condition)}; }
ElementValue Bool(bool holds) { return Bool(Condition{.never = !holds}); }

ElementValue Masked(Condition condition, double number, double otherwise) {
  return {.kind = Kind::kMasked, .condition = std::move(condition), .number = number, .otherwise = otherwise};
}

Condition Both(const Condition& a, const Condition& b) {
  if (a.never || b.never) return Condition{.never = true};
  Condition both = a;
  for (const Dim& dim : b.at_least_zero) {
    if (std::find(both.at_least_zero.begin(), both.at_least_zero.end(), dim) == both.at_least_zero.end()) {
      both.at_least_zero.push_back(dim);
    }
  }
  return both;
}

std::optional<Condition> Negated(const Condition& condition) {
  if (condition.never) return Condition{};
  if (condition.always()) return Condition{.never = true};
  if (condition.at_least_zero.size() != 1) return std::nullopt;
  return Condition{.at_least_zero = {Dim(-1) - condition.at_least_zero[0]}};
}

std::optional<double> NumberOf(const ElementValue& value) {
  if (value.kind == Kind::kNumber) return value.number;
  if (value.kind == Kind::kInteger && value.integer.is_constant() && std::abs(value.integer.value()) < kMostWhole) {
    return static_cast<double>(value.integer.value());
  }
  if (value.kind == Kind::kBool && value.condition.always()) return 1;
  if (value.kind == Kind::kBool && value.condition.never) return 0;
  return std::nullopt;
}

std::optional<Dim> IntegerOf(const ElementValue& value) {
  if (value.kind == Kind::kInteger) return value.integer;
  const std::optional<double> number = NumberOf(value);
  const bool is_whole = number.has_value() && *number == std::floor(*number) && std::abs(*number) < kMostWhole;
  return is_whole ? std::optional(Dim(static_cast<int64_t>(*number))) : std::nullopt;
}

Element Negative(const ElementValue& x) { return Product(x, Number(-1)); }

Element Sum(const ElementValue& a, const ElementValue& b) {
  const std::optional<double> x = NumberOf(a), y = NumberOf(b);
  if (x.has_value() && y.has_value() && (a.kind == Kind::kNumber || b.kind == Kind::kNumber)) return Number(*x + *y);
  const std::optional<Dim> i = IntegerOf(a), j = IntegerOf(b);
  if (i.has_value() && j.has_value()) return IntegerElement(*i + *j);
  if (x.has_value() && b.kind == Kind::kMasked) return Sum(b, a);
  if (a.kind != Kind::kMasked) return std::nullopt;
  if (y.has_value()) {
    return Mapped(a, true, [&](double number) { return number + *y; });
  }
  return b.kind == Kind::kMasked ? SumOfMasks(a, b) : std::nullopt;
}

Element Product(const ElementValue& a, const ElementValue& b) {
  if (b.kind == Kind::kTable && a.kind != Kind::kTable) return Product(b, a);
  if (a.kind == Kind::kTable) return ScaledTable(a, b);
  const std::optional<double> x = NumberOf(a), y = NumberOf(b);
  if (x.has_value() && y.has_value() && (a.kind == Kind::kNumber || b.kind == Kind::kNumber)) return Number(*x * *y);
  const std::optional<Dim> i = IntegerOf(a), j = IntegerOf(b);
  if (i.has_value() && j.has_value()) return IntegerElement(*i * *j);
  if (!y.has_value()) return x.has_value() ? Product(b, a) : std::nullopt;
  const Element masked = AsMasked(a);
  if (!masked.has_value()) return std::nullopt;
  return Mapped(*masked, *y > 0, [&](double number) { return number * *y; });
}

Element Quotient(const ElementValue& a, const ElementValue& b) {
  const std::optional<double> x = NumberOf(a), y = NumberOf(b);
  if (!y.has_value() || *y == 0) return std::nullopt;
  if (x.has_value()) return Number(*x / *y);
  if (a.kind == Kind::kTable) return ScaledTable(a, Number(1 / *y));
  if (a.kind != Kind::kMasked) return std::nullopt;
  return Mapped(a, *y > 0, [&](double number) { return number / *y; });
}

Element Turned(const ElementValue& x, Function function) {
  if (x.kind != Kind::kTable || x.function != Function::kNone) return std::nullopt;
  ElementValue turned = x;
  turned.function = function;
  turned.inner *= turned.outer;
  turned.outer = 1;
  return turned;
}

Element Inverse(const ElementValue& x) {
  if (x.kind != Kind::kBool) return std::nullopt;
  const std::optional<Condition> negated = Negated(x.condition);
  return negated.has_value() ? Element(Bool(*negated)) : std::nullopt;
}

Element Conjunction(const ElementValue& a, const ElementValue& b) {
  if (a.kind != Kind::kBool || b.kind != Kind::kBool) return std::nullopt;
  return Bool(Both(a.condition, b.condition));
}

Element Disjunction(const ElementValue& a, const ElementValue& b) {
  if (a.kind != Kind::kBool || b.kind != Kind::kBool) return std::nullopt;
  if (a.condition.always() || b.condition.never || a.condition == b.condition) return a;
  if (b.condition.always() || a.condition.never) return b;
  return std::nullopt;
}

Element NanOf(const ElementValue& x) {
  if (x.kind == Kind::kTable) return std::nullopt;
  if (x.kind == Kind::kNumber) return Bool(std::isnan(x.number));
  if (x.kind == Kind::kMasked && (std::isnan(x.number) || std::isnan(x.otherwise))) return std::nullopt;
  return Bool(false);
}

Element TruthOf(const ElementValue& x) {
  if (x.kind == Kind::kBool) return x;
  return Compare(x, 0, std::not_equal_to<>());
}

Element Comparison(const Node& node, const ElementValue& a, const ElementValue& b) {
  if (const std::optional<double> number = NumberOf(b)) {
    Element compared;
    if (Is<Equal>(&node)) compared = Compare(a, *number, std::equal_to<>());
    if (Is<Less>(&node)) compared = Compare(a, *number, std::less<>());
    if (Is<LessEqual>(&node)) compared = Compare(a, *number, std::less_equal<>());
    if (Is<Greater>(&node)) compared = Compare(a, *number, std::greater<>());
    if (Is<GreaterEqual>(&node)) compared = Compare(a, *number, std::greater_equal<>());
    if (compared.has_value()) return compared;
  }
  const std::optional<Dim> i = IntegerOf(a), j = IntegerOf(b);
  if (!i.has_value() || !j.has_value()) return std::nullopt;
  const Dim more = *j - *i;
  if (Is<LessEqual>(&node)) return Bool(Condition{.at_least_zero = {more}});
  if (Is<Less>(&node)) return Bool(Condition{.at_least_zero = {more - Dim(1)}});
  if (Is<GreaterEqual>(&node)) return Bool(Condition{.at_least_zero = {Dim(0) - more}});
  if (Is<Greater>(&node)) return Bool(Condition{.at_least_zero = {Dim(-1) - more}});
  return Is<Equal>(&node) && more.is_constant() ? Element(Bool(more.value() == 0)) : std::nullopt;
}

Element Chosen(const Condition& condition, const ElementValue& x, const ElementValue& y) {
  if (condition.always() || x == y) return x;
  if (condition.never) return y;
  const std::optional<Condition> negated = Negated(condition);
  if (x.kind == Kind::kBool && y.kind == Kind::kBool) {
    if (y.condition.never) return Bool(Both(condition, x.condition));
    if (x.condition.never && negated.has_value()) return Bool(Both(*negated, y.condition));
    return std::nullopt;
  }
  const std::optional<double> a = NumberOf(x), b = NumberOf(y);
  if (a.has_value() && b.has_value()) return Masked(condition, *a, *b);
  // What one of two masks hides is hidden.
  ElementValue masked;
  if (x.kind == Kind::kMasked && b == x.otherwise) {
    masked = Masked(Both(condition, x.condition), x.number, *b);
    masked.is_bound = x.is_bound;
    return masked;
  }
  if (y.kind == Kind::kMasked && a == y.otherwise && negated.has_value()) {
    masked = Masked(Both(*negated, y.condition), y.number, *a);
    masked.is_bound = y.is_bound;
    return masked;
  }
  return std::nullopt;
}

}  // namespace element
}  // namespace llmc
