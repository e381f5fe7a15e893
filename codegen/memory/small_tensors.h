// The elements of small tensors that sizes depend on, as a run computes them on the host before it starts: from the
// sizes of its inputs and the elements of small inputs of integers.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph.h"
#include "ir/size.h"

namespace llmc {

// The elements of a small tensor as sizes: numbers, dims, and symbols that `SizeRules` defines. Those of floating-point
// types are the bits of doubles. Nothing where a kernel alone can tell them.
std::optional<SizeList> ContentsOf(const Value* value);

// An element of an input, and the symbol that is its name.
struct InputElement {
  const Value* input = nullptr;
  int64_t element = 0;
  Size symbol = 0;
};

class SmallTensors {
 public:
  std::optional<SizeList> ContentsOf(const Value* value);

  // What ContentsOf() has met: elements of inputs, and results whose elements are symbols, each after what it is
  // computed from, with what they are.
  struct Computed {
    const Value* value = nullptr;
    SizeList symbols, elements;
  };
  const std::vector<InputElement>& inputs() const { return inputs_; }
  const std::vector<Computed>& computed() const { return computed_; }

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
  std::vector<InputElement> inputs_;
  std::vector<Computed> computed_;
};

}  // namespace llmc
