// What moves elements to other places of a tensor and computes none.
#include <iterator>

#include "absl/algorithm/container.h"
#include "codegen/memory/small_tensors.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {

namespace {

// The result, all of whose elements are taken from `from`.
Calls SelectMove(const Node& node, const Value* from, const Place& at) {
  const Value* out = node.results[0];
  return SelectCopy(node, out, from, ToSizes(out->type.shape), ContiguousPlace(out->type.shape), at);
}

}  // namespace

Calls SelectTranspose(const Node& node, const ProgramScope&) {
  const auto op = View<Transpose>(node);
  const Place own = ContiguousPlace(op.x->type.shape);
  Place at;
  for (const int64_t axis : op.perm) at.strides.push_back(own.strides[static_cast<size_t>(axis)]);
  return SelectMove(node, op.x, at);
}

Calls SelectExpand(const Node& node, const ProgramScope&) {
  const Value* x = node.operands[0];
  return SelectMove(node, x, BroadcastPlace(x->type.shape, node.results[0]->type.shape));
}

Calls SelectSlice(const Node& node, const ProgramScope&) {
  const auto op = View<Slice>(node);
  Place at = ContiguousPlace(op.x->type.shape);
  at.offset = Size(op.start[0]) * at.strides[static_cast<size_t>(op.axis)];
  return SelectMove(node, op.x, at);
}

Calls SelectSliceBy(const Node& node, const ProgramScope&) {
  const auto op = View<SliceBy>(node);
  const Value* x = node.operands[0];
  const std::optional<SizeList> starts = ContentsOf(op.starts), ends = ContentsOf(op.ends);
  const std::optional<SizeList> axes = op.axes == nullptr ? SizeList() : ContentsOf(op.axes);
  const std::optional<SizeList> steps = op.steps == nullptr ? SizeList() : ContentsOf(op.steps);
  const bool known = starts.has_value() && ends.has_value() && axes.has_value() && steps.has_value();
  if (!known) return NoKernel(node, "with bounds that a kernel computes");
  Place at = ContiguousPlace(x->type.shape);
  for (size_t i = 0; i < starts->size(); ++i) {
    const Size axis = op.axes == nullptr ? Size(static_cast<int64_t>(i)) : (*axes)[i];
    if (!axis.is_number()) return NoKernel(node, "with axes that are not known");
    const size_t d = static_cast<size_t>(axis.number() < 0 ? axis.number() + x->type.rank() : axis.number());
    const Size step = op.steps == nullptr ? Size(1) : (*steps)[i], size = x->type.shape[d];
    const Size start =
        (*starts)[i].Is(0) && step.Is(1) ? Size(0) : Size::Call("slice_start", {(*starts)[i], (*ends)[i], step, size});
    at.offset = at.offset + start * at.strides[d];
    at.strides[d] = at.strides[d] * step;
  }
  return SelectMove(node, x, at);
}

// Parts of an outermost axis lie one after the other.
Calls SelectConcat(const Node& node, const ProgramScope&) {
  const auto op = View<Concat>(node);
  const Value* out = node.results[0];
  const bool outermost = ElementsOf(Dims(out->type.shape.begin(), out->type.shape.begin() + op.axis)).Is(1);
  const Place whole = ContiguousPlace(out->type.shape);
  const size_t axis = static_cast<size_t>(op.axis);
  std::vector<DeviceCall> calls;
  Size begin = 0;  // along the axis
  for (const Value* part : op.parts) {
    const Size offset = begin * ElementsOf(Dims(out->type.shape.begin() + op.axis + 1, out->type.shape.end()));
    begin = begin + Size(part->type.shape[axis]);
    const int bits = DTypeBits(part->type.dtype);
    const bool in_bytes = bits >= 8 || (offset.IsMultipleOf(2) && ElementsOf(part->type.shape).IsMultipleOf(2));
    if (outermost && offset.is_number() && in_bytes) {
      calls.emplace_back(
          CopyCall{.to = out, .from = part, .to_offset = offset.number() * bits / 8, .bytes = part->type.Bytes()});
      continue;
    }
    // SizeList of the result: those of a part may be written otherwise.
    Dims shape = out->type.shape;
    shape[axis] = part->type.shape[axis];
    Place to = whole;
    to.offset = offset;
    Calls copy = SelectCopy(node, out, part, ToSizes(shape), to, ContiguousPlace(shape));
    if (std::holds_alternative<Misfit>(copy)) return copy;
    absl::c_move(std::get<0>(copy), std::back_inserter(calls));
  }
  return calls;
}

}  // namespace llmc
