// Matrix products: a GEMV kernel for 1 to 8 rows, cuBLASLt for more, and a kernel for what neither takes.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/gemv_call.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// A product as matrices: a vector stands for a matrix of one row or column. One rhs for all makes the rows of all
// batches rows of one product.
struct Product2 {
  Dims lead, lhs_lead, rhs_lead;  // the axes of batches: of the result and of each operand
  Dim m, n, k;
};

Product2 ProductOf(const MatMul& op, const TensorType& out) {
  Dims a = op.lhs->type.shape, b = op.rhs->type.shape;
  const bool row = a.size() == 1, column = b.size() == 1;
  if (row) a.insert(a.begin(), Dim(1));
  if (column) b.insert(op.transpose_rhs ? b.begin() : b.end(), Dim(1));
  Product2 p;
  p.m = a[a.size() - 2];
  p.k = a.back();
  p.n = op.transpose_rhs ? b[b.size() - 2] : b.back();
  p.lead = Dims(out.shape.begin(), out.shape.end() - (row ? 0 : 1) - (column ? 0 : 1));
  p.lhs_lead = Dims(a.begin(), a.end() - 2);
  p.rhs_lead = Dims(b.begin(), b.end() - 2);
  const Dim rows = p.m * Product(p.lead);
  if (ElementsOf(p.rhs_lead).Is(1) && ElementsOf(p.lhs_lead) == ElementsOf(p.lead) && !rows.is_unknown()) {
    p.m = rows;
    p.lead = p.lhs_lead = p.rhs_lead = {};
  }
  return p;
}

// Batches of an operand lie one after the other, or there is one for all.
std::optional<Dim> BatchStride(const Dims& lead, const Dims& all, const Dim& matrix) {
  if (ElementsOf(lead).Is(1)) return Dim(0);
  if (ElementsOf(lead) == ElementsOf(all)) return matrix;
  return std::nullopt;
}

KernelCall AnyMatMul(const MatMul& op, const Value* out, const Product2& p) {
  const auto place = [&](const Dims& lead, const Dim& matrix) {
    Place at = BroadcastPlace(lead, p.lead);
    for (Size& stride : at.strides) stride = stride * Size(matrix);
    return at;
  };
  const Space space =
      Collapse({.sizes = ToSizes(p.lead), .places = {place(p.lhs_lead, p.m * p.k), place(p.rhs_lead, p.k * p.n)}});
  const std::string type = DeviceType(out->type.dtype);
  KernelCall call{.header = "linear/matmul", .function = "MatMul"};
  call.types = {{"T", type}};
  call.constants = {{"kTransposed", op.transpose_rhs ? 1 : 0}};
  call.params = {Out(out, "out"), In(op.lhs, "x"), In(op.rhs, "y"), Count(p.m, "m"), Count(p.n, "n"), Count(p.k, "k")};
  SizeParams params(&call);
  call.arguments = absl::StrCat("out, m, n, k, ", AxesText(space.sizes, &params));
  for (const auto& [name, index] : {std::pair("x", 0), std::pair("y", 1)}) {
    absl::StrAppend(&call.arguments, ",\n      ",
                    StridedText(absl::StrCat("const ", type), name, space.places[static_cast<size_t>(index)], &params));
  }
  call.grid[0] = ElementsOf(p.lead) * Blocks(p.m, kProductTile) * Blocks(p.n, kProductTile);
  return call;
}

}  // namespace

std::optional<GemmCall> GemmCallOf(const Node& matmul, const ProgramScope& scope) {
  const auto op = View<MatMul>(matmul);
  const Value* out = matmul.results[0];
  if (!Is16BitOrF32(op.lhs->type.dtype) || GemvPartsOf(matmul, scope).has_value()) return std::nullopt;
  const Product2 p = ProductOf(op, out->type);
  const std::optional<Dim> x_stride = BatchStride(p.lhs_lead, p.lead, p.m * p.k);
  const std::optional<Dim> weight_stride = BatchStride(p.rhs_lead, p.lead, p.k * p.n);
  if (!x_stride.has_value() || !weight_stride.has_value()) return std::nullopt;
  return GemmCall{.out = out,
                  .x = op.lhs,
                  .weight = op.rhs,
                  .m = p.m,
                  .n = p.n,
                  .k = p.k,
                  .transposed = op.transpose_rhs,
                  .batch = ElementsOf(p.lead),
                  .x_stride = *x_stride,
                  .weight_stride = *weight_stride};
}

Calls SelectMatMul(const Node& node, const ProgramScope& scope) {
  if (const std::optional<GemvParts> parts = GemvPartsOf(node, scope)) {
    return std::vector<DeviceCall>{GemvCall(*parts, scope)};
  }
  if (const std::optional<GemmCall> call = GemmCallOf(node, scope)) return std::vector<DeviceCall>{*call};
  const auto op = View<MatMul>(node);
  if (DTypeBits(op.lhs->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  const Value* out = node.results[0];
  return std::vector<DeviceCall>{AnyMatMul(op, out, ProductOf(op, out->type))};
}

}  // namespace llmc
