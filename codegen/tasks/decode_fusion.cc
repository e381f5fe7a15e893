#include "codegen/tasks/decode_fusion.h"

#include <optional>

#include "absl/container/flat_hash_set.h"
#include "codegen/tasks/gemv_call.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

class DecodeFuser {
 public:
  DecodeFuser(const Model& model, const Step& step, const ElementwiseGroups& groups, const ProgramScope& scope,
              Fusion* fusion)
      : model_(model), step_(step), elementwise_(groups), scope_(scope), fusion_(*fusion) {}

  void Run() {
    for (const auto& node : step_.block.nodes) {
      if (Is<MatMul>(node.get())) FindGroup(*node);
    }
    for (const auto& node : step_.block.nodes) FindNorm(*node);
    for (const auto& node : step_.block.nodes) {
      if (const auto group = groups_.find(node.get()); group != groups_.end()) AddCall(group->second);
    }
  }

 private:
  struct Group {
    const Node* product = nullptr;
    const Node* norm = nullptr;  // before the product, if it normalizes for itself
    const Node* bias = nullptr;  // an add between the product and the end
    const Node* end = nullptr;   // where the kernel stands; the product itself if nothing follows
    GemvParts parts;
  };

  // The only user of a value that nobody else reads.
  const Node* OnlyUser(const Value* value) const {
    return value->users.size() == 1 && !model_.IsOutput(value) ? value->users[0] : nullptr;
  }
  // The other operand of a node of two.
  static const Value* Other(const Node& node, const Value* one) {
    return node.operands[node.operands[0] == one ? 1 : 0];
  }

  void FindGroup(const Node& product) {
    std::optional<GemvParts> parts = GemvPartsOf(product, scope_);
    if (!parts.has_value()) return;
    Group group = {.product = &product, .end = &product, .parts = *std::move(parts)};
    Follow(&group);
    ends_.insert(group.end);
    groups_[&product] = std::move(group);
  }

  void Follow(Group* group) {
    const Value* sum = group->product->results[0];
    if (sum->type.dtype != group->parts.x->type.dtype) return;
    const Node* user = OnlyUser(sum);
    // What is part of a larger group of elementwise nodes stays there, and what another product ends with.
    if (user == nullptr || ends_.contains(user) || fusion_.calls.contains(user)) return;
    if (elementwise_.IsInner(user) || elementwise_.NodesOf(user).size() > 1) return;
    if (Is<Add>(user) && IsBias(*Other(*user, sum), *sum)) {
      group->parts.bias = Other(*user, sum);
      group->bias = user;
      End(user, user->results[0], group);
      sum = user->results[0];
      user = OnlyUser(sum);
      if (user != nullptr && Is<RopeKvWrite>(user)) FollowRope(user, group);
      return;
    }
    if (Is<SiluMul>(user)) {
      group->parts.silu_mul = true;
      End(user, user->results[0], group);
    } else if (Is<RopeKvWrite>(user)) {
      FollowRope(user, group);
    } else if ((Is<Add>(user) || Is<AddRmsNorm>(user)) && user->operands[0] != user->operands[1] &&
               Other(*user, sum)->type == sum->type) {
      group->parts.addend = Other(*user, sum);
      End(user, user->results[0], group);
    }
  }

  void FollowRope(const Node* user, Group* group) {
    const auto op = View<RopeKvWrite>(*user);
    // A block makes some pairs of a head; a norm needs all of it.
    if (!op.inv_freq->type.shape[0].is_constant() || KvPagesOf(op.kv).head_dim() % 2 != 0 || op.q_norm != nullptr)
      return;
    // Its epilogue reads these before it waits.
    for (const Value* early : {op.pos, op.inv_freq, op.slots}) {
      if (!IsThereBeforeStep(early)) return;
    }
    group->parts.rope = user;
    End(user, user->results[0], group);
  }

  static void End(const Node* node, const Value* out, Group* group) {
    group->end = node;
    group->parts.out = out;
  }

  // A vector that is added to every row.
  static bool IsBias(const Value& value, const Value& sum) {
    return value.type.rank() == 1 && value.type.dtype == sum.type.dtype &&
           value.type.shape[0] == sum.type.shape.back() &&
           (value.kind == ValueKind::kWeight || (value.def != nullptr && value.name[0] == '@'));
  }

  // A norm whose every reader can normalize for itself.
  void FindNorm(const Node& node) {
    const bool adds = Is<AddRmsNorm>(&node);
    if (!adds && !Is<RmsNorm>(&node)) return;
    // The sum that is normalized has to come from somewhere: from the product before it.
    if (adds && !ends_.contains(&node)) return;
    const Value* normed = node.results[adds ? 1 : 0];
    if ((adds ? View<AddRmsNorm>(node).weight : View<RmsNorm>(node).weight)->type.dtype != normed->type.dtype) return;
    bool all = !normed->users.empty() && !model_.IsOutput(normed);
    for (const Node* user : normed->users) {
      const auto group = groups_.find(user);
      all =
          all && group != groups_.end() && group->second.parts.x == normed && CanNormalize(group->second.parts, scope_);
    }
    if (!all) return;
    for (const Node* user : normed->users) {
      groups_.at(user).norm = &node;
      GemvParts& parts = groups_.at(user).parts;
      parts.x = adds ? node.results[0] : View<RmsNorm>(node).x;
      parts.norm = adds ? View<AddRmsNorm>(node).weight : View<RmsNorm>(node).weight;
      parts.eps = adds ? View<AddRmsNorm>(node).eps : View<RmsNorm>(node).eps;
    }
    folded_.insert(&node);
    if (!adds) fusion_.calls[&node] = {};
  }

  void AddCall(const Group& group) {
    std::vector<DeviceCall> calls = {GemvCall(group.parts, scope_)};
    if (Is<AddRmsNorm>(group.end) && !folded_.contains(group.end)) calls.push_back(NormOfSum(*group.end));
    for (const Node* node : {group.product, group.bias}) {
      if (node != nullptr) fusion_.calls[node] = {};
    }
    fusion_.calls[group.end] = std::move(calls);
    std::vector<const Node*>& nodes = fusion_.nodes[group.end];
    for (const Node* node : {group.norm, group.product, group.bias, group.end}) {
      if (node != nullptr && (nodes.empty() || nodes.back() != node)) nodes.push_back(node);
    }
    std::vector<const Value*>& reads = fusion_.memory.reads[group.end];
    reads.push_back(group.parts.x);
  }

  const Model& model_;
  const Step& step_;
  const ElementwiseGroups& elementwise_;
  const ProgramScope& scope_;
  absl::flat_hash_map<const Node*, Group> groups_;  // by product
  absl::flat_hash_set<const Node*> ends_;
  absl::flat_hash_set<const Node*> folded_;  // norms that their readers do
  Fusion& fusion_;
};

}  // namespace

void FuseDecodeStep(const Model& model, const Step& step, const ElementwiseGroups& groups, const ProgramScope& scope,
                    Fusion* fusion) {
  DecodeFuser(model, step, groups, scope, fusion).Run();
}

}  // namespace llmc
