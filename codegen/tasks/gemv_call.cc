#include "codegen/tasks/gemv_call.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// Shared memory of a block of a product with more results than terms, and of any other: one of each fit side by side,
// so that the next kernel fills its ring meanwhile, and two of a wide one do not, so that each multiprocessor gets one.
constexpr int64_t kWideBytes = 116 * 1024, kNarrowBytes = 107 * 1024;
// From so many elements of the weight on, cuBLASLt is faster if x does not fit beside the ring (5 to 8 rows, H200).
constexpr int64_t kMostElementsWithXInRing = 20'000'000;

// The constants of a kernel of gemv.cuh; they are explained there.
struct GemvForm {
  int64_t chunk = 0, stages = 1, in_flight = 1, rows = 0, shared_bytes = 0;
  bool x_in_ring = false;
  int threads = 256;
};

// Columns of the weight in a stage: a divisor of k, whole blocks of 64 bytes. Copies of 2 KiB are best; smaller ones
// keep the copy engine busy without filling memory (1 KiB: 3.2 TB/s of 4.3 on an H200), larger ones make few stages.
int64_t ChunkOf(int64_t k, int64_t element_bytes) {
  const int64_t block = kGemvBlockBytes / element_bytes, wished = 2048 / element_bytes;
  int64_t best = 0;
  for (int64_t chunk = block; chunk <= std::min(k, 2 * wished); chunk += block) {
    if (k % chunk == 0 && std::abs(chunk - wished) < std::abs(best - wished)) best = chunk;
  }
  return best * 2 >= wished || best == k ? best : 0;
}

// Columns of the result: pairs, if two of the product make one.
int64_t ColumnsOf(const GemvParts& parts) { return parts.silu_mul || parts.qkv.has_value() ? parts.n / 2 : parts.n; }

// Whether a block for a wide product and one for any other fit on a multiprocessor.
bool HasRoomForRings(const Target& target) {
  return target.bulk_copies && kWideBytes + kNarrowBytes + 2 * kBlockSharedBytes <= target.sm_shared_bytes;
}

// Measured on an H200 with the whole step of Llama-3.2-1B and 3.1-8B, not product by product: three stages of which two
// are under way are 4 to 8 % faster than two stages or than three under way, as long as two kernels fit side by side.
GemvForm FormOf(const GemvParts& parts, const ProgramScope& scope) {
  const int64_t bytes = DTypeBits(parts.x->type.dtype) / 8, columns = ColumnsOf(parts);
  GemvForm form;
  form.chunk = HasRoomForRings(scope.target) ? ChunkOf(parts.k, bytes) : 0;
  if (form.chunk == 0) {
    form.rows = form.threads / 32;  // one for each warp
    return form;
  }
  form.threads += 32;  // the warp that copies
  form.rows = (columns + scope.target.sms - 1) / scope.target.sms;
  const bool wide = parts.n > parts.k;
  const int64_t most = wide ? kWideBytes : kNarrowBytes;
  GemvLayout layout = {.columns = parts.k,
                       .chunk = form.chunk,
                       .rows = parts.most_rows,
                       .x_in_ring = false,
                       .element_bytes = bytes,
                       .block = kGemvBlockBytes / bytes};
  form.x_in_ring = layout.x_in_ring = 2 * layout.StageBytes() + layout.XBytes() > most;
  const int64_t stage = layout.StageBytes(), x = layout.XBytes();
  const int64_t tiles = (form.rows * (parts.n / columns) + kGemvTile - 1) / kGemvTile;
  form.stages = std::clamp<int64_t>(std::min((most - x) / stage, tiles * (parts.k / form.chunk)), 1, 3);
  form.in_flight = std::min<int64_t>(form.stages, 2);
  form.shared_bytes = std::max(form.stages * stage + x, wide ? kWideBytes : 0);
  return form;
}

void AddRopeParts(const GemvParts& parts, KernelCall* call) {
  const QkvParts& op = *parts.qkv;
  call->constants.push_back({"kHeads", op.heads});
  call->constants.push_back({"kHeadDim", HeadDim(op.kv)});
  call->constants.push_back({"kRotary", 2 * op.inv_freq->type.shape[0].value()});
  call->constants.push_back({"kInterleaved", op.interleaved ? 1 : 0});
  call->constants.push_back({"kBias", parts.bias != nullptr ? 1 : 0});
  AddKv(op.kv, call);
  call->params.push_back(In(parts.bias != nullptr ? parts.bias : parts.weight, "bias"));
  call->params.push_back(Out(op.kv, "kv"));
  call->params.push_back(In(op.pos, "pos"));
  call->params.push_back(In(op.inv_freq, "inv_freq"));
  call->params.push_back(In(op.slots, "slots"));
  call->params.push_back(Float(op.scale, "scale"));
}

// A vector that is added to every row.
bool IsBias(const Value& value, const Value& sum) {
  return value.type.rank() == 1 && value.type.dtype == sum.type.dtype && value.type.shape[0] == sum.type.shape.back() &&
         (value.kind == ValueKind::kWeight || (value.def != nullptr && value.name[0] == '@'));
}

std::optional<Misfit> AddLink(const ProductChain::Link& link, GemvParts* parts) {
  const Node& node = *link.node;
  const bool ended = parts->silu_mul || parts->addend != nullptr || parts->bias != nullptr;
  if (link.value->type.dtype != parts->x->type.dtype) return Misfit{"sums of another type", "the type of x"};
  if (Is<SiluMul>(&node) && !ended) {
    parts->silu_mul = true;
    return std::nullopt;
  }
  if (!Is<Add>(&node)) return Misfit{std::string(node.op->info.name), "a bias, a residual, silu_mul or heads"};
  if (ended) return Misfit{"a second addition", "one"};
  const Value* other = node.operands[node.operands[0] == link.value ? 1 : 0];
  if (IsBias(*other, *link.value)) {
    parts->bias = other;
  } else if (other->type == link.value->type) {
    parts->addend = other;
  } else {
    return Misfit{absl::StrCat("an addend of type ", other->type.ToString()), link.value->type.ToString()};
  }
  return std::nullopt;
}

std::optional<Misfit> AddQkv(const QkvParts& qkv, GemvParts* parts) {
  if (parts->silu_mul || parts->addend != nullptr)
    return Misfit{"heads of a sum", "heads of the product, or of a bias"};
  // A block makes some pairs of a head.
  if (qkv.q_norm != nullptr) return Misfit{"a norm of heads, which needs all of a head", "none"};
  if (!qkv.inv_freq->type.shape[0].is_constant() || HeadDim(qkv.kv) % 2 != 0) {
    return Misfit{"heads of odd or unknown size", "pairs"};
  }
  // Its epilogue reads these before it waits.
  for (const Value* early : {qkv.pos, qkv.inv_freq, qkv.slots}) {
    if (!IsThereBeforeStep(early)) return Misfit{absl::StrCat(early->name, " of the step"), "an input of it"};
  }
  parts->qkv = qkv;
  return std::nullopt;
}

std::optional<Misfit> AddNorm(const Node& norm, const ProgramScope& scope, GemvParts* parts) {
  const auto op = View<RmsNorm>(norm);
  if (op.weight->type.dtype != parts->x->type.dtype) {
    return Misfit{absl::StrCat("a norm by ", op.weight->type.ToString()), "a weight of the type of x"};
  }
  const GemvForm form = FormOf(*parts, scope);
  if (form.chunk == 0) return Misfit{"a kernel without a ring of stages", "one, beside which x is kept"};
  if (form.x_in_ring) return Misfit{"rows of x that do not fit beside the ring", "rows that do"};
  if (parts->addend != nullptr) return Misfit{"a norm before and an addend after the product", "one of them"};
  parts->x = op.x;
  parts->norm = op.weight;
  parts->eps = op.eps;
  return std::nullopt;
}

Misfit WhyNoGemv(const Node& product, const ProgramScope& scope) {
  const TensorType& x = product.operands[0]->type;
  const Dim rows = Product(Dims(x.shape.begin(), x.shape.end() - (x.shape.empty() ? 0 : 1)));
  const absl::StatusOr<DimRange> range = rows.Range(scope.bounds);
  if (!range.ok()) return {"rows of unknown number", absl::StrCat("1 to ", kMaxGemvRows)};
  if (range->high > kMaxGemvRows) {
    return {absl::StrCat("up to ", range->high, " rows"), absl::StrCat("1 to ", kMaxGemvRows)};
  }
  const auto op = View<MatMul>(product);
  const TensorType& weight = op.rhs->type;
  if (!op.transpose_rhs || weight.rank() != 2) {
    return {absl::StrCat("a factor ", weight.ToString(), op.transpose_rhs ? "" : " [k, n]"), "a weight [n, k]"};
  }
  if (!Is16BitOrF32(x.dtype) || x.dtype != weight.dtype) {
    return {absl::StrCat(DTypeName(x.dtype), " and ", DTypeName(weight.dtype)), "f32, f16 or bf16, both the same"};
  }
  return {absl::StrCat(range->high, " rows that do not fit beside the ring, with a large weight"),
          absl::StrCat("up to ", kMostElementsWithXInRing, " elements of the weight, where cuBLASLt is slower")};
}

}  // namespace

std::optional<GemvParts> GemvPartsOf(const Node& matmul, const ProgramScope& scope) {
  const auto op = View<MatMul>(matmul);
  const Value* out = matmul.results[0];
  const Dims& weight = op.rhs->type.shape;
  const bool linear = op.transpose_rhs && op.rhs->type.rank() == 2 && weight[0].is_constant() &&
                      weight[1].is_constant() && weight[0].value() > 0 && weight[1].value() > 0 &&
                      Is16BitOrF32(op.lhs->type.dtype) && op.lhs->type.dtype == op.rhs->type.dtype &&
                      Is16BitOrF32(out->type.dtype);
  if (!linear) return std::nullopt;
  GemvParts parts = {.out = out,
                     .x = op.lhs,
                     .weight = op.rhs,
                     .rows = Product(Dims(op.lhs->type.shape.begin(), op.lhs->type.shape.end() - 1))};
  const absl::StatusOr<DimRange> range = parts.rows.Range(scope.bounds);
  if (!range.ok() || range->high > kMaxGemvRows || range->high < 1) return std::nullopt;
  parts.most_rows = range->high;
  parts.n = weight[0].value();
  parts.k = weight[1].value();
  if (parts.n * parts.k > kMostElementsWithXInRing && parts.most_rows > 4 && FormOf(parts, scope).x_in_ring) {
    return std::nullopt;
  }
  return parts;
}

std::optional<Misfit> ReadGemv(const KernelBody& body, const ProgramScope& scope, GemvParts* parts) {
  ProductChain chain;
  if (std::optional<Misfit> misfit = ReadChain(body, &chain)) return misfit;
  const std::optional<GemvParts> product = GemvPartsOf(*chain.product, scope);
  if (!product.has_value()) return WhyNoGemv(*chain.product, scope);
  *parts = *product;
  std::optional<Misfit> misfit;
  for (const ProductChain::Link& link : chain.links) {
    if (!misfit.has_value()) misfit = AddLink(link, parts);
  }
  if (!misfit.has_value() && chain.qkv.has_value()) misfit = AddQkv(*chain.qkv, parts);
  parts->out = chain.out;
  if (!misfit.has_value() && chain.norm != nullptr) misfit = AddNorm(*chain.norm, scope, parts);
  return misfit;
}

std::optional<Misfit> GemvMisfit(const KernelBody& body, const ProgramScope& scope) {
  GemvParts parts;
  return ReadGemv(body, scope, &parts);
}

Calls SelectGemv(const KernelBody& body, const ProgramScope& scope) {
  GemvParts parts;
  if (const std::optional<Misfit> misfit = ReadGemv(body, scope, &parts)) {
    return NoKernel(*body.nodes[0], misfit->actual);
  }
  return std::vector<DeviceCall>{GemvCall(parts, scope)};
}

KernelCall GemvCall(const GemvParts& parts, const ProgramScope& scope) {
  const GemvForm form = FormOf(parts, scope);
  const int64_t columns = ColumnsOf(parts);
  KernelCall call{.header = "linear/gemv", .threads = form.threads, .pdl = true};
  call.function = absl::StrCat(parts.norm != nullptr ? "Norm" : "", "Gemv",
                               parts.qkv.has_value()     ? "QkvRope"
                               : parts.silu_mul          ? "SiluMul"
                               : parts.addend != nullptr ? "Add"
                               : parts.bias != nullptr   ? "Bias"
                                                         : "");
  call.types = {{"T", DeviceType(parts.x->type.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k},
                    {"kOut", columns},
                    {"kTokens", parts.most_rows},
                    {"kRows", form.rows},
                    {"kChunk", form.chunk},
                    {"kStages", form.stages},
                    {"kInFlight", form.in_flight},
                    {"kXInRing", form.x_in_ring ? 1 : 0},
                    {"kSharedBytes", form.shared_bytes}};
  call.params = {Out(parts.out, "out"), In(parts.x, "x")};
  if (parts.norm != nullptr) call.params.push_back(In(parts.norm, "norm"));
  call.params.push_back(In(parts.weight, "weight"));
  if (parts.qkv.has_value()) {
    AddRopeParts(parts, &call);
  } else if (parts.addend != nullptr) {
    call.params.push_back(In(parts.addend, "addend"));
  } else if (parts.bias != nullptr) {
    call.params.push_back(In(parts.bias, "bias"));
  }
  if (parts.norm != nullptr) call.params.push_back(Float(parts.eps, "eps"));
  call.params.push_back(Count(parts.rows, "tokens"));
  call.grid[0] = Dim((columns + form.rows - 1) / form.rows);
  call.shared_bytes = static_cast<int>(form.shared_bytes);
  return call;
}

}  // namespace llmc
