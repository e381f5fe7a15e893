// Products of quantized factors: of bytes on tensor cores, and of floats with weights that are dequantized in
// registers; of a few rows (GEMV) at the speed of memory.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
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

PartKind KindOf(const Value* part) {
  if (part == nullptr) return kNoPart;
  if (part->type.rank() == 2) return kOfBlocks;
  return ElementsOf(part->type.shape).Is(1) ? kOneNumber : kOfColumns;
}

struct Product3 {
  Dims lead, lhs_lead, rhs_lead;  // the axes of batches: of the result and of each factor
  Dim m, n, k;
  bool single = false;  // one product
};

Product3 ProductOf(const QuantizedMatMul& op, const TensorType& out) {
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

KernelCall NewCall(const QuantizedMatMul& op, const Value* out, const Product3& p, const std::string& header) {
  const Value* zero = op.rhs_zero == nullptr ? op.rhs_scale : op.rhs_zero;
  KernelCall call{.header = header};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {
      {"kTransposed", op.transpose_rhs ? 1 : 0}, {"kScale", KindOf(op.rhs_scale)}, {"kZero", KindOf(op.rhs_zero)}};
  call.params = {Out(out, "out"),  In(op.lhs, "x"), In(op.rhs, "y"), In(op.rhs_scale, "scale"),
                 In(zero, "zero"), Count(p.m, "m"), Count(p.n, "n"), Count(p.k, "k")};
  return call;
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

void AddTile(const Product3& p, bool whole, const ProgramScope& scope, KernelCall* call) {
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
  call->threads = layout.Threads();
  call->shared_bytes = layout.SharedBytes();
  call->grid[0] = ElementsOf(p.lead) * Blocks(p.m, layout.Rows()) * Blocks(p.n, layout.Columns());
  call->pdl = true;
}

KernelCall OfBytes(const QuantizedMatMul& op, const Value* out, const ProgramScope& scope) {
  const Product3 p = ProductOf(op, out->type);
  const int64_t few = FewRows(op, p, scope);
  const bool whole = MostOf(p.k, scope) <= kWholeTerms;
  KernelCall call = NewCall(op, out, p, "linear/quantized_matmul");
  const Value* zero_a = op.lhs_zero == nullptr ? op.lhs_scale : op.lhs_zero;
  const Value* zero_b = op.rhs_zero == nullptr ? op.rhs_scale : op.rhs_zero;
  call.types.push_back({"A", DeviceType(op.lhs->type.dtype)});
  call.types.push_back({"B", DeviceType(op.rhs->type.dtype)});
  call.types.push_back({"ZeroA", DeviceType(zero_a->type.dtype)});
  call.types.push_back({"ZeroB", DeviceType(zero_b->type.dtype)});
  call.constants.push_back({"kZeroA", op.lhs_zero != nullptr ? 1 : 0});
  call.constants.push_back({"kWhole", whole ? 1 : 0});
  call.params.push_back(In(op.lhs_scale, "scale_a"));
  call.params.push_back(In(zero_a, "zero_a"));
  const std::string parts = "{scale, zero, scale_a, zero_a}";
  if (few > 0) {
    call.function = "QuantizedGemv";
    call.constants.push_back({"kBytes", BytesOfVector(p.k)});
    StreamRows(p, few, 2, scope, &call);
    call.arguments = absl::StrCat("out, x, y, ", parts, ", m, n, k");
    return call;
  }
  call.function = "QuantizedMatMul";
  call.constants.push_back({"kAligned", Size(p.k).IsMultipleOf(16) ? 1 : 0});
  AddTile(p, whole, scope, &call);
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
  call.params[0] = {"Config::T*", "weight", KernelArg::OfScratch(bytes)};
  call.params.erase(call.params.begin() + 5);  // m
  call.params.erase(call.params.begin() + 1);  // x
  call.arguments = "weight, y, {scale, zero}, n, k";
  call.grid[0] = Blocks(p.n * p.k, kDequantizedRun * call.threads);
  call.pdl = true;
  return {call, GemmOfScratch(out, op.lhs, p, op.transpose_rhs)};
}

std::vector<DeviceCall> OfFloats(const QuantizedMatMul& op, const Value* out, const ProgramScope& scope) {
  const Product3 p = ProductOf(op, out->type);
  const Value* zero = op.rhs_zero == nullptr ? op.rhs_scale : op.rhs_zero;
  KernelCall call = NewCall(op, out, p, "linear/dequantized_matmul");
  call.types.push_back({"Q", DeviceType(op.rhs->type.dtype)});
  call.types.push_back({"Scale", DeviceType(op.rhs_scale->type.dtype)});
  call.types.push_back({"Zero", DeviceType(zero->type.dtype)});
  call.constants.push_back({"kBlock", std::max<int64_t>(op.block, 1)});
  const bool eights = Size(p.k).IsMultipleOf(8) && op.block % 8 == 0;
  const int64_t few = Is16BitOrF32(out->type.dtype) && eights ? FewRows(op, p, scope) : 0;
  if (few > 0) {
    // At most 16 bytes, in one block.
    int64_t run = DTypeBits(op.rhs->type.dtype) == 4 ? 32 : 16;
    while (!Size(p.k).IsMultipleOf(run) || op.block % run != 0) run /= 2;
    call.function = "DequantizedGemv";
    call.constants.push_back({"kRun", run});
    StreamRows(p, few, 1, scope, &call);
    call.arguments = "out, x, y, {scale, zero}, m, n, k";
    return {call};
  }
  if (p.single && Is16BitOrF32(out->type.dtype) && op.rhs->type.rank() == 2) return ThroughMemory(op, p, out, call);
  call.function = "DequantizedMatMul";
  SizeParams params(&call);
  call.arguments = absl::StrCat("out, m, n, k, {scale, zero}, ", BatchesText(op, p, &params));
  call.grid[0] = ElementsOf(p.lead) * Blocks(p.m, kProductTile) * Blocks(p.n, kProductTile);
  return {call};
}

// Whether scales and zero points are those of all, of columns or of groups of them.
bool IsAlongK(const Encoding& weight, bool transpose_rhs) {
  for (const std::optional<Encoding::Part>& part : {weight.scale, weight.zero}) {
    if (!part.has_value() || part->per == Granularity::kTensor) continue;
    const bool is_of_columns = part->per == Granularity::kChannel || part->per == Granularity::kGroup;
    if (!is_of_columns || weight.k_is_last != transpose_rhs) return false;
  }
  return true;
}

// The components of a value, which encode made.
struct Components {
  const Value *codes = nullptr, *scale = nullptr, *zero = nullptr;
};
Components ComponentsOf(const Value* encoded) {
  const std::vector<Value*>& all = encoded->def->operands;
  return {all[0], all.size() > 1 ? all[1] : nullptr, all.size() > 2 ? all[2] : nullptr};
}

// Of formats and granularities that no product reads: through memory, as many rows of any are.
Calls OfAny(const Node& node) {
  const auto op = View<Linear>(node);
  const Value* out = node.results[0];
  const Encoding& encoding = op.rhs->type.encoding == nullptr ? *op.lhs->type.encoding : *op.rhs->type.encoding;
  const Product3 p = ProductOf(QuantizedMatMul{.lhs = op.lhs, .rhs = op.rhs}, out->type);
  const KernelArg weight = KernelArg::OfScratch(p.n * p.k * Dim(DTypeBits(out->type.dtype) / 8));
  std::optional<KernelCall> call;
  if (op.lhs->type.encoding == nullptr && p.single && op.rhs->type.rank() == 2 && Is16BitOrF32(out->type.dtype)) {
    call = DecodeCall(op.rhs, out->type.dtype, weight);
  }
  if (call.has_value()) {
    return std::vector<DeviceCall>{*std::move(call), GemmOfScratch(out, op.lhs, p, op.transpose_rhs)};
  }
  return NoKernel(node, absl::StrCat("of ", encoding.text, "; decode it, and use matmul"));
}

}  // namespace

Calls SelectLinear(const Node& node, const ProgramScope& scope) {
  const auto op = View<Linear>(node);
  const Encoding *x = op.lhs->type.encoding, *weight = op.rhs->type.encoding;
  if (x == nullptr && weight == nullptr) return NoKernel(node, "of what is not encoded; use matmul");
  for (const Value* factor : {op.lhs, op.rhs}) {
    if (factor->type.encoding != nullptr && !Is<Encode>(factor->def)) {
      return NoKernel(node, "of an encoded value that encode has not made");
    }
  }
  const bool is_integer = weight != nullptr && weight->format->is_integer() && IsAlongK(*weight, op.transpose_rhs);
  if (!is_integer || (weight->group > 0 && op.rhs->type.rank() != 2)) return OfAny(node);
  const Components rhs = ComponentsOf(op.rhs);
  QuantizedMatMul product = {.lhs = op.lhs,
                             .rhs = rhs.codes,
                             .rhs_scale = rhs.scale,
                             .rhs_zero = rhs.zero,
                             .transpose_rhs = op.transpose_rhs,
                             .block = weight->group};
  if (x == nullptr) return OfFloats(product, node.results[0], scope);
  const Components lhs = ComponentsOf(op.lhs);
  product.lhs = lhs.codes;
  product.lhs_scale = lhs.scale;
  product.lhs_zero = lhs.zero;
  const auto is_one = [](const std::optional<Encoding::Part>& part) {
    return !part.has_value() || part->per == Granularity::kTensor;
  };
  const auto is_byte = [](const Value* codes) { return DTypeBits(codes->type.dtype) == 8; };
  if (!SumsIntegers(op.lhs->type, op.rhs->type, op.transpose_rhs) || !is_one(x->scale) || !is_one(x->zero) ||
      !is_byte(lhs.codes) || !is_byte(rhs.codes) || lhs.scale->type.dtype != rhs.scale->type.dtype ||
      lhs.scale->type.dtype != node.results[0]->type.dtype) {
    return OfAny(node);
  }
  return std::vector<DeviceCall>{OfBytes(product, node.results[0], scope)};
}

}  // namespace llmc
