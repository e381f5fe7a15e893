// Sizes, and ops that only move elements: where an element comes from.
#include <algorithm>

#include "ir/ops.h"
#include "passes/proof/element_evaluator.h"

namespace llmc::element {
namespace {

using Kind = ElementValue::Kind;

constexpr int64_t kMostElementsBefore = 8;

}  // namespace

// ---- sizes -------------------------------------------------------------------
Dim Evaluator::SizeOf(const Value& value, int axis) {
  const Dim written = Known(value.type.shape[static_cast<size_t>(axis)]);
  const Node* node = value.def;
  if (written.is_constant() || node == nullptr || ++steps_ > kMostSteps) return written;
  Dim size = Dim::Unknown();
  if (Is<SliceBy>(node)) {
    size = SizeOfSlice(*node, axis);
  } else if (Is<Concat>(node) && axis == static_cast<int>(View<Concat>(*node).axis)) {
    size = Dim(0);
    for (const Value* part : node->operands) size = size + SizeOf(*part, axis);
  } else if (Is<CumSum>(node) || Is<Concat>(node)) {
    size = SizeOf(*node->operands[0], axis);
  } else if (node->op->info.is_elementwise()) {
    size = SizeOfBroadcast(*node, axis);
  }
  return size.is_unknown() ? written : size;
}

Dim Evaluator::SizeOfBroadcast(const Node& node, int axis) {
  Dim size = Dim(1);
  for (const Value* operand : node.operands) {
    const int own = axis - node.results[0]->type.rank() + operand->type.rank();
    const Dim other = own < 0 ? Dim(1) : SizeOf(*operand, own);
    if (other == Dim(1)) continue;
    if (!(size == Dim(1)) && !(size == other)) return Dim::Unknown();
    size = other;
  }
  return size;
}

std::optional<Evaluator::SliceOfAxis> Evaluator::SliceOf(const Node& node, int axis) const {
  const auto op = View<SliceBy>(node);
  const std::optional<Dims>&starts = op.starts->contents, &ends = op.ends->contents;
  if (!starts.has_value() || (ends.has_value() && ends->size() != starts->size())) return std::nullopt;
  if (op.steps != nullptr && op.steps->contents != std::optional(Dims(starts->size(), Dim(1)))) return std::nullopt;
  if (op.axes != nullptr && (!op.axes->contents.has_value() || op.axes->contents->size() != starts->size())) {
    return std::nullopt;
  }
  SliceOfAxis slice{.start = Dim(0)};
  for (size_t i = 0; i < starts->size(); ++i) {
    const Dim at = op.axes == nullptr ? Dim(static_cast<int64_t>(i)) : (*op.axes->contents)[i];
    if (!at.is_constant()) return std::nullopt;
    if (at == Dim(axis) || at == Dim(axis - op.x->type.rank())) {
      const Dim end = ends.has_value() ? Known((*ends)[i]) : Dim::Unknown();
      slice = {.is_sliced = true, .start = Known((*starts)[i]), .end = end};
    }
  }
  // A start from the end would be another one.
  return IsNeverNegative(slice.start) ? std::optional(slice) : std::nullopt;
}

Dim Evaluator::SizeOfSlice(const Node& node, int axis) {
  const std::optional<SliceOfAxis> slice = SliceOf(node, axis);
  const Dim size = SizeOf(*node.operands[0], axis);
  if (!slice.has_value() || !slice->is_sliced) return slice.has_value() ? size : Dim::Unknown();
  const Dim& end = slice->end;
  Dim stop = Dim::Unknown();
  if (end.is_constant() && end.value() < 0) {
    stop = size + end;
  } else if (IsNeverNegative(end - size)) {
    stop = size;
  } else if (IsNeverNegative(end) && IsNeverNegative(size - end)) {
    stop = end;
  }
  const Dim length = stop - slice->start;
  return IsNeverNegative(length) ? length : Dim::Unknown();
}

std::optional<Dim> Evaluator::IndexIn(const Value& operand, int axis, const Value& result, int result_axis,
                                      const Dim& index) {
  const Dim size = SizeOf(operand, axis);
  if (size == Dim(1)) return Dim(0);
  return !size.is_unknown() && size == SizeOf(result, result_axis) ? std::optional(index) : std::nullopt;
}

std::optional<Dims> Evaluator::PlaceIn(const Value& operand, const Value& result, const Dims& place) {
  Dims under;
  const int extra = result.type.rank() - operand.type.rank();
  for (int axis = 0; axis < operand.type.rank(); ++axis) {
    if (extra < 0) return std::nullopt;
    std::optional<Dim> index = IndexIn(operand, axis, result, axis + extra, place[static_cast<size_t>(axis + extra)]);
    if (!index.has_value()) return std::nullopt;
    under.push_back(*std::move(index));
  }
  return under;
}

Element Evaluator::Operand(const Node& node, size_t i, const Dims& place) {
  const Value& operand = *node.operands[i];
  const std::optional<Dims> under = PlaceIn(operand, *node.results[0], place);
  return under.has_value() ? At(operand, *under) : std::nullopt;
}

// ---- moves -------------------------------------------------------------------
// Axes of size 1 come and go.
Element Evaluator::AtReshape(const Node& node, const Dims& place) {
  const Value& x = *node.operands[0];
  const Dims &from = x.type.shape, &to = node.results[0]->type.shape;
  Dims under(from.size(), Dim(0));
  size_t axis = 0;
  const auto skip = [&] {
    while (axis < to.size() && Known(to[axis]) == Dim(1)) ++axis;
  };
  for (size_t i = 0; i < from.size(); ++i) {
    if (Known(from[i]) == Dim(1)) continue;
    skip();
    if (axis == to.size() || !(Known(to[axis]) == Known(from[i]))) return AtAll(x);
    under[i] = place[axis++];
  }
  skip();
  return axis == to.size() ? At(x, under) : AtAll(x);
}

Element Evaluator::AtAll(const Value& value) {
  Dims place;
  for (int axis = 0; axis < value.type.rank(); ++axis) place.push_back(NewIndex());
  const Element element = At(value, place);
  return element.has_value() && NumberOf(*element).has_value() ? element : std::nullopt;
}

Element Evaluator::AtTranspose(const Node& node, const Dims& place) {
  const auto op = View<Transpose>(node);
  Dims under(place.size());
  for (size_t i = 0; i < place.size(); ++i) under[static_cast<size_t>(op.perm[i])] = place[i];
  return At(*op.x, under);
}

Element Evaluator::AtConcat(const Node& node, const Dims& place) {
  const std::string why = why_;
  Element element = AtAnyPart(node, place);
  if (element.has_value()) return element;
  element = AsLastPart(node, place);
  if (element.has_value()) why_ = why;
  return element;
}

// In which part the place lies may depend on it: then all in which it may lie must agree.
Element Evaluator::AtAnyPart(const Node& node, const Dims& place) {
  const auto op = View<Concat>(node);
  Dims under = place;
  Dim& at = under[static_cast<size_t>(op.axis)];
  Element all;
  for (const Value* part : op.parts) {
    const Dim size = SizeOf(*part, static_cast<int>(op.axis));
    const bool is_behind = IsNeverNegative(at - size);  // in a later part
    if (!is_behind) {
      const Element element = At(*part, under);
      if (!element.has_value() || (all.has_value() && !(*all == *element))) return std::nullopt;
      all = element;
    }
    if (IsNeverNegative(size - Dim(1) - at)) return all;
    at = at - size;
  }
  return all;
}

// Where the few elements of the first parts go on as those of the last do, that tells them all.
Element Evaluator::AsLastPart(const Node& node, const Dims& place) {
  const auto op = View<Concat>(node);
  const size_t axis = static_cast<size_t>(op.axis);
  const auto at = [&](const Value& part, const Dim& index) {
    Dims under = place;
    under[axis] = index;
    return At(part, under);
  };
  Dim first(0);
  for (size_t i = 0; i + 1 < op.parts.size(); ++i) first = first + SizeOf(*op.parts[i], static_cast<int>(axis));
  if (!first.is_constant() || first.value() > kMostElementsBefore) return std::nullopt;
  const Dim index = NewIndex();
  const Element last = at(*op.parts.back(), index - first);
  if (!last.has_value() || last->kind != Kind::kInteger) return std::nullopt;
  const auto last_at = [&](const Dim& dim) { return last->integer.Substitute({{index.ToString(), dim}}); };
  int64_t k = 0;
  for (size_t i = 0; i + 1 < op.parts.size(); ++i) {
    const Dim size = SizeOf(*op.parts[i], static_cast<int>(axis));
    if (!size.is_constant()) return std::nullopt;
    for (int64_t j = 0; j < size.value(); ++j, ++k) {
      const Element here = at(*op.parts[i], Dim(j));
      if (!here.has_value() || here->kind != Kind::kInteger || !(here->integer == last_at(Dim(k)))) return std::nullopt;
    }
  }
  return IntegerElement(last_at(place[axis]));
}

Element Evaluator::AtSlice(const Node& node, const Dims& place) {
  const auto op = View<Slice>(node);
  Dims under = place;
  Dim& at = under[static_cast<size_t>(op.axis)];
  at = at + Known(op.start[0]);
  return At(*op.x, under);
}

// From the front, one by one: the ends only say where it ends.
Element Evaluator::AtSliceBy(const Node& node, const Dims& place) {
  Dims under = place;
  for (size_t axis = 0; axis < under.size(); ++axis) {
    const std::optional<SliceOfAxis> slice = SliceOf(node, static_cast<int>(axis));
    if (!slice.has_value()) return std::nullopt;
    under[axis] = under[axis] + slice->start;
  }
  return At(*node.operands[0], under);
}

std::optional<Dim> Evaluator::IndexAt(const Value& value, const Dims& place) {
  const Element index = At(value, place);
  const bool is_index = index.has_value() && index->kind == Kind::kInteger && IsNeverNegative(index->integer);
  return is_index ? std::optional(index->integer) : std::nullopt;
}

Element Evaluator::AtGather(const Node& node, const Dims& place) {
  const auto op = View<Gather>(node);
  const auto begin = place.begin() + op.axis, end = begin + op.indices->type.rank();
  const std::optional<Dim> index = IndexAt(*op.indices, Dims(begin, end));
  if (!index.has_value()) return std::nullopt;
  Dims under(place.begin(), begin);
  under.push_back(*index);
  under.insert(under.end(), end, place.end());
  return At(*op.x, under);
}

Element Evaluator::AtGatherNd(const Node& node, const Dims& place) {
  const auto op = View<GatherNd>(node);
  const Dim& tuple = op.indices->type.shape.back();
  if (op.batch_dims != 0 || !tuple.is_constant()) return std::nullopt;
  const auto outer = place.begin() + op.indices->type.rank() - 1;
  Dims under;
  for (int64_t k = 0; k < tuple.value(); ++k) {
    Dims at(place.begin(), outer);
    at.push_back(Dim(k));
    const std::optional<Dim> index = IndexAt(*op.indices, at);
    if (!index.has_value()) return std::nullopt;
    under.push_back(*index);
  }
  under.insert(under.end(), outer, place.end());
  return At(*op.x, under);
}

}  // namespace llmc::element
