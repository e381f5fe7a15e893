#include "passes/element_value.h"

#include <algorithm>
#include <cmath>

#include "ir/ops.h"

namespace llmc {
namespace {

using Kind = ElementValue::Kind;
using Function = ElementValue::Function;
using Element = std::optional<ElementValue>;

constexpr int kMostSteps = 4096;  // of one question
constexpr int64_t kMostIndex = int64_t{1} << 31;
constexpr int64_t kMostElements = 4096;  // of a constant that is looked at whole
constexpr int64_t kMostElementsBefore = 8;
constexpr double kHidden = -30000;  // scores that are lower weigh nothing

ElementValue Number(double number) { return {.kind = Kind::kNumber, .number = number}; }
ElementValue Bool(Condition condition) { return {.kind = Kind::kBool, .condition = std::move(condition)}; }
ElementValue Bool(bool holds) { return Bool(Condition{.never = !holds}); }

ElementValue Masked(Condition condition, double number, double otherwise) {
  if (condition.always() || number == otherwise) return Number(number);
  if (condition.never) return Number(otherwise);
  return {.kind = Kind::kMasked, .condition = std::move(condition), .number = number, .otherwise = otherwise};
}

Condition Both(const Condition& a, const Condition& b) {
  Condition both{.never = a.never || b.never, .at_least_zero = a.at_least_zero};
  for (const Dim& dim : b.at_least_zero) {
    if (std::find(both.at_least_zero.begin(), both.at_least_zero.end(), dim) == both.at_least_zero.end()) {
      both.at_least_zero.push_back(dim);
    }
  }
  return both;
}

std::optional<Condition> Negated(const Condition& condition) {
  if (condition.never) return Condition{};
  if (condition.always()) return Condition{.never = true};
  if (condition.at_least_zero.size() != 1) return std::nullopt;
  return Condition{.at_least_zero = {Dim(-1) - condition.at_least_zero[0]}};
}

// A number, if that is what it is: integers of known size too.
std::optional<double> NumberOf(const ElementValue& value) {
  if (value.kind == Kind::kNumber) return value.number;
  if (value.kind == Kind::kInteger && value.integer.is_constant()) return static_cast<double>(value.integer.value());
  if (value.kind == Kind::kBool && value.condition.always()) return 1;
  if (value.kind == Kind::kBool && value.condition.never) return 0;
  return std::nullopt;
}

// The two numbers of a mask, or of a bool as 1 and 0.
Element AsMasked(const ElementValue& value) {
  if (value.kind == Kind::kMasked) return value;
  if (value.kind == Kind::kBool) {
    return ElementValue{.kind = Kind::kMasked, .condition = value.condition, .number = 1, .otherwise = 0};
  }
  return std::nullopt;
}

class Teller {
 public:
  explicit Teller(const ElementFacts& facts) : facts_(facts), most_(facts.most) {
    for (const char* index :
         {"$batch", "$head", "$query", "$key", "$token", "$angle", "$update0", "$update1", "$update2"}) {
      most_[index] = kMostIndex;
    }
  }

  Element At(const Value& value, const Dims& place) {
    if (++steps_ > kMostSteps) return std::nullopt;
    if (const auto known = facts_.params.find(&value); known != facts_.params.end()) return known->second(place);
    if (value.contents.has_value() && value.type.dtype != DType::kBool) {
      if (value.type.rank() == 0) return Integer((*value.contents)[0]);
      const bool one = place.size() == 1 && place[0].is_constant() && place[0].value() >= 0;
      if (one && place[0].value() < static_cast<int64_t>(value.contents->size())) {
        return Integer((*value.contents)[static_cast<size_t>(place[0].value())]);
      }
    }
    if (value.kind == ValueKind::kWeight) return Table(value, place);
    if (value.def == nullptr) return std::nullopt;
    return AtNode(*value.def, place);
  }

  // The size of an axis, through ops that leave a symbol of their own for it.
  Dim SizeOf(const Value& value, int axis) {
    const Dim written = value.type.shape[static_cast<size_t>(axis)].Substitute(facts_.dims);
    const Node* node = value.def;
    if (written.is_constant() || node == nullptr || ++steps_ > kMostSteps) return written;
    if (Is<SliceBy>(node)) return SizeOfSlice(*node, axis, written);
    if (Is<Concat>(node) && axis == static_cast<int>(View<Concat>(*node).axis)) {
      Dim sum = Dim(0);
      for (const Value* part : node->operands) sum = sum + SizeOf(*part, axis);
      return sum;
    }
    if (Is<CumSum>(node) || Is<Concat>(node)) return SizeOf(*node->operands[0], axis);
    return IsBroadcasting(*node) ? SizeOfBroadcast(*node, axis) : written;
  }

  // Whether a dim is at least 0 for all places.
  bool IsNeverNegative(const Dim& dim) const {
    const absl::StatusOr<DimRange> range = dim.Range(most_);
    return range.ok() && range->low >= 0;
  }

 private:
  Element Integer(const Dim& dim) const {
    const Dim known = dim.Substitute(facts_.dims);
    if (known.is_unknown()) return std::nullopt;
    return IntegerElement(known);
  }

  static Element Table(const Value& value, const Dims& place) {
    if (!IsFloat(value.type.dtype)) return std::nullopt;
    return ElementValue{.kind = Kind::kTable, .table = &value, .place = place};
  }

  Element AtConstant(const Node& node, const Dims& place) const {
    const Tensor& tensor = std::get<Tensor>(node.attrs.at("value"));
    const auto element = [&](int64_t i) {
      if (tensor.dtype() == DType::kBool) return Bool(tensor.GetInt(i) != 0);
      return IsFloat(tensor.dtype()) ? Number(tensor.GetFloat(i)) : IntegerElement(Dim(tensor.GetInt(i)));
    };
    if (tensor.size() == 1) return element(0);
    int64_t at = 0;
    bool is_known = true;
    for (size_t axis = 0; axis < place.size() && is_known; ++axis) {
      is_known = place[axis].is_constant() && place[axis].value() >= 0 && place[axis].value() < tensor.shape()[axis];
      if (is_known) at = at * tensor.shape()[axis] + place[axis].value();
    }
    if (is_known && at >= 0 && at < tensor.size()) return element(at);
    if (IsFloat(tensor.dtype())) return Table(*node.results[0], place);
    return Progression(tensor, place);
  }

  // A constant of integers that grow by the same step along its one long axis.
  static Element Progression(const Tensor& tensor, const Dims& place) {
    if (tensor.size() > kMostElements || tensor.dtype() == DType::kBool) return std::nullopt;
    const auto longs = std::count_if(tensor.shape().begin(), tensor.shape().end(), [](int64_t n) { return n > 1; });
    if (longs != 1) return std::nullopt;
    const int64_t first = tensor.GetInt(0), step = tensor.GetInt(1) - first;
    for (int64_t i = 2; i < tensor.size(); ++i) {
      if (tensor.GetInt(i) != first + i * step) return std::nullopt;
    }
    for (size_t axis = 0; axis < place.size(); ++axis) {
      if (tensor.shape()[axis] > 1) return IntegerElement(Dim(first) + Dim(step) * place[axis]);
    }
    return std::nullopt;
  }

  // The place of an operand that is broadcast to a result.
  Dims Under(const Value& operand, const Dims& place) const {
    const size_t rank = operand.type.shape.size();
    if (rank > place.size()) return {};
    Dims under(place.end() - static_cast<ptrdiff_t>(rank), place.end());
    for (size_t axis = 0; axis < rank; ++axis) {
      if (operand.type.shape[axis].Substitute(facts_.dims) == Dim(1)) under[axis] = Dim(0);
    }
    return under;
  }
  Element Operand(const Node& node, size_t i, const Dims& place) {
    const Value& operand = *node.operands[i];
    return LiesUnder(operand, *node.results[0]) ? At(operand, Under(operand, place)) : std::nullopt;
  }
  // Whether each axis is as that of the result, or 1 whatever the sizes are: else only a run tells what is broadcast.
  bool LiesUnder(const Value& operand, const Value& result) {
    const int extra = result.type.rank() - operand.type.rank();
    for (int axis = 0; axis < operand.type.rank(); ++axis) {
      const Dim own = SizeOf(operand, axis);
      const bool fits = extra >= 0 && (own == Dim(1) || (!own.is_unknown() && own == SizeOf(result, axis + extra)));
      if (!fits) return false;
    }
    return extra >= 0;
  }

  static bool IsBroadcasting(const Node& node) {
    return Is<Add>(&node) || Is<Sub>(&node) || Is<Mul>(&node) || Is<Div>(&node) || Is<Neg>(&node) || Is<Cast>(&node) ||
           Is<Not>(&node) || Is<And>(&node) || Is<Or>(&node) || Is<Equal>(&node) || Is<Less>(&node) ||
           Is<LessEqual>(&node) || Is<Greater>(&node) || Is<GreaterEqual>(&node) || Is<Where>(&node);
  }
  Dim SizeOfBroadcast(const Node& node, int axis) {
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
  Dim SizeOfSlice(const Node& node, int axis, const Dim& written) {
    const auto op = View<SliceBy>(node);
    const auto contents = [](const Value* value) { return value == nullptr ? std::nullopt : value->contents; };
    const std::optional<Dims> starts = contents(op.starts), ends = contents(op.ends), axes = contents(op.axes);
    const std::optional<Dims> steps = contents(op.steps);
    if (!starts.has_value() || !ends.has_value() || (op.axes != nullptr && !axes.has_value()) ||
        (op.steps != nullptr && !steps.has_value())) {
      return Dim::Unknown();
    }
    const Dim size = SizeOf(*op.x, axis);
    for (size_t i = 0; i < starts->size(); ++i) {
      const Dim at = axes.has_value() ? (*axes)[i] : Dim(static_cast<int64_t>(i));
      if (!at.is_constant()) return Dim::Unknown();
      if (at.value() != axis && at.value() + op.x->type.rank() != axis) continue;
      const Dim start = (*starts)[i].Substitute(facts_.dims), end = (*ends)[i].Substitute(facts_.dims);
      if ((steps.has_value() && !((*steps)[i] == Dim(1))) || !IsNeverNegative(start)) return Dim::Unknown();
      if (end.is_constant() && end.value() < 0) return size + end - start;
      if ((end.is_constant() && end.value() >= kMostIndex) || IsNeverNegative(end - size)) return size - start;
      if (IsNeverNegative(size - end)) return end - start;
      return start == Dim(0) && end == Dim(1) ? Dim(1) : Dim::Unknown();  // of at least one
    }
    return size.is_unknown() ? written : size;
  }

  Element AtNode(const Node& node, const Dims& place) {
    if (Is<Constant>(&node)) return AtConstant(node, place);
    if (Is<Identity>(&node)) return At(*node.operands[0], place);
    if (Is<Expand>(&node) || Is<ExpandTo>(&node)) return Operand(node, 0, place);
    if (Is<Reshape>(&node) || Is<ReshapeTo>(&node)) return AtReshape(node, place);
    if (Is<Transpose>(&node)) return AtTranspose(node, place);
    if (Is<Concat>(&node)) return AtConcat(node, place);
    if (Is<Slice>(&node)) return AtSlice(node, place);
    if (Is<SliceBy>(&node)) return AtSliceBy(node, place);
    if (Is<Gather>(&node)) return AtGather(node, place);
    if (Is<GatherNd>(&node)) return AtGatherNd(node, place);
    if (Is<Range>(&node)) return AtRange(node, place);
    if (Is<CumSum>(&node)) return AtCumSum(node, place);
    if (Is<ReduceSum>(&node)) return AtReduceSum(node, place);
    if (Is<Triangle>(&node)) return AtTriangle(node, place);
    if (Is<Where>(&node)) return AtWhere(node, place);
    if (Is<MatMul>(&node)) return AtOuterProduct(node, place);
    if (Is<Cast>(&node)) return AtCast(node, place);
    if (node.operands.size() == 1) return AtUnary(node, place);
    if (node.operands.size() == 2) return AtBinary(node, place);
    return std::nullopt;
  }

  // Axes of size 1 come and go.
  Element AtReshape(const Node& node, const Dims& place) {
    const Value& x = *node.operands[0];
    const Dims &from = x.type.shape, &to = node.results[0]->type.shape;
    Dims under(from.size(), Dim(0));
    size_t axis = 0;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] == Dim(1)) continue;
      while (axis < to.size() && to[axis] == Dim(1)) ++axis;
      if (axis == to.size() || !(to[axis].Substitute(facts_.dims) == from[i].Substitute(facts_.dims))) {
        return AtAny(x);
      }
      under[i] = place[axis++];
    }
    for (; axis < to.size(); ++axis) {
      if (!(to[axis] == Dim(1))) return AtAny(x);
    }
    return At(x, under);
  }

  // What every element is, if all are the same number.
  Element AtAny(const Value& value) {
    Dims place;
    for (int axis = 0; axis < value.type.rank(); ++axis) place.push_back(Dim::Symbol("$any" + std::to_string(axis)));
    const Element element = At(value, place);
    return element.has_value() && NumberOf(*element).has_value() ? element : std::nullopt;
  }

  Element AtTranspose(const Node& node, const Dims& place) {
    const auto op = View<Transpose>(node);
    Dims under(place.size());
    for (size_t i = 0; i < place.size(); ++i) under[static_cast<size_t>(op.perm[i])] = place[i];
    return At(*op.x, under);
  }

  // In the part where the place lies for all that it can be.
  Element AtConcat(const Node& node, const Dims& place) {
    const auto op = View<Concat>(node);
    const size_t axis = static_cast<size_t>(op.axis);
    Dim before = Dim(0);
    for (const Value* part : op.parts) {
      const Dim size = part->type.shape[axis].Substitute(facts_.dims), at = place[axis] - before;
      if (IsNeverNegative(at) && IsNeverNegative(size - Dim(1) - at)) {
        Dims under = place;
        under[axis] = at;
        return At(*part, under);
      }
      before = before + size;
    }
    return AsLastPart(op, place, before);
  }

  // Where the few elements of the first parts go on as those of the last do, that tells them all.
  Element AsLastPart(const Concat& op, const Dims& place, const Dim& end) {
    const size_t axis = static_cast<size_t>(op.axis);
    const Dim first = end - op.parts.back()->type.shape[axis].Substitute(facts_.dims);
    if (!first.is_constant() || first.value() > kMostElementsBefore) return std::nullopt;
    const auto at = [&](const Value* part, const Dim& index) {
      Dims under = place;
      under[axis] = index;
      return At(*part, under);
    };
    int64_t k = 0;
    for (const Value* part : op.parts) {
      if (part == op.parts.back()) break;
      const Dim size = part->type.shape[axis].Substitute(facts_.dims);
      if (!size.is_constant()) return std::nullopt;
      for (int64_t i = 0; i < size.value(); ++i, ++k) {
        const Element here = at(part, Dim(i)), like = at(op.parts.back(), Dim(k) - first);
        const bool same = here.has_value() && like.has_value() && here->kind == Kind::kInteger &&
                          like->kind == Kind::kInteger && here->integer == like->integer;
        if (!same) return std::nullopt;
      }
    }
    return at(op.parts.back(), place[axis] - first);
  }

  Element AtSlice(const Node& node, const Dims& place) {
    const auto op = View<Slice>(node);
    Dims under = place;
    Dim& at = under[static_cast<size_t>(op.axis)];
    at = at + op.start[0].Substitute(facts_.dims);
    return At(*op.x, under);
  }

  // An integer that counts from the front.
  bool IsIndex(const Element& element) const {
    return element.has_value() && element->kind == Kind::kInteger && IsNeverNegative(element->integer);
  }

  Element AtGather(const Node& node, const Dims& place) {
    const auto op = View<Gather>(node);
    const auto begin = place.begin() + op.axis, end = begin + op.indices->type.rank();
    const Element index = At(*op.indices, Dims(begin, end));
    if (!IsIndex(index)) return std::nullopt;
    Dims under(place.begin(), begin);
    under.push_back(index->integer);
    under.insert(under.end(), end, place.end());
    return At(*op.x, under);
  }

  Element AtGatherNd(const Node& node, const Dims& place) {
    const auto op = View<GatherNd>(node);
    const Dim& tuple = op.indices->type.shape.back();
    if (op.batch_dims != 0 || !tuple.is_constant()) return std::nullopt;
    const auto outer = place.begin() + op.indices->type.rank() - 1;
    Dims under;
    for (int64_t k = 0; k < tuple.value(); ++k) {
      Dims at(place.begin(), outer);
      at.push_back(Dim(k));
      const Element index = At(*op.indices, at);
      if (!IsIndex(index)) return std::nullopt;
      under.push_back(index->integer);
    }
    under.insert(under.end(), outer, place.end());
    return At(*op.x, under);
  }

  Element AtRange(const Node& node, const Dims& place) {
    const Element start = At(*node.operands[0], {}), delta = At(*node.operands[2], {});
    if (!start.has_value() || !delta.has_value() || start->kind != Kind::kInteger || delta->kind != Kind::kInteger) {
      return std::nullopt;
    }
    return IntegerElement(start->integer + place[0] * delta->integer);
  }

  // Of one number everywhere.
  Element AtCumSum(const Node& node, const Dims& place) {
    const auto op = View<CumSum>(node);
    Dims any = place;
    any[static_cast<size_t>(op.axis)] = Dim::Symbol("$sum");
    const Element x = At(*op.x, any);
    if (op.reverse || !x.has_value()) return std::nullopt;
    const std::optional<double> number = NumberOf(*x);
    if (!number.has_value() || *number != std::floor(*number)) return std::nullopt;
    const Dim count = place[static_cast<size_t>(op.axis)] + Dim(op.exclusive ? 0 : 1);
    return IntegerElement(Dim(static_cast<int64_t>(*number)) * count);
  }

  // Of one number everywhere.
  Element AtReduceSum(const Node& node, const Dims& place) {
    const auto op = View<ReduceSum>(node);
    if (!IsInteger(op.x->type.dtype)) return std::nullopt;
    Dims under;
    Dim count = Dim(1);
    size_t next = 0;
    for (int axis = 0; axis < op.x->type.rank(); ++axis) {
      const bool is_summed = std::find(op.axes.begin(), op.axes.end(), axis) != op.axes.end();
      if (is_summed) {
        under.push_back(Dim::Symbol("$sum" + std::to_string(axis)));
        count = count * op.x->type.shape[static_cast<size_t>(axis)].Substitute(facts_.dims);
        next += op.keep_dims ? 1 : 0;
      } else {
        under.push_back(place[next++]);
      }
    }
    const Element x = At(*op.x, under);
    const std::optional<double> number = x.has_value() ? NumberOf(*x) : std::nullopt;
    if (!number.has_value() || *number != std::floor(*number) || count.is_unknown()) return std::nullopt;
    return IntegerElement(Dim(static_cast<int64_t>(*number)) * count);
  }

  // From the front, one by one: the bounds only say where it ends.
  Element AtSliceBy(const Node& node, const Dims& place) {
    const auto op = View<SliceBy>(node);
    const auto contents = [](const Value* value) { return value == nullptr ? std::nullopt : value->contents; };
    const std::optional<Dims> starts = contents(op.starts), axes = contents(op.axes), steps = contents(op.steps);
    if (!starts.has_value() || (op.axes != nullptr && !axes.has_value()) ||
        (op.steps != nullptr && !steps.has_value())) {
      return std::nullopt;
    }
    Dims under = place;
    for (size_t i = 0; i < starts->size(); ++i) {
      const Dim &start = (*starts)[i], axis = axes.has_value() ? (*axes)[i] : Dim(static_cast<int64_t>(i));
      const bool is_plain = start.is_constant() && start.value() >= 0 && axis.is_constant() &&
                            (!steps.has_value() || (*steps)[i] == Dim(1));
      const int64_t at = is_plain && axis.value() < 0 ? axis.value() + op.x->type.rank() : axis.value();
      if (!is_plain || at < 0 || at >= op.x->type.rank()) return std::nullopt;
      under[static_cast<size_t>(at)] = under[static_cast<size_t>(at)] + start;
    }
    return At(*op.x, under);
  }

  Element AtTriangle(const Node& node, const Dims& place) {
    const auto op = View<Triangle>(node);
    const Element x = At(*op.x, place);
    if (!x.has_value()) return std::nullopt;
    const Dim below = place[place.size() - 2] - place.back() + Dim(op.diagonal);
    const Condition kept{.at_least_zero = {op.upper ? Dim(0) - below : below}};
    if (x->kind == Kind::kBool) return Bool(Both(x->condition, kept));
    const std::optional<double> number = NumberOf(*x);
    if (!number.has_value()) return std::nullopt;
    return Masked(kept, *number, 0);
  }

  // where(a == b, x, y) is y if x and y differ by as much as a and b.
  Element AtWhereEqual(const Node& node, const Dims& place) {
    const Node& equal = *node.operands[0]->def;
    const Dims under = Under(*node.operands[0], place);
    const Element a = Operand(equal, 0, under), b = Operand(equal, 1, under);
    const Element x = Operand(node, 1, place), y = Operand(node, 2, place);
    for (const Element* element : {&a, &b, &x, &y}) {
      if (!element->has_value() || (*element)->kind != Kind::kInteger) return std::nullopt;
    }
    const Dim sides = a->integer - b->integer, results = x->integer - y->integer;
    if (sides.is_unknown() || results.is_unknown()) return std::nullopt;
    return results == sides || results == Dim(0) - sides ? y : std::nullopt;
  }

  Element AtWhere(const Node& node, const Dims& place) {
    if (Is<Equal>(node.operands[0]->def)) {
      const Element chosen = AtWhereEqual(node, place);
      if (chosen.has_value()) return chosen;
    }
    const Element condition = Operand(node, 0, place);
    if (!condition.has_value() || condition->kind != Kind::kBool) return std::nullopt;
    if (condition->condition.always()) return Operand(node, 1, place);
    if (condition->condition.never) return Operand(node, 2, place);
    const Element x = Operand(node, 1, place), y = Operand(node, 2, place);
    if (!x.has_value() || !y.has_value()) return std::nullopt;
    if (x->kind == Kind::kBool && y->kind == Kind::kBool && y->condition.never) {
      return Bool(Both(condition->condition, x->condition));
    }
    const std::optional<double> a = NumberOf(*x), b = NumberOf(*y);
    if (a.has_value() && b.has_value()) return Masked(condition->condition, *a, *b);
    // What one of two masks hides is hidden.
    const std::optional<Condition> negated = Negated(condition->condition);
    if (x->kind == Kind::kMasked && b == x->otherwise) {
      return Masked(Both(condition->condition, x->condition), x->number, *b);
    }
    if (y->kind == Kind::kMasked && a == y->otherwise && negated.has_value()) {
      return Masked(Both(*negated, y->condition), y->number, *a);
    }
    return std::nullopt;
  }

  // A product over an axis of 1.
  Element AtOuterProduct(const Node& node, const Dims& place) {
    const auto op = View<MatMul>(node);
    if (op.lhs->type.rank() < 2 || op.rhs->type.rank() < 2 || !(op.lhs->type.shape.back() == Dim(1))) {
      return std::nullopt;
    }
    Dims left = place, right = place;
    left.back() = Dim(0);
    right[right.size() - 2] = Dim(0);
    if (op.transpose_rhs) std::swap(right[right.size() - 2], right.back());
    const Element a = At(*op.lhs, Under(*op.lhs, left)), b = At(*op.rhs, Under(*op.rhs, right));
    return a.has_value() && b.has_value() ? Product(*a, *b) : std::nullopt;
  }

  Element AtCast(const Node& node, const Dims& place) {
    const Element x = At(*node.operands[0], place);
    const DType to = node.results[0]->type.dtype;
    if (!x.has_value()) return x;
    const std::optional<double> number = NumberOf(*x);
    if (to == DType::kBool) {
      if (number.has_value()) return Bool(*number != 0);
      if (x->kind == Kind::kBool) return x;
      return x->kind == Kind::kMasked ? Compare(*x, 0, [](double a, double b) { return a != b; }) : std::nullopt;
    }
    if (x->kind == Kind::kBool) return number.has_value() ? Number(*number) : Masked(x->condition, 1, 0);
    if (!KeepsNumber(*x, to)) return std::nullopt;
    if (x->kind == Kind::kNumber && !IsFloat(to)) return IntegerElement(Dim(static_cast<int64_t>(*number)));
    return x;
  }

  // Whether a number is the same in another type, but for the rounding of angles and masks.
  static bool KeepsNumber(const ElementValue& x, DType to) {
    const auto is_whole = [](double number) { return number == std::floor(number) && std::abs(number) < 1e9; };
    const bool is_float = IsFloat(to);
    switch (x.kind) {
      case Kind::kInteger:  // positions are below 2^24
        return to == DType::kI32 || to == DType::kI64 || to == DType::kF32 || to == DType::kF64 ||
               (x.integer.is_constant() && std::abs(x.integer.value()) < 128);
      case Kind::kNumber:
        return is_float || is_whole(x.number);
      case Kind::kMasked:
        return is_float || (is_whole(x.number) && is_whole(x.otherwise));
      default:
        return is_float;
    }
  }

  Element AtUnary(const Node& node, const Dims& place) {
    const Element x = At(*node.operands[0], place);
    if (!x.has_value()) return std::nullopt;
    if (Is<Not>(&node) && x->kind == Kind::kBool) {
      const std::optional<Condition> negated = Negated(x->condition);
      return negated.has_value() ? Element(Bool(*negated)) : std::nullopt;
    }
    const bool turns = Is<Cos>(&node) || Is<Sin>(&node);
    if (turns && x->kind == Kind::kTable && x->function == Function::kNone) {
      ElementValue turned = *x;
      turned.function = Is<Cos>(&node) ? Function::kCos : Function::kSin;
      turned.inner *= turned.outer;
      turned.outer = 1;
      return turned;
    }
    if (Is<Neg>(&node)) return Negative(*x);
    if (Is<IsNan>(&node) && x->kind != Kind::kTable) return Bool(false);
    return std::nullopt;
  }

  Element AtBinary(const Node& node, const Dims& place) {
    const Element a = Operand(node, 0, place), b = Operand(node, 1, place);
    if (!a.has_value() || !b.has_value()) return std::nullopt;
    if (Is<Add>(&node)) return Sum(*a, *b);
    if (Is<Sub>(&node)) {
      const Element minus = Negative(*b);
      return minus.has_value() ? Sum(*a, *minus) : std::nullopt;
    }
    if (Is<Mul>(&node)) return Product(*a, *b);
    if (Is<Div>(&node)) {
      const std::optional<double> divisor = NumberOf(*b);
      if (!divisor.has_value() || *divisor == 0 || !IsFloat(node.results[0]->type.dtype)) return std::nullopt;
      return Product(*a, Number(1 / *divisor));
    }
    if (Is<And>(&node) || Is<Or>(&node)) return Logic(node, *a, *b);
    return Comparison(node, *a, *b);
  }

  static Element Logic(const Node& node, const ElementValue& a, const ElementValue& b) {
    if (a.kind != Kind::kBool || b.kind != Kind::kBool) return std::nullopt;
    if (Is<And>(&node)) return Bool(Both(a.condition, b.condition));
    if (a.condition.always() || b.condition.never) return a;
    if (b.condition.always() || a.condition.never) return b;
    return std::nullopt;
  }

  // A mask or number compared with a number.
  template <class F>
  static Element Compare(const ElementValue& a, double b, F holds) {
    const Element masked = AsMasked(a);
    if (!masked.has_value()) return std::nullopt;
    const bool seen = holds(masked->number, b), otherwise = holds(masked->otherwise, b);
    if (seen == otherwise) return Bool(seen);
    const std::optional<Condition> condition = seen ? masked->condition : Negated(masked->condition);
    return condition.has_value() ? Element(Bool(*condition)) : std::nullopt;
  }

  static Element Comparison(const Node& node, const ElementValue& a, const ElementValue& b) {
    const std::optional<double> x = NumberOf(a), y = NumberOf(b);
    const auto numbers = [&](auto holds) -> Element {
      if (x.has_value() && y.has_value()) return Bool(holds(*x, *y));
      return y.has_value() ? Compare(a, *y, holds) : std::nullopt;
    };
    if ((x.has_value() && y.has_value()) || a.kind == Kind::kMasked || a.kind == Kind::kBool) {
      if (Is<Equal>(&node)) return numbers(std::equal_to<>());
      if (Is<Less>(&node)) return numbers(std::less<>());
      if (Is<LessEqual>(&node)) return numbers(std::less_equal<>());
      if (Is<Greater>(&node)) return numbers(std::greater<>());
      if (Is<GreaterEqual>(&node)) return numbers(std::greater_equal<>());
      return std::nullopt;
    }
    if (a.kind != Kind::kInteger || b.kind != Kind::kInteger) return std::nullopt;
    const Dim more = b.integer - a.integer;
    if (more.is_unknown()) return std::nullopt;
    if (Is<Equal>(&node)) return more == Dim(0) ? Element(Bool(true)) : std::nullopt;
    const Dim difference = Is<LessEqual>(&node)      ? more
                           : Is<Less>(&node)         ? more - Dim(1)
                           : Is<GreaterEqual>(&node) ? Dim(0) - more
                           : Is<Greater>(&node)      ? Dim(-1) - more
                                                     : Dim::Unknown();
    if (difference.is_unknown()) return std::nullopt;
    return Bool(Condition{.at_least_zero = {difference}});
  }

  static Element Negative(const ElementValue& x) {
    return Product(x, x.kind == Kind::kInteger ? IntegerElement(Dim(-1)) : Number(-1));
  }

  static Element Sum(const ElementValue& a, const ElementValue& b) {
    if (a.kind == Kind::kInteger && b.kind == Kind::kInteger) {
      const Dim sum = a.integer + b.integer;
      return sum.is_unknown() ? std::nullopt : Element(IntegerElement(sum));
    }
    const std::optional<double> x = NumberOf(a), y = NumberOf(b);
    if (x.has_value() && y.has_value()) return Number(*x + *y);
    if (x.has_value()) return Sum(b, a);
    if (a.kind == Kind::kMasked && y.has_value()) return Masked(a.condition, a.number + *y, a.otherwise + *y);
    const bool hide = a.kind == Kind::kMasked && b.kind == Kind::kMasked && a.number == 0 && b.number == 0 &&
                      a.otherwise < kHidden && b.otherwise < kHidden;
    if (hide) return Masked(Both(a.condition, b.condition), 0, std::max(a.otherwise, b.otherwise));
    return std::nullopt;
  }

  static Element Product(const ElementValue& a, const ElementValue& b) {
    if (a.kind == Kind::kInteger && b.kind == Kind::kInteger) {
      const Dim product = a.integer * b.integer;
      return product.is_unknown() ? std::nullopt : Element(IntegerElement(product));
    }
    if (b.kind == Kind::kTable && a.kind != Kind::kTable) return Product(b, a);
    const std::optional<double> x = NumberOf(a), y = NumberOf(b);
    if (a.kind == Kind::kTable) return ScaledTable(a, b, y);
    if (x.has_value() && y.has_value()) return Number(*x * *y);
    if (!y.has_value()) return x.has_value() ? Product(b, a) : std::nullopt;
    if (a.kind == Kind::kInteger) {
      const bool whole = *y == std::floor(*y) && std::abs(*y) < 1e9;
      return whole ? Product(a, IntegerElement(Dim(static_cast<int64_t>(*y)))) : std::nullopt;
    }
    const Element masked = AsMasked(a);
    if (!masked.has_value()) return std::nullopt;
    return Masked(masked->condition, masked->number * *y, masked->otherwise * *y);
  }

  static Element ScaledTable(ElementValue table, const ElementValue& by, std::optional<double> number) {
    if (number.has_value()) {
      table.outer *= *number;
      return table;
    }
    if (by.kind != Kind::kInteger || table.function != Function::kNone) return std::nullopt;
    table.factor = table.factor * by.integer;
    return table.factor.is_unknown() ? std::nullopt : Element(table);
  }

  const ElementFacts& facts_;
  DimEnv most_;  // of the symbols of places, too
  int steps_ = 0;
};

// Where a mask lets see.
std::optional<Condition> Seen(const ElementValue& mask) {
  if (mask.kind == Kind::kBool) return mask.condition;
  if (mask.kind != Kind::kMasked) return std::nullopt;
  if (mask.number == 0 && mask.otherwise < kHidden) return mask.condition;
  if (mask.otherwise == 0 && mask.number < kHidden) return Negated(mask.condition);
  return std::nullopt;
}

}  // namespace

ElementValue IntegerElement(Dim value) { return {.kind = Kind::kInteger, .integer = std::move(value)}; }

std::optional<ElementValue> ElementAt(const Value& value, const Dims& place, const ElementFacts& facts) {
  return Teller(facts).At(value, place);
}

std::optional<CausalMask> ProveCausal(const Value& mask, const Dims& scores, const Dim& shift,
                                      const ElementFacts& facts) {
  const Dim i = Dim::Symbol("$query"), j = Dim::Symbol("$key");
  const Dims all = {Dim::Symbol("$batch"), Dim::Symbol("$head"), i, j};
  if (mask.type.rank() > 4) return std::nullopt;
  Teller teller(facts);
  Dims place(all.end() - mask.type.rank(), all.end());
  for (size_t axis = 0; axis < place.size(); ++axis) {
    const Dim size = teller.SizeOf(mask, static_cast<int>(axis));
    if (size == Dim(1)) {
      place[axis] = Dim(0);
    } else if (!(size == scores[axis + 4 - place.size()].Substitute(facts.dims))) {
      return std::nullopt;  // only a run tells whether it is broadcast
    }
  }
  const Element element = teller.At(mask, place);
  if (!element.has_value()) return std::nullopt;
  const std::optional<Condition> seen = Seen(*element);
  if (!seen.has_value() || seen->never) return std::nullopt;
  CausalMask causal;
  bool found = false;
  for (const Dim& dim : seen->at_least_zero) {
    if (dim == i + shift - j) {
      found = true;
      continue;
    }
    const Dim window = dim - j + i + shift + Dim(1);  // of j > i + shift - window
    if (window.is_constant() && window.value() > 0) {
      causal.window = causal.window == 0 ? window.value() : std::min(causal.window, window.value());
    } else if (!teller.IsNeverNegative(dim)) {
      return std::nullopt;
    }
  }
  return found ? std::optional(causal) : std::nullopt;
}

}  // namespace llmc
