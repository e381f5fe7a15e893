#include "ir/guards.h"

#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "ir/ops_elementwise.h"

namespace llmc {
namespace {

// Visits nodes from the last, so that all users of a node are known.
class GuardFinder {
 public:
  explicit GuardFinder(const Step& step) {
    for (const Output& output : step.outputs) outputs_.insert(output.value);
    for (auto node = step.block.nodes.rbegin(); node != step.block.nodes.rend(); ++node) Add(**node);
  }
  GuardedNodes Take() { return std::move(found_); }

 private:
  void Add(const Node& node) {
    const bool is_pure = !node.op->info.touches_state();
    const int guard = is_pure ? OfUsers(node) : -1;
    if (guard >= 0) found_.of[&node] = guard;
    if (!Is<Choose>(&node)) return;
    // Those that choose alike share their guards.
    const auto [side, added] = pairs_.try_emplace({guard, node.operands[0]}, static_cast<int>(found_.guards.size()));
    sides_[&node] = side->second;
    for (const bool wanted : {true, false}) {
      if (!added) break;
      found_.guards.push_back(
          {.outer = guard, .depth = DepthOf(guard) + 1, .condition = node.operands[0], .wanted = wanted});
    }
  }

  // What all users are under.
  int OfUsers(const Node& node) const {
    std::optional<int> common;
    for (const Value* result : node.results) {
      if (outputs_.contains(result)) return -1;
      for (const Node* user : result->users) {
        const int guard = OfUse(*user, result, node);
        common = common.has_value() ? Common(*common, guard) : guard;
        if (*common < 0) return -1;
      }
    }
    return common.value_or(-1);
  }

  int OfUse(const Node& user, const Value* value, const Node& node) const {
    const auto found = found_.of.find(&user);
    const int own = found == found_.of.end() ? -1 : found->second;
    const auto side = sides_.find(&user);
    if (side == sides_.end() || user.operands[0] == value || user.operands[1] == user.operands[2]) return own;
    const Node* condition = user.operands[0]->def;
    if (condition != nullptr && condition->block == node.block && condition->order > node.order) return own;
    return side->second + (user.operands[1] == value ? 0 : 1);
  }

  int DepthOf(int guard) const { return guard < 0 ? 0 : found_.guards[static_cast<size_t>(guard)].depth; }
  int Common(int a, int b) const {
    while (a != b) {
      int& deeper = DepthOf(a) >= DepthOf(b) ? a : b;
      deeper = found_.guards[static_cast<size_t>(deeper)].outer;
    }
    return a;
  }

  GuardedNodes found_;
  absl::flat_hash_set<const Value*> outputs_;
  absl::flat_hash_map<const Node*, int> sides_;                   // of a `choose`: its first guard
  absl::flat_hash_map<std::pair<int, const Value*>, int> pairs_;  // by the outer guard and the condition
};

}  // namespace

GuardedNodes FindGuards(const Step& step) { return GuardFinder(step).Take(); }

}  // namespace llmc
