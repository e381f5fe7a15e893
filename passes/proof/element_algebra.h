// Arithmetic and logic of elements (element_value.h). Numbers are as exact as doubles are; rounding to the type of the
// result, and what holds in every run, is left to the caller. Nothing is returned where the result has no form.
#pragma once

#include "ir/op.h"
#include "passes/proof/element_value.h"

namespace llmc::element {

using Element = std::optional<ElementValue>;

ElementValue Number(double number);
ElementValue Bool(Condition condition);
ElementValue Bool(bool holds);
ElementValue Masked(Condition condition, double number, double otherwise);

Condition Both(const Condition& a, const Condition& b);
std::optional<Condition> Negated(const Condition& condition);

// A number, if that is what it is: an integer that is known, and a truth value as 1 or 0.
std::optional<double> NumberOf(const ElementValue& value);
std::optional<Dim> IntegerOf(const ElementValue& value);

Element Negative(const ElementValue& x);
Element Sum(const ElementValue& a, const ElementValue& b);
Element Product(const ElementValue& a, const ElementValue& b);
Element Quotient(const ElementValue& a, const ElementValue& b);
// cos or sin
Element Turned(const ElementValue& x, ElementValue::Function function);

Element Inverse(const ElementValue& x);
Element Conjunction(const ElementValue& a, const ElementValue& b);
Element Disjunction(const ElementValue& a, const ElementValue& b);
Element NanOf(const ElementValue& x);
// Whether it is not 0.
Element TruthOf(const ElementValue& x);
// By a node that compares.
Element Comparison(const Node& node, const ElementValue& a, const ElementValue& b);
// where(condition, x, y)
Element Chosen(const Condition& condition, const ElementValue& x, const ElementValue& y);

}  // namespace llmc::element
