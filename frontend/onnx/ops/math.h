// Short forms for handlers that write an operator as a formula of the language's ops.
#pragma once

#include <vector>

#include "frontend/onnx/node.h"

namespace llmc {

template <class Op>
Value* Map(OnnxNode& n, Value* x) {
  return n.Emit(Op{.x = x});
}
template <class Op>
Value* Map(OnnxNode& n, Value* lhs, Value* rhs) {
  return n.Emit(Op{.lhs = lhs, .rhs = rhs});
}
// A number has the type of the other operand.
template <class Op>
Value* Map(OnnxNode& n, Value* lhs, double rhs) {
  return Map<Op>(n, lhs, n.Scalar(DTypeOf(lhs), rhs));
}
template <class Op>
Value* Map(OnnxNode& n, double lhs, Value* rhs) {
  return Map<Op>(n, n.Scalar(DTypeOf(rhs), lhs), rhs);
}
// A literal zero would be a pointer as well.
template <class Op>
Value* Map(OnnxNode& n, Value* lhs, int rhs) {
  return Map<Op>(n, lhs, static_cast<double>(rhs));
}
template <class Op>
Value* Map(OnnxNode& n, int lhs, Value* rhs) {
  return Map<Op>(n, static_cast<double>(lhs), rhs);
}
inline Value* Select(OnnxNode& n, Value* condition, Value* x, Value* y) {
  return n.Emit(Where{.condition = condition, .x = x, .y = y});
}
template <class Op>
Value* ReduceOver(OnnxNode& n, Value* x, std::vector<int64_t> axes, bool keep_dims = true) {
  return axes.empty() ? x : n.Emit(Op{.x = x, .axes = std::move(axes), .keep_dims = keep_dims});
}

// A cast to a narrow float that gives its largest number, not infinity or NaN, for what is larger.
Value* SaturatingCast(OnnxNode& n, Value* x, DType to);

// ---- integers about shapes: i64 -------------------------------------------------
std::vector<int64_t> CountTo(int64_t n);          // 0, 1, …, n - 1
Value* SizeAsScalar(OnnxNode& n, Dim size);       // i64[]
Value* SizesAsRow(OnnxNode& n, Dims sizes);       // i64[number of sizes]
Value* Positions(OnnxNode& n, Dim size);          // 0, 1, … of an axis of that size
Value* PositionsBelow(OnnxNode& n, Value* size);  // the same of a size i64[]
// The positions of one axis of `rank`, shaped so that they broadcast along the others.
Value* PositionsAlong(OnnxNode& n, Dim size, int64_t axis, int rank);
// x[size] with axes of size 1 around it: axis `axis` of `rank`.
Value* Along(OnnxNode& n, Value* x, int64_t axis, int rank);
// x with its axes joined to [before axis, from axis on].
Value* AsMatrix(OnnxNode& n, Value* x, int64_t axis);
// Reads an axis at i64 positions, which may have any shape; negative ones are an error of the caller.
Value* GatherAlong(OnnxNode& n, Value* x, Value* positions, int64_t axis);
// x with each row along the axis multiplied by matrix[out, in], which then has `out` elements.
Value* ProductAlong(OnnxNode& n, Value* matrix, Value* x, int64_t axis);
// The axis in reverse order.
Value* Reversed(OnnxNode& n, Value* x, int64_t axis);
// The least number of a type.
double LowestOf(DType dtype);

// ---- axes that only a run tells ---------------------------------------------------
// Which of `rank` axes an integer tensor names: i64[rank] of 0 and 1. An axis that does not exist ends the run.
Value* AxisFlags(OnnxNode& n, Value* axes, int rank);
Value* FlagOf(OnnxNode& n, Value* flags, int64_t axis);  // i64[1]
// x without `count` axes of size 1 that the flags name.
Value* DropAxes(OnnxNode& n, Value* x, Value* flags, int64_t count);
// x with axes of size 1 more, where the flags of the result's axes are set.
Value* InsertAxes(OnnxNode& n, Value* x, Value* flags, int64_t rank);
// The length of a list that an input holds, if it is known: an i64 input of rank 1, or one number.
std::optional<int64_t> ListLength(const Value* list);

}  // namespace llmc
