#include "codegen/tasks/product_fusion.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "codegen/tasks/gemv_call.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

class ProductFuser {
 public:
  ProductFuser(const Model& model, const Step& step, const ProgramScope& scope)
      : model_(model), step_(step), scope_(scope) {}

  Fusion Run() {
    for (const auto& node : step_.block.nodes) {
      if (Is<MatMul>(node.get())) FindGroup(*node);
    }
    return std::move(fusion_);
  }

 private:
  struct Group {
    GemmCall call;
    const Value* value = nullptr;     // what the call gives
    std::vector<const Node*> nodes;   // the product and what is done with it, views included
    std::vector<const Value*> reads;  // by all of these
    bool ends = false;                // nothing more can be taken
  };

  // The only user of a value that nobody else reads.
  const Node* OnlyUser(const Value* value) const {
    return value->users.size() == 1 && !model_.IsOutput(value) ? value->users[0] : nullptr;
  }

  void FindGroup(const Node& product) {
    const std::optional<GemmCall> call = GemmCallOf(product, scope_);
    if (!call.has_value() || !CanHaveParts(*call)) return;
    Group group{.call = *call, .value = call->out, .nodes = {&product}, .reads = {call->x, call->weight}};
    while (!group.ends && Follow(&group)) {
    }
    if (group.nodes.size() > 1) Claim(&group);
  }

  // cuBLASLt has no such forms of vectors, and none of several products at once that could be relied on.
  static bool CanHaveParts(const GemmCall& call) {
    const auto is_long = [](const Dim& dim) { return dim.is_constant() && dim.value() > 1; };
    return call.batch == Dim(1) && is_long(call.n) && is_long(call.k) && call.x->type.dtype == call.out->type.dtype &&
           call.weight->type.dtype == call.out->type.dtype;
  }

  // Takes the next node, behind any views.
  bool Follow(Group* group) {
    const Value* value = group->value;
    const Node* user = OnlyUser(value);
    std::vector<const Node*> nodes;
    while (user != nullptr && IsViewOp(*user) && user->operands[0] == value) {
      nodes.push_back(user);
      value = user->results[0];
      user = OnlyUser(value);
    }
    if (user == nullptr || fusion_.calls.contains(user) || user->block != group->nodes[0]->block) return false;
    if (user->results.empty() || user->results[0]->type != value->type || !Take(*user, *value, group)) return false;
    nodes.push_back(user);
    group->nodes.insert(group->nodes.end(), nodes.begin(), nodes.end());
    group->value = user->results[0];
    return true;
  }

  bool Take(const Node& user, const Value& sum, Group* group) const {
    if (Is<Add>(&user)) {
      const Value* other = user.operands[user.operands[0] == &sum ? 1 : 0];
      return TakeBias(*other, sum, group) || TakeResidual(*other, sum, group);
    }
    if (Is<AddRmsNorm>(&user)) {
      const auto op = View<AddRmsNorm>(user);
      group->ends = op.weight != &sum && TakeResidual(op.x == &sum ? *op.y : *op.x, sum, group);
      return group->ends;
    }
    return TakeActivation(user, sum, group);
  }

  // A vector that is added to every row.
  static bool TakeBias(const Value& value, const Value& sum, Group* group) {
    const Dims& shape = value.type.shape;
    if (group->call.bias != nullptr || shape.empty() || value.type.dtype != sum.type.dtype) return false;
    if (shape.back() != group->call.n || sum.type.shape.back() != group->call.n || Product(shape) != shape.back()) {
      return false;
    }
    group->call.bias = &value;
    group->reads.push_back(&value);
    return true;
  }

  static bool TakeResidual(const Value& value, const Value& sum, Group* group) {
    if (group->call.residual != nullptr || value.type != sum.type) return false;
    group->call.residual = &value;
    return true;
  }

  // Not in f32: there cuBLASLt's tanh is off by up to 6e-5. No relu: some of cuBLASLt's kernels make zeros of NaN.
  static bool TakeActivation(const Node& user, const Value& sum, Group* group) {
    if (sum.type.dtype == DType::kF32 || !Is<GeluTanh>(&user)) return false;
    group->call.gelu_tanh = true;
    group->ends = true;
    return true;
  }

  // The result may lie where the residual was if that is an operand of the last node: cuBLASLt reads an element of it
  // before it writes the same one.
  void Claim(Group* group) {
    const Node* end = group->nodes.back();
    for (const Node* node : group->nodes) {
      fusion_.calls[node] = {};
      if (node != end) fusion_.memory.unmade.insert(node->results[0]);
    }
    std::vector<const Value*>& reads = fusion_.memory.reads[end];
    reads = group->reads;
    const Value* residual = group->call.residual;
    if (residual != nullptr && std::find(end->operands.begin(), end->operands.end(), residual) == end->operands.end()) {
      reads.push_back(residual);
    }
    group->call.out = group->value;
    std::vector<DeviceCall>& calls = fusion_.calls[end];
    calls.emplace_back(group->call);
    if (Is<AddRmsNorm>(end)) calls.emplace_back(NormOfSum(*end));
    fusion_.nodes[end] = std::move(group->nodes);
  }

  const Model& model_;
  const Step& step_;
  const ProgramScope& scope_;
  Fusion fusion_;
};

}  // namespace

Fusion FuseProducts(const Model& model, const Step& step, const ProgramScope& scope) {
  return ProductFuser(model, step, scope).Run();
}

}  // namespace llmc
