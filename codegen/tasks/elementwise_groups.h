// Which elementwise nodes of a step become one kernel.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "ir/graph.h"

namespace llmc {

// Whether a kernel computes the node element by element: views need none.
bool IsElementwise(const Node& node);

// A group's last node, its root, is its only result: what the others give is read by nodes of the group alone, has the
// root's shape, and gets no memory. Constant: every node is its own root.
class ElementwiseGroups {
 public:
  ElementwiseGroups() = default;  // none
  // Of all nodes but those of `apart`; in time linear in the nodes.
  explicit ElementwiseGroups(const Step& step, const absl::flat_hash_set<const Node*>& apart = {});

  const Node* RootOf(const Node* node) const;
  bool IsInner(const Node* node) const { return RootOf(node) != node; }
  // In order, the root last.
  std::vector<const Node*> NodesOf(const Node* root) const;

 private:
  absl::flat_hash_map<const Node*, const Node*> roots_;               // of inner nodes
  absl::flat_hash_map<const Node*, std::vector<const Node*>> inner_;  // by root, in order
};

}  // namespace llmc
