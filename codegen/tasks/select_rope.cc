// Rotary positions, and writes to the KV cache.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/kernel_parts.h"
#include "codegen/tasks/moves.h"
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

// A block for each token and each of so many heads as it has teams for, each of which turns `each`.
void SetGrid(const Dim& tokens, int64_t heads, int64_t head_dim, KernelCall* call, int64_t each = 1) {
  const int64_t of_block = call->threads / HeadThreads(head_dim) * each;
  call->grid = {tokens, Dim((heads + of_block - 1) / of_block), Dim(1)};
}

// How many heads a team turns: more where there are many tokens, since it waits for the first ones as long as for all.
int64_t HeadsEach(const Dim& tokens, const ProgramScope& scope) {
  constexpr int64_t kFewTokens = 256, kMany = 6;
  const absl::StatusOr<DimRange> range = tokens.Range(scope.bounds);
  return range.ok() && range->high <= kFewTokens ? 1 : kMany;
}

}  // namespace

void AddRope(const Value* inv_freq, int64_t head_dim, bool interleaved, const std::vector<const Value*>& beside,
             KernelCall* call) {
  call->AddConstants({{"kHeadDim", head_dim},
                      {"kRotary", 2 * inv_freq->type.shape[0].value()},
                      {"kInterleaved", interleaved},
                      {"kHeadThreads", HeadThreads(head_dim)},
                      {"kEarly", absl::c_all_of(beside, IsThereBeforeStep)}});
  call->threads = 128;
}

Calls SelectRope(const KernelBody& body, const ProgramScope&) {
  const Node& node = *body.nodes.back();
  if (!Is<Rope>(&node) || absl::c_count_if(body.nodes, IsMove) + 1 != static_cast<int64_t>(body.nodes.size())) {
    return Misfit{"more than a rope", "one of elements that are only moved"};
  }
  if (body.results.size() != 1) return Misfit{absl::StrCat(body.results.size(), " results"), "one"};
  const auto op = View<Rope>(node);
  const Value* out = node.results[0];
  if (!ConstantLast(out) || !op.inv_freq->type.shape[0].is_constant()) return NoKernel(node, "of unknown width");
  if (!Is16BitOrF32(out->type.dtype)) return NoKernel(node, "in this type");
  const std::optional<StridedRows> x = StridedRowsFrom(op.x, op.head_dim, body);
  if (!x.has_value() || (body.nodes.size() > 1 && !x->IsMultipleOf(8))) {
    return Misfit{"heads that lie otherwise", "whole vectors"};
  }
  KernelCall call{.header = "attention/rope", .function = "Rope", .types = {{"T", DeviceType(out)}}, .pdl = true};
  call.constants = {{"kHeads", out->type.shape[1].value() / op.head_dim}};
  AddRope(op.inv_freq, op.head_dim, op.interleaved, {op.pos, op.inv_freq}, &call);
  call.params = {Out(out, "out"), In(x->in, "x"), In(op.pos, "pos"), In(op.inv_freq, "inv_freq"),
                 Float(op.scale, "scale")};
  call.arguments = absl::StrCat("out, ", StridedRowsText(*x, "x", false, &call), ", pos, inv_freq, scale");
  SetGrid(out->type.shape[0], out->type.shape[1].value() / op.head_dim, op.head_dim, &call);
  call.task = AsTask(call);
  return std::vector<DeviceCall>{call};
}

void AddTurningOfHeads(const KernelCall& call, KernelCall::Task* task) {
  const auto part = [&](absl::string_view function) {
    return absl::c_find_if(call.parts, [&](const KernelCall& one) { return one.function == function; });
  };
  const auto queries = part("Rope"), keys = part("RopeWrite");
  if (call.parts.size() != 2 || queries == call.parts.end() || keys == call.parts.end()) return;
  const auto arg = [](const KernelCall& of, absl::string_view name) -> const KernelArg& {
    return absl::c_find_if(of.params, [&](const KernelParam& param) { return param.name == name; })->arg;
  };
  const auto constant = [](const KernelCall& of, absl::string_view name) -> int64_t {
    const auto it = absl::c_find_if(of.constants, [&](const auto& one) { return one.first == name; });
    return it == of.constants.end() ? 0 : it->second;
  };
  const auto is_same = [&](absl::string_view name) { return constant(*queries, name) == constant(*keys, name); };
  const Value *q = arg(*queries, "x").value, *k = arg(*keys, "k").value, *v = arg(*keys, "v").value;
  // Codes of keys have scales; queries may be some of the columns of what they are read from.
  const bool fits = !keys->task->body_bytes && queries->types == keys->types && is_same("kHeadDim") &&
                    is_same("kRotary") && is_same("kInterleaved") &&
                    q->type.shape.back() == Dim(constant(*queries, "kHeads") * constant(*queries, "kHeadDim")) &&
                    arg(*queries, "pos").value == arg(*keys, "pos").value &&
                    arg(*queries, "inv_freq").value == arg(*keys, "inv_freq").value &&
                    arg(*queries, "scale").number == arg(*keys, "scale").number;
  if (!fits) return;
  // What RopeKvWrite does, with the parameters of both parts.
  KernelCall one = *keys;
  one.function = "RopeKvWrite";
  one.AddConstants({{"kHeads", constant(*queries, "kHeads")}});
  one.params = call.params;
  const std::string of_queries = absl::StrCat("p", queries - call.parts.begin(), "_");
  const std::string of_keys = absl::StrCat("p", keys - call.parts.begin(), "_");
  for (KernelParam& param : one.params) {
    if (param.name == of_keys + "kv") param.name = "kv";
  }
  one.arguments = absl::StrCat(of_queries, "out, kv, ", of_queries, "x, ", of_keys, "pos, ", of_keys, "inv_freq, ",
                               of_keys, "slots, ", of_keys, "scale");
  task->as_one = std::make_shared<const KernelCall>(one);
  task->takes = {q, k, v};
  task->gives = {arg(*queries, "out").value};
  task->turns_heads = true;
}

namespace {

// Queries that come merged with keys and values are rotated too.
KernelCall RopeWriteCall(const QkvParts& parts, const ProgramScope& scope) {
  const KvPages kv = KvPagesOf(parts.kv);
  const bool is_merged = parts.qkv != nullptr, normalizes = parts.q_norm != nullptr;
  const Value* x = is_merged ? parts.qkv : parts.k;
  KernelCall call{.header = "attention/rope", .pdl = true};
  call.function = normalizes ? "NormRopeKvWrite" : is_merged ? "RopeKvWrite" : "RopeWrite";
  call.types = {{"T", DeviceType(x)}};
  const int64_t each = is_merged && !normalizes ? HeadsEach(x->type.shape[0], scope) : 1;
  if (is_merged) call.constants = {{"kHeads", parts.heads}};
  if (is_merged && !normalizes) call.AddConstants({{"kHeadsEach", each}});
  std::vector<const Value*> beside = {parts.pos, parts.inv_freq, parts.slots};
  if (normalizes) beside.insert(beside.end(), {parts.q_norm, parts.k_norm});
  AddRope(parts.inv_freq, kv.head_dim(), parts.interleaved, beside, &call);
  AddKv(kv, &call);
  if (is_merged) {
    call.params = {Out(parts.out, "out"), kv.Out(), In(parts.qkv, "qkv")};
  } else {
    call.params = {kv.Out(), In(parts.k, "k"), In(parts.v, "v")};
  }
  call.AddParams({In(parts.pos, "pos"), In(parts.inv_freq, "inv_freq"), In(parts.slots, "slots")});
  if (normalizes) call.AddParams({In(parts.q_norm, "q_norm"), In(parts.k_norm, "k_norm")});
  call.params.push_back(Float(parts.scale, "scale"));
  if (normalizes) call.params.push_back(Float(parts.eps, "eps"));
  AddStaticScales(parts.k_scale, parts.v_scale, &call);
  SetGrid(x->type.shape[0], is_merged ? parts.heads + 2 * kv.heads() : kv.heads(), kv.head_dim(), &call, each);
  call.task = AsTask(call);
  // The heads of a block, on their way to codes.
  if (kv.is_encoded()) call.task->body_bytes = static_cast<int>(call.threads * kv.head_dim() * 4);
  if (is_merged && !kv.is_encoded()) {
    call.task->takes = {parts.qkv};
    call.task->gives = {parts.out};
    call.task->turns_heads = true;
  }
  return call;
}

KernelCall KvWriteCall(const KvWrite& op) {
  const KvPages kv = KvPagesOf(op.kv, op.keys, op.values);
  KernelCall call{.header = "attention/rope", .function = "KvWrite", .types = {{"T", DeviceType(op.k)}}, .pdl = true};
  call.constants = {{"kHeadDim", kv.head_dim()}, {"kValueDim", kv.value_dim()}};
  AddKv(kv, &call);
  call.params = {kv.Out(), In(op.k, "k"), In(op.v, "v"), In(op.slots, "slots")};
  AddStaticScales(op.k_scale, op.v_scale, &call);
  call.grid[0] = op.k->type.shape[0];
  return call;
}

}  // namespace

Calls SelectKvWrite(const KernelBody& body, const ProgramScope& scope) {
  const auto write = absl::c_find_if(body.nodes, [](const Node* node) { return Is<KvWrite>(node); });
  if (write == body.nodes.end()) return Misfit{"no kv_write", "one"};
  const auto op = View<KvWrite>(**write);
  const KvPages kv = KvPagesOf(op.kv, op.keys, op.values);
  const DType dtype = kv.dtype();
  if (std::optional<Misfit> misfit = KvMisfit(kv)) {
    if (body.nodes.size() > 1) return *misfit;
    return NoKernel(**write, absl::StrCat("of ", misfit->actual, " (", misfit->expected, " it takes)"));
  }
  if (body.nodes.size() == 1) {
    if (!Is16BitOrF32(dtype)) return NoKernel(**write, "in this type");
    return std::vector<DeviceCall>{KvWriteCall(op)};
  }
  QkvParts parts;
  if (std::optional<Misfit> misfit = ReadQkv(body.nodes, &parts)) return *misfit;
  if (!Is16BitOrF32(dtype)) return Misfit{std::string(DTypeName(dtype)), "f32, f16 or bf16"};
  if (!parts.inv_freq->type.shape[0].is_constant()) return Misfit{"rope of unknown width", "a number"};
  const bool is_merged = parts.out != nullptr;
  if (body.results != (is_merged ? std::vector<const Value*>{parts.out} : std::vector<const Value*>())) {
    return Misfit{"other results", is_merged ? "the rotated queries" : "none"};
  }
  return std::vector<DeviceCall>{RopeWriteCall(parts, scope)};
}

}  // namespace llmc
