// The evaluator behind element_value.h: one element of a value, from those of the values that it is made of.
#pragma once

#include <string>

#include "passes/proof/element_algebra.h"

namespace llmc::element {

constexpr int kMostSteps = 4096;  // values and sizes looked at for one question

class Evaluator {
 public:
  explicit Evaluator(const ElementFacts& facts);

  Element At(const Value& value, const Dims& place);

  // The size of an axis, through ops that leave a symbol of their own for it; where axes that must not be empty are
  // not.
  Dim SizeOf(const Value& value, int axis);

  Dim Known(const Dim& dim) const { return dim.Substitute(facts_.dims); }

  // Whether a dim is at least 0 for all places and in all runs.
  bool IsNeverNegative(const Dim& dim) const;

  // "its part %mask" or "a bias that %sum adds", of what stopped first; empty if nothing did.
  const std::string& why() const { return why_; }

 private:
  // ---- sizes (element_moves.cc) ---------------------------------------------
  Dim SizeOfSlice(const Node& node, int axis);
  Dim SizeOfBroadcast(const Node& node, int axis);

  // The bounds of `axis` in a slice with known starts and steps of 1. `start` is 0 where the axis is not sliced.
  struct SliceOfAxis {
    bool is_sliced = false;
    Dim start, end;
  };
  std::optional<SliceOfAxis> SliceOf(const Node& node, int axis) const;

  // The place in `operand` that is broadcast to `place` in `result`; nothing if only a run tells what is broadcast.
  std::optional<Dims> PlaceIn(const Value& operand, const Value& result, const Dims& place);
  std::optional<Dim> IndexIn(const Value& operand, int axis, const Value& result, int result_axis, const Dim& index);
  Element Operand(const Node& node, size_t i, const Dims& place);

  // ---- ops that move elements (element_moves.cc) -----------------------------
  Element AtReshape(const Node& node, const Dims& place);
  Element AtTranspose(const Node& node, const Dims& place);
  Element AtConcat(const Node& node, const Dims& place);
  Element AtAnyPart(const Node& node, const Dims& place);
  Element AsLastPart(const Node& node, const Dims& place);
  Element AtSlice(const Node& node, const Dims& place);
  Element AtSliceBy(const Node& node, const Dims& place);
  Element AtGather(const Node& node, const Dims& place);
  Element AtGatherNd(const Node& node, const Dims& place);
  // What every element is, if all are the same number.
  Element AtAll(const Value& value);
  // An element of integers, if it counts from the front.
  std::optional<Dim> IndexAt(const Value& value, const Dims& place);

  // ---- ops that compute (element_evaluator.cc) -------------------------------
  Element AtNode(const Node& node, const Dims& place);
  Element AtTensor(const Value& value, const Tensor& tensor, const Dims& place) const;
  Element AtRange(const Node& node, const Dims& place);
  Element AtCumSum(const Node& node, const Dims& place);
  Element AtReduceSum(const Node& node, const Dims& place);
  Element AtTriangle(const Node& node, const Dims& place);
  Element AtWhere(const Node& node, const Dims& place);
  Element AtWhereEqual(const Node& node, const Dims& place);
  Element AtOuterProduct(const Node& node, const Dims& place);
  Element AtCast(const Node& node, const Dims& place);
  Element AtUnary(const Node& node, const Dims& place);
  Element AtBinary(const Node& node, const Dims& place);

  // A symbol that stands for any place along an axis, and occurs nowhere else.
  Dim NewIndex();

  // As the type holds it, and without what holds in every run; nothing if the type does not hold it.
  Element Settled(const Element& element, DType dtype) const;
  Condition Simplified(const Condition& condition) const;
  bool Holds(DType dtype, const Dim& integer) const;

  const ElementFacts& facts_;
  DimEnv most_;  // of the symbols of places, too
  std::map<std::string, Dim, std::less<>> nonempty_;
  int steps_ = 0, indices_ = 0;
  std::string why_;
};

}  // namespace llmc::element
