// GEMV: products of 1 to 8 rows as calls of kernels/linear/gemv.cuh, with what comes before and after them.
#include <algorithm>
#include <cstdlib>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/kernel_parts.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

struct GemvParts {
  const Value* out = nullptr;
  const Value* x = nullptr;  // [..., k]
  DType dtype;               // of what the sums become: that of x, but for products of bytes
  WeightParts weight;        // [n, k]
  Dim rows;                  // of x
  int64_t most_rows = 0;
  int64_t n = 0, k = 0;

  const Value* norm = nullptr;  // x is normalized first, with this weight
  double eps = 0;

  const Value* bias = nullptr;    // [n], added to the sums
  const Value* addend = nullptr;  // [..., n], added to the sums
  bool silu_mul = false;
  std::optional<QkvParts> qkv;  // the sums are queries, keys and values, which are rotated and written

  bool is_decoded() const { return !weight.is_dense() && !weight.is_of_bytes(); }
};

// Shared memory of a block of a product with more results than terms, and of any other: one of each fit side by side,
// so that the next kernel fills its ring meanwhile, and two of a wide one do not, so that each multiprocessor gets one.
constexpr int64_t kWideBytes = 116 * 1024, kNarrowBytes = 107 * 1024;
// From so many elements of the weight on, cuBLASLt is faster if x does not fit beside the ring (5 to 8 rows, H200).
constexpr int64_t kMostElementsWithXInRing = 20'000'000;

// The constants of a kernel of gemv.cuh; they are explained there.
struct GemvForm {
  int64_t chunk = 0, stages = 1, in_flight = 1, rows = 0, warp_columns = 1, shared_bytes = 0;
  int64_t used_bytes = 0;  // of shared_bytes
  bool x_in_ring = false;
  int threads = 256;
};

// Columns of the weight in a stage: a divisor of k, whole groups of `step`, about `wished`; 0 if there is none.
int64_t ChunkOf(int64_t k, int64_t step, int64_t wished) {
  int64_t best = 0;
  for (int64_t chunk = step; chunk <= std::min(k, 2 * wished); chunk += step) {
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

int64_t BytesOfX(const GemvParts& parts) { return DTypeBits(parts.x->type.dtype) / 8; }

GemvLayout LayoutOf(const GemvParts& parts, int64_t chunk, bool x_in_ring) {
  const WeightParts& weight = parts.weight;
  return {.columns = parts.k,
          .chunk = chunk,
          .rows = parts.most_rows,
          .x_in_ring = x_in_ring,
          .element_bytes = BytesOfX(parts),
          .block = weight.superblock != nullptr ? weight.superblock->superblock
                   : parts.is_decoded()         ? 4 * kCodesOfLane
                                                : kGemvBlockBytes / BytesOfX(parts),
          .weight_bits = weight.bits(),
          .scale_bits = weight.scale_bits(),
          .zero_bits = weight.zero_bits(),
          .part_block = std::max<int64_t>(weight.block, 1),
          .superblock = weight.superblock == nullptr ? 0 : weight.superblock->superblock,
          .superblock_bytes = weight.superblock == nullptr ? 0 : weight.superblock->superblock_bytes};
}

// A stage of rows of the weight, of which two fit `most` bytes. Copies of 2 KiB a row are best; smaller ones keep the
// copy engine busy without filling memory (1 KiB: 3.2 TB/s of 4.3 on an H200), larger ones make few stages. Rows of
// codes have more columns, so that x takes more room beside them: smaller copies that leave x all of it are better than
// x in the ring.
std::optional<GemvLayout> StageOf(const GemvParts& parts, int64_t most) {
  const WeightParts& weight = parts.weight;
  int64_t wished = 2048 * 8 / weight.bits();
  if (!parts.is_decoded()) {
    const int64_t chunk = ChunkOf(parts.k, kGemvBlockBytes / BytesOfX(parts), wished);
    if (chunk == 0) return std::nullopt;
    GemvLayout layout = LayoutOf(parts, chunk, false);
    layout.x_in_ring = 2 * layout.StageBytes() + layout.XBytes() > most;
    return layout;
  }
  int64_t step = 4 * kCodesOfLane;
  if (weight.superblock != nullptr) {
    // Copies end at multiples of 16 bytes, and must not pass the end of the weight.
    if (parts.n * weight.RowBytes(parts.k) % 16 != 0) return std::nullopt;
    step = weight.superblock->superblock;
    wished = 2048 * step / weight.superblock->superblock_bytes;
  }
  if (weight.has_blocks()) {
    if (weight.block % step != 0 || parts.k % weight.block != 0) return std::nullopt;
    step = weight.block;
  }
  std::optional<GemvLayout> in_ring;
  for (const int64_t least = wished / 4; wished >= least; wished /= 2) {
    const int64_t chunk = ChunkOf(parts.k, step, wished);
    if (chunk == 0) continue;
    GemvLayout layout = LayoutOf(parts, chunk, false);
    if ((layout.scale_bits > 0 && layout.PartCopy(layout.scale_bits) == 0) ||
        (layout.zero_bits > 0 && layout.PartCopy(layout.zero_bits) == 0)) {
      continue;
    }
    if (2 * layout.StageBytes() + layout.XBytes() <= most) return layout;
    layout.x_in_ring = true;
    if (!in_ring.has_value() && 2 * layout.StageBytes() <= most) in_ring = layout;
  }
  return in_ring;
}

// A warp makes as many columns as share what is done to x, if there are warps enough for all multiprocessors.
int64_t WarpColumnsOf(const GemvParts& parts, const ProgramScope& scope, int64_t warps) {
  if (parts.weight.is_dense()) return 1;
  const int64_t columns = ColumnsOf(parts);
  int64_t each = (parts.most_rows <= 2 ? 4 : 2) / (parts.n / columns);
  while (each > 1 && columns < scope.target.sms * warps * each) each /= 2;
  return each;
}

// Measured on an H200 with the whole step of Llama-3.2-1B and 3.1-8B, not product by product: three stages of which two
// are under way are 4 to 8 % faster than two stages or than three under way, as long as two kernels fit side by side.
GemvForm FormOf(const GemvParts& parts, const ProgramScope& scope) {
  const int64_t columns = ColumnsOf(parts);
  const bool wide = parts.n > parts.k;
  const int64_t most = wide ? kWideBytes : kNarrowBytes;
  GemvForm form;
  const std::optional<GemvLayout> layout = HasRoomForRings(scope.target) ? StageOf(parts, most) : std::nullopt;
  if (!layout.has_value()) {
    form.warp_columns = WarpColumnsOf(parts, scope, form.threads / 32);
    form.rows = form.threads / 32 * form.warp_columns;
    return form;
  }
  form.chunk = layout->chunk;
  form.x_in_ring = layout->x_in_ring;
  form.threads += layout->scale_bits + layout->zero_bits > 0 ? 64 : 32;  // the warps that copy
  form.rows = (columns + scope.target.sms - 1) / scope.target.sms;
  const int64_t stage = layout->StageBytes(), x = layout->XBytes();
  const int64_t tiles = (form.rows * (parts.n / columns) + kGemvTile - 1) / kGemvTile;
  form.stages = std::clamp<int64_t>(std::min((most - x) / stage, tiles * (parts.k / form.chunk)), 1, 3);
  form.in_flight = std::min<int64_t>(form.stages, 2);
  form.used_bytes = form.stages * stage + x;
  form.shared_bytes = std::max(form.used_bytes, wide ? kWideBytes : 0);
  return form;
}

void AddRopeParts(const GemvParts& parts, KernelCall* call) {
  const QkvParts& op = *parts.qkv;
  const KvPages kv = KvPagesOf(op.kv);
  call->AddConstants({{"kHeads", op.heads},
                      {"kHeadDim", kv.head_dim()},
                      {"kRotary", 2 * op.inv_freq->type.shape[0].value()},
                      {"kInterleaved", op.interleaved},
                      {"kBias", parts.bias != nullptr}});
  AddKv(kv, call);
  const Value* unread = parts.weight.is_dense()      ? parts.weight.codes
                        : parts.weight.is_of_bytes() ? parts.weight.scale
                                                     : parts.x;
  call->AddParams({In(parts.bias != nullptr ? parts.bias : unread, "bias"), kv.Out(), In(op.pos, "pos"),
                   In(op.inv_freq, "inv_freq"), In(op.slots, "slots"), Float(op.scale, "scale")});
}

// A vector that is added to every row.
bool IsBias(const Value& value, const Value& sum) {
  return value.type.rank() == 1 && value.type.dtype == sum.type.dtype && value.type.shape[0] == sum.type.shape.back() &&
         (value.kind == ValueKind::kWeight || (value.def != nullptr && value.name[0] == '@'));
}

std::optional<Misfit> AddLink(const ProductChain::Link& link, GemvParts* parts) {
  const Node& node = *link.node;
  const bool ended = parts->silu_mul || parts->addend != nullptr || parts->bias != nullptr;
  if (link.value->type.dtype != parts->dtype) return Misfit{"sums of another type", "the type of x"};
  if (Is<Cast>(&node)) {
    const bool widens = !ended && node.results[0]->type.dtype == DType::kF32;
    return widens ? std::nullopt : std::optional(Misfit{"another cast", "one of the sums to f32"});
  }
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
  if (!qkv.inv_freq->type.shape[0].is_constant() || KvPagesOf(qkv.kv).head_dim() % 2 != 0) {
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
  if (op.weight->type.dtype != parts->dtype) {
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

// Sums of 32 bits hold products of bytes, if they are not too many and zero points are of the types of their codes.
// What does not fit is computed as products of many rows.
std::optional<Misfit> SetBytes(GemvParts* parts) {
  parts->x = parts->weight.x.codes;
  for (const Components& factor : {parts->weight.x, Components(parts->weight)}) {
    const bool fits = factor.zero == nullptr || factor.zero->type.dtype == factor.codes->type.dtype;
    if (!fits) return Misfit{"a zero point of another type", "that of the codes"};
  }
  if (parts->k <= kWholeTerms && parts->k % 4 == 0) return std::nullopt;
  return Misfit{absl::StrCat(parts->k, " terms"), absl::StrCat("a multiple of 4 up to ", kWholeTerms)};
}

// The product alone: of 1 to 8 rows of floats and a weight, which may be encoded, or of bytes.
std::optional<Misfit> SetProduct(const Node& product, const ProgramScope& scope, GemvParts* parts) {
  const Linear op = ProductOf(product);
  const TensorType& x = op.lhs->type;
  parts->rows = Product(Dims(x.shape.begin(), x.shape.end() - 1));
  const absl::StatusOr<DimRange> rows = parts->rows.Range(scope.bounds);
  const std::string few = absl::StrCat("1 to ", kMaxGemvRows);
  if (!rows.ok()) return Misfit{"rows of unknown number", few};
  if (rows->high > kMaxGemvRows || rows->high < 1) return Misfit{absl::StrCat("up to ", rows->high, " rows"), few};
  const std::optional<WeightParts> weight = WeightPartsOf(op);
  parts->dtype = product.results[0]->type.dtype;
  if (!weight.has_value() || (x.encoding != nullptr && !SumsBytes(op, *weight, parts->dtype))) {
    return Misfit{
        absl::StrCat(x.ToString(), " and ", op.rhs->type.ToString()),
        "floats and a weight of the same type, of integers with scales or of superblocks, or two factors of bytes"};
  }
  if (weight->is_of_bytes() && weight->x_scale_kind() != kOneNumber) return Misfit{"scales of rows", "one scale of x"};
  const TensorType& codes = weight->codes->type;
  if (!weight->transposed || codes.rank() != 2) {
    return Misfit{absl::StrCat("a factor ", codes.ToString(), weight->transposed ? "" : " [k, n]"), "a weight [n, k]"};
  }
  for (const DType dtype : {x.encoding != nullptr ? parts->dtype : x.dtype, parts->dtype}) {
    if (!Is16BitOrF32(dtype)) return Misfit{std::string(DTypeName(dtype)), "f32, f16 or bf16"};
  }
  // Weights are copied while the kernel before still runs.
  if (!weight->IsThereBeforeStep()) return Misfit{"a factor that the step makes", "a weight"};
  for (const Dim& size : codes.shape) {
    if (!size.is_constant() || size.value() < 1) return Misfit{codes.ToString(), "a weight of known sizes over 0"};
  }
  parts->x = op.lhs;
  parts->weight = *weight;
  parts->most_rows = rows->high;
  parts->n = codes.shape[0].value();
  parts->k = op.rhs->type.shape[1].value();
  if (x.encoding != nullptr) return SetBytes(parts);
  if (!weight->is_dense()) {
    // A lane has so many codes, which share a scale.
    const bool fits = parts->k % kCodesOfLane == 0 && (!weight->has_blocks() || weight->block % kCodesOfLane == 0);
    if (fits) return std::nullopt;
    return Misfit{op.rhs->type.ToString(), absl::StrCat("rows and groups of multiples of ", kCodesOfLane, " codes")};
  }
  if (parts->n * parts->k > kMostElementsWithXInRing && rows->high > 4 && FormOf(*parts, scope).x_in_ring) {
    return Misfit{
        absl::StrCat(rows->high, " rows that do not fit beside the ring, with a large weight"),
        absl::StrCat("up to ", kMostElementsWithXInRing, " elements of the weight, where cuBLASLt is slower")};
  }
  return std::nullopt;
}

// All that the kernel computes, or why it cannot.
std::optional<Misfit> ReadGemv(const KernelBody& body, const ProgramScope& scope, GemvParts* parts) {
  ProductChain chain;
  if (std::optional<Misfit> misfit = ReadChain(body, &chain)) return misfit;
  if (chain.narrow.has_value()) return Misfit{"operands that are cast", "operands as they are"};
  if (std::optional<Misfit> misfit = SetProduct(*chain.product, scope, parts)) return misfit;
  for (const ProductChain::Link& link : chain.links) {
    if (std::optional<Misfit> misfit = AddLink(link, parts)) return misfit;
  }
  if (chain.qkv.has_value()) {
    if (std::optional<Misfit> misfit = AddQkv(*chain.qkv, parts)) return misfit;
  }
  parts->out = chain.out;
  return chain.norm == nullptr ? std::nullopt : AddNorm(*chain.norm, scope, parts);
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
  call.types = {{"T", DeviceType(parts.dtype)}, {"Out", DeviceType(parts.out->type.dtype)}};
  call.constants = {{"kIn", parts.k},
                    {"kOut", columns},
                    {"kTokens", parts.most_rows},
                    {"kRows", form.rows},
                    {"kChunk", form.chunk},
                    {"kStages", form.stages},
                    {"kInFlight", form.in_flight},
                    {"kXInRing", form.x_in_ring},
                    {"kSharedBytes", form.shared_bytes}};
  AddReader(parts.weight, &call);
  if (form.warp_columns > 1) call.constants.push_back({"kWarpColumns", form.warp_columns});
  call.params = {Out(parts.out, "out"), In(parts.x, "x")};
  if (parts.norm != nullptr) call.params.push_back(In(parts.norm, "norm"));
  std::vector<std::string> arguments;
  for (const KernelParam& param : call.params) arguments.push_back(param.name);
  arguments.push_back(AddWeight(parts.weight, "weight", &call));
  const size_t rest = call.params.size();
  if (parts.qkv.has_value()) {
    AddRopeParts(parts, &call);
  } else if (parts.addend != nullptr) {
    call.params.push_back(In(parts.addend, "addend"));
  } else if (parts.bias != nullptr) {
    call.params.push_back(In(parts.bias, "bias"));
  }
  if (parts.norm != nullptr) call.params.push_back(Float(parts.eps, "eps"));
  call.params.push_back(Count(parts.rows, "tokens"));
  for (size_t i = rest; i < call.params.size(); ++i) arguments.push_back(call.params[i].name);
  call.arguments = absl::StrJoin(arguments, ", ");
  call.grid[0] = Dim((columns + form.rows - 1) / form.rows);
  call.shared_bytes = static_cast<int>(form.shared_bytes);
  call.used_bytes = static_cast<int>(form.used_bytes);
  return call;
}

// Shared memory of the last block, beside the ring: for each token what RouteOfToken has.
constexpr int64_t kMostRouteBytes = 32 * 1024;

// A product of a router, and the experts that the last block chooses by it.
Calls SelectRouter(const Node& route, const KernelBody& product, const ProgramScope& scope) {
  if (std::optional<Misfit> misfit = RouteMisfit(route)) return *misfit;
  GemvParts parts;
  if (std::optional<Misfit> misfit = ReadGemv(product, scope, &parts)) return *misfit;
  const auto op = View<Route>(route);
  const bool fits = parts.out == op.logits && parts.out->type.dtype == parts.dtype && parts.norm == nullptr &&
                    parts.addend == nullptr && !parts.silu_mul && !parts.qkv.has_value();
  if (!fits) return Misfit{"a route of another value", "of the product, or of its sum with a bias"};
  const int64_t experts = op.logits->type.shape[1].value();
  if (parts.most_rows * (2 * experts + op.groups + op.top_k) * 4 > kMostRouteBytes) {
    return Misfit{absl::StrCat(experts, " experts for each of ", parts.most_rows, " tokens"), "fewer"};
  }
  KernelCall call = GemvCall(parts, scope);
  call.header = "experts/router";
  call.function = parts.bias != nullptr ? "RouterBias" : "Router";
  AddRouteConstants(route, &call);
  const Size logits = ElementsOf(op.logits->type.shape) * Size(DTypeBits(parts.dtype) / 8);
  call.params[0].arg = KernelArg::OfScratch(logits);
  call.AddParams({Out(route.results[0], "chosen"),
                  Out(route.results[1], "weights"),
                  {"llmc::i32*", "counter", KernelArg::OfCounters()},
                  Float(op.scale, "scale")});
  if (op.bias != nullptr) call.params.push_back(In(op.bias, "route_bias"));
  call.arguments = absl::StrCat("chosen, weights, counter, ", call.arguments, ", ",
                                op.bias != nullptr ? "route_bias" : "nullptr", ", scale");
  return std::vector<DeviceCall>{call};
}

}  // namespace

Calls SelectGemv(const KernelBody& body, const ProgramScope& scope) {
  if (const Node& last = *body.nodes.back(); Is<Route>(&last)) {
    const std::vector<const Value*> results(last.results.begin(), last.results.end());
    if (body.results != results) return Misfit{"other results", "the experts and their weights"};
    KernelBody product = {.nodes = {body.nodes.begin(), body.nodes.end() - 1}, .results = {last.operands[0]}};
    return SelectRouter(last, product, scope);
  }
  const auto product = absl::c_find_if(body.nodes, [](const Node* node) { return Is<MatMul>(node); });
  if (product != body.nodes.end()) {
    const ProductMatrices p = MatricesOf(ProductOf(**product), (*product)->results[0]->type);
    if (!p.is_single && !p.lead.empty()) return SelectBatchedGemv(body, scope);
  }
  GemvParts parts;
  if (std::optional<Misfit> misfit = ReadGemv(body, scope, &parts)) return *misfit;
  return std::vector<DeviceCall>{GemvCall(parts, scope)};
}

}  // namespace llmc
