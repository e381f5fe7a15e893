// Rotary positions, and writes to the KV cache.
#include "absl/algorithm/container.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

// Threads that share a head: one for each pair, in whole parts of a warp or whole warps.
int64_t HeadThreads(int64_t head_dim) {
  int64_t threads = 1;
  while (threads < head_dim / 2 && threads < 32) threads *= 2;
  return threads;
}

// `beside`: what the kernel reads besides heads.
void AddRope(const Value* inv_freq, int64_t head_dim, bool interleaved, const std::vector<const Value*>& beside,
             KernelCall* call) {
  call->constants.push_back({"kHeadDim", head_dim});
  call->constants.push_back({"kRotary", 2 * inv_freq->type.shape[0].value()});
  call->constants.push_back({"kInterleaved", interleaved ? 1 : 0});
  call->constants.push_back({"kHeadThreads", HeadThreads(head_dim)});
  call->constants.push_back({"kEarly", absl::c_all_of(beside, IsThereBeforeStep) ? 1 : 0});
  call->threads = 128;
}

// A block for each token and each of so many heads as it has teams for.
void SetGrid(const Dim& tokens, int64_t heads, int64_t head_dim, KernelCall* call) {
  const int64_t teams = call->threads / HeadThreads(head_dim);
  call->grid = {tokens, Dim((heads + teams - 1) / teams), Dim(1)};
}

}  // namespace

Calls SelectRope(const Node& node, const ProgramScope&) {
  const auto op = View<Rope>(node);
  const Value* out = node.results[0];
  if (!ConstantLast(out) || !op.inv_freq->type.shape[0].is_constant()) return NoKernel(node, "of unknown width");
  if (!Is16BitOrF32(out->type.dtype)) return NoKernel(node, "in this type");
  KernelCall call{.header = "attention/rope", .function = "Rope", .pdl = true};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kHeads", out->type.shape[1].value() / op.head_dim}};
  AddRope(op.inv_freq, op.head_dim, op.interleaved, {op.pos, op.inv_freq}, &call);
  call.params = {Out(out, "out"), In(op.x, "x"), In(op.pos, "pos"), In(op.inv_freq, "inv_freq"),
                 Float(op.scale, "scale")};
  SetGrid(out->type.shape[0], out->type.shape[1].value() / op.head_dim, op.head_dim, &call);
  return std::vector<DeviceCall>{call};
}

Calls SelectRopeKvWrite(const Node& node, const ProgramScope&) {
  const auto op = View<RopeKvWrite>(node);
  const KvPages kv = KvPagesOf(op.kv);
  if (!Is16BitOrF32(kv.dtype())) return NoKernel(node, "in this type");
  const bool normalizes = op.q_norm != nullptr;
  KernelCall call{.header = "attention/rope", .function = normalizes ? "NormRopeKvWrite" : "RopeKvWrite", .pdl = true};
  call.types = {{"T", DeviceType(op.qkv->type.dtype)}};
  call.constants = {{"kHeads", op.heads}};
  std::vector<const Value*> beside = {op.pos, op.inv_freq, op.slots};
  if (normalizes) beside.insert(beside.end(), {op.q_norm, op.k_norm});
  AddRope(op.inv_freq, kv.head_dim(), op.interleaved, beside, &call);
  AddKv(kv, &call);
  call.params = {Out(node.results[0], "out"), kv.Out(),
                 In(op.qkv, "qkv"),           In(op.pos, "pos"),
                 In(op.inv_freq, "inv_freq"), In(op.slots, "slots")};
  if (normalizes) call.params.insert(call.params.end(), {In(op.q_norm, "q_norm"), In(op.k_norm, "k_norm")});
  call.params.push_back(Float(op.scale, "scale"));
  if (normalizes) call.params.push_back(Float(op.eps, "eps"));
  SetGrid(op.qkv->type.shape[0], op.heads + 2 * kv.heads(), kv.head_dim(), &call);
  return std::vector<DeviceCall>{call};
}

Calls SelectRopeWrite(const Node& node, const ProgramScope&) {
  const auto op = View<RopeWrite>(node);
  const KvPages kv = KvPagesOf(op.kv);
  if (!Is16BitOrF32(kv.dtype())) return NoKernel(node, "in this type");
  KernelCall call{.header = "attention/rope", .function = "RopeWrite", .pdl = true};
  call.types = {{"T", DeviceType(op.k->type.dtype)}};
  AddRope(op.inv_freq, kv.head_dim(), op.interleaved, {op.pos, op.inv_freq, op.slots}, &call);
  AddKv(kv, &call);
  call.params = {kv.Out(),
                 In(op.k, "k"),
                 In(op.v, "v"),
                 In(op.pos, "pos"),
                 In(op.inv_freq, "inv_freq"),
                 In(op.slots, "slots"),
                 Float(op.scale, "scale")};
  SetGrid(op.k->type.shape[0], kv.heads(), kv.head_dim(), &call);
  return std::vector<DeviceCall>{call};
}

Calls SelectKvWrite(const Node& node, const ProgramScope&) {
  const auto op = View<KvWrite>(node);
  const KvPages kv = KvPagesOf(op.kv, op.keys, op.values);
  if (!Is16BitOrF32(kv.dtype())) return NoKernel(node, "in this type");
  KernelCall call{.header = "attention/rope", .function = "KvWrite", .pdl = true};
  call.types = {{"T", DeviceType(op.k->type.dtype)}};
  call.constants = {{"kHeadDim", kv.head_dim()}, {"kValueDim", kv.value_dim()}};
  AddKv(kv, &call);
  call.params = {kv.Out(), In(op.k, "k"), In(op.v, "v"), In(op.slots, "slots")};
  call.grid[0] = op.k->type.shape[0];
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
