#include "passes/mask.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "passes/literal.h"

namespace llmc {
namespace {

constexpr int kMaxSteps = 4096;                  // values looked at for one mask
constexpr int64_t kMaxIndex = int64_t{1} << 31;  // no axis is longer
constexpr int64_t kMaxTable = 1 << 24;           // elements of a table that is searched for a triangle

using Index = std::vector<Dim>;

// A truth value that depends on indices: that each of `parts` is at most 0, or false.
struct Claim {
  bool never = false;
  std::vector<Dim> parts;
  bool operator==(const Claim&) const = default;
  bool always() const { return !never && parts.empty(); }
};
using MaybeClaim = std::optional<Claim>;

MaybeClaim Always() { return Claim{}; }
MaybeClaim Never() { return Claim{.never = true}; }

MaybeClaim Inverse(const MaybeClaim& claim) {
  if (!claim.has_value()) return claim;
  if (claim->never) return Always();
  if (claim->parts.empty()) return Never();
  if (claim->parts.size() > 1) return std::nullopt;
  return Claim{.parts = {Dim(1) - claim->parts[0]}};
}

class Evaluator {
 public:
  Evaluator(const Model& model, const Dims& nonempty) : model_(model), bounds_(model.dims) {
    for (const Dim& dim : nonempty) {
      if (dim.is_symbol()) nonempty_.emplace(dim.ToString(), dim + Dim(1));
    }
  }

  Dim NewIndex(absl::string_view name) {
    std::string symbol = absl::StrCat("#", name);
    bounds_[symbol] = kMaxIndex;
    return Dim::Symbol(symbol);
  }

  // Whether an element of an additive or boolean mask lets its key be seen.
  MaybeClaim Visible(const Value* value, Index index) {
    if (!Move(&value, &index)) return Stop(value);
    if (value->type.dtype == DType::kBool) return Truth(value, index);
    if (!IsFloat(value->type.dtype)) return Stop(value);
    if (const std::optional<double> number = NumberOf(value)) return VisibleNumber(value, *number);
    if (const Tensor* table = TableOf(value)) {
      return OfTable(value, *table, index, [&](int64_t i) -> std::optional<bool> {
        if (table->GetFloat(i) == 0) return true;
        return HidesScores(table->GetFloat(i), table->dtype()) ? std::optional(false) : std::nullopt;
      });
    }
    const Node* node = value->def;
    if (Is<Concat>(node)) return Joined(*node, index, [this](auto* v, auto i) { return Visible(v, i); });
    if (Is<Cast>(node) && IsFloat(node->operands[0]->type.dtype)) return Visible(node->operands[0], index);
    if (Is<Add>(node)) return Both(node->operands, value, index, [this](auto* v, auto i) { return Visible(v, i); });
    if (Is<Where>(node)) return Chosen(*node, index, [this](auto* v, auto i) { return Visible(v, i); });
    if (Is<Mul>(node)) return VisibleProduct(*node, index);
    if (Is<Triangle>(node)) return VisibleTriangle(*node, index);
    return Stop(value);
  }

  bool AtMostZero(const Dim& dim) const {
    absl::StatusOr<DimRange> range = dim.Substitute(nonempty_).Range(bounds_);
    return range.ok() && range->high <= 0;
  }
  bool AboveZero(const Dim& dim) const {
    absl::StatusOr<DimRange> range = dim.Substitute(nonempty_).Range(bounds_);
    return range.ok() && range->low > 0;
  }
  // Without what holds in every run.
  Claim Simplified(const Claim& claim) const {
    Claim simple{.never = claim.never};
    for (const Dim& part : claim.parts) {
      if (AboveZero(part)) simple.never = true;
      const bool known = std::find(simple.parts.begin(), simple.parts.end(), part) != simple.parts.end();
      if (!AtMostZero(part) && !known) simple.parts.push_back(part);
    }
    if (simple.never) simple.parts.clear();
    return simple;
  }

  const std::string& why() const { return why_; }

 private:
  std::nullopt_t Stop(const Value* value) {
    if (why_.empty()) {
      why_ = absl::StrCat("its part ", value->name, value->def == nullptr ? "" : " of ",
                          value->def == nullptr ? "" : value->def->op->info.name);
    }
    return std::nullopt;
  }

  const Tensor* TableOf(const Value* value) const {
    const Tensor* table = LiteralOf(value);
    if (table == nullptr && value->kind == ValueKind::kWeight) {
      auto it = model_.data.find(value->name);
      if (it != model_.data.end()) table = &it->second;
    }
    return table == nullptr || table->size() == 0 || table->size() > kMaxTable ? nullptr : table;
  }

  // ---- sizes and places ------------------------------------------------------
  // The size of an axis as nonempty tensors have it: an empty slice is none. Unknown if only a run can tell.
  Dim SizeOf(const Value* value, int axis) {
    const Dim written = value->type.shape[axis];
    const Node* node = value->def;
    if (written.is_constant() || node == nullptr || ++steps_ > kMaxSteps) return written;
    if (Is<SliceBy>(node)) return SizeOfSlice(*node, axis);
    if (Is<Concat>(node) && axis == View<Concat>(*node).axis) {
      Dim sum(0);
      for (const Value* part : node->operands) sum = sum + SizeOf(part, axis);
      return sum;
    }
    if (IsElementwise(node)) return SizeOfElementwise(*node, axis);
    if (Is<CumSum>(node) || Is<Concat>(node)) return SizeOf(node->operands[0], axis);
    return written;
  }

  Dim SizeOfSlice(const Node& node, int axis) {
    const Value* x = node.operands[0];
    const Dim size = SizeOf(x, axis);
    std::optional<int> at = SlicedAt(node, axis);
    if (!at.has_value()) return Dim::Unknown();
    if (*at < 0) return size;
    const Dim start = (*node.operands[1]->contents)[*at], end = (*node.operands[2]->contents)[*at];
    if (!AtMostZero(Dim(0) - start)) return Dim::Unknown();
    if (AtMostZero(size - end)) return size - start;
    const bool is_inside = AtMostZero(end - size) && AtMostZero(Dim(0) - end);
    return is_inside ? end - start : Dim::Unknown();
  }

  // Which of the starts is of `axis`; -1 if none. Nothing if that is not known, or steps are not 1.
  static std::optional<int> SlicedAt(const Node& node, int axis) {
    const auto op = View<SliceBy>(node);
    const std::optional<Dims>&starts = node.operands[1]->contents, &ends = node.operands[2]->contents;
    if (!starts.has_value() || !ends.has_value() || starts->size() != ends->size()) return std::nullopt;
    if (op.steps != nullptr && op.steps->contents != std::optional(Dims(starts->size(), Dim(1)))) return std::nullopt;
    if (op.axes == nullptr) return axis < static_cast<int>(starts->size()) ? axis : -1;
    if (!op.axes->contents.has_value()) return std::nullopt;
    const Dims& axes = *op.axes->contents;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] == Dim(axis) || axes[i] == Dim(axis - node.operands[0]->type.rank())) return static_cast<int>(i);
      if (!axes[i].is_constant()) return std::nullopt;
    }
    return -1;
  }

  static bool IsElementwise(const Node* node) {
    return Is<Add>(node) || Is<Sub>(node) || Is<Mul>(node) || Is<Neg>(node) || Is<Cast>(node) || Is<Not>(node) ||
           Is<And>(node) || Is<Or>(node) || Is<Equal>(node) || Is<Less>(node) || Is<LessEqual>(node) ||
           Is<Greater>(node) || Is<GreaterEqual>(node) || Is<Where>(node);
  }
  Dim SizeOfElementwise(const Node& node, int axis) {
    Dim size(1);
    for (const Value* operand : node.operands) {
      const int own = axis - node.results[0]->type.rank() + operand->type.rank();
      const Dim other = own < 0 ? Dim(1) : SizeOf(operand, own);
      if (other == Dim(1)) continue;
      if (size != Dim(1) && size != other) return Dim::Unknown();
      size = other;
    }
    return size;
  }

  // The place in `operand` that is broadcast to `index` of `value`.
  std::optional<Index> PlaceIn(const Value* operand, const Value* value, const Index& index) {
    Index place;
    const int extra = value->type.rank() - operand->type.rank();
    for (int axis = 0; axis < operand->type.rank(); ++axis) {
      const Dim size = SizeOf(operand, axis);
      if (size.is_unknown()) return std::nullopt;
      if (size == SizeOf(value, axis + extra)) {
        place.push_back(index[axis + extra]);
      } else if (size == Dim(1)) {
        place.push_back(Dim(0));
      } else {
        return std::nullopt;
      }
    }
    return place;
  }

  // ---- movement --------------------------------------------------------------
  // Follows ops that only move elements, to where the element comes from.
  bool Move(const Value** value, Index* index) {
    while (++steps_ <= kMaxSteps) {
      const Node* node = (*value)->def;
      if (node == nullptr) return true;
      bool moved = false;
      if (Is<Identity>(node)) {
        moved = true;
      } else if (Is<Reshape>(node)) {
        moved = MoveReshape(*node, index);
      } else if (Is<Expand>(node)) {
        std::optional<Index> place = PlaceIn(node->operands[0], *value, *index);
        moved = place.has_value();
        if (moved) *index = *std::move(place);
      } else if (Is<Transpose>(node)) {
        moved = MoveTranspose(*node, index);
      } else if (Is<Slice>(node)) {
        const auto op = View<Slice>(*node);
        (*index)[op.axis] = (*index)[op.axis] + op.start[0];
        moved = true;
      } else if (Is<SliceBy>(node)) {
        moved = MoveSlice(*node, index);
      } else if (Is<Gather>(node)) {
        moved = MoveGather(*node, index);
      } else if (Is<GatherNd>(node)) {
        moved = MoveGatherNd(*node, index);
      } else {
        return true;
      }
      if (!moved) return false;
      *value = node->operands[0];
    }
    return false;
  }

  // Axes of size 1 come and go.
  static bool MoveReshape(const Node& node, Index* index) {
    const Dims &from = node.operands[0]->type.shape, &to = node.results[0]->type.shape;
    Index place;
    size_t at = 0;
    const auto skip = [&] {
      while (at < to.size() && to[at] == Dim(1)) ++at;
    };
    for (const Dim& dim : from) {
      if (dim == Dim(1)) {
        place.push_back(Dim(0));
        continue;
      }
      skip();
      if (at == to.size() || to[at] != dim) return false;
      place.push_back((*index)[at++]);
    }
    skip();
    if (at != to.size()) return false;
    *index = std::move(place);
    return true;
  }
  static bool MoveTranspose(const Node& node, Index* index) {
    const auto op = View<Transpose>(node);
    Index place(index->size());
    for (size_t i = 0; i < index->size(); ++i) place[op.perm[i]] = (*index)[i];
    *index = std::move(place);
    return true;
  }
  bool MoveSlice(const Node& node, Index* index) {
    for (size_t axis = 0; axis < index->size(); ++axis) {
      const std::optional<int> at = SlicedAt(node, static_cast<int>(axis));
      if (!at.has_value()) return false;
      if (*at < 0) continue;
      const Dim start = (*node.operands[1]->contents)[*at];
      if (!AtMostZero(Dim(0) - start)) return false;
      (*index)[axis] = (*index)[axis] + start;
    }
    return true;
  }
  // A number that is an index, and none from the end.
  std::optional<Dim> Place(const Value* indices, Index index) {
    std::optional<Dim> place = Number(indices, std::move(index));
    return place.has_value() && AtMostZero(Dim(0) - *place) ? place : std::nullopt;
  }
  bool MoveGather(const Node& node, Index* index) {
    const auto op = View<Gather>(node);
    const auto begin = index->begin() + op.axis, end = begin + op.indices->type.rank();
    const std::optional<Dim> place = Place(op.indices, Index(begin, end));
    if (!place.has_value()) return false;
    *begin = *place;
    if (op.indices->type.rank() == 0) return false;
    index->erase(begin + 1, end);
    return true;
  }
  bool MoveGatherNd(const Node& node, Index* index) {
    const auto op = View<GatherNd>(node);
    const Dims& shape = op.indices->type.shape;
    if (op.batch_dims != 0 || shape.empty() || !shape.back().is_constant()) return false;
    const auto tail = index->begin() + (op.indices->type.rank() - 1);
    Index moved;
    for (int64_t i = 0; i < shape.back().value(); ++i) {
      Index at(index->begin(), tail);
      at.push_back(Dim(i));
      const std::optional<Dim> place = Place(op.indices, std::move(at));
      if (!place.has_value()) return false;
      moved.push_back(*place);
    }
    moved.insert(moved.end(), tail, index->end());
    *index = std::move(moved);
    return true;
  }

  // Which part of a concat the element is of may depend on the index: then all must agree.
  template <class F>
  auto Joined(const Node& node, const Index& index, F evaluate) -> decltype(evaluate(node.operands[0], index)) {
    const int64_t axis = View<Concat>(node).axis;
    decltype(evaluate(node.operands[0], index)) joined;
    Index place = index;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Dim size = SizeOf(node.operands[i], static_cast<int>(axis));
      const Dim past = place[axis] - size + Dim(1);  // at most 0: in this part
      const bool is_last = i + 1 == node.operands.size();
      if (size.is_unknown() || ++steps_ > kMaxSteps) return Stop(node.results[0]);
      if (is_last || !AboveZero(past)) {
        auto element = evaluate(node.operands[i], place);
        if (!element.has_value() || (joined.has_value() && *joined != *element)) return Stop(node.results[0]);
        joined = std::move(element);
      }
      if (AtMostZero(past)) return joined;
      place[axis] = place[axis] - size;
    }
    return joined;
  }

  // ---- numbers ---------------------------------------------------------------
  std::optional<Dim> Number(const Value* value, Index index) {
    if (!Move(&value, &index)) return Stop(value);
    if (const std::optional<Dims>& contents = value->contents; contents.has_value()) {
      const Dim at = index.empty() ? Dim(0) : index[0];
      if (!at.is_constant() || at.value() < 0 || at.value() >= static_cast<int64_t>(contents->size())) {
        return Stop(value);
      }
      return (*contents)[at.value()];
    }
    if (const std::optional<double> number = NumberOf(value)) return WholeNumber(value, *number);
    const Node* node = value->def;
    const auto number_of = [&](const Value* operand) -> std::optional<Dim> {
      const std::optional<Index> place = PlaceIn(operand, value, index);
      return place.has_value() ? Number(operand, *place) : Stop(value);
    };
    if (Is<Concat>(node)) return Joined(*node, index, [this](auto* v, auto i) { return Number(v, i); });
    if (Is<Range>(node)) {
      const std::optional<Dim> start = Number(node->operands[0], {}), step = Number(node->operands[2], {});
      if (!start.has_value() || !step.has_value()) return std::nullopt;
      return *start + index[0] * *step;
    }
    if (Is<Cast>(node)) {
      if (node->operands[0]->type.dtype != DType::kBool) return number_of(node->operands[0]);
      const MaybeClaim claim = Known(node->operands[0], index);
      return claim.has_value() ? std::optional(Dim(claim->never ? 0 : 1)) : Stop(value);
    }
    if (Is<CumSum>(node)) {  // of zeros
      index[View<CumSum>(*node).axis] = NewIndex("sum");
      return Number(node->operands[0], index) == Dim(0) ? std::optional(Dim(0)) : Stop(value);
    }
    if (!Is<Add>(node) && !Is<Sub>(node) && !Is<Mul>(node)) return Stop(value);
    const std::optional<Dim> lhs = number_of(node->operands[0]), rhs = number_of(node->operands[1]);
    if (!lhs.has_value() || !rhs.has_value()) return std::nullopt;
    const Dim result = Is<Add>(node) ? *lhs + *rhs : Is<Sub>(node) ? *lhs - *rhs : *lhs * *rhs;
    return result.is_unknown() ? Stop(value) : std::optional(result);
  }
  std::optional<Dim> WholeNumber(const Value* value, double number) {
    if (number != std::floor(number) || std::abs(number) > 1e15) return Stop(value);
    return Dim(static_cast<int64_t>(number));
  }

  // ---- truth -----------------------------------------------------------------
  // A claim that is always or never.
  MaybeClaim Known(const Value* value, const Index& index) {
    MaybeClaim claim = Truth(value, index);
    if (!claim.has_value()) return claim;
    claim = Simplified(*claim);
    return claim->never || claim->always() ? claim : std::nullopt;
  }

  MaybeClaim Truth(const Value* value, Index index) {
    if (!Move(&value, &index)) return Stop(value);
    if (const std::optional<double> number = NumberOf(value)) return *number != 0 ? Always() : Never();
    if (const Tensor* table = TableOf(value)) {
      return OfTable(value, *table, index, [&](int64_t i) { return std::optional(table->GetFloat(i) != 0); });
    }
    const Node* node = value->def;
    const auto truth = [this](auto* v, auto i) { return Truth(v, i); };
    if (Is<Concat>(node)) return Joined(*node, index, truth);
    if (Is<Not>(node)) return Inverse(Truth(node->operands[0], index));
    if (Is<And>(node)) return Both(node->operands, value, index, truth);
    if (Is<Where>(node)) return Chosen(*node, index, truth);
    if (Is<Triangle>(node)) return TruthOfTriangle(*node, index);
    if (Is<Cast>(node)) {
      if (node->operands[0]->type.dtype == DType::kBool) return Truth(node->operands[0], index);
      const std::optional<Dim> number = Number(node->operands[0], index);
      if (!number.has_value() || !number->is_constant()) return Stop(value);
      return number->value() != 0 ? Always() : Never();
    }
    return Compared(value, index);
  }

  MaybeClaim Compared(const Value* value, const Index& index) {
    const Node* node = value->def;
    const bool compares =
        Is<Equal>(node) || Is<Less>(node) || Is<LessEqual>(node) || Is<Greater>(node) || Is<GreaterEqual>(node);
    if (!compares || IsFloat(node->operands[0]->type.dtype)) return Stop(value);
    std::optional<Dim> sides[2];
    for (const int i : {0, 1}) {
      const std::optional<Index> place = PlaceIn(node->operands[i], value, index);
      if (!place.has_value()) return Stop(value);
      sides[i] = Number(node->operands[i], *place);
      if (!sides[i].has_value()) return std::nullopt;
    }
    const Dim difference = *sides[0] - *sides[1];
    if (difference.is_unknown()) return Stop(value);
    if (Is<LessEqual>(node)) return Claim{.parts = {difference}};
    if (Is<Less>(node)) return Claim{.parts = {difference + Dim(1)}};
    if (Is<GreaterEqual>(node)) return Claim{.parts = {Dim(0) - difference}};
    if (Is<Greater>(node)) return Claim{.parts = {Dim(1) - difference}};
    if (!difference.is_constant()) return Stop(value);
    return difference.value() == 0 ? Always() : Never();
  }

  template <class F>
  MaybeClaim Both(const std::vector<Value*>& operands, const Value* value, const Index& index, F evaluate) {
    Claim all;
    for (const Value* operand : operands) {
      const std::optional<Index> place = PlaceIn(operand, value, index);
      if (!place.has_value()) return Stop(value);
      const MaybeClaim claim = evaluate(operand, *place);
      if (!claim.has_value()) return claim;
      all.never = all.never || claim->never;
      all.parts.insert(all.parts.end(), claim->parts.begin(), claim->parts.end());
    }
    return Simplified(all);
  }

  // where(condition, x, y)
  template <class F>
  MaybeClaim Chosen(const Node& node, const Index& index, F evaluate) {
    MaybeClaim claims[3];
    for (const int i : {0, 1, 2}) {
      const std::optional<Index> place = PlaceIn(node.operands[i], node.results[0], index);
      if (!place.has_value()) return Stop(node.results[0]);
      claims[i] = i == 0 ? Truth(node.operands[0], *place) : evaluate(node.operands[i], *place);
      if (!claims[i].has_value()) return claims[i];
    }
    const auto& [condition, x, y] = claims;
    if (condition->always() || *x == *y) return x;
    if (condition->never) return y;
    if (x->always() && y->never) return condition;
    if (x->never && y->always()) return Inverse(condition);
    return Stop(node.results[0]);
  }

  // ---- tables and triangles --------------------------------------------------
  // A table of the last two axes that is the same for all others, and true below a diagonal and on it.
  template <class F>
  MaybeClaim OfTable(const Value* value, const Tensor& table, const Index& index, F truth) {
    if (table.rank() < 2) return Stop(value);
    const int64_t columns = table.shape().back(), rows = table.shape()[table.rank() - 2];
    std::optional<int64_t> diagonal;  // of the first row: the last column that is true
    for (int64_t j = 0; j < columns && truth(j) == true; ++j) diagonal = j;
    if (!diagonal.has_value()) return Stop(value);
    for (int64_t at = 0; at < table.size(); ++at) {
      const int64_t i = at / columns % rows, j = at % columns;
      if (truth(at) != (j <= i + *diagonal)) return Stop(value);
    }
    if (*diagonal >= columns - 1) return Always();
    return Claim{.parts = {index.back() - index[index.size() - 2] - Dim(*diagonal)}};
  }

  // What `triangle` keeps, by the distance of column and row.
  static Claim KeptBy(const Triangle& op, const Index& index) {
    const Dim distance = index.back() - index[index.size() - 2] - Dim(op.diagonal);
    return {.parts = {op.upper ? Dim(0) - distance : distance}};
  }
  MaybeClaim TruthOfTriangle(const Node& node, const Index& index) {
    MaybeClaim of = Truth(node.operands[0], index);
    if (!of.has_value() || !of->always()) return Stop(node.results[0]);
    return KeptBy(View<Triangle>(node), index);
  }
  MaybeClaim VisibleTriangle(const Node& node, const Index& index) {  // the rest is 0: seen
    const MaybeClaim of = Visible(node.operands[0], index);
    if (!of.has_value() || !of->never) return Stop(node.results[0]);
    return Inverse(KeptBy(View<Triangle>(node), index));
  }

  // ---- additive masks --------------------------------------------------------
  MaybeClaim VisibleNumber(const Value* value, double number) {
    if (number == 0) return Always();
    return HidesScores(number, value->type.dtype) ? Never() : Stop(value);
  }
  // A number that hides, times 0 where the key is seen: x as a number, or 1 - x.
  MaybeClaim VisibleProduct(const Node& node, const Index& index) {
    for (const int i : {0, 1}) {
      const std::optional<double> number = NumberOf(node.operands[i]);
      if (!number.has_value() || !HidesScores(*number, node.operands[i]->type.dtype) || std::isinf(*number)) continue;
      const Value* other = node.operands[1 - i];
      bool inverted = false;
      if (Is<Sub>(other->def) && NumberOf(other->def->operands[0]) == 1.0) {
        other = other->def->operands[1];
        inverted = true;
      }
      const std::optional<Index> place = PlaceIn(other, node.results[0], index);
      const bool is_cast = Is<Cast>(other->def) && other->def->operands[0]->type.dtype == DType::kBool;
      if (!place.has_value() || !is_cast) return Stop(node.results[0]);
      const MaybeClaim claim = Truth(other->def->operands[0], *place);
      return inverted ? claim : Inverse(claim);
    }
    return Stop(node.results[0]);
  }

  const Model& model_;
  DimEnv bounds_;
  std::map<std::string, Dim, std::less<>> nonempty_;
  int steps_ = 0;
  std::string why_;
};

}  // namespace

MaskProof ProveMask(const Model& model, const Node& attention) {
  const auto op = View<Attention>(attention);
  const Dims &q = op.q->type.shape, &k = op.k->type.shape, &mask = op.mask->type.shape;
  const Dims scores = {q[0], q[1], q[2], k[2]};
  Evaluator evaluator(model, scores);
  const Dim i = evaluator.NewIndex("query"), j = evaluator.NewIndex("key");
  const Index all = {evaluator.NewIndex("batch"), evaluator.NewIndex("head"), i, j};
  Index index;
  for (size_t axis = 0; axis < mask.size(); ++axis) {
    const size_t of = axis + scores.size() - mask.size();
    const bool is_one = mask[axis] == Dim(1);
    if (!is_one && mask[axis] != scores[of]) {
      return {.why = absl::StrCat("sizes ", mask[axis].ToString(), " and ", scores[of].ToString(),
                                  " of mask and scores, which may differ")};
    }
    index.push_back(is_one ? Dim(0) : all[of]);
  }
  MaybeClaim claim = evaluator.Visible(op.mask, index);
  if (!claim.has_value()) return {.why = evaluator.why()};
  claim = evaluator.Simplified(*claim);
  if (claim->always()) return {.kind = MaskKind::kFull};
  if (claim->parts == Dims{j - i}) return {.kind = MaskKind::kCausal};
  // With fewer keys than queries, some see nothing: additive masks then leave them with all, attention with none.
  const bool each_sees = evaluator.AtMostZero(scores[2] - scores[3]);
  if (each_sees && claim->parts == Dims{j - i - (scores[3] - scores[2])}) return {.kind = MaskKind::kCausalFromEnd};
  return {.why = "a mask of another form"};
}

}  // namespace llmc
