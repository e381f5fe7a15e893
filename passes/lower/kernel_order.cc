#include "passes/lower/kernel_order.h"

#include <queue>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/op.h"

namespace llmc {
namespace {

// A kernel, or a node without one.
struct Unit {
  std::vector<Node*> nodes;    // in their order
  std::vector<size_t> behind;  // units that must wait for it
  size_t waits_for = 0;        // how many it waits for
};

class Units {
 public:
  explicit Units(Step* step) : step_(step) {
    step->block.Renumber();
    for (const auto& node : step->block.nodes) {
      const auto [it, added] = kernels_.try_emplace(node->kernel, units_.size());
      const size_t index = node->kernel == nullptr || added ? units_.size() : it->second;
      if (index == units_.size()) units_.emplace_back();
      units_[index].nodes.push_back(node.get());
      of_[node.get()] = index;
    }
    for (const auto& node : step->block.nodes) AddEdges(*node);
  }

  absl::Status Order() {
    // The unit that ends first in the text comes first.
    const auto later = [this](size_t a, size_t b) {
      return units_[a].nodes.back()->order > units_[b].nodes.back()->order;
    };
    std::priority_queue<size_t, std::vector<size_t>, decltype(later)> ready(later);
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].waits_for == 0) ready.push(i);
    }
    size_t done = 0;
    std::list<std::unique_ptr<Node>>& nodes = step_->block.nodes;
    for (; !ready.empty(); ++done) {
      const size_t next = ready.top();
      ready.pop();
      for (const Node* node : units_[next].nodes) nodes.splice(nodes.end(), nodes, node->self);
      for (const size_t waiting : units_[next].behind) {
        if (--units_[waiting].waits_for == 0) ready.push(waiting);
      }
    }
    step_->block.Renumber();
    return done == units_.size() ? absl::OkStatus() : absl::InternalError("kernels wait for each other");
  }

 private:
  void AddEdge(const Node* first, const Node& then) {
    const size_t from = of_.at(first), to = of_.at(&then);
    if (from == to) return;
    units_[from].behind.push_back(to);
    ++units_[to].waits_for;
  }

  void AddEdges(const Node& node) {
    for (const Value* operand : node.operands) {
      if (operand == nullptr) continue;
      if (operand->def != nullptr && operand->def->block == node.block) AddEdge(operand->def, node);
      if (operand->kind == ValueKind::kState) AddStateEdges(operand, node);
    }
  }

  // A reader waits for the last writer, a writer for it and all readers since.
  void AddStateEdges(const Value* state, const Node& node) {
    Uses& uses = states_[state];
    if (uses.writer != nullptr) AddEdge(uses.writer, node);
    if (!node.op->info.Has(kWritesState)) {
      uses.readers.push_back(&node);
      return;
    }
    for (const Node* reader : uses.readers) AddEdge(reader, node);
    uses = {.writer = &node, .readers = {}};
  }

  struct Uses {
    const Node* writer = nullptr;
    std::vector<const Node*> readers;
  };

  Step* step_;
  std::vector<Unit> units_;
  absl::flat_hash_map<const Kernel*, size_t> kernels_;
  absl::flat_hash_map<const Node*, size_t> of_;
  absl::flat_hash_map<const Value*, Uses> states_;
};

}  // namespace

absl::Status OrderKernels(Step* step) { return Units(step).Order(); }

}  // namespace llmc
