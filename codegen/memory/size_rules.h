// What a run of a step must know of sizes besides the dims of its inputs: symbols that only a run can tell, elements of
// inputs that sizes depend on, and sizes that must agree. Ops say what they assume of sizes when their types are
// inferred; this makes of it what a plan holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "codegen/memory/small_tensors.h"
#include "ir/graph.h"
#include "ir/size_collector.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

class SizeRules : private SizeCollector {
 public:
  // The symbols of parameters and states have their sizes.
  SizeRules(const Model& model, const Step& step);

  // Nodes in their order. Unimplemented: a result's size depends on what a kernel computes.
  absl::Status Add(const Node& node);
  const std::vector<plan::SizeRule>& rules() const { return rules_; }

 private:
  void Equate(const Size& size, const Size& expected) override;
  const Dims* result() const override;
  bool KnowsResult() const override;
  std::vector<std::optional<SizeList>> ElementsOf(absl::Span<const Value* const> values) override;

  const Node* node_ = nullptr;              // whose types are inferred
  absl::flat_hash_set<std::string> known_;  // symbols
  SmallTensors small_;
  std::vector<plan::SizeRule> rules_;
};

}  // namespace llmc
