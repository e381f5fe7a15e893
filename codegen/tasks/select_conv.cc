// Convolutions.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// Attributes may be left out.
SizeList Filled(const std::vector<int64_t>& values, size_t begin, size_t count, int64_t otherwise) {
  SizeList sizes;
  for (size_t i = 0; i < count; ++i) sizes.push_back(Size(values.empty() ? otherwise : values[begin + i]));
  return sizes;
}

}  // namespace

Calls SelectConv(const Node& node, const ProgramScope&) {
  const auto op = View<Conv>(node);
  const Value* out = node.results[0];
  const Dims &x = op.x->type.shape, &weight = op.weight->type.shape, &positions = out->type.shape;
  const size_t axes = x.size() - 2;
  const Dim features = Dim::FloorDiv(weight[0], Dim(op.groups));
  KernelCall call{.header = "linear/conv", .function = "Conv", .types = {{"T", DeviceType(out)}}};
  call.constants = {{"kBias", op.bias != nullptr}};
  call.params = {Out(out, "out"), In(op.x, "x"), In(op.weight, "weight"),
                 In(op.bias == nullptr ? op.weight : op.bias, "bias")};
  const auto tail = [](const Dims& dims) { return ToSizes(Dims(dims.begin() + 2, dims.end())); };
  call.arguments = absl::StrCat("out, x, weight, bias, ", op.groups, ", ", call.SizeText(Size(weight[1])), ", ",
                                call.SizeText(Size(features)));
  for (const SizeList& sizes : {tail(x), tail(weight), tail(positions), Filled(op.strides, 0, axes, 1),
                                Filled(op.dilations, 0, axes, 1), Filled(op.pads, 0, axes, 0)}) {
    absl::StrAppend(&call.arguments, ",\n      ", AxesText(sizes, &call));
  }
  const Size count = ElementsOf(Dims(positions.begin() + 2, positions.end()));
  call.grid[0] = x[0] * Dim(op.groups) * Blocks(features, kProductTile) * Blocks(count, kProductTile);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
