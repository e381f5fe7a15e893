#include "codegen/tasks/elementwise_groups.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "ir/op.h"

namespace llmc {
namespace {

constexpr size_t kMaxNodes = 32;  // of a group: keeps kernels short and their parameters few

}  // namespace

bool IsElementwise(const Node& node) { return node.op->info.is_elementwise() && !node.op->info.is_view(); }

// Backwards: when a node is looked at, the roots of all that read it are known.
ElementwiseGroups::ElementwiseGroups(const Step& step, const absl::flat_hash_set<const Node*>& apart) {
  const auto joins = [&](const Node* node) { return IsElementwise(*node) && !apart.contains(node); };
  absl::flat_hash_set<const Value*> outputs;
  for (const Output& output : step.outputs) outputs.insert(output.value);
  for (auto it = step.block.nodes.rbegin(); it != step.block.nodes.rend(); ++it) {
    const Node* node = it->get();
    if (!joins(node)) continue;
    const Value* result = node->results[0];
    if (outputs.contains(result) || result->users.empty() || !joins(result->users[0])) continue;
    const Node* root = RootOf(result->users[0]);
    const bool same = absl::c_all_of(result->users, [&](const Node* user) {
      return user->block == node->block && joins(user) && RootOf(user) == root;
    });
    if (!same || root->results[0]->type.shape != result->type.shape) continue;
    std::vector<const Node*>& inner = inner_[root];
    if (inner.size() + 1 >= kMaxNodes) continue;
    inner.push_back(node);
    roots_[node] = root;
  }
  for (auto& [root, nodes] : inner_) std::reverse(nodes.begin(), nodes.end());
}

const Node* ElementwiseGroups::RootOf(const Node* node) const {
  const auto it = roots_.find(node);
  return it == roots_.end() ? node : it->second;
}

std::vector<const Node*> ElementwiseGroups::NodesOf(const Node* root) const {
  std::vector<const Node*> nodes;
  if (const auto it = inner_.find(root); it != inner_.end()) nodes = it->second;
  nodes.push_back(root);
  return nodes;
}

}  // namespace llmc
