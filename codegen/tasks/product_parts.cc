#include "codegen/tasks/product_parts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/linear.h"

namespace llmc {
namespace {

void AddRopeParts(const ProductParts& parts, KernelCall* call) {
  const QkvParts& op = *parts.qkv;
  const KvPages kv = KvPagesOf(op.kv);
  call->AddConstants({{"kHeads", op.heads},
                      {"kHeadDim", kv.head_dim()},
                      {"kRotary", 2 * op.inv_freq->type.shape[0].value()},
                      {"kInterleaved", op.interleaved},
                      {"kBias", parts.bias != nullptr}});
  AddKv(kv, call);
  // Where x is codes, nothing of the type of a bias is at hand.
  const Value* unread = parts.weight.is_dense() ? parts.weight.codes : parts.x;
  if (parts.bias != nullptr || parts.weight.x.codes == nullptr) {
    call->params.push_back(In(parts.bias != nullptr ? parts.bias : unread, "bias"));
  }
  call->AddParams(
      {kv.Out(), In(op.pos, "pos"), In(op.inv_freq, "inv_freq"), In(op.slots, "slots"), Float(op.scale, "scale")});
}

// A vector that is added to every row.
bool IsBias(const Value& value, const Value& sum) {
  return value.type.rank() == 1 && value.type.dtype == sum.type.dtype && value.type.shape[0] == sum.type.shape.back() &&
         (value.kind == ValueKind::kWeight || (value.def != nullptr && value.name[0] == '@'));
}

std::optional<Misfit> AddLink(const ProductChain::Link& link, ProductParts* parts) {
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

std::optional<Misfit> AddQkv(const QkvParts& qkv, ProductParts* parts) {
  if (parts->silu_mul || parts->addend != nullptr)
    return Misfit{"heads of a sum", "heads of the product, or of a bias"};
  // A block makes some pairs of a head.
  if (qkv.q_norm != nullptr) return Misfit{"a norm of heads, which needs all of a head", "none"};
  if (!qkv.inv_freq->type.shape[0].is_constant() || KvPagesOf(qkv.kv).head_dim() % 2 != 0) {
    return Misfit{"heads of odd or unknown size", "pairs"};
  }
  const KvPages kv = KvPagesOf(qkv.kv);
  if (std::optional<Misfit> misfit = KvMisfit(kv)) return misfit;
  if (kv.is_encoded() && !kv.keys->StaticScale().has_value()) {
    return Misfit{"a cache with scales of its tokens, which need all of a head", "floats, or static scales"};
  }
  // Its epilogue reads these before it waits.
  for (const Value* early : {qkv.pos, qkv.inv_freq, qkv.slots}) {
    if (!IsThereBeforeStep(early)) return Misfit{absl::StrCat(early->name, " of the step"), "an input of it"};
  }
  parts->qkv = qkv;
  return std::nullopt;
}

// Sums of 32 bits hold products of bytes, if they are not too many and zero points are of the types of their codes.
// What does not fit is computed as products of many rows.
std::optional<Misfit> SetBytes(ProductParts* parts) {
  parts->x = parts->weight.x.codes;
  for (const Components& factor : {parts->weight.x, Components(parts->weight)}) {
    const bool fits = factor.zero == nullptr || factor.zero->type.dtype == factor.codes->type.dtype;
    if (!fits) return Misfit{"a zero point of another type", "that of the codes"};
  }
  if (parts->k <= kWholeTerms && parts->k % 4 == 0) return std::nullopt;
  return Misfit{absl::StrCat(parts->k, " terms"), absl::StrCat("a multiple of 4 up to ", kWholeTerms)};
}

// Codes of x become numbers as the kernel reads them.
std::optional<Misfit> SetCodedX(ProductParts* parts) {
  const WeightParts& weight = parts->weight;
  parts->x = weight.x.codes;
  if (weight.superblock != nullptr || weight.is_dense()) return Misfit{"codes of x", "a weight of codes with scales"};
  const bool fits = weight.x.scale->type.dtype == DType::kF32 && weight.x.zero == nullptr &&
                    (weight.x_scale_kind() != kOfBlocks || weight.x_block % kCodesOfLane == 0);
  if (fits) return std::nullopt;
  return Misfit{"other scales of x", absl::StrCat("f32, of rows or of runs of a multiple of ", kCodesOfLane)};
}

// The product alone.
std::optional<Misfit> SetProduct(const Node& product, const ProgramScope& scope, int64_t most_rows,
                                 ProductParts* parts) {
  const Linear op = ProductOf(product);
  const TensorType& x = op.lhs->type;
  parts->rows = Product(Dims(x.shape.begin(), x.shape.end() - 1));
  const absl::StatusOr<DimRange> rows = parts->rows.Range(scope.bounds);
  const std::string few = absl::StrCat("1 to ", most_rows);
  if (!rows.ok()) return Misfit{"rows of unknown number", few};
  if (rows->high > most_rows || rows->high < 1) return Misfit{absl::StrCat("up to ", rows->high, " rows"), few};
  const std::optional<WeightParts> weight = WeightPartsOf(op);
  parts->dtype = product.results[0]->type.dtype;
  if (!weight.has_value() ||
      (x.encoding != nullptr && !weight->has_coded_x() && !SumsBytes(op, *weight, parts->dtype))) {
    return Misfit{
        absl::StrCat(x.ToString(), " and ", op.rhs->type.ToString()),
        "floats, or codes of floats of 8 bits, and a weight of the same type, of codes with scales or of superblocks, "
        "or two factors of bytes"};
  }
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
  if (weight->is_of_bytes()) return SetBytes(parts);
  if (weight->has_coded_x()) {
    if (std::optional<Misfit> misfit = SetCodedX(parts)) return misfit;
  }
  if (!weight->is_dense()) {
    // A lane has so many codes, which share a scale.
    const bool fits = parts->k % kCodesOfLane == 0 && (!weight->has_blocks() || weight->block % kCodesOfLane == 0);
    if (fits) return std::nullopt;
    return Misfit{op.rhs->type.ToString(), absl::StrCat("rows and groups of multiples of ", kCodesOfLane, " codes")};
  }
  return std::nullopt;
}

}  // namespace

int64_t ColumnsOf(const ProductParts& parts) { return parts.silu_mul || parts.qkv.has_value() ? parts.n / 2 : parts.n; }

std::string EpilogueName(const ProductParts& parts) {
  if (parts.qkv.has_value()) return "QkvRope";
  if (parts.silu_mul) return "SiluMul";
  return parts.addend != nullptr ? "Add" : parts.bias != nullptr ? "Bias" : "";
}

std::optional<Misfit> ReadProduct(const KernelBody& body, const ProgramScope& scope, int64_t most_rows,
                                  ProductParts* parts) {
  ProductChain chain;
  if (std::optional<Misfit> misfit = ReadChain(body, &chain)) return misfit;
  if (chain.narrow.has_value()) return Misfit{"operands that are cast", "operands as they are"};
  if (std::optional<Misfit> misfit = SetProduct(*chain.product, scope, most_rows, parts)) return misfit;
  for (const ProductChain::Link& link : chain.links) {
    if (std::optional<Misfit> misfit = AddLink(link, parts)) return misfit;
  }
  if (chain.qkv.has_value()) {
    if (std::optional<Misfit> misfit = AddQkv(*chain.qkv, parts)) return misfit;
  }
  parts->out = chain.out;
  parts->norm_node = chain.norm;
  return std::nullopt;
}

std::vector<std::string> AddEpilogue(const ProductParts& parts, KernelCall* call) {
  const size_t first = call->params.size();
  std::vector<std::string> arguments;
  if (parts.qkv.has_value()) {
    if (parts.bias == nullptr && parts.weight.x.codes != nullptr) arguments.emplace_back("nullptr");
    AddRopeParts(parts, call);
  } else if (parts.addend != nullptr) {
    call->params.push_back(In(parts.addend, "addend"));
  } else if (parts.bias != nullptr) {
    call->params.push_back(In(parts.bias, "bias"));
  }
  for (size_t i = first; i < call->params.size(); ++i) arguments.push_back(call->params[i].name);
  return arguments;
}

void AddProductArguments(const ProductParts& parts, KernelCall* call) {
  call->params = {Out(parts.out, "out"), In(parts.x, "x")};
  if (parts.norm != nullptr) call->params.push_back(In(parts.norm, "norm"));
  std::vector<std::string> arguments;
  for (const KernelParam& param : call->params) arguments.push_back(param.name);
  arguments.push_back(AddWeight(parts.weight, "weight", call));
  for (const std::string& argument : AddEpilogue(parts, call)) arguments.push_back(argument);
  const size_t rest = call->params.size();
  if (parts.norm != nullptr) call->params.push_back(Float(parts.eps, "eps"));
  call->params.push_back(Count(parts.rows, "tokens"));
  for (size_t i = rest; i < call->params.size(); ++i) arguments.push_back(call->params[i].name);
  call->arguments = absl::StrJoin(arguments, ", ");
}

}  // namespace llmc
