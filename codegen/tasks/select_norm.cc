// Norms of rows.
#include "codegen/tasks/gemv_call.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// What the kernels of language models take.
bool IsUsual(const Value* out, const Value* weight) {
  return ConstantLast(out) && Is16BitOrF32(out->type.dtype) && weight->type.dtype == out->type.dtype;
}

KernelCall RmsNormCall(const Value* out, const Value* x, const Value* weight, double eps) {
  if (!IsUsual(out, weight)) return AnyRmsNorm(out, x, weight, eps);
  const int64_t dim = out->type.shape.back().value();
  KernelCall call{.header = "norm/rms_norm", .function = "RmsNorm", .pdl = true};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kDim", dim}};
  call.params = {Out(out, "out"), In(x, "x"), In(weight, "weight"), Float(eps, "eps")};
  call.grid[0] = RowsOf(out->type);
  call.threads = ThreadsForRow(dim, out->type.dtype, 512);
  return call;
}

}  // namespace

Calls SelectRmsNorm(const Node& node, const ProgramScope&) {
  const auto op = View<RmsNorm>(node);
  return std::vector<DeviceCall>{RmsNormCall(node.results[0], op.x, op.weight, op.eps)};
}

KernelCall NormOfSum(const Node& add_rms_norm) {
  const auto op = View<AddRmsNorm>(add_rms_norm);
  return RmsNormCall(add_rms_norm.results[1], add_rms_norm.results[0], op.weight, op.eps);
}

Calls SelectAddRmsNorm(const Node& node, const ProgramScope&) {
  const auto op = View<AddRmsNorm>(node);
  const Value *sum = node.results[0], *out = node.results[1];
  if (!IsUsual(out, op.weight)) {
    return std::vector<DeviceCall>{AddCall(sum, op.x, op.y), AnyRmsNorm(out, sum, op.weight, op.eps)};
  }
  const int64_t dim = out->type.shape.back().value();
  KernelCall call{.header = "norm/add_rms_norm", .function = "AddRmsNorm", .pdl = true};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kDim", dim}};
  call.params = {Out(sum, "sum"), Out(out, "out"),         In(op.x, "x"),
                 In(op.y, "y"),   In(op.weight, "weight"), Float(op.eps, "eps")};
  call.grid[0] = RowsOf(out->type);
  call.threads = ThreadsForRow(dim, out->type.dtype, 512);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
