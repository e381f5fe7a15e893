// Attention within each of several texts that lie one after the other. On tensor cores slices of queries, keys and
// values are read in place.
#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/moves.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/attention.h"

namespace llmc {
namespace {

struct PackedSizes {
  int64_t kv_heads, group, dim, value_dim;
};

KernelCall NewCall(const PackedAttention& op, const Value* out, const PackedSizes& sizes, const std::string& function) {
  KernelCall call{.header = "attention/packed_attention", .function = function};
  call.types = {{"T", DeviceType(out)}};
  call.constants = {{"kKvHeads", sizes.kv_heads},   {"kGroup", sizes.group}, {"kKeyDim", sizes.dim},
                    {"kValueDim", sizes.value_dim}, {"kWindow", op.window},  {"kCausal", op.causal},
                    {"kSoftcap", op.softcap != 0}};
  call.params = {Out(out, "out"),
                 In(op.q, "q"),
                 In(op.k, "k"),
                 In(op.v, "v"),
                 In(op.starts, "starts"),
                 Count(out->type.shape[0], "tokens"),
                 Count(op.starts->type.shape[0] - Dim(1), "texts")};
  return call;
}

Calls OnTensorCores(const KernelBody& body, const Node& node, const PackedSizes& sizes, const Target& target) {
  const auto op = View<PackedAttention>(node);
  const Value* out = node.results[0];
  KernelCall call = NewCall(op, out, sizes, "PackedAttentionTiles");
  call.arguments = "out, ";
  for (const auto& [value, name, param] : {std::tuple(op.q, "q", 1), {op.k, "k", 2}, {op.v, "v", 3}}) {
    const std::optional<StridedRows> rows = StridedRowsFrom(value, value == op.v ? sizes.value_dim : sizes.dim, body);
    if (!rows.has_value() || !rows->IsMultipleOf(8)) return Misfit{"rows that lie otherwise", "whole vectors"};
    call.params[static_cast<size_t>(param)] = In(rows->in, name);
    absl::StrAppend(&call.arguments, StridedRowsText(*rows, name, false, &call), ", ");
  }
  const bool persistent =
      AddFlashBlocks(sizes.dim, sizes.value_dim, /*mask_bytes=*/0, /*by_maps=*/false, target, &call);
  call.AddParams(
      {Float(op.softcap != 0 ? op.scale : op.scale * std::log2(std::exp(1.0)), "scale"), Float(op.softcap, "softcap")});
  AddDeviceErrors({{"packed_attention: starts are not in order from 0 to $0", &node}}, &call);
  absl::StrAppend(&call.arguments, "starts, tokens, texts, scale, softcap, {device_error, first_device_error}");
  const Dim rows = out->type.shape[0] * Dim(sizes.group);
  const Dim tiles = Dim::FloorDiv(rows, Dim(kFlashRows)) + op.starts->type.shape[0];  // at the most
  call.grid[0] = persistent ? Dim(target.sms) : tiles * Dim(sizes.kv_heads);
  call.pdl = IsThereBeforeStep(op.starts);  // which are read through restricted pointers
  return std::vector<DeviceCall>{call};
}

KernelCall WithoutTensorCores(const Node& node, const PackedSizes& sizes) {
  const auto op = View<PackedAttention>(node);
  const Value* out = node.results[0];
  KernelCall call = NewCall(op, out, sizes, "PackedAttention");
  const std::string scale = NumberText(op.scale, "scale", out->type.dtype, &call);
  const std::string softcap = NumberText(op.softcap, "softcap", out->type.dtype, &call);
  AddDeviceErrors({{"packed_attention: starts are not in order from 0 to $0", &node}}, &call);
  call.arguments = absl::StrCat("out, q, k, v, starts, tokens, texts, ", scale, ", ", softcap,
                                ", {device_error, first_device_error}");
  call.threads = 128;
  call.grid[0] = Blocks(out->type.shape[0] * Dim(sizes.kv_heads * sizes.group), call.threads / 32);
  return call;
}

}  // namespace

Calls SelectPackedAttention(const KernelBody& body, const ProgramScope& scope) {
  const auto attention = absl::c_find_if(body.nodes, [](const Node* each) { return Is<PackedAttention>(each); });
  if (attention == body.nodes.end()) return Misfit{"no packed_attention", "one"};
  for (const Node* other : body.nodes) {
    if (other != *attention && !IsMove(other)) return Misfit{std::string(other->op->info.name), "rows that are moved"};
  }
  const Node& node = **attention;
  if (body.results != std::vector<const Value*>{node.results[0]})
    return Misfit{"a result that is moved", "one as it is"};
  const auto op = View<PackedAttention>(node);
  const int64_t kv_heads = op.k->type.shape[1].value() / op.head_dim;
  const PackedSizes sizes = {.kv_heads = kv_heads,
                             .group = op.q->type.shape[1].value() / op.head_dim / kv_heads,
                             .dim = op.head_dim,
                             .value_dim = op.v->type.shape[1].value() / kv_heads};
  if (std::max(sizes.dim, sizes.value_dim) > kMaxHeadDim) return NoKernel(node, "with heads over 256");
  // Copies are of 16 bytes; the greatest score is found before scores are scaled.
  const DType dtype = op.q->type.dtype;
  const bool fast = (dtype == DType::kF16 || dtype == DType::kBF16) && sizes.dim % 8 == 0 && sizes.value_dim % 8 == 0 &&
                    sizes.value_dim > 0 && op.scale > 0;
  if (fast) return OnTensorCores(body, node, sizes, scope.target);
  if (body.nodes.size() > 1) return Misfit{"rows that are moved", "attention on tensor cores"};
  return std::vector<DeviceCall>{WithoutTensorCores(node, sizes)};
}

}  // namespace llmc
