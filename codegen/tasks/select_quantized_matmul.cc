// Products of quantized factors: of bytes on tensor cores (select_warpgroup_matmul.cc has those of sm_90a), of floats
// with encoded weights, which are dequantized to memory. Those of a few rows are GEMVs where select_gemv.cc can make
// them.

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

constexpr int kStages = 4;  // of a product of bytes

// The most that a dim can be; a number past every bound if nobody knows.
int64_t MostOf(const Dim& dim, const ProgramScope& scope) {
  const absl::StatusOr<DimRange> range = dim.Range(scope.bounds);
  return range.ok() ? range->high : INT64_MAX;
}

// The arguments that say where the matrices of a batch lie.
std::string BatchesText(const ProductMatrices& p, const Value* x, const Value* y, KernelCall* call) {
  const Space space = BatchesOf(p);
  const auto text = [&](const Value* factor, const std::string& name, const Place& at) {
    return StridedText(absl::StrCat("const ", DeviceType(factor->type.dtype)), name, at, call);
  };
  // In the order in which parameters get their names.
  const std::string y_text = text(y, "y", space.places[1]), x_text = text(x, "x", space.places[0]);
  return absl::StrCat(AxesText(space.sizes, call), ",\n      ", x_text, ",\n      ", y_text);
}

// ---- bytes --------------------------------------------------------------------------------------------------------

void AddTile(const ProductMatrices& p, bool whole, bool streams_k, const ProgramScope& scope, KernelCall* call) {
  const int64_t m = MostOf(p.m, scope), n = MostOf(p.n, scope);
  const auto blocks = [&](int64_t rows, int64_t columns) {
    return p.is_single && m < INT64_MAX / 2 ? (m + rows - 1) / rows * ((n + columns - 1) / columns) : scope.target.sms;
  };
  // Of 128 x 128 where they are enough for most multiprocessors; else of 32 x 128, which are so many more.
  const bool large = m > 64 && blocks(128, 128) >= scope.target.sms * 2 / 3;
  const QuantizedLayout layout = {.warps_m = large ? 2 : 1,
                                  .warps_n = 4,
                                  .fragments_m = large && whole ? 4 : 2,
                                  .fragments_n = 4,
                                  .stages = kStages};
  // Products of warpgroups take both factors along k, and sums of 32 bits.
  const bool hopper = large && whole && streams_k && scope.target.wgmma;
  call->AddConstants({{"kWarpsM", layout.warps_m},
                      {"kWarpsN", layout.warps_n},
                      {"kFragmentsM", layout.fragments_m},
                      {"kFragmentsN", layout.fragments_n},
                      {"kStages", layout.stages},
                      {"kHopper", hopper}});
  call->threads = layout.Threads();
  call->shared_bytes = hopper ? kQuantizedHopper.kSharedBytes : layout.SharedBytes();
  call->adapts = hopper;
  call->grid[0] = ElementsOf(p.lead) * Blocks(p.m, layout.Rows()) * Blocks(p.n, layout.Columns());
  call->pdl = true;
}

KernelCall OfBytes(const Linear& op, const WeightParts& weight, const Value* out, const ProgramScope& scope) {
  const ProductMatrices p = MatricesOf(op, out->type);
  const Components& x = weight.x;
  const bool whole = MostOf(p.k, scope) <= kWholeTerms, aligned = Size(p.k).IsMultipleOf(16);
  KernelCall call{.header = "linear/quantized_matmul", .function = "QuantizedMatMul"};
  call.types = {{"T", DeviceType(out->type.dtype)}};
  call.constants = {{"kTransposed", op.transpose_rhs}};
  call.params = {Out(out, "out"),
                 In(x.codes, "x"),
                 In(weight.codes, "y"),
                 In(weight.scale, "scale"),
                 In(weight.zero_or_scale(), "zero"),
                 Count(p.m, "m"),
                 Count(p.n, "n"),
                 Count(p.k, "k"),
                 In(x.scale, "scale_a"),
                 In(x.zero_or_scale(), "zero_a")};
  AddByteParts(weight, &call);
  call.AddConstants({{"kWhole", whole}, {"kAligned", aligned}});
  AddTile(p, whole, aligned && op.transpose_rhs, scope, &call);
  call.arguments =
      absl::StrCat("out, m, n, k, {scale, zero, scale_a, zero_a}, ", BatchesText(p, x.codes, weight.codes, &call));
  return call;
}

// ---- floats -------------------------------------------------------------------------------------------------------

// A call whose reader takes a weight of integers.
KernelCall ReaderCall(const std::string& function, const WeightParts& weight, DType dtype) {
  KernelCall call{.header = "linear/dequantize", .function = function};
  call.types = {{"T", DeviceType(dtype)}};
  AddReader(weight, &call);
  return call;
}

KernelCall DequantizeCall(const WeightParts& weight, const ProductMatrices& p, DType dtype, KernelArg out) {
  KernelCall call = ReaderCall("Dequantize", weight, dtype);
  const bool eights = Size(weight.transposed ? p.k : p.n).IsMultipleOf(kDequantizedRun) &&
                      (!weight.transposed || weight.block % kDequantizedRun == 0);
  call.constants.push_back({"kEights", eights});
  call.params = {{"Config::T*", "out", std::move(out)}};
  const std::string argument = AddWeight(weight, "weight", &call);
  call.AddParams({Count(p.n, "n"), Count(p.k, "k")});
  call.arguments = absl::StrCat("out, ", argument, ", n, k");
  call.grid[0] = Blocks(p.n * p.k, kDequantizedRun * call.threads);
  call.pdl = true;
  return call;
}

KernelCall DequantizedMatMul(const Linear& op, const WeightParts& weight, const ProductMatrices& p, const Value* out) {
  KernelCall call = ReaderCall("DequantizedMatMul", weight, out->type.dtype);
  call.params = {Out(out, "out"), In(op.lhs, "x")};
  const std::string argument = AddWeight(weight, "y", &call);
  call.AddParams({Count(p.m, "m"), Count(p.n, "n"), Count(p.k, "k")});
  call.arguments = absl::StrCat("out, m, n, k, ", argument, ", ", BatchesText(p, op.lhs, weight.codes, &call));
  call.grid[0] = ElementsOf(p.lead) * Blocks(p.m, kProductTile) * Blocks(p.n, kProductTile);
  return call;
}

// The weight is decoded to scratch memory, from where cuBLASLt takes it: many rows are worth that, and any format can
// be. Kernels of other products read codes themselves, those of integers alone. Empty: there is no kernel.
std::vector<DeviceCall> OfFloats(const Linear& op, const std::optional<WeightParts>& weight, const Value* out) {
  const ProductMatrices p = MatricesOf(op, out->type);
  const DType dtype = out->type.dtype;
  const bool is_of_integers = weight.has_value() && weight->superblock == nullptr;
  if (!p.is_single || op.rhs->type.rank() != 2 || !Is16BitOrF32(dtype)) {
    if (!is_of_integers) return {};
    return {DequantizedMatMul(op, *weight, p, out)};
  }
  const KernelArg scratch = KernelArg::OfScratch(p.n * p.k * Dim(DTypeBits(dtype) / 8));
  const std::optional<KernelCall> call =
      is_of_integers ? DequantizeCall(*weight, p, dtype, scratch) : DecodeCall(op.rhs, dtype, scratch);
  if (!call.has_value()) return {};
  return {*call, GemmCall{.out = out,
                          .x = op.lhs,
                          .m = p.m,
                          .n = p.n,
                          .k = p.k,
                          .transposed = op.transpose_rhs,
                          .x_stride = Dim(0),
                          .weight_stride = Dim(0)}};
}

// ---- bytes that are floats ------------------------------------------------------------------------------------------

// Scales of all of a factor, or of its rows: those of x, and the channels of a weight.
bool HasScales(const Encoding& e, Granularity of_rows, bool is_of_all) {
  return !e.format->outer_scale && e.scale->dtype == DType::kF32 &&
         e.scale->per == (is_of_all ? Granularity::kTensor : of_rows);
}

// A number for each row, for products that want as many.
KernelCall RepeatCall(const Value* number, const Dim& rows) {
  KernelCall call{.header = "movement/fill", .function = "Repeat", .types = {{"T", DeviceType(number)}}};
  call.params = {{absl::StrCat(DeviceType(number), "*"), "out", KernelArg::OfScratch(Size(rows * Dim(4)))},
                 In(number, "x"),
                 Count(rows, "n")};
  call.arguments = "out, x, n";
  call.grid[0] = Blocks(rows, call.threads);
  return call;
}

// On tensor cores, by cuBLASLt. They keep some 14 bits of what they add, so results are of 16 bits. It takes one scale
// of each factor, or those of rows of both. Empty: it does not take them, or the GPU has no such products.
std::vector<DeviceCall> OfFloat8(const Linear& op, const Value* out, const ProgramScope& scope) {
  const Encoding &x = *op.lhs->type.encoding, *weight = op.rhs->type.encoding;
  const ProductMatrices p = MatricesOf(op, out->type);
  const auto is_float8 = [](const Encoding* e) {
    return e != nullptr && (e->format->name == "f8e4m3" || e->format->name == "f8e5m2");
  };
  const bool are_sixteens = Size(p.n).IsMultipleOf(16) && Size(p.k).IsMultipleOf(16);
  if (scope.target.capability < 89 || !is_float8(&x) || x.format != (weight == nullptr ? nullptr : weight->format) ||
      !p.is_single || op.rhs->type.rank() != 2 || !op.transpose_rhs || !weight->k_is_last || !are_sixteens ||
      DTypeBits(out->type.dtype) != 16) {
    return {};
  }
  const bool is_one_of_x = x.scale->per == Granularity::kTensor, is_one = weight->scale->per == Granularity::kTensor;
  if (!HasScales(x, Granularity::kToken, is_one_of_x) || !HasScales(*weight, Granularity::kChannel, is_one) ||
      (is_one && !is_one_of_x)) {
    return {};
  }
  const Components lhs = ComponentsOf(op.lhs), rhs = ComponentsOf(op.rhs);
  const GemmCall product = {.out = out,
                            .x = lhs.codes,
                            .weight = rhs.codes,
                            .m = p.m,
                            .n = p.n,
                            .k = p.k,
                            .transposed = true,
                            .x_stride = Dim(0),
                            .weight_stride = Dim(0),
                            .x_scale = lhs.scale,
                            .x_scale_in_scratch = is_one_of_x && !is_one,
                            .weight_scale = rhs.scale};
  if (!product.x_scale_in_scratch) return {product};
  return {RepeatCall(lhs.scale, p.m), product};
}

// Whatever else is encoded: both factors are decoded to scratch memory, rounded to the type of the result.
std::vector<DeviceCall> OfDecoded(const Linear& op, const Value* out) {
  const ProductMatrices p = MatricesOf(op, out->type);
  const DType dtype = out->type.dtype;
  const Size weight_bytes = Size(p.n * p.k * Dim(DTypeBits(dtype) / 8));
  if (!p.is_single || op.rhs->type.rank() != 2 || !Is16BitOrF32(dtype) || !weight_bytes.is_number()) return {};
  const int64_t x_at = (weight_bytes.number() + kComponentAlignment - 1) / kComponentAlignment * kComponentAlignment;
  const Size end = Size(x_at) + Size(p.m * p.k * Dim(DTypeBits(dtype) / 8));
  std::optional<WeightParts> parts = WeightPartsOf(op);
  if (parts.has_value()) parts->x = {};  // the weight alone
  const std::optional<KernelCall> weight = parts.has_value() && parts->superblock == nullptr
                                               ? DequantizeCall(*parts, p, dtype, KernelArg::OfScratch(end))
                                               : DecodeCall(op.rhs, dtype, KernelArg::OfScratch(end)),
                                  x = DecodeCall(op.lhs, dtype, KernelArg::OfScratch(end, x_at));
  if (!weight.has_value() || !x.has_value()) return {};
  return {*weight, *x,
          GemmCall{.out = out,
                   .x = op.lhs,
                   .x_in_scratch = x_at,
                   .m = p.m,
                   .n = p.n,
                   .k = p.k,
                   .transposed = op.transpose_rhs,
                   .x_stride = Dim(0),
                   .weight_stride = Dim(0)}};
}

// Empty: there is no kernel.
std::vector<DeviceCall> CallsOf(const Linear& op, const Value* out, const ProgramScope& scope) {
  const std::optional<WeightParts> weight = WeightPartsOf(op);
  if (op.lhs->type.encoding == nullptr) return OfFloats(op, weight, out);
  if (weight.has_value() && SumsBytes(op, *weight, out->type.dtype) &&
      (weight->x_scale_kind() == kOneNumber || MatricesOf(op, out->type).is_single)) {
    return {OfBytes(op, *weight, out, scope)};
  }
  std::vector<DeviceCall> calls = OfFloat8(op, out, scope);
  return calls.empty() && op.rhs->type.encoding != nullptr ? OfDecoded(op, out) : calls;
}

}  // namespace

bool MultipliesFloat8(const Linear& op, const Value* out, const ProgramScope& scope) {
  return !OfFloat8(op, out, scope).empty();
}

Calls SelectQuantized(const Node& node, const ProgramScope& scope) {
  if (!HasEncodedFactor(node)) return Misfit{"elements", "an encoded factor"};
  const auto op = View<Linear>(node);
  const Value* out = node.results[0];
  for (const Value* factor : {op.lhs, op.rhs}) {
    if (factor->type.encoding != nullptr && !Is<Encode>(factor->def)) {
      return NoKernel(node, "of an encoded value that encode has not made");
    }
  }
  std::vector<DeviceCall> calls = CallsOf(op, out, scope);
  if (!calls.empty()) return calls;
  const Encoding* encoding = op.rhs->type.encoding != nullptr ? op.rhs->type.encoding : op.lhs->type.encoding;
  return NoKernel(node, absl::StrCat("of ", encoding->text, "; decode it first"));
}

}  // namespace llmc
