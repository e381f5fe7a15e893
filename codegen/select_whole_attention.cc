// Attention and rotary positions over whole tensors, as ONNX has them.
#include "absl/strings/str_cat.h"
#include "codegen/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr int64_t kMaxHeadDim = 256;
constexpr int kQueries = 16, kKeys = 32;  // of a block, and of a tile: see kernels/attention.cuh

}  // namespace

Calls SelectAttention(const Node& node, const ProgramScope&) {
  const auto op = View<Attention>(node);
  const Value* out = node.results[0];
  const Dims &q = node.operands[0]->type.shape, &k = node.operands[1]->type.shape;
  if (!q[3].is_constant() || !ConstantLast(op.v)) return NoKernel(node, "with heads of unknown size");
  const int64_t dim = q[3].value(), value_dim = op.v->type.shape[3].value();
  if (dim > kMaxHeadDim || value_dim > kMaxHeadDim) return NoKernel(node, "with heads over 256");
  const Value* mask = op.mask == nullptr ? op.q : op.mask;
  KernelCall call{.header = "attention", .function = "Attention"};
  call.types = {{"T", DeviceType(out->type.dtype)}, {"Mask", DeviceType(mask->type.dtype)}};
  call.constants = {{"kDim", dim},
                    {"kValueDim", value_dim},
                    {"kMasked", op.mask != nullptr ? 1 : 0},
                    {"kCausal", op.causal ? 1 : 0},
                    {"kSoftcap", op.softcap != 0 ? 1 : 0}};
  call.params = {Out(out, "out"), In(op.q, "q"), In(op.k, "k"), In(op.v, "v"), In(mask, "mask")};
  const Dim shift = op.causal_from_end ? k[2] - q[2] : Dim(0);
  const Place place = op.mask == nullptr ? Place{.strides = SizeList(4, Size(0))}
                                         : BroadcastPlace(mask->type.shape, {q[0], q[1], q[2], k[2]});
  SizeParams params(&call);
  call.arguments = absl::StrCat(
      "out, q, k, v, ", StridedText(absl::StrCat("const ", DeviceType(mask->type.dtype)), "mask", place, &params),
      ",\n      ", params.Name(Size(q[1])), ", ", params.Name(Size(k[1])), ", ", params.Name(Size(q[2])), ", ",
      params.Name(Size(k[2])), ", ", params.Name(Size(shift)), ", ",
      NumberText(op.scale, "scale", out->type.dtype, &call), ", ",
      NumberText(op.softcap, "softcap", out->type.dtype, &call));
  call.threads = 128;
  call.shared_bytes = static_cast<int>((out->type.dtype == DType::kF64 ? 8 : 4) *
                                       (kQueries * dim + kKeys * (dim + 1) + kKeys * value_dim));
  call.grid[0] = q[0] * q[1] * Blocks(q[2], kQueries);
  return std::vector<DeviceCall>{call};
}

Calls SelectRotaryEmbedding(const Node& node, const ProgramScope&) {
  const auto op = View<RotaryEmbedding>(node);
  const Value* out = node.results[0];
  const Dims& x = node.operands[0]->type.shape;
  const Dim n = Product(x);
  KernelCall call{.header = "attention", .function = "RotaryEmbedding"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kInterleaved", op.interleaved ? 1 : 0}};
  call.params = {Out(out, "out"),       In(op.x, "x"),      In(op.cos, "cos"),
                 In(op.sin, "sin"),     Count(n, "n"),      Count(x[1], "heads"),
                 Count(x[2], "length"), Count(x[3], "dim"), Count(op.cos->type.shape[2], "half")};
  call.grid[0] = Blocks(n, call.threads);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
