// Evaluates what is known: ops whose inputs are constants, and small integer tensors whose elements are known as dims.

#include <algorithm>

#include "base/status_macros.h"
#include "ir/eval.h"
#include "ir/ops.h"
#include "passes/driver/infer.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/passes.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

constexpr int64_t kMaxElements = 4096;  // of a result that becomes a literal

bool IsSmall(const TensorType& type) {
  int64_t size = 1;
  for (const Dim& dim : type.shape) {
    if (!dim.is_constant() || dim.value() < 0 || dim.value() > kMaxElements) return false;
    size *= dim.value();
    if (size > kMaxElements) return false;
  }
  return true;
}

bool AllKnown(const Dims& dims) {
  return std::none_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.is_unknown(); });
}
bool AllNumbers(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.is_constant() && !dim.is_unknown(); });
}

Tensor NumbersOf(const TensorType& type, const Dims& contents) {
  std::vector<int64_t> numbers;
  Shape shape;
  for (const Dim& dim : contents) numbers.push_back(dim.value());
  for (const Dim& dim : type.shape) shape.push_back(dim.value());
  return Tensor::FromValues(type.dtype, shape, numbers);
}

// Elements known as dims: a constant if they are numbers, else `dims`. nullptr if neither fits.
Value* FromContents(Rewriter& rewriter, const Value& result) {
  const std::optional<Dims>& contents = result.contents;
  if (!contents.has_value() || !AllKnown(*contents) || !IsSmall(result.type)) return nullptr;
  if (AllNumbers(*contents)) return rewriter.Add(Constant{.value = NumbersOf(result.type, *contents)});
  if (result.type.dtype != DType::kI64 || result.type.rank() > 1) return nullptr;
  return rewriter.Add(DimsOf{.values = *contents, .scalar = result.type.rank() == 0});
}

// Every operand is a constant and the result is small. What fails to evaluate stays, and fails when it runs.
Value* FromConstants(Rewriter& rewriter, const Node& node) {
  if (node.operands.empty() || !IsSmall(node.results[0]->type)) return nullptr;
  std::vector<const Tensor*> operands;
  for (const Value* operand : node.operands) {
    operands.push_back(LiteralOf(operand));
    if (operand != nullptr && operands.back() == nullptr) return nullptr;
  }
  absl::StatusOr<Tensors> results = EvalNode(node, operands, {});
  if (!results.ok()) return nullptr;
  return rewriter.Add(Constant{.value = std::move((*results)[0])});
}

bool FoldNode(Model* model, Node* node) {
  if (node->op->info.touches_state()) return false;
  if (node->results.size() != 1 || Is<Constant>(node)) return false;
  if (Is<DimsOf>(node) && !AllNumbers(View<DimsOf>(*node).values)) return false;
  Rewriter rewriter(model, node);
  Value* folded = FromContents(rewriter, *node->results[0]);
  if (folded == nullptr) folded = FromConstants(rewriter, *node);
  if (rewriter.ReplaceWith(folded)) return true;
  rewriter.Discard();
  return false;
}

// ---- rules: shapes that are known become attributes -----------------------------------
bool FoldReshapeTo(Rewriter& rewriter, Node* node) {
  const Dims& shape = node->results[0]->type.shape;
  const auto op = View<ReshapeTo>(*node);
  absl::StatusOr<Types> types = node->op->infer(*node);
  if (!node->operands[1]->contents.has_value() || !types.ok() || !AllKnown((*types)[0].shape)) return false;
  return rewriter.ReplaceWith(rewriter.Add(Reshape{.x = op.x, .shape = shape}));
}

bool FoldExpandTo(Rewriter& rewriter, Node* node) {
  const auto op = View<ExpandTo>(*node);
  const std::optional<Dims>& shape = node->operands[1]->contents;
  absl::StatusOr<Types> types = node->op->infer(*node);
  if (!shape.has_value() || !AllKnown(*shape) || !types.ok() || !AllKnown((*types)[0].shape)) return false;
  return rewriter.ReplaceWith(rewriter.Add(Expand{.x = op.x, .shape = *shape}));
}

std::optional<Dims> ContentsOr(const Value* value, Dims absent) {
  if (value == nullptr) return absent;
  return value->contents;
}

bool FoldSliceBy(Rewriter& rewriter, Node* node) {
  const auto op = View<SliceBy>(*node);
  const std::optional<Dims>&starts = node->operands[1]->contents, &ends = node->operands[2]->contents;
  if (!starts.has_value() || !ends.has_value() || starts->size() != ends->size()) return false;
  Dims all_axes;
  for (size_t i = 0; i < starts->size(); ++i) all_axes.push_back(Dim(static_cast<int64_t>(i)));
  const std::optional<Dims> axes = ContentsOr(op.axes, all_axes);
  const std::optional<Dims> steps = ContentsOr(op.steps, Dims(starts->size(), Dim(1)));
  if (!axes.has_value() || axes->size() != starts->size() || !AllNumbers(*axes)) return false;
  if (steps != std::optional<Dims>(Dims(starts->size(), Dim(1)))) return false;
  const Dims& shape = op.x->type.shape;
  std::vector<std::pair<int64_t, SliceBounds>> slices;
  for (size_t i = 0; i < starts->size(); ++i) {
    const int64_t given = (*axes)[i].value();
    const int64_t axis = given < 0 ? given + static_cast<int64_t>(shape.size()) : given;
    if (axis < 0 || axis >= static_cast<int64_t>(shape.size())) return false;
    std::optional<SliceBounds> bounds = ResolveSlice((*starts)[i], (*ends)[i], shape[axis]);
    if (!bounds.has_value()) return false;
    slices.emplace_back(axis, *bounds);
  }
  // The type must come out the same, to the letter; if it was unknown before, it stays as it is.
  Dims result = shape;
  for (const auto& [axis, bounds] : slices) result[axis] = bounds.end - bounds.start;
  if (result != node->results[0]->type.shape) return false;
  Value* value = op.x;
  for (const auto& [axis, bounds] : slices) {
    if (bounds.start == Dim(0) && bounds.end == value->type.shape[axis]) continue;
    value = rewriter.Add(Slice{.x = value, .axis = axis, .start = {bounds.start}, .end = {bounds.end}});
    if (value == nullptr) return false;
  }
  return rewriter.ReplaceWith(value);
}

// A size that is at most another one in every run, by the bounds of symbols.
bool FoldLesser(Rewriter& rewriter, Node* node) {
  for (const int lesser : {0, 1}) {
    Value *a = node->operands[static_cast<size_t>(lesser)], *b = node->operands[static_cast<size_t>(1 - lesser)];
    if (!a->contents.has_value() || !b->contents.has_value() || a->contents->size() != b->contents->size())
      return false;
    bool is_less = true;
    for (size_t i = 0; i < a->contents->size() && is_less; ++i) {
      const absl::StatusOr<DimRange> more = ((*b->contents)[i] - (*a->contents)[i]).Range(rewriter.model().dims);
      is_less = more.ok() && more->low >= 0;
    }
    if (is_less && rewriter.ReplaceWith(a)) return true;
  }
  return false;
}

constexpr auto kFoldRules = Rules(
    Rule("fold-reshape-to")
        .Apply("reshape_to", FoldReshapeTo)
        .Example("%x: f32[B, 6]; %s = constant {value = [-1, 2, 3]} : i64[3]; %y = reshape_to %x, %s")
        .Quiet(),
    Rule("fold-expand-to")
        .Apply("expand_to", FoldExpandTo)
        .Example("%x: f32[1, 6]; %s = constant {value = [4, 6]} : i64[2]; %y = expand_to %x, %s")
        .Quiet(),
    Rule("fold-slice-by")
        .Apply("slice_by", FoldSliceBy)
        .Example("%x: f32[5, 6]; %s = constant {value = [1, -4]} : i64[2]; %e = constant {value = [9, -1]} : i64[2]; "
                 "%y = slice_by %x, %s, %e")
        .Quiet(),
    Rule("take-lesser")
        .Apply("min", FoldLesser)
        .Example("%a = constant {value = [3, 4]} : i64[2]; %b = constant {value = [5, 4]} : i64[2]; %y = min %a, %b")
        .Quiet());

}  // namespace

RuleSpan FoldRules() { return kFoldRules; }

absl::Status FoldConstants(Model* model, const PassContext& context) {
  constexpr int kMaxRounds = 8;  // each needs a shape that became known only by a rule of the round before
  for (int round = 0; round < kMaxRounds; ++round) {
    int64_t changes = 0;
    absl::Status status = InferAgain(model, [&](Node* node) {
      const std::string place = PlaceOf(*node);
      if (!FoldNode(model, node)) return;
      context.ledger->Fired(kFoldConstant, place);
      ++changes;
    });
    if (!status.ok()) return status;
    ASSIGN_OR_RETURN(int64_t fired, RunRules(model, FoldRules(), context.ledger));
    if (changes + fired == 0) break;
  }
  return absl::OkStatus();
}

}  // namespace llmc
