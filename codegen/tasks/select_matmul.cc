// Matrix products through cuBLASLt, with what follows from them, and a kernel for what it does not take.
#include "absl/strings/str_cat.h"
#include "codegen/tasks/kernel_parts.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

// Batches of an operand lie one after the other, or there is one for all.
std::optional<Dim> BatchStride(const Dims& lead, const Dims& all, const Dim& matrix) {
  if (ElementsOf(lead).Is(1)) return Dim(0);
  if (ElementsOf(lead) == ElementsOf(all)) return matrix;
  return std::nullopt;
}

KernelCall AnyMatMul(const Linear& op, const Value* out, const ProductMatrices& p) {
  const std::string type = DeviceType(out);
  KernelCall call{.header = "linear/matmul", .function = "MatMul", .types = {{"T", type}}};
  call.constants = {{"kTransposed", op.transpose_rhs}};
  call.params = {Out(out, "out"), In(op.lhs, "x"), In(op.rhs, "y"), Count(p.m, "m"), Count(p.n, "n"), Count(p.k, "k")};
  const Space space = BatchesOf(p);
  call.arguments = absl::StrCat("out, m, n, k, ", AxesText(space.sizes, &call));
  for (const auto& [name, index] : {std::pair("x", 0), std::pair("y", 1)}) {
    absl::StrAppend(&call.arguments, ",\n      ",
                    StridedText(absl::StrCat("const ", type), name, space.places[static_cast<size_t>(index)], &call));
  }
  call.grid[0] = ElementsOf(p.lead) * Blocks(p.m, kProductTile) * Blocks(p.n, kProductTile);
  return call;
}

// cuBLASLt has no such forms of vectors, and none of several products at once that could be relied on.
bool CanHaveParts(const GemmCall& call) {
  const auto is_long = [](const Dim& dim) { return dim.is_constant() && dim.value() > 1; };
  return call.batch == Dim(1) && is_long(call.n) && is_long(call.k) && call.x->type.dtype == call.out->type.dtype &&
         call.weight->type.dtype == call.out->type.dtype;
}

std::optional<Misfit> AddLink(const ProductChain::Link& link, const KernelBody& body, bool takes_gelu, GemmCall* call) {
  const Node& node = *link.node;
  if (Is<Cast>(&node)) {  // back to the type of x, where the kernel rounds once
    const bool is_last = node.results[0] == call->out && call->x->type.dtype == call->out->type.dtype;
    return is_last ? std::nullopt : std::optional(Misfit{"a cast", "the type of x"});
  }
  if (call->gelu_tanh || call->gelu) return Misfit{"more after an activation", "nothing"};
  if (node.results[0]->type != link.value->type) return Misfit{"a result of another type", "that of the product"};
  // Not in f32: there cuBLASLt's tanh is off by up to 6e-5. No relu: some of cuBLASLt's kernels make zeros of NaN.
  if (Is<GeluTanh>(&node)) {
    call->gelu_tanh = true;
    return call->out->type.dtype == DType::kF32 ? std::optional(Misfit{"gelu_tanh in f32", "16 bits"}) : std::nullopt;
  }
  if (Is<Gelu>(&node) && takes_gelu) {
    call->gelu = true;
    return std::nullopt;
  }
  if (!Is<Add>(&node)) return Misfit{std::string(node.op->info.name), "a bias, a residual or gelu_tanh"};
  const Value* addend = node.operands[node.operands[0] == link.value ? 1 : 0];
  const Dims& shape = addend->type.shape;
  const bool is_bias = call->bias == nullptr && !shape.empty() && shape.back() == call->n &&
                       link.value->type.shape.back() == call->n && Product(shape) == shape.back();
  if (addend->type.dtype != link.value->type.dtype) return Misfit{"an addend of another type", "that of the product"};
  if (is_bias) {
    call->bias = SourceOf(addend, body);
  } else if (call->residual == nullptr && addend->type == link.value->type) {
    call->residual = SourceOf(addend, body);
  } else {
    return Misfit{absl::StrCat("an addend of type ", addend->type.ToString()), "one bias and one residual"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Misfit> ReadGemm(const KernelBody& body, bool takes_gelu, GemmCall* call) {
  ProductChain chain;
  if (std::optional<Misfit> misfit = ReadChain(body, &chain)) return misfit;
  if (HasEncodedFactor(*chain.product)) return Misfit{"an encoded factor", "elements"};
  if (chain.norm != nullptr) return Misfit{"a norm before the product", "x as it is"};
  if (chain.qkv.has_value()) return Misfit{"heads", "a bias, a residual or gelu_tanh"};
  const Linear op = ProductOf(*chain.product);
  const Value *x = SourceOf(op.lhs, body), *weight = SourceOf(op.rhs, body);
  if (!Is16BitOrF32(x->type.dtype)) return Misfit{std::string(DTypeName(x->type.dtype)), "f32, f16 or bf16"};
  const ProductMatrices p = MatricesOf(op, chain.product->results[0]->type);
  const std::optional<Dim> x_stride = BatchStride(p.lhs_lead, p.lead, p.m * p.k);
  const std::optional<Dim> weight_stride = BatchStride(p.rhs_lead, p.lead, p.k * p.n);
  if (!x_stride.has_value() || !weight_stride.has_value()) {
    return Misfit{"factors that are broadcast in part", "batches one after the other, or one for all"};
  }
  *call = {.out = chain.out,
           .x = x,
           .weight = weight,
           .m = p.m,
           .n = p.n,
           .k = p.k,
           .transposed = op.transpose_rhs,
           .batch = ElementsOf(p.lead),
           .x_stride = *x_stride,
           .weight_stride = *weight_stride};
  for (const ProductChain::Link& link : chain.links) {
    if (std::optional<Misfit> misfit = AddLink(link, body, takes_gelu, call)) return misfit;
  }
  for (const Value* read : {call->x, call->weight, call->bias, call->residual}) {
    const bool fits = read == nullptr || !chain.narrow.has_value() || read->type.dtype == *chain.narrow;
    if (!fits) return Misfit{absl::StrCat(read->name, " in f32"), "operands of one type"};
  }
  if (!chain.links.empty() && !CanHaveParts(*call)) return Misfit{"several products or vectors", "one product"};
  return std::nullopt;
}

ProductMatrices MatricesOf(const Linear& op, const TensorType& out) {
  Dims a = op.lhs->type.shape, b = op.rhs->type.shape;
  const bool row = a.size() == 1, column = b.size() == 1;
  if (row) a.insert(a.begin(), Dim(1));
  if (column) b.insert(op.transpose_rhs ? b.begin() : b.end(), Dim(1));
  ProductMatrices p;
  p.m = a[a.size() - 2];
  p.k = a.back();
  p.n = op.transpose_rhs ? b[b.size() - 2] : b.back();
  p.lead = Dims(out.shape.begin(), out.shape.end() - (row ? 0 : 1) - (column ? 0 : 1));
  p.lhs_lead = Dims(a.begin(), a.end() - 2);
  p.rhs_lead = Dims(b.begin(), b.end() - 2);
  const Dim rows = p.m * Product(p.lead);
  p.is_single = ElementsOf(p.rhs_lead).Is(1) && ElementsOf(p.lhs_lead) == ElementsOf(p.lead) && !rows.is_unknown();
  if (p.is_single) {
    p.m = rows;
    p.lead = p.lhs_lead = p.rhs_lead = {};
  }
  return p;
}

Space BatchesOf(const ProductMatrices& p) {
  const auto place = [&](const Dims& lead, const Dim& matrix) {
    Place at = BroadcastPlace(lead, p.lead);
    for (Size& stride : at.strides) stride = stride * Size(matrix);
    return at;
  };
  return Collapse({.sizes = ToSizes(p.lead), .places = {place(p.lhs_lead, p.m * p.k), place(p.rhs_lead, p.k * p.n)}});
}

Calls SelectGemm(const KernelBody& body, const ProgramScope&) {
  GemmCall call;
  if (std::optional<Misfit> misfit = ReadGemm(body, /*takes_gelu=*/false, &call)) return *misfit;
  return std::vector<DeviceCall>{call};
}

Calls SelectMatMul(const Node& node, const ProgramScope&) {
  if (HasEncodedFactor(node)) return Misfit{"an encoded factor", "elements"};
  const Linear op = ProductOf(node);
  if (DTypeBits(op.lhs->type.dtype) < 8) return NoKernel(node, "on elements of 4 bits");
  const Value* out = node.results[0];
  return std::vector<DeviceCall>{AnyMatMul(op, out, MatricesOf(op, out->type))};
}

}  // namespace llmc
