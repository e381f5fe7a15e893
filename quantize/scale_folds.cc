#include "quantize/scale_folds.h"

#include <algorithm>
#include <numeric>

#include "ir/ops.h"
#include "ir/state_type.h"

namespace llmc {
namespace {

// A weight, seen through casts, that nothing else reads; nullptr: it is none.
const Value* OwnWeight(const Value* value) {
  while (value != nullptr && value->kind == ValueKind::kResult && Is<Cast>(value->def) && value->users.size() == 1) {
    value = value->def->operands[0];
  }
  const bool is_own = value != nullptr && value->kind == ValueKind::kWeight && value->users.size() == 1;
  return is_own ? value : nullptr;
}

bool IsOne(const Value* value) {
  while (value != nullptr && Is<Cast>(value->def)) value = value->def->operands[0];
  if (value == nullptr || !Is<Constant>(value->def)) return false;
  const Tensor number = View<Constant>(*value->def).value;
  return number.size() == 1 && number.GetFloat(0) == 1;
}

std::optional<FoldTarget> NormTarget(const Value* weight) {
  if (const Value* own = OwnWeight(weight); own != nullptr) return FoldTarget{.weight = own};
  const Node* sum = weight == nullptr ? nullptr : weight->def;
  while (Is<Cast>(sum)) sum = sum->operands[0]->def;
  if (!Is<Add>(sum) || !IsOne(sum->operands[1])) return std::nullopt;
  const Value* own = OwnWeight(sum->operands[0]);
  return own == nullptr ? std::nullopt : std::optional(FoldTarget{.weight = own, .added = 1});
}

// The weight and the bias of a linear layer whose result, `value`, only one node reads.
bool AddLinearTargets(const Value* value, int64_t first, std::vector<FoldTarget>* targets) {
  if (value == nullptr || value->users.size() != 1) return false;
  const Node* node = value->def;
  if (Is<Add>(node)) {
    const Value* bias = OwnWeight(node->operands[1]);
    if (bias == nullptr || bias->type.rank() != 1) return false;
    if (!AddLinearTargets(node->operands[0], first, targets)) return false;
    targets->push_back({.weight = bias, .first = first});
    return true;
  }
  if (!Is<Linear>(node) || !View<Linear>(*node).transpose_rhs) return false;
  const Value* weight = OwnWeight(View<Linear>(*node).rhs);
  if (weight == nullptr) return false;
  targets->push_back({.weight = weight, .first = first});
  return true;
}

bool FoldIntoNorm(const Node& node, ScaleFold* fold) {
  const Value *weight = nullptr, *bias = nullptr;
  if (Is<RmsNorm>(&node)) weight = View<RmsNorm>(node).weight;
  if (Is<LayerNorm>(&node)) {
    weight = View<LayerNorm>(node).weight;
    bias = View<LayerNorm>(node).bias;
  }
  const std::optional<FoldTarget> target = NormTarget(weight);
  if (!target.has_value()) return false;
  fold->targets.push_back(*target);
  fold->is_norm = true;
  if (bias == nullptr) return true;
  const Value* own = OwnWeight(bias);
  if (own != nullptr) fold->targets.push_back({.weight = own});
  return own != nullptr;
}

// The linear factor of a product with an activation.
bool FoldIntoGate(const Node& node, int64_t channels, ScaleFold* fold) {
  if (Is<SiluMul>(&node)) return AddLinearTargets(node.operands[0], channels, &fold->targets);
  if (!Is<Mul>(&node)) return false;
  return AddLinearTargets(node.operands[1], 0, &fold->targets) || AddLinearTargets(node.operands[0], 0, &fold->targets);
}

// Heads of queries that share values share factors.
bool FoldIntoValues(const Node& node, int64_t channels, ScaleFold* fold) {
  if (!Is<PagedAttention>(&node)) return false;
  const PagedAttention attention = View<PagedAttention>(node);
  const StateComponent* values = attention.kv->state->Find(attention.values);
  if (values == nullptr || attention.keys == attention.values) return false;
  const Value* v = nullptr;
  for (const Node* user : attention.kv->users) {
    if (Is<KvWrite>(user)) v = v == nullptr ? View<KvWrite>(*user).v : nullptr;
    if (Is<PagedAttention>(user) && user != &node) return false;
  }
  const int64_t dim = values->HeadDim(), width = values->Elements();
  if (width == 0 || channels % width != 0 || !AddLinearTargets(v, 0, &fold->targets)) return false;
  const int64_t queries = channels / width;  // heads that share values
  fold->sharing.count = width;
  fold->sharing.index.clear();
  for (int64_t c = 0; c < channels; ++c) fold->sharing.index.push_back(c / dim / queries * dim + c % dim);
  return true;
}

// A weight that only this layer reads, in rows of outputs.
bool IsOwn(const Value* weight) { return OwnWeight(weight) != nullptr; }

// Whether the experts' weights are layers that are known one by one.
bool HasKnownExperts(const Node& product, const std::vector<LinearModule>& linears) {
  const Dim numbers = Product(View<ExpertLinear>(product).weight->type.shape);
  int64_t known = 0;
  for (const LinearModule& linear : linears) {
    const bool is_of_it = linear.expert >= 0 && linear.products.size() == 1 && linear.products[0] == &product;
    if (is_of_it && IsOwn(linear.weight)) known += linear.out * linear.in;
  }
  return numbers == Dim(known);
}

bool IsScalable(const Node& user, const Value* input, const std::vector<LinearModule>& linears) {
  if (Is<Linear>(&user)) {
    return View<Linear>(user).lhs == input && View<Linear>(user).transpose_rhs && IsOwn(View<Linear>(user).rhs);
  }
  return Is<ExpertLinear>(&user) && View<ExpertLinear>(user).x == input && HasKnownExperts(user, linears);
}

bool AreScalable(const Value* input, const std::vector<LinearModule>& linears, std::string* why) {
  for (const Node* user : input->users) {
    if (IsScalable(*user, input, linears)) continue;
    *why = "its input is read by something else, too";
    return false;
  }
  return true;
}

// The rows of `value` = expert_linear that one expert gives, from `first` on.
bool AddExpertTarget(const Value* value, int64_t expert, int64_t first, int64_t channels,
                     const std::vector<LinearModule>& linears, std::vector<FoldTarget>* targets) {
  const Node* product = value == nullptr ? nullptr : value->def;
  if (!Is<ExpertLinear>(product) || value->users.size() != 1) return false;
  if (View<ExpertLinear>(*product).bias != nullptr || !HasKnownExperts(*product, linears)) return false;
  for (const LinearModule& linear : linears) {
    const bool holds = linear.expert == expert && linear.products.size() == 1 && linear.products[0] == product &&
                       linear.first_row <= first && linear.first_row + linear.out >= first + channels;
    if (holds) targets->push_back({.weight = linear.weight, .first = first - linear.first_row});
  }
  return targets->size() == 1;
}

ScaleFold FoldOfOwnFactors(const Value* input, int64_t channels) {
  ScaleFold fold{.input = input};
  fold.sharing.count = channels;
  fold.sharing.index.resize(static_cast<size_t>(channels));
  std::iota(fold.sharing.index.begin(), fold.sharing.index.end(), 0);
  return fold;
}

constexpr char kNothingBefore[] = "nothing before it can hold the factors of its channels";

}  // namespace

std::optional<ScaleFold> FindFold(const Value* input, int64_t channels, const std::vector<LinearModule>& linears,
                                  std::string* why) {
  if (!AreScalable(input, linears, why)) return std::nullopt;
  ScaleFold fold = FoldOfOwnFactors(input, channels);
  const Node* node = input->def;
  const bool is_found = node != nullptr && (FoldIntoNorm(*node, &fold) || FoldIntoGate(*node, channels, &fold) ||
                                            FoldIntoValues(*node, channels, &fold));
  if (is_found) return fold;
  *why = kNothingBefore;
  return std::nullopt;
}

std::optional<ScaleFold> FindExpertFold(const Value* input, int64_t channels, int64_t expert,
                                        const std::vector<LinearModule>& linears, std::string* why) {
  if (!AreScalable(input, linears, why)) return std::nullopt;
  ScaleFold fold = FoldOfOwnFactors(input, channels);
  const Node* node = input->def;
  const auto add = [&](const Value* value, int64_t first) {
    return AddExpertTarget(value, expert, first, channels, linears, &fold.targets);
  };
  const bool is_found = (Is<SiluMul>(node) && add(node->operands[0], channels)) ||
                        (Is<Mul>(node) && (add(node->operands[1], 0) || add(node->operands[0], 0)));
  if (is_found) return fold;
  *why = kNothingBefore;
  return std::nullopt;
}

std::vector<const Value*> WeightsOf(const Value* input, int64_t expert, const std::vector<LinearModule>& linears) {
  std::vector<const Value*> weights;
  for (const Node* user : input->users) {
    if (Is<Linear>(user)) weights.push_back(OwnWeight(View<Linear>(*user).rhs));
    if (!Is<ExpertLinear>(user)) continue;
    for (const LinearModule& linear : linears) {
      const bool is_of_it = !linear.products.empty() && linear.products[0] == user;
      if (is_of_it && (expert < 0 || linear.expert == expert)) weights.push_back(linear.weight);
    }
  }
  return weights;
}

}  // namespace llmc
