// What a run of a step must know of sizes besides the dims of its inputs: symbols that only a run can tell, elements of
// inputs that sizes depend on, and sizes that must agree.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "codegen/memory/size.h"
#include "codegen/memory/small_tensors.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

class SizeRules {
 public:
  // The symbols of parameters and states have their sizes.
  SizeRules(const Model& model, const Step& step);

  // Nodes in their order. Unimplemented: a result's size depends on what a kernel computes.
  absl::Status Add(const Node& node);
  const std::vector<plan::SizeRule>& rules() const { return rules_; }

 private:
  void Equate(const Node& node, const Size& size, const Size& expected);
  void EquateShapes(const Node& node, const Dims& a, const Dims& b);
  void Broadcast(const Node& node, const std::vector<Dims>& shapes, const Dims& out);
  bool AreKnown(const Dims& dims) const;
  void AddElements(const Node& node);
  void AddMovement(const Node& node);
  void AddReshape(const Node& node);
  void AddSliceBy(const Node& node);
  void AddRange(const Node& node);
  void AddIndexed(const Node& node);
  void AddProducts(const Node& node);
  void AddQuantizedProduct(const Node& node);
  void AddRecurrence(const Node& node);
  void AddAttention(const Node& node);
  void AddNorms(const Node& node);

  absl::flat_hash_set<std::string> known_;  // symbols
  SmallTensors small_;
  size_t inputs_ = 0, computed_ = 0;  // of small_, that have rules
  std::vector<plan::SizeRule> rules_;
};

}  // namespace llmc
