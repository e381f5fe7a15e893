// linear, from a product with a weight, and from a convolution of patches.
#include "absl/algorithm/container.h"
#include "ir/ops.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/passes.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

// A product of activations is no linear that nearly was one: it is not refused.
bool TakeWeight(Rewriter& rewriter, Node* node) {
  const auto op = View<MatMul>(*node);
  const bool is_matrix = op.rhs->type.rank() == 2 && IsFloat(op.rhs->type.dtype) && op.rhs->name[0] == '@';
  if (!is_matrix || op.lhs->type.rank() < 2) return false;
  return rewriter.ReplaceWith(rewriter.Add(Linear{.lhs = op.lhs, .rhs = op.rhs, .transpose_rhs = op.transpose_rhs}));
}

// Whether the taps of a convolution take each element of each channel once: patches side by side, without a rest. Of
// more than one tap: of single ones a product takes no transposes.
bool TakesPatches(const Conv& conv) {
  const Dims &sizes = conv.x->type.shape, &taps = conv.weight->type.shape;
  int64_t count = 1;
  for (size_t axis = 2; axis < sizes.size(); ++axis) {
    if (!sizes[axis].is_constant() || !taps[axis].is_constant()) return false;
    const int64_t tap = taps[axis].value(), stride = conv.strides.empty() ? 1 : conv.strides[axis - 2];
    if (tap != stride || tap < 1 || sizes[axis].value() % tap != 0 || sizes[axis].value() == 0) return false;
    count *= tap;
  }
  const auto is_one = [](int64_t dilation) { return dilation == 1; };
  return count > 1 && conv.groups == 1 && sizes[1] == taps[1] && sizes[1].is_constant() && taps[0].is_constant() &&
         absl::c_all_of(conv.dilations, is_one) && absl::c_all_of(conv.pads, [](int64_t pad) { return pad == 0; });
}

// A patch becomes a row, as the weight has its taps: a product on tensor cores, and the patches are copied once.
bool TakePatches(Rewriter& rewriter, Node* node) {
  const auto conv = View<Conv>(*node);
  const TensorType &x = conv.x->type, &weight = conv.weight->type;
  if (!IsFloat(x.dtype) || x.dtype != weight.dtype || weight.encoding != nullptr || !TakesPatches(conv)) return false;
  const Dims& places = node->results[0]->type.shape;
  Dims split = {x.shape[0], x.shape[1]};
  std::vector<int64_t> perm = {0}, taps = {1};
  Dim count(1), terms = x.shape[1];
  for (size_t axis = 2; axis < x.shape.size(); ++axis) {
    perm.push_back(static_cast<int64_t>(split.size()));
    taps.push_back(static_cast<int64_t>(split.size()) + 1);
    split.insert(split.end(), {places[axis], weight.shape[axis]});
    count = count * places[axis];
    terms = terms * weight.shape[axis];
  }
  perm.insert(perm.end(), taps.begin(), taps.end());
  Value* patches = rewriter.Add(Transpose{.x = rewriter.Add(Reshape{.x = conv.x, .shape = split}), .perm = perm});
  Value* rows = rewriter.Add(Reshape{.x = patches, .shape = {x.shape[0], count, terms}});
  Value* matrix = rewriter.Add(Reshape{.x = conv.weight, .shape = {weight.shape[0], terms}});
  Value* sums = rewriter.Add(Linear{.lhs = rows, .rhs = matrix, .transpose_rhs = true});
  if (conv.bias != nullptr) sums = rewriter.Add(Add{.lhs = sums, .rhs = conv.bias});
  Value* features = rewriter.Add(Transpose{.x = sums, .perm = {0, 2, 1}});
  return rewriter.ReplaceWith(rewriter.Add(Reshape{.x = features, .shape = places}));
}

constexpr auto kLinearRules = Rules(
    Rule("raise-linear")
        .Apply("matmul", TakeWeight)
        .Example("%x: f32[4, 64]; @w: f32[32, 64]; %y = matmul %x, @w {transpose_rhs = true}"),
    // Sums are in another order; in 16 bits they are rounded before the bias is added.
    Rule("raise-linear-of-patches")
        .Apply("conv", TakePatches)
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[2, 3, 8, 12]; @w: f32[5, 3, 4, 2]; @b: f32[5]; %y = conv %x, @w, @b {strides = [4, 2]}"));

}  // namespace

RuleSpan RaiseLinearRules() { return kLinearRules; }

absl::Status RaiseLinear(Model* model, const PassContext& context) {
  std::vector<const Rule*> rules;
  for (RuleSpan list : {SimplifyRules(), RaiseLinearRules()}) {  // which takes away transposes of patches that cancel
    for (const Rule& rule : list) rules.push_back(&rule);
  }
  return RunToFixedPoint(model, rules, context.ledger);
}

}  // namespace llmc
