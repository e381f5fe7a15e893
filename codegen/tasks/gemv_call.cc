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
int64_t ColumnsOf(const GemvParts& parts) { return parts.silu_mul || parts.rope != nullptr ? parts.n / 2 : parts.n; }

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
  const auto op = View<RopeKvWrite>(*parts.rope);
  const KvPages kv = KvPagesOf(op.kv);
  call->constants.push_back({"kHeads", op.heads});
  call->constants.push_back({"kHeadDim", kv.head_dim()});
  call->constants.push_back({"kRotary", 2 * op.inv_freq->type.shape[0].value()});
  call->constants.push_back({"kInterleaved", op.interleaved ? 1 : 0});
  call->constants.push_back({"kBias", parts.bias != nullptr ? 1 : 0});
  AddKv(kv, call);
  call->params.push_back(In(parts.bias != nullptr ? parts.bias : parts.weight, "bias"));
  call->params.push_back(kv.Out());
  call->params.push_back(In(op.pos, "pos"));
  call->params.push_back(In(op.inv_freq, "inv_freq"));
  call->params.push_back(In(op.slots, "slots"));
  call->params.push_back(Float(op.scale, "scale"));
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

bool CanNormalize(const GemvParts& parts, const ProgramScope& scope) {
  const GemvForm form = FormOf(parts, scope);
  return form.chunk > 0 && !form.x_in_ring && parts.addend == nullptr;
}

KernelCall GemvCall(const GemvParts& parts, const ProgramScope& scope) {
  const GemvForm form = FormOf(parts, scope);
  const int64_t columns = ColumnsOf(parts);
  KernelCall call{.header = "linear/gemv", .threads = form.threads, .pdl = true};
  call.function = absl::StrCat(parts.norm != nullptr ? "Norm" : "", "Gemv",
                               parts.rope != nullptr     ? "QkvRope"
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
  if (parts.rope != nullptr) {
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
