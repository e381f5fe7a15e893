// What constants hold.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace llmc {

// The literal of a constant; nullptr for any other value.
const Tensor* LiteralOf(const Value* value);

// The number that all elements of a small constant are.
std::optional<double> NumberOf(const Value* value);

// Whether a value is such a constant, and its number is `number` but for the rounding of its type.
bool IsNear(const Value* value, double number);

// A scalar constant: broadcast, it changes no shape of rank 1 or more.
bool IsScalarNumber(const Value* value);

// Whether a number of this type hides a score that it is added to, or that it stands in the place of: nothing that is
// added to it brings it near those that are seen.
bool HidesScores(double number, DType dtype);

// A literal of `shape` that is all `number`.
Tensor Filled(DType dtype, const Shape& shape, double number);

}  // namespace llmc
