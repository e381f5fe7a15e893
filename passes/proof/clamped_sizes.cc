#include "passes/proof/clamped_sizes.h"

#include <algorithm>

#include "ir/ops.h"

namespace llmc {
namespace {

// Elements of a list that are known, of values that only reshape it.
std::optional<Dim> ElementOf(const Value* value, size_t i) {
  const std::optional<Dims>& contents = value->contents;
  return contents.has_value() && i < contents->size() ? std::optional((*contents)[i]) : std::nullopt;
}

// `more` of max(0, more), or of max(more, 0).
std::optional<Dim> PositivePart(const Value* value) {
  while (Is<Reshape>(value->def)) value = value->def->operands[0];
  if (!Is<Max>(value->def)) return std::nullopt;
  for (const int zero : {0, 1}) {
    const Value *a = value->def->operands[static_cast<size_t>(zero)],
                *b = value->def->operands[1 - static_cast<size_t>(zero)];
    if (ElementOf(a, 0) == Dim(0) && a->contents->size() == 1 && b->contents.has_value() && b->contents->size() == 1) {
      return ElementOf(b, 0);
    }
  }
  return std::nullopt;
}

}  // namespace

bool ClampedSizes::IsAtMost(const Dim& a, const Dim& b) const {
  const absl::StatusOr<DimRange> range = (b - a).Range(model_->dims);
  return range.ok() && range->low >= 0;
}

const ClampedSizes::Clamped* ClampedSizes::Find(const Dim& dim) const {
  if (!dim.is_symbol()) return nullptr;
  const auto found = clamped_.find(dim.Symbols()[0]);
  return found == clamped_.end() ? nullptr : &found->second;
}

// x[0 : end] and x[max(0, size - n) :] of an axis of known size, by steps of 1.
void ClampedSizes::AddSlice(const Node& node) {
  const auto op = View<SliceBy>(node);
  if (op.steps != nullptr &&
      (!op.steps->contents.has_value() || *op.steps->contents != Dims(op.steps->contents->size(), Dim(1)))) {
    return;
  }
  const Dims &from = op.x->type.shape, &to = node.results[0]->type.shape;
  for (size_t axis = 0; axis < from.size(); ++axis) {
    if (!from[axis].is_constant() || !to[axis].is_symbol()) continue;
    // Which of the lists' elements is of this axis.
    std::optional<size_t> at;
    if (op.axes == nullptr) {
      at = axis;
    } else if (op.axes->contents.has_value()) {
      for (size_t i = 0; i < op.axes->contents->size(); ++i) {
        const Dim& given = (*op.axes->contents)[i];
        const Dim from_end(static_cast<int64_t>(axis) - static_cast<int64_t>(from.size()));
        if (given == Dim(static_cast<int64_t>(axis)) || given == from_end) at = i;
      }
    }
    if (!at.has_value()) continue;
    const Dim& size = from[axis];
    const std::optional<Dim> start = ElementOf(op.starts, *at), end = ElementOf(op.ends, *at);
    Dim of = Dim::Unknown();
    if (start == Dim(0) && end.has_value()) of = *end;
    const std::optional<Dim> positive = *at == 0 ? PositivePart(op.starts) : std::nullopt;
    if (positive.has_value() && end.has_value() && end->is_constant() && end->value() >= size.value()) {
      of = size - *positive;
    }
    if (of.is_unknown() || of.is_constant() || !IsAtMost(Dim(0), of)) continue;
    const std::string symbol = to[axis].Symbols()[0];
    clamped_.emplace(symbol, Clamped{size.value(), of});
    if (IsAtMost(of, size)) told_.emplace_back(symbol, of);
  }
}

void ClampedSizes::AddBroadcast(const Dims& sizes, const Dim& result) {
  for (const Dim& size : sizes) {
    const Clamped* clamped = Find(size);
    if (clamped == nullptr || clamped->most < 1) continue;
    const Dim& of = clamped->of;
    if (std::find(sizes.begin(), sizes.end(), of) == sizes.end()) continue;
    // min(most, n) against n: they are equal, or one of them is 1. If n is 1, both are. If the first is 1, and n is
    // more, most is 1.
    const bool is_all = std::all_of(sizes.begin(), sizes.end(),
                                    [&](const Dim& other) { return other == Dim(1) || other == size || other == of; });
    if (is_all && result.is_symbol()) told_.emplace_back(result.Symbols()[0], of);
    if (clamped->most < 2) continue;
    told_.emplace_back(size.Symbols()[0], of);
    const auto bound =
        of.is_symbol() && model_->steps.size() == 1 ? model_->dims.find(of.ToString()) : model_->dims.end();
    if (bound != model_->dims.end()) bound->second = std::min(bound->second, clamped->most);
  }
}

std::vector<std::pair<std::string, Dim>> ClampedSizes::Add(const Node& node) {
  told_.clear();
  if (Is<SliceBy>(&node)) AddSlice(node);
  if (clamped_.empty() || node.results.size() != 1 || !node.op->info.is_elementwise()) return std::move(told_);
  const Dims& shape = node.results[0]->type.shape;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    Dims sizes;
    for (const Value* operand : node.operands) {
      const Dims& own = operand->type.shape;
      const size_t extra = shape.size() - own.size();
      if (axis >= extra) sizes.push_back(own[axis - extra]);
    }
    AddBroadcast(sizes, shape[axis]);
  }
  return std::move(told_);
}

}  // namespace llmc
