// The elements of small tensors that sizes depend on, as a run computes them on the host before it starts: from the
// sizes of its inputs and the elements of small inputs of integers.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph.h"
#include "ir/size.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// The elements of a small tensor as sizes: numbers, dims, and symbols that `SizeRules` defines. Those of floating-point
// types are the bits of doubles. Nothing where a kernel alone can tell them.
std::optional<SizeList> ContentsOf(const Value* value);

class SmallTensors {
 public:
  std::optional<SizeList> ContentsOf(const Value* value);

  // What the symbols are that ContentsOf() has given since the last call: elements of inputs, whose rules have no
  // label, then what is computed, each after what it is computed from.
  std::vector<plan::SizeRule> TakeRules();

 private:
  std::optional<SizeList> Find(const Value* value, int depth);
  std::optional<SizeList> FindAll(const Value* value, int depth);  // if as many are known as the type says
  std::optional<SizeList> FindInput(const Value* value);
  std::optional<SizeList> Compute(const Node& node, int depth);
  std::optional<SizeList> Move(const Node& node, size_t moved, int depth);
  std::optional<SizeList> Pick(const Node& gather, int depth);
  std::optional<Size> At(const Value* list, const Size& index, int depth);
  std::optional<Size> AtSlice(const Node& node, const Size& index, int depth);
  std::optional<Size> AtConcat(const Node& node, const Size& index, int depth);
  std::optional<SizeList> Elementwise(const Node& node, int depth);
  std::optional<SizeList> Reduce(const Node& node, int depth);
  std::optional<SizeList> RunningSum(const Node& node, int depth);

  absl::flat_hash_map<const Value*, std::optional<SizeList>> known_;
  std::vector<plan::SizeRule> inputs_, computed_;
};

// Ops as functions of sizes (size_formulas.cc): an element of the result from those of the operands; of a reduction,
// what two elements become. Nothing where there is no formula for the op or its types: it has kernels only.
std::optional<Size> ApplySizeFormula(const Node& node, const SizeList& operands);

}  // namespace llmc
