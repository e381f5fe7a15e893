// Products of quantized factors: of bytes on tensor cores, of a few rows (GEMV) at the speed of memory; of floats with
// encoded weights, which are dequantized in registers (select_gemv.cc) or, for many rows, to memory.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

constexpr int64_t kWarps = 8;  // of a block of a GEMV
constexpr int kStages = 4;     // of a product of bytes

// The most that a dim can be; a number past every bound if nobody knows.
int64_t MostOf(const Dim& dim, const ProgramScope& scope) {
  const absl::StatusOr<DimRange> range = dim.Range(scope.bounds);
  return range.ok() ? range->high : INT64_MAX;
}

// A product with an encoded weight, by its components.
struct QuantizedMatMul {
  const Value *lhs = nullptr, *rhs = nullptr;  // codes, or floats
  const Value *rhs_scale = nullptr, *rhs_zero = nullptr, *lhs_scale = nullptr, *lhs_zero = nullptr;
  bool transpose_rhs = false;
  int64_t block = 0;  // of groups along k
};

WeightParts WeightPartsOf(const QuantizedMatMul& op) {
  return {
      .codes = op.rhs, .scale = op.rhs_scale, .zero = op.rhs_zero, .block = op.block, .transposed = op.transpose_rhs};
}

struct Product3 {
  Dims lead, lhs_lead, rhs_lead;  // the axes of batches: of the result and of each factor
  Dim m, n, k;
  bool single = false;  // one product
};

Product3 MatricesOf(const QuantizedMatMul& op, const TensorType& out) {
  const Dims &a = op.lhs->type.shape, &b = op.rhs->type.shape;
  const auto lead = [](const Dims& dims) { return Dims(dims.begin(), dims.end() - 2); };
  Product3 p = {.lead = lead(out.shape), .lhs_lead = lead(a), .rhs_lead = lead(b)};
  p.m = a[a.size() - 2];
  p.k = a.back();
  p.n = out.shape.back();
  // One right factor for all makes the rows of all batches rows of one product.
  const Dim rows = p.m * Product(p.lead);
  if (ElementsOf(p.rhs_lead).Is(1) && ElementsOf(p.lhs_lead) == ElementsOf(p.lead) && !rows.is_unknown()) {
    p.m = rows;
    p.lead = p.lhs_lead = p.rhs_lead = {};
    p.single = true;
  }
  return p;
}

// The arguments that say where the matrices of a batch lie.
std::string BatchesText(const QuantizedMatMul& op, const Product3& p, SizeParams* params) {
  const auto place = [&](const Dims& lead, const Dim& matrix) {
    Place at = BroadcastPlace(lead, p.lead);
    for (Size& stride : at.strides) stride = stride * Size(matrix);
    return at;
  };
  const Space space =
      Collapse({.sizes = ToSizes(p.lead), .places = {place(p.lhs_lead, p.m * p.k), place(p.rhs_lead, p.k * p.n)}});
  const auto text = [&](const Value* factor, const std::string& name, size_t i) {
    return StridedText(absl::StrCat("const ", DeviceType(factor->type.dtype)), name, space.places[i], params);
  };
  return absl::StrCat(AxesText(space.sizes, params), ",\n      ", text(op.lhs, "x", 0), ",\n      ",
                      text(op.rhs, "y", 1));
}

// Columns that a warp makes: as many as share what is done to rows, if there are `blocks` of warps for each
// multiprocessor.
int64_t ColumnsOf(const Dim& n, int64_t rows, int64_t blocks, const ProgramScope& scope) {
  int64_t columns = rows <= 2 ? 4 : 2;
  while (columns > 1 && MostOf(n, scope) < blocks * scope.target.sms * kWarps * columns) columns /= 2;
  return columns;
}

void StreamRows(const Product3& p, int64_t rows, int64_t blocks, const ProgramScope& scope, KernelCall* call) {
  const int64_t columns = ColumnsOf(p.n, rows, blocks, scope);
  call->constants.push_back({"kRows", rows});
  call->constants.push_back({"kColumns", columns});
  call->threads = 32 * kWarps;
  call->grid[0] = Blocks(p.n, kWarps * columns);
  call->pdl = true;
}

// Rows of the left factor, if they are so few that the right one is streamed; else 0.
int64_t FewRows(const QuantizedMatMul& op, const Product3& p, const ProgramScope& scope) {
  const int64_t rows = MostOf(p.m, scope);
  return p.single && op.transpose_rhs && rows >= 1 && rows <= kMaxGemvRows ? rows : 0;
}

int64_t BytesOfVector(const Dim& k) {
  for (const int64_t bytes : {16, 8, 4}) {
    if (Size(k).IsMultipleOf(bytes)) return bytes;
  }
  return 1;
}

// ---- bytes --------------------------------------------------------------------------------------------------------

void AddTile(const Product3& p, bool whole, bool streams_k, const ProgramScope& scope, KernelCall* call) {
  const int64_t m = MostOf(p.m, scope), n = MostOf(p.n, scope);
  const auto blocks = [&](int64_t rows, int64_t columns) {
    return p.single && m < INT64_MAX / 2 ? (m + rows - 1) / rows * ((n + columns - 1) / columns) : scope.target.sms;
  };
  // Of 128 x 128 where they are enough for most multiprocessors; else of 32 x 128, which are so many more.
  const bool large = m > 64 && blocks(128, 128) >= scope.target.sms * 2 / 3;
  const QuantizedLayout layout = {.warps_m = large ? 2 : 1,
                                  .warps_n = 4,
                                  .fragments_m = large && whole ? 4 : 2,
                                  .fragments_n = 4,
                                  .stages = kStages};
  for (const auto& [name, value] :
       {std::pair("kWarpsM", layout.warps_m), std::pair("kWarpsN", layout.warps_n),
        std::pair("kFragmentsM", layout.fragments_m), std::pair("kFragmentsN", layout.fragments_n),
        std::pair("kStages", layout.stages)}) {
    call->constants.push_back({name, value});
  }
  // Products of warpgroups take both factors along k, and sums of 32 bits.
  const bool hopper = large && whole && streams_k && scope.target.wgmma;
  call->constants.push_back({"kHopper", hopper ? 1 : 0});
  call->threads = layout.Threads();
  call->shared_bytes = hopper ? kQuantizedHopper.kSharedBytes : layout.SharedBytes();
  call->adapts = hopper;
  call->grid[0] = ElementsOf(p.lead) * Blocks(p.m, layout.Rows()) * Blocks(p.n, layout.Columns());
  call->pdl = true;
}

KernelCall OfBytes(const QuantizedMatMul& op, const Value* out, const ProgramScope& scope) {
  const Product3 p = MatricesOf(op, out->type);
  const int64_t few = FewRows(op, p, scope);
  const bool whole = MostOf(p.k, scope) <= kWholeTerms;
  const Value* zero_a = op.lhs_zero == nullptr ? op.lhs_scale : op.lhs_zero;
  const Value* zero_b = op.rhs_zero == nullptr ? op.rhs_scale : op.rhs_zero;
  KernelCall call{.header = "linear/quantized_matmul"};
  call.types = {{"T", DeviceType(out->type.dtype)},
                {"A", DeviceType(op.lhs->type.dtype)},
                {"B", DeviceType(op.rhs->type.dtype)},
                {"ZeroA", DeviceType(zero_a->type.dtype)},
                {"ZeroB", DeviceType(zero_b->type.dtype)}};
  call.constants = {{"kTransposed", op.transpose_rhs ? 1 : 0},
                    {"kScale", WeightParts::KindOf(op.rhs_scale)},
                    {"kZero", WeightParts::KindOf(op.rhs_zero)},
                    {"kZeroA", op.lhs_zero != nullptr ? 1 : 0},
                    {"kWhole", whole ? 1 : 0}};
  call.params = {Out(out, "out"),    In(op.lhs, "x"), In(op.rhs, "y"), In(op.rhs_scale, "scale"),
                 In(zero_b, "zero"), Count(p.m, "m"), Count(p.n, "n"), Count(p.k, "k")};
  call.params.push_back(In(op.lhs_scale, "scale_a"));
  call.params.push_back(In(zero_a, "zero_a"));
  const std::string parts = "{scale, zero, scale_a, zero_a}";
  if (few > 0) {
    call.header = "linear/quantized_gemv";
    call.function = "QuantizedGemv";
    call.constants.push_back({"kBytes", BytesOfVector(p.k)});
    StreamRows(p, few, 2, scope, &call);
    call.arguments = absl::StrCat("out, x, y, ", parts, ", m, n, k");
    return call;
  }
  call.function = "QuantizedMatMul";
  const bool aligned = Size(p.k).IsMultipleOf(16);
  call.constants.push_back({"kAligned", aligned ? 1 : 0});
  AddTile(p, whole, aligned && op.transpose_rhs, scope, &call);
  SizeParams params(&call);
  call.arguments = absl::StrCat("out, m, n, k, ", parts, ", ", BatchesText(op, p, &params));
  return call;
}

// ---- floats -------------------------------------------------------------------------------------------------------

// Takes the weight from the scratch memory of the node, where the call before has written it.
GemmCall GemmOfScratch(const Value* out, const Value* x, const Product3& p, bool transposed) {
  return {.out = out,
          .x = x,
          .m = p.m,
          .n = p.n,
          .k = p.k,
          .transposed = transposed,
          .x_stride = Dim(0),
          .weight_stride = Dim(0),
          .weight_bytes = p.n * p.k * Dim(DTypeBits(out->type.dtype) / 8)};
}

// The weight is dequantized to scratch memory, from where cuBLASLt takes it: many rows are worth that.
std::vector<DeviceCall> ThroughMemory(const QuantizedMatMul& op, const Product3& p, const Value* out, KernelCall call) {
  const Dim bytes = p.n * p.k * Dim(DTypeBits(out->type.dtype) / 8);
  call.function = "Dequantize";
  const bool eights = Size(op.transpose_rhs ? p.k : p.n).IsMultipleOf(kDequantizedRun) &&
                      (!op.transpose_rhs || op.block % kDequantizedRun == 0);
  call.constants.push_back({"kEights", eights ? 1 : 0});
  call.params = {{"Config::T*", "out", KernelArg::OfScratch(bytes)}};
  const std::string weight = AddWeight(WeightPartsOf(op), "weight", &call);
  call.params.insert(call.params.end(), {Count(p.n, "n"), Count(p.k, "k")});
  call.arguments = absl::StrCat("out, ", weight, ", n, k");
  call.grid[0] = Blocks(p.n * p.k, kDequantizedRun * call.threads);
  call.pdl = true;
  return {call, GemmOfScratch(out, op.lhs, p, op.transpose_rhs)};
}

std::vector<DeviceCall> OfFloats(const QuantizedMatMul& op, const Value* out) {
  const Product3 p = MatricesOf(op, out->type);
  KernelCall call{.header = "linear/dequantize"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  AddReader(WeightPartsOf(op), &call);
  if (p.single && Is16BitOrF32(out->type.dtype) && op.rhs->type.rank() == 2) return ThroughMemory(op, p, out, call);
  call.function = "DequantizedMatMul";
  call.params = {Out(out, "out"), In(op.lhs, "x")};
  const std::string weight = AddWeight(WeightPartsOf(op), "y", &call);
  call.params.insert(call.params.end(), {Count(p.m, "m"), Count(p.n, "n"), Count(p.k, "k")});
  SizeParams params(&call);
  call.arguments = absl::StrCat("out, m, n, k, ", weight, ", ", BatchesText(op, p, &params));
  call.grid[0] = ElementsOf(p.lead) * Blocks(p.m, kProductTile) * Blocks(p.n, kProductTile);
  return {call};
}

// Of formats and granularities that no product reads: through memory, as many rows of any are.
Calls OfAny(const Node& node) {
  const auto op = View<Linear>(node);
  const Value* out = node.results[0];
  const Encoding& encoding = op.rhs->type.encoding == nullptr ? *op.lhs->type.encoding : *op.rhs->type.encoding;
  const Product3 p = MatricesOf(QuantizedMatMul{.lhs = op.lhs, .rhs = op.rhs}, out->type);
  const KernelArg weight = KernelArg::OfScratch(p.n * p.k * Dim(DTypeBits(out->type.dtype) / 8));
  std::optional<KernelCall> call;
  if (op.lhs->type.encoding == nullptr && p.single && op.rhs->type.rank() == 2 && Is16BitOrF32(out->type.dtype)) {
    call = DecodeCall(op.rhs, out->type.dtype, weight);
  }
  if (call.has_value()) {
    return std::vector<DeviceCall>{*std::move(call), GemmOfScratch(out, op.lhs, p, op.transpose_rhs)};
  }
  return NoKernel(node, absl::StrCat("of ", encoding.text, "; decode it first"));
}

}  // namespace

Calls SelectQuantized(const Node& node, const ProgramScope& scope) {
  if (!HasEncodedFactor(node)) return Misfit{"elements", "an encoded factor"};
  const auto op = View<Linear>(node);
  const Encoding* x = op.lhs->type.encoding;
  for (const Value* factor : {op.lhs, op.rhs}) {
    if (factor->type.encoding != nullptr && !Is<Encode>(factor->def)) {
      return NoKernel(node, "of an encoded value that encode has not made");
    }
  }
  const std::optional<WeightParts> parts = WeightPartsOf(op);
  if (!parts.has_value()) return OfAny(node);
  QuantizedMatMul product = {.lhs = op.lhs,
                             .rhs = parts->codes,
                             .rhs_scale = parts->scale,
                             .rhs_zero = parts->zero,
                             .transpose_rhs = op.transpose_rhs,
                             .block = parts->block};
  if (x == nullptr) return OfFloats(product, node.results[0]);
  const Components lhs = ComponentsOf(op.lhs);
  product.lhs = lhs.codes;
  product.lhs_scale = lhs.scale;
  product.lhs_zero = lhs.zero;
  const auto is_one = [](const std::optional<Encoding::Part>& part) {
    return !part.has_value() || part->per == Granularity::kTensor;
  };
  const auto is_byte = [](const Value* codes) { return DTypeBits(codes->type.dtype) == 8; };
  if (!SumsIntegers(op.lhs->type, op.rhs->type, op.transpose_rhs) || !is_one(x->scale) || !is_one(x->zero) ||
      !is_byte(lhs.codes) || !is_byte(parts->codes) || lhs.scale->type.dtype != parts->scale->type.dtype ||
      lhs.scale->type.dtype != node.results[0]->type.dtype) {
    return OfAny(node);
  }
  return std::vector<DeviceCall>{OfBytes(product, node.results[0], scope)};
}

}  // namespace llmc
