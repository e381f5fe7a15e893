// Where elements lie that the nodes of a kernel only move: slices, transposes and views, before what computes with them
// or after it. Kernels that take any strides need no copies for these.
#pragma once

#include <optional>
#include <string>

#include "codegen/tasks/strided.h"
#include "passes/lower/backend.h"

namespace llmc {

// The elements of a value at their places in the memory of another: `place` is under the shape of the value.
struct MovedValue {
  const Value* in = nullptr;
  Place place;
};

// Where the elements of `value` come from, through the members of the kernel that make it; the value itself if none
// does. Nothing where a view joins axes that do not lie one after the other.
std::optional<MovedValue> MovedFrom(const Value* value, const KernelBody& body);

// Where the elements of `value` go in the only result of the kernel, to which members lead from it one after the other.
// Views of it come first: `of` is the last of these, and `to.place` is under its shape. Slices take the first elements
// of an axis: `taken` has how many of each axis of `of` they leave.
struct MovedResult {
  const Value* of = nullptr;
  MovedValue to;
  SizeList taken;
};
std::optional<MovedResult> MovedTo(const Value* value, const KernelBody& body);

// Rows of `n` elements each, as kernels/common/strided_rows.cuh has them: batches of rows, such as heads of tokens.
struct StridedRows {
  const Value* in = nullptr;
  Size offset = 0, row = 0, batch = 0;

  // Whether each begins at a multiple of so many elements.
  bool IsMultipleOf(int64_t elements) const {
    return offset.IsMultipleOf(elements) && row.IsMultipleOf(elements) && batch.IsMultipleOf(elements);
  }
};
// The elements of a value [rows, batches * n], or of a value [rows, batches, n] that a member of the kernel joins to
// it.
std::optional<StridedRows> StridedRowsFrom(const Value* value, int64_t n, const KernelBody& body);
// "llmc::StridedRows<const float>{x + 128, 3072, 192}"
std::string StridedRowsText(const StridedRows& rows, const std::string& name, bool is_written, KernelCall* call);

// Whether the node only moves elements.
bool IsMove(const Node* node);

}  // namespace llmc
