// Mixtures of experts: the choice of each token's experts, and the products with their weights; for few pairs of a
// token and an expert each by itself, for many of them sorted by expert on the device.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "kernels/layout/experts.h"

namespace llmc {
namespace {

struct ExpertSizes {
  int64_t experts;
  Size pairs;   // of a token and an expert
  Dim n, k;     // of an expert's matrix
  int64_t vec;  // elements of a load of the weight
  int64_t share;
};

// The constants and parameters of both products, but for what they know of the experts.
KernelCall ProductCall(const ExpertLinear& op, const Value* out, const ExpertSizes& sizes, const std::string& header,
                       const std::string& function) {
  KernelCall call{.header = header, .function = function, .types = {{"T", DeviceType(out)}}};
  call.constants = {{"kTransposed", op.transpose_weight}, {"kShare", sizes.share}};
  call.params = {Out(out, "out"), In(op.x, "x"), In(op.weight, "weight")};
  call.pdl = true;
  return call;
}

void AddExpertDeviceError(const Node& node, KernelCall* call) {
  AddDeviceErrors({{"expert_linear: expert $0 is not one of $1", &node}}, call);
}

KernelCall ExpertGemvCall(const Node& node, const ExpertSizes& sizes) {
  const auto op = View<ExpertLinear>(node);
  KernelCall call = ProductCall(op, node.results[0], sizes, "experts/expert_gemv", "ExpertGemv");
  call.constants.push_back({"kVec", sizes.vec});
  call.AddParams(
      {In(op.experts, "experts"), Count(Size(sizes.experts), "count"), Count(sizes.n, "n"), Count(sizes.k, "k")});
  AddExpertDeviceError(node, &call);
  call.arguments = "out, x, weight, experts, count, n, k, {device_error, first_device_error}";
  const int64_t columns = op.transpose_weight ? call.threads / 32 * kExpertGemvRows : 32 * sizes.vec;
  call.grid = {Blocks(sizes.n, columns), sizes.pairs, Size(1)};
  return call;
}

std::vector<DeviceCall> SortedCalls(const Node& node, const ExpertSizes& sizes) {
  const auto op = View<ExpertLinear>(node);
  const Value* out = node.results[0];
  const Size scratch = (sizes.pairs + Size(ExpertPairsAt(static_cast<int>(sizes.experts)))) * Size(4);
  KernelCall order{.header = "experts/expert_order", .function = "ExpertOrder"};
  order.constants = {{"kExperts", sizes.experts}};
  order.params = {
      {"llmc::i32*", "table", KernelArg::OfScratch(scratch)}, In(op.experts, "experts"), Count(sizes.pairs, "pairs")};
  AddExpertDeviceError(node, &order);
  order.arguments = "table, experts, pairs, {device_error, first_device_error}";
  order.threads = kExpertOrderThreads;
  order.pdl = true;

  KernelCall product = ProductCall(op, out, sizes, "experts/expert_matmul", "ExpertMatMul");
  const bool whole_vectors = sizes.vec == 8 && ConstantLast(op.x) && op.x->type.shape.back().value() % 8 == 0;
  const bool tensor_cores = DTypeBits(out->type.dtype) == 16 && whole_vectors;
  product.AddConstants({{"kExperts", sizes.experts}, {"kTensorCores", tensor_cores}});
  product.AddParams(
      {{"const llmc::i32*", "table", KernelArg::OfScratch(scratch)}, Count(sizes.n, "n"), Count(sizes.k, "k")});
  product.threads = kExpertMatMulThreads;
  // Each expert has at most one tile that is not full.
  product.grid = {Size::FloorDiv(sizes.pairs, kExpertTileRows) + Size(sizes.experts),
                  Blocks(sizes.n, tensor_cores ? kExpertTileColumns : kExpertTileRows), Size(1)};
  return {order, product};
}

}  // namespace

Calls SelectRoute(const Node& node, const ProgramScope&) {
  const auto op = View<Route>(node);
  if (!Is16BitOrF32(op.logits->type.dtype)) return NoKernel(node, "in this type");
  const int64_t experts = op.logits->type.shape[1].value();
  if (experts > kMaxExperts) return NoKernel(node, absl::StrCat("of more than ", kMaxExperts, " experts"));
  const RouteScore score = op.score == "softmax"   ? RouteScore::kSoftmax
                           : op.score == "sigmoid" ? RouteScore::kSigmoid
                           : op.score == "chosen"  ? RouteScore::kChosen
                                                   : RouteScore::kChosenSigmoid;
  KernelCall call{.header = "experts/route", .function = "Route", .types = {{"T", DeviceType(op.logits)}}};
  call.constants = {{"kExperts", experts},         {"kTopK", op.top_k},         {"kScore", static_cast<int64_t>(score)},
                    {"kBias", op.bias != nullptr}, {"kGroups", op.groups},      {"kTopGroups", op.top_groups},
                    {"kGroupBest", op.group_best}, {"kNormalize", op.normalize}};
  call.params = {Out(node.results[0], "chosen"), Out(node.results[1], "weights"), In(op.logits, "logits")};
  if (op.bias != nullptr) call.params.push_back(In(op.bias, "bias"));
  call.params.push_back(Float(op.scale, "scale"));
  call.arguments = absl::StrCat("chosen, weights, logits, ", op.bias != nullptr ? "bias" : "nullptr", ", scale");
  call.grid[0] = node.results[0]->type.shape[0];
  call.threads = 32;
  call.pdl = true;
  return std::vector<DeviceCall>{call};
}

Calls SelectExpertLinear(const Node& node, const ProgramScope& scope) {
  const auto op = View<ExpertLinear>(node);
  const Dims &weight = op.weight->type.shape, &chosen = op.experts->type.shape;
  const DType dtype = op.x->type.dtype;
  if (!Is16BitOrF32(dtype)) return NoKernel(node, "in this type");
  if (!weight[0].is_constant() || !chosen[1].is_constant()) {
    return NoKernel(node, "of experts of unknown number");
  }
  const int64_t vec = ConstantLast(op.weight) && weight[2].value() > 0 ? VectorOf(weight[2].value(), dtype) : 1;
  const ExpertSizes sizes = {.experts = weight[0].value(),
                             .pairs = ElementsOf(chosen),
                             .n = weight[op.transpose_weight ? 1 : 2],
                             .k = weight[op.transpose_weight ? 2 : 1],
                             .vec = vec,
                             .share = op.x->type.rank() == 2 ? std::max<int64_t>(chosen[1].value(), 1) : 1};
  const absl::StatusOr<DimRange> pairs = (chosen[0] * chosen[1]).Range(scope.bounds);
  if (pairs.ok() && pairs->high <= kMaxExpertGemvPairs) return std::vector<DeviceCall>{ExpertGemvCall(node, sizes)};
  if (sizes.experts < 1 || sizes.experts > kMaxExperts) {
    return NoKernel(node, absl::StrCat("of more than ", kMaxExperts, " experts, or of none"));
  }
  return SortedCalls(node, sizes);
}

}  // namespace llmc
