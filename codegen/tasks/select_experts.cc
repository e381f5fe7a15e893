// Mixtures of experts: the choice of each token's experts, and the products with their weights, by how many pairs of a
// token and an expert there are: each by itself, those of an expert together, or many, sorted by expert on the device.
#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/left_operand.h"
#include "codegen/tasks/select_internal.h"
#include "codegen/tasks/weight_parts.h"
#include "ir/ops.h"
#include "kernels/layout/experts.h"

namespace llmc {
namespace {

// What a kernel computes: the product of pairs of a token and an expert, and the gate behind it. A linear is such a
// product of one expert, whom all tokens take: it has no `experts`.
struct ExpertParts {
  const Node* product = nullptr;
  ExpertLinear op;
  const Value* out = nullptr;
  bool is_gated = false;
  int64_t experts = 0;
  Size pairs = 1;
  Dim n, k;                // of an expert's matrix
  int64_t vec = 1;         // elements of a load of the weight
  int64_t share = 1;       // pairs that have a row of x in common
  int64_t most_pairs = 0;  // 0: unknown
  // How kernels of few pairs read the weight [n, k]; nothing: they cannot.
  std::optional<WeightParts> reader;
  // Of an encoded weight: what decodes it to the scratch memory of the node, from where kernels without its reader read
  // it; what they need besides comes behind it.
  std::optional<KernelCall> decode;
  Size scratch = 0;

  KernelArg Scratch() const { return KernelArg::OfScratch(scratch); }
  Size table_at = 0;
  bool has_codes() const { return reader.has_value() && !reader->is_dense(); }
  // Whether codes become pairs of numbers in registers, which tensor cores multiply; from sm_90 on.
  bool becomes_pairs() const { return has_codes() && reader->superblock == nullptr; }
  int64_t columns() const { return n.value() / (is_gated ? 2 : 1); }
};

// Of a product with a weight that all tokens take: each of them reads it, through the L2 cache.
constexpr int64_t kMostSharedRows = 2;

std::optional<Misfit> ReadShared(const ProgramScope& scope, ExpertParts* parts) {
  const Linear op = ProductOf(*parts->product);
  const TensorType &x = op.lhs->type, &weight = op.rhs->type;
  if (HasEncodedFactor(*parts->product) || !Is16BitOrF32(x.dtype) || parts->out->type.dtype != x.dtype) {
    return Misfit{"an encoded factor or another type", "f32, f16 or bf16"};
  }
  if (!op.transpose_rhs || x.rank() != 2 || weight.rank() != 2 || !weight.shape[0].is_constant() ||
      !weight.shape[1].is_constant() || weight.shape[1].value() < 1) {
    return Misfit{"other factors", "rows, and a weight [n, k] of known sizes"};
  }
  const absl::StatusOr<DimRange> rows = x.shape[0].Range(scope.bounds);
  if (!rows.ok() || rows->high > kMostSharedRows) return Misfit{"many rows", absl::StrCat("1 to ", kMostSharedRows)};
  parts->op = {.x = op.lhs, .weight = op.rhs, .transpose_weight = true};
  parts->reader = WeightParts{{.codes = op.rhs}};
  parts->experts = 1;
  parts->pairs = x.shape[0];
  parts->n = weight.shape[0];
  parts->k = weight.shape[1];
  parts->vec = VectorOf(parts->k.value(), x.dtype);
  parts->most_pairs = rows->high;
  return std::nullopt;
}

std::optional<Misfit> ReadExperts(const KernelBody& body, const ProgramScope& scope, ExpertParts* parts) {
  const auto product =
      absl::c_find_if(body.nodes, [](const Node* node) { return Is<ExpertLinear>(node) || Is<Linear>(node); });
  if (product == body.nodes.end()) return Misfit{"no product", "expert_linear"};
  parts->product = *product;
  parts->out = parts->product->results[0];
  for (const Node* node : body.nodes) {
    if (node == parts->product) continue;
    const bool is_gate = Is<SiluMul>(node) && node->operands[0] == parts->out && !parts->is_gated;
    if (!is_gate) return Misfit{std::string(node->op->info.name), "silu_mul of the product"};
    parts->is_gated = true;
    parts->out = node->results[0];
  }
  if (body.results.size() != 1) return Misfit{absl::StrCat(body.results.size(), " results"), "one"};
  if (Is<Linear>(parts->product)) return ReadShared(scope, parts);
  parts->op = View<ExpertLinear>(*parts->product);
  const ExpertLinear& op = parts->op;
  const Dims &weight = op.weight->type.shape, &chosen = op.experts->type.shape;
  const DType dtype = op.x->type.dtype;
  if (!Is16BitOrF32(dtype)) return NoKernel(*parts->product, "in this type");
  if (!absl::c_all_of(weight, [](const Dim& size) { return size.is_constant(); }) || !chosen[1].is_constant()) {
    return NoKernel(*parts->product, "of experts of unknown number or size");
  }
  parts->experts = weight[0].value();
  parts->pairs = ElementsOf(chosen);
  parts->n = weight[op.transpose_weight ? 1 : 2];
  parts->k = weight[op.transpose_weight ? 2 : 1];
  parts->vec = weight[2].value() > 0 ? VectorOf(weight[2].value(), dtype) : 1;
  parts->share = op.x->type.rank() == 2 ? std::max<int64_t>(chosen[1].value(), 1) : 1;
  const absl::StatusOr<DimRange> pairs = (chosen[0] * chosen[1]).Range(scope.bounds);
  if (pairs.ok()) parts->most_pairs = pairs->high;
  parts->scratch = (parts->pairs + Size(ExpertPairsAt(static_cast<int>(parts->experts)))) * Size(4);
  if (op.transpose_weight) parts->reader = ExpertWeightPartsOf(op.weight);
  if (op.weight->type.encoding == nullptr) return std::nullopt;
  constexpr int64_t kAlignment = 256;
  const Size elements = ElementsOf(weight);
  const Size bytes = Size::FloorDiv(elements * (DTypeBits(dtype) / 8) + Size(kAlignment - 1), kAlignment) * kAlignment;
  parts->table_at = bytes;
  parts->scratch = bytes + parts->scratch;
  parts->decode = DecodeCall(op.weight, dtype, parts->Scratch());
  if (!parts->decode.has_value()) return NoKernel(*parts->product, "of an encoded value that encode has not made");
  return std::nullopt;
}

// ---- calls

// Kernels without readers of codes: all experts are decoded in each step, whatever are chosen.
Calls WithDecoded(const ExpertParts& parts, std::vector<DeviceCall> calls) {
  if (parts.decode.has_value()) calls.insert(calls.begin(), *parts.decode);
  return calls;
}

// The constants and parameters that all products have; with `codes`, the weight is read as it is encoded.
KernelCall ProductCall(const ExpertParts& parts, const std::string& header, const std::string& function,
                       bool codes = false) {
  const ExpertLinear& op = parts.op;
  KernelCall call{.header = header, .function = function, .types = {{"T", DeviceType(parts.out)}}, .pdl = true};
  call.constants = {{"kShare", parts.share}, {"kBias", op.bias != nullptr}};
  call.params = {Out(parts.out, "out"), In(op.x, "x")};
  std::string weight = "weight";
  if (codes) {
    AddReader(*parts.reader, &call);
    if (parts.reader->outer != nullptr) {
      call.AddConstants({{"kOuterMatrices", parts.reader->outer_of != OuterScale::kOfTensor}});
    }
    weight = AddWeight(*parts.reader, weight, &call);
  } else if (parts.decode.has_value()) {
    const std::string type = absl::StrCat("const ", DeviceType(op.weight->type.dtype), "*");
    call.params.push_back({type, weight, parts.Scratch()});
  } else {
    call.params.push_back(In(op.weight, weight));
  }
  if (op.bias != nullptr) call.params.push_back(In(op.bias, "bias"));
  call.arguments = absl::StrCat("out, x, ", weight, ", ", op.bias != nullptr ? "bias" : "nullptr");
  return call;
}

void AddExpertDeviceError(const ExpertParts& parts, KernelCall* call) {
  AddDeviceErrors({{"expert_linear: expert $0 is not one of $1", parts.product}}, call);
}

KernelCall ExpertGemvCall(const ExpertParts& parts, const ProgramScope& scope) {
  KernelCall call = ProductCall(parts, "experts/expert_gemv", "ExpertGemv", parts.has_codes());
  const bool is_chosen = parts.op.experts != nullptr;
  // Readers of codes say so, too.
  if (!parts.has_codes() || parts.reader->superblock != nullptr) {
    call.AddConstants({{"kTransposed", parts.op.transpose_weight}});
  }
  // Superblocks on tensor cores: as many warps share rows as there are blocks for.
  const EncodingFormat* const superblock = parts.has_codes() ? parts.reader->superblock : nullptr;
  const int64_t warps = call.threads / 32;
  int64_t split = 0;
  if (superblock != nullptr && scope.target.wgmma && DTypeBits(parts.out->type.dtype) == 16) {
    for (split = 1; split < warps && 2 * split * kExpertBlockColumns <= parts.k.value();) split *= 2;
  }
  call.AddConstants({{"kIn", parts.k.value()},
                     {"kVec", parts.vec},
                     {"kGated", parts.is_gated},
                     {"kChosen", is_chosen},
                     {"kSplit", split}});
  if (is_chosen) call.params.push_back(In(parts.op.experts, "experts"));
  call.AddParams({Count(Size(parts.experts), "count"), Count(parts.n, "n")});
  if (is_chosen) AddExpertDeviceError(parts, &call);
  absl::StrAppend(&call.arguments,
                  is_chosen ? ", experts, count, n, {device_error, first_device_error}" : ", nullptr, count, n, {}");
  const int64_t of_block = split > 0                   ? warps / split * 16 / (parts.is_gated ? 2 : 1)
                           : parts.op.transpose_weight ? warps * kExpertGemvRows / (parts.is_gated ? 2 : 1)
                                                       : 32 * parts.vec;
  call.grid = {Blocks(Size(parts.columns()), of_block), parts.pairs, Size(1)};
  return call;
}

// How many warps share rows of the weight, so that few pairs keep a GPU busy: by what a warp reads at once.
int64_t SplitOf(const ExpertParts& parts, const ProgramScope& scope, int64_t warps) {
  const int64_t row_bytes = parts.k.value() * parts.reader->bits() / 8;
  const int64_t tiles = CeilDiv(parts.columns(), parts.is_gated ? 8 : 16) * std::min(parts.most_pairs, parts.experts);
  int64_t split = 1;
  while (split < warps && row_bytes >= 2 * split * kExpertSplitBytes &&
         tiles * 2 * split <= scope.target.sms * kExpertWarpsOfSm) {
    split *= 2;
  }
  return split;
}

KernelCall SmallGemmCall(const ExpertParts& parts, const ProgramScope& scope) {
  const bool codes = parts.becomes_pairs() && scope.target.wgmma;
  KernelCall call = ProductCall(parts, "experts/expert_small_gemm", "ExpertSmallGemm", codes);
  const bool by_pair = codes && parts.most_pairs <= parts.experts;
  if (codes) call.threads = kEncodedExpertThreads;
  const int64_t warps = call.threads / 32, split = codes ? SplitOf(parts, scope, warps) : 1;
  call.AddConstants({{"kGated", parts.is_gated}, {"kByPair", by_pair}, {"kSplit", split}});
  // A token chooses an expert once, as `route` does. With more pairs at once, codes leave registers for few warps.
  const int64_t of_expert = parts.most_pairs / parts.op.experts->type.shape[1].value();
  call.AddConstants({{"kPairsAtOnce", !codes ? kMaxPairsAtOnce : of_expert <= 8 ? 8 : 16}});
  if (codes) call.AddConstants({{"kIn", parts.k.value()}});
  call.AddParams({In(parts.op.experts, "experts"), Count(parts.pairs, "pairs"), Count(Size(parts.experts), "count"),
                  Count(parts.n, "n"), Count(parts.k, "k")});
  AddExpertDeviceError(parts, &call);
  absl::StrAppend(&call.arguments, ", experts, pairs, count, n, k, {device_error, first_device_error}");
  const int64_t of_block = warps / split * (parts.is_gated ? 8 : 16);
  call.grid = {Blocks(Size(parts.columns()), of_block), by_pair ? parts.pairs : Size(parts.experts), Size(1)};
  return call;
}

// The table of sorted pairs in the scratch memory, as an argument.
std::string TableOf(const ExpertParts& parts, KernelCall* call) {
  if (parts.table_at.Is(0)) return "table";
  return absl::StrCat("table + ", call->SizeText(Size::FloorDiv(parts.table_at, 4)));
}

KernelCall OrderCall(const ExpertParts& parts, int64_t tile_rows) {
  KernelCall order{.header = "experts/expert_order", .function = "ExpertOrder"};
  order.constants = {{"kExperts", parts.experts}, {"kTileRows", tile_rows}};
  order.params = {
      {"llmc::i32*", "table", parts.Scratch()}, In(parts.op.experts, "experts"), Count(parts.pairs, "pairs")};
  AddExpertDeviceError(parts, &order);
  order.arguments = absl::StrCat(TableOf(parts, &order), ", experts, pairs, {device_error, first_device_error}");
  order.threads = kExpertOrderThreads;
  order.pdl = true;
  return order;
}

// Whether expert_gemm.cuh can read x and the weight: codes and superblocks in whole stages of a row.
bool TakesGemm(const ExpertParts& parts, const Target& target) {
  if (!target.wgmma || DTypeBits(parts.out->type.dtype) != 16 || !parts.reader.has_value() || parts.experts < 1 ||
      parts.experts > kMaxExperts || parts.columns() < 1) {
    return false;
  }
  return !LeftOperandMisfit(*parts.reader, parts.n.value(), parts.k.value(), ExpertGemmLayout::kRows,
                            ExpertGemmLayout::kPairs, LeftGemmLayout::kSharedBytes)
              .has_value();
}

// The weight is decoded in registers; in front of that, x is put into the order in which they have it.
std::vector<DeviceCall> GemmCalls(ExpertParts parts, const ProgramScope& scope) {
  constexpr int64_t kAlignment = 256;
  const ExpertLinear& op = parts.op;
  const bool codes = parts.has_codes();
  const Size elements = codes ? ElementsOf(op.x->type.shape) : Size(0);
  parts.decode.reset();
  parts.table_at = Size::FloorDiv(elements * 2 + Size(kAlignment - 1), kAlignment) * kAlignment;
  parts.scratch = parts.table_at + (parts.pairs + Size(ExpertPairsAt(static_cast<int>(parts.experts)))) * Size(4);
  std::vector<DeviceCall> calls;
  if (codes) {
    calls.push_back(OrderColumnsCall(*parts.reader, op.x, RowsOf(op.x->type), parts.k.value(), parts.Scratch()));
  }
  calls.push_back(OrderCall(parts, ExpertGemmLayout::kPairs));
  KernelCall product = ProductCall(parts, "experts/expert_gemm", "ExpertGemm", codes);
  if (codes) product.params[1] = {absl::StrCat("const ", DeviceType(op.x), "*"), "x", parts.Scratch()};
  product.AddConstants({{"kExperts", parts.experts},
                        {"kGated", parts.is_gated},
                        {"kIn", parts.k.value()},
                        {"kOut", parts.columns()},
                        {"kSharedBytes", ExpertGemmLayout::kSharedBytes}});
  product.params.push_back({"const llmc::i32*", "table", parts.Scratch()});
  absl::StrAppend(&product.arguments, ", ", TableOf(parts, &product));
  product.threads = ExpertGemmLayout::kThreads;
  product.shared_bytes = ExpertGemmLayout::kSharedBytes;
  product.blocks_of_sm = 1;
  product.grid[0] = Dim(scope.target.sms);
  calls.push_back(product);
  return calls;
}

std::vector<DeviceCall> SortedCalls(const ExpertParts& parts) {
  const ExpertLinear& op = parts.op;
  const KernelCall order = OrderCall(parts, kExpertTileRows);
  KernelCall product = ProductCall(parts, "experts/expert_matmul", "ExpertMatMul");
  const bool whole_vectors = parts.vec == 8 && op.x->type.shape.back().value() % 8 == 0;
  const bool tensor_cores = DTypeBits(parts.out->type.dtype) == 16 && whole_vectors;
  product.AddConstants(
      {{"kTransposed", op.transpose_weight}, {"kExperts", parts.experts}, {"kTensorCores", tensor_cores}});
  product.AddParams({{"const llmc::i32*", "table", parts.Scratch()}, Count(parts.n, "n"), Count(parts.k, "k")});
  absl::StrAppend(&product.arguments, ", ", TableOf(parts, &product), ", n, k");
  product.threads = kExpertMatMulThreads;
  // Each expert has at most one tile that is not full.
  product.grid = {Size::FloorDiv(parts.pairs, kExpertTileRows) + Size(parts.experts),
                  Blocks(parts.n, tensor_cores ? kExpertTileColumns : kExpertTileRows), Size(1)};
  return {order, product};
}

// Up to how many pairs each is a product by itself.
int64_t MostGemvPairs(const ExpertParts& parts) {
  if (!parts.has_codes()) return kMaxExpertGemvPairs;
  if (parts.reader->superblock != nullptr) return kMaxSuperblockPairsOfExpert * parts.experts;
  return std::clamp<int64_t>(kMaxEncodedPairsOfExpert * parts.experts, kMaxExpertGemvPairs, kMaxExpertSmallPairs);
}

// Tensor cores take rows of the weight, of whole vectors, and where most experts have few pairs.
bool TakesSmallGemm(const ExpertParts& parts) {
  return parts.op.transpose_weight && DTypeBits(parts.out->type.dtype) == 16 && parts.k.value() % 8 == 0 &&
         parts.k.value() > 0 && parts.most_pairs > 0 && parts.most_pairs <= kMaxExpertSmallPairs &&
         parts.most_pairs <= 2 * kMaxPairsAtOnce * parts.experts;
}

}  // namespace

std::optional<Misfit> RouteMisfit(const Node& node) {
  const auto op = View<Route>(node);
  if (!Is16BitOrF32(op.logits->type.dtype)) return NoKernel(node, "in this type");
  if (op.logits->type.shape[1].value() <= kMaxExperts) return std::nullopt;
  return NoKernel(node, absl::StrCat("of more than ", kMaxExperts, " experts"));
}

void AddRouteConstants(const Node& node, KernelCall* call) {
  const auto op = View<Route>(node);
  const RouteScore score = op.score == "softmax"   ? RouteScore::kSoftmax
                           : op.score == "sigmoid" ? RouteScore::kSigmoid
                           : op.score == "chosen"  ? RouteScore::kChosen
                                                   : RouteScore::kChosenSigmoid;
  call->AddConstants({{"kExperts", op.logits->type.shape[1].value()},
                      {"kTopK", op.top_k},
                      {"kScore", static_cast<int64_t>(score)},
                      {"kBias", op.bias != nullptr},
                      {"kGroups", op.groups},
                      {"kTopGroups", op.top_groups},
                      {"kGroupBest", op.group_best},
                      {"kNormalize", op.normalize}});
}

Calls SelectRoute(const Node& node, const ProgramScope&) {
  if (std::optional<Misfit> misfit = RouteMisfit(node)) return *misfit;
  const auto op = View<Route>(node);
  KernelCall call{.header = "experts/route", .function = "Route", .types = {{"T", DeviceType(op.logits)}}};
  AddRouteConstants(node, &call);
  call.params = {Out(node.results[0], "chosen"), Out(node.results[1], "weights"), In(op.logits, "logits")};
  if (op.bias != nullptr) call.params.push_back(In(op.bias, "bias"));
  call.params.push_back(Float(op.scale, "scale"));
  call.arguments = absl::StrCat("chosen, weights, logits, ", op.bias != nullptr ? "bias" : "nullptr", ", scale");
  call.grid[0] = node.results[0]->type.shape[0];
  call.threads = 32;
  call.pdl = true;
  return std::vector<DeviceCall>{call};
}

Calls SelectExpertLinear(const KernelBody& body, const ProgramScope& scope) {
  ExpertParts parts;
  if (std::optional<Misfit> misfit = ReadExperts(body, scope, &parts)) return *misfit;
  const bool are_few = parts.most_pairs > 0 && parts.most_pairs <= MostGemvPairs(parts);
  const bool in_rows = parts.op.transpose_weight || !parts.is_gated;
  if (parts.op.experts == nullptr) return std::vector<DeviceCall>{ExpertGemvCall(parts, scope)};
  const bool small_gemm = TakesSmallGemm(parts);
  // The pairs of one token have an expert each, so that there is nothing to share.
  const bool of_one_token = parts.most_pairs <= parts.op.experts->type.shape[1].value();
  if (small_gemm && parts.becomes_pairs() && scope.target.wgmma && !of_one_token) {
    return std::vector<DeviceCall>{SmallGemmCall(parts, scope)};
  }
  // Superblocks of more pairs are decoded in no other kernel.
  const bool gemm = !are_few && TakesGemm(parts, scope.target);
  if (gemm && parts.has_codes() && (!small_gemm || !parts.becomes_pairs())) return GemmCalls(parts, scope);
  // Of more pairs than experts, several share a weight.
  if (small_gemm && (!are_few || (!parts.has_codes() && parts.most_pairs > parts.experts))) {
    return WithDecoded(parts, {SmallGemmCall(parts, scope)});
  }
  if (are_few && parts.has_codes()) return std::vector<DeviceCall>{ExpertGemvCall(parts, scope)};
  if (are_few && in_rows) return WithDecoded(parts, {ExpertGemvCall(parts, scope)});
  if (gemm) return GemmCalls(parts, scope);
  if (parts.is_gated) return Misfit{"a gate of many pairs, or of columns of the weight", "few pairs, and rows"};
  if (parts.experts < 1 || parts.experts > kMaxExperts) {
    return NoKernel(*parts.product, absl::StrCat("of more than ", kMaxExperts, " experts, or of none"));
  }
  return WithDecoded(parts, SortedCalls(parts));
}

}  // namespace llmc
