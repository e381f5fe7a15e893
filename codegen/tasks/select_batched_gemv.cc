// Few rows of many small products, such as those of the heads of latent attention, whose factors and results lie
// anywhere.
#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/moves.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

struct BatchedParts {
  Linear op;
  StridedRows x, out;
  Size rows = 1;
  int64_t most_rows = 0, batches = 0;
  BatchedGemv sizes;
};

// Rows in batches of a place under [batches, rows, n].
std::optional<StridedRows> RowsOfPlace(const MovedValue& moved) {
  const SizeList& strides = moved.place.strides;
  if (strides.size() != 3 || !strides[2].Is(1)) return std::nullopt;
  return StridedRows{moved.in, moved.place.offset, strides[1], strides[0]};
}

std::optional<Misfit> ReadBatchedGemv(const KernelBody& body, const ProgramScope& scope, BatchedParts* parts) {
  const auto product = absl::c_find_if(body.nodes, [](const Node* node) { return !IsMove(node); });
  if (product == body.nodes.end() || !(Is<MatMul>(*product) || Is<Linear>(*product)))
    return Misfit{"no product", "one"};
  if (absl::c_count_if(body.nodes, IsMove) + 1 != static_cast<int64_t>(body.nodes.size())) {
    return Misfit{"more than a product", "one whose elements are only moved"};
  }
  if (HasEncodedFactor(**product)) return Misfit{"an encoded factor", "elements"};
  parts->op = ProductOf(**product);
  const Value* result = (*product)->results[0];
  const DType dtype = result->type.dtype;
  if (!Is16BitOrF32(dtype)) return Misfit{std::string(DTypeName(dtype)), "f32, f16 or bf16"};
  const ProductMatrices p = MatricesOf(parts->op, result->type);
  if (p.is_single || p.lead.size() != 1 || p.lhs_lead != p.lead || p.rhs_lead != p.lead || !p.lead[0].is_constant() ||
      !p.n.is_constant() || !p.k.is_constant()) {
    return Misfit{"other products", "one for each of a known number of batches, of known size"};
  }
  const absl::StatusOr<DimRange> range = p.m.Range(scope.bounds);
  if (!range.ok() || range->high > kMaxGemvRows) {
    return Misfit{range.ok() ? absl::StrCat("up to ", range->high, " rows") : "any number of rows",
                  absl::StrCat("1 to ", kMaxGemvRows)};
  }
  const int vec = static_cast<int>(128 / DTypeBits(dtype));
  parts->sizes = {p.n.value(), p.k.value(), vec, parts->op.transpose_rhs};
  if (p.n.value() % vec != 0 || p.k.value() % vec != 0 || !parts->sizes.Fits()) {
    return Misfit{absl::StrCat("products of ", p.n.value(), " by ", p.k.value()), "whole vectors that fit registers"};
  }
  const std::optional<MovedValue> x = MovedFrom(parts->op.lhs, body);
  const std::optional<MovedResult> out = MovedTo(result, body);
  const std::optional<StridedRows> x_rows = x.has_value() ? RowsOfPlace(*x) : std::nullopt;
  const std::optional<StridedRows> out_rows =
      out.has_value() && out->of == result && out->taken == ToSizes(result->type.shape) ? RowsOfPlace(out->to)
                                                                                        : std::nullopt;
  if (!x_rows.has_value() || !out_rows.has_value() || !x_rows->IsMultipleOf(vec) ||
      MovedFrom(parts->op.rhs, body)->in != parts->op.rhs) {
    return Misfit{"elements that lie otherwise", "rows of whole vectors, and the right factor as it is"};
  }
  parts->x = *x_rows;
  parts->out = *out_rows;
  parts->rows = p.m;
  parts->most_rows = std::max<int64_t>(range->high, 1);
  parts->batches = p.lead[0].value();
  return std::nullopt;
}

}  // namespace

Calls SelectBatchedGemv(const KernelBody& body, const ProgramScope& scope) {
  BatchedParts parts;
  if (std::optional<Misfit> misfit = ReadBatchedGemv(body, scope, &parts)) return *misfit;
  KernelCall call{
      .header = "linear/batched_gemv", .function = "BatchedGemv", .types = {{"T", DeviceType(parts.out.in)}}};
  call.constants = {{"kRows", parts.most_rows},
                    {"kN", parts.sizes.n},
                    {"kK", parts.sizes.k},
                    {"kTransposed", parts.sizes.transposed}};
  call.params = {Out(parts.out.in, "out"), In(parts.x.in, "x"), In(parts.op.rhs, "weight"), Count(parts.rows, "rows")};
  call.arguments = absl::StrCat(StridedRowsText(parts.out, "out", true, &call), ", ",
                                StridedRowsText(parts.x, "x", false, &call), ", weight, rows");
  call.threads = kBatchedGemvThreads;
  call.grid = {Blocks(Size(parts.sizes.n), parts.sizes.Columns()), Size(parts.batches), Size(1)};
  // Weights are read before what comes before has ended.
  call.pdl = IsThereBeforeStep(parts.op.rhs);
  return std::vector<DeviceCall>{call};
}

}  // namespace llmc
