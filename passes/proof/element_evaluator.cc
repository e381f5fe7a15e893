// Ops that compute elements, and what constants and weights hold.
#include "passes/proof/element_evaluator.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "passes/proof/literal.h"

namespace llmc {
namespace element {
namespace {

using Kind = ElementValue::Kind;
using Function = ElementValue::Function;

constexpr int64_t kMostIndex = int64_t{1} << 31;  // no axis is longer
constexpr int64_t kMostElements = 4096;           // of a constant of integers that is looked at whole
constexpr int64_t kMostTable = 1 << 24;           // elements of a table that is searched for a triangle

// A table that is one number everywhere, or one up to a diagonal of its last two axes and another one behind it.
Element TriangleOf(const Tensor& table, const Dims& place) {
  if (table.size() == 0 || table.size() > kMostTable) return std::nullopt;
  const int64_t columns = table.rank() == 0 ? 1 : table.shape().back();
  const int64_t rows = table.rank() < 2 ? 1 : table.shape()[table.rank() - 2];
  const double number = table.GetFloat(0);
  int64_t diagonal = 0;  // of the first row: the last column that is as the first one
  while (diagonal + 1 < columns && table.GetFloat(diagonal + 1) == number) ++diagonal;
  const bool is_whole = diagonal + 1 == columns;
  const double otherwise = is_whole ? number : table.GetFloat(diagonal + 1);
  if (!is_whole && table.rank() < 2) return std::nullopt;
  for (int64_t at = 0; at < table.size(); ++at) {
    const int64_t i = at / columns % rows, j = at % columns;
    if (table.GetFloat(at) != (j <= i + diagonal ? number : otherwise)) return std::nullopt;
  }
  if (is_whole) return Number(number);
  return Masked({.at_least_zero = {place[place.size() - 2] + Dim(diagonal) - place.back()}}, number, otherwise);
}

// A constant of integers that grow by the same step along its one long axis.
Element Progression(const Tensor& tensor, const Dims& place) {
  if (tensor.size() > kMostElements) return std::nullopt;
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

// Where a known place lies in a tensor.
std::optional<int64_t> OffsetOf(const Tensor& tensor, const Dims& place) {
  int64_t offset = 0;
  for (size_t axis = 0; axis < place.size(); ++axis) {
    const int64_t size = tensor.shape()[axis];
    if (size == 1) continue;
    if (!place[axis].is_constant() || place[axis].value() < 0 || place[axis].value() >= size) return std::nullopt;
    offset = offset * size + place[axis].value();
  }
  return offset;
}

// Integers up to here are numbers of a type.
int64_t MostWhole(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return int64_t{1} << 53;
    case DType::kF32:
      return 1 << 24;
    case DType::kF16:
      return 1 << 11;
    case DType::kBF16:
      return 1 << 8;
    default:
      return 8;
  }
}

double Rounded(double number, DType dtype) { return Filled(dtype, {}, number).GetFloat(0); }

// A number of steps that a whole number is summed.
Element Times(const Element& x, const Dim& count) {
  const std::optional<Dim> number = x.has_value() ? IntegerOf(*x) : std::nullopt;
  return number.has_value() && number->is_constant() ? Element(IntegerElement(*number * count)) : std::nullopt;
}

}  // namespace

Evaluator::Evaluator(const ElementFacts& facts) : facts_(facts), most_(facts.most) {
  for (const char* index :
       {"$batch", "$head", "$query", "$key", "$token", "$angle", "$update0", "$update1", "$update2"}) {
    most_.emplace(index, kMostIndex);
  }
  for (const Dim& dim : facts.nonempty) {
    if (dim.is_symbol()) nonempty_.emplace(dim.ToString(), dim + Dim(1));
  }
}

Dim Evaluator::NewIndex() {
  const std::string name = absl::StrCat("$", ++indices_);
  most_[name] = kMostIndex;
  return Dim::Symbol(name);
}

bool Evaluator::IsNeverNegative(const Dim& dim) const {
  const absl::StatusOr<DimRange> range = dim.Substitute(nonempty_).Range(most_);
  return range.ok() && range->low >= 0;
}

// ---- what a type holds -------------------------------------------------------
Condition Evaluator::Simplified(const Condition& condition) const {
  Condition simple{.never = condition.never};
  for (const Dim& dim : condition.at_least_zero) {
    if (IsNeverNegative(Dim(-1) - dim)) simple.never = true;
    if (!IsNeverNegative(dim)) simple.at_least_zero.push_back(dim);
  }
  if (simple.never) simple.at_least_zero.clear();
  return simple;
}

bool Evaluator::Holds(DType dtype, const Dim& integer) const {
  if (integer.is_unknown() || dtype == DType::kBool) return false;
  if (dtype == DType::kI64) return true;
  const absl::StatusOr<DimRange> range = integer.Substitute(nonempty_).Range(most_);
  if (!range.ok()) return false;
  if (IsFloat(dtype)) return range->low >= -MostWhole(dtype) && range->high <= MostWhole(dtype);
  const bool is_unsigned = dtype == DType::kU8 || dtype == DType::kU4;
  const int64_t count = int64_t{1} << DTypeBits(dtype);
  return is_unsigned ? range->low >= 0 && range->high < count : range->low >= -count / 2 && range->high < count / 2;
}

Element Evaluator::Settled(const Element& element, DType dtype) const {
  if (!element.has_value()) return element;
  const auto is_told = [](const Dim& dim) { return !dim.is_unknown(); };
  if (!std::all_of(element->condition.at_least_zero.begin(), element->condition.at_least_zero.end(), is_told) ||
      !is_told(element->factor)) {
    return std::nullopt;
  }
  if (dtype == DType::kBool && element->kind != Kind::kBool) return Settled(TruthOf(*element), dtype);
  ElementValue settled = *element;
  settled.condition = Simplified(element->condition);
  if (settled.kind == Kind::kMasked && !settled.is_bound && settled.condition.never)
    settled = Number(settled.otherwise);
  if (settled.kind == Kind::kMasked && settled.condition.always()) settled = Number(settled.number);
  if (settled.kind == Kind::kInteger) return Holds(dtype, settled.integer) ? Element(settled) : std::nullopt;
  if (settled.kind != Kind::kNumber && settled.kind != Kind::kMasked) return settled;
  for (double* number : {&settled.number, &settled.otherwise}) {
    if (IsFloat(dtype)) {
      *number = Rounded(*number, dtype);
      continue;
    }
    const std::optional<Dim> integer = IntegerOf(Number(*number));
    if (!integer.has_value() || !Holds(dtype, *integer)) return std::nullopt;
  }
  if (settled.kind == Kind::kMasked && !settled.is_bound && settled.number == settled.otherwise) {
    settled = Number(settled.number);
  }
  if (settled.kind == Kind::kNumber && !IsFloat(dtype)) return IntegerElement(*IntegerOf(settled));
  return settled;
}

// ---- values ------------------------------------------------------------------
Element Evaluator::At(const Value& value, const Dims& place) {
  if (++steps_ > kMostSteps) return std::nullopt;
  Element element;
  if (const auto known = facts_.params.find(&value); known != facts_.params.end()) {
    element = known->second(place);
  } else if (value.def != nullptr) {
    element = AtNode(*value.def, place);
  } else if (value.kind == ValueKind::kWeight && facts_.model != nullptr) {
    const auto tensor = facts_.model->data.find(value.name);
    if (tensor != facts_.model->data.end()) element = AtTensor(value, tensor->second, place);
  }
  const bool is_table = !element.has_value() && value.kind == ValueKind::kWeight && IsFloat(value.type.dtype);
  if (is_table) element = ElementValue{.kind = Kind::kTable, .table = &value, .place = place};
  if (value.contents.has_value() && value.type.dtype != DType::kBool && value.type.rank() <= 1) {
    const Dim at = value.type.rank() == 0 ? Dim(0) : place[0];
    if (at.is_constant() && at.value() >= 0 && at.value() < static_cast<int64_t>(value.contents->size())) {
      element = IntegerElement(Known((*value.contents)[static_cast<size_t>(at.value())]));
    }
  }
  element = Settled(element, value.type.dtype);
  if (!element.has_value() && why_.empty()) {
    why_ = absl::StrCat("its part ", value.name, value.def == nullptr ? "" : " of ",
                        value.def == nullptr ? "" : value.def->op->info.name);
  }
  return element;
}

Element Evaluator::AtTensor(const Value& value, const Tensor& tensor, const Dims& place) const {
  if (tensor.size() == 0) return std::nullopt;
  const bool is_bool = tensor.dtype() == DType::kBool, is_float = IsFloat(tensor.dtype());
  if (const std::optional<int64_t> offset = OffsetOf(tensor, place); offset.has_value()) {
    if (is_bool) return Bool(tensor.GetInt(*offset) != 0);
    return is_float ? Number(tensor.GetFloat(*offset)) : IntegerElement(Dim(tensor.GetInt(*offset)));
  }
  if (!is_bool && !is_float) {
    if (const Element counted = Progression(tensor, place); counted.has_value()) return counted;
  }
  const Element triangle = TriangleOf(tensor, place);
  if (triangle.has_value()) return is_bool ? TruthOf(*triangle) : triangle;
  if (!is_float) return std::nullopt;
  return ElementValue{.kind = Kind::kTable, .table = &value, .place = place};
}

Element Evaluator::AtNode(const Node& node, const Dims& place) {
  if (Is<Constant>(&node)) return AtTensor(*node.results[0], std::get<Tensor>(node.attrs.at("value")), place);
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
  if (IsProduct(&node) && !HasEncodedFactor(node)) return AtOuterProduct(node, place);
  if (Is<Cast>(&node)) return AtCast(node, place);
  if (node.operands.size() == 1 && node.results.size() == 1) return AtUnary(node, place);
  if (node.op->info.is_elementwise()) return AtBinary(node, place);
  return std::nullopt;
}

// ---- sequences and sums ------------------------------------------------------
Element Evaluator::AtRange(const Node& node, const Dims& place) {
  const Element start = At(*node.operands[0], {}), delta = At(*node.operands[2], {});
  if (!start.has_value() || !delta.has_value()) return std::nullopt;
  const Element moved = Product(IntegerElement(place[0]), *delta);
  return start->kind == Kind::kInteger && delta->kind == Kind::kInteger && moved.has_value() ? Sum(*start, *moved)
                                                                                             : std::nullopt;
}

// Of one number everywhere.
Element Evaluator::AtCumSum(const Node& node, const Dims& place) {
  const auto op = View<CumSum>(node);
  if (op.reverse) return std::nullopt;
  Dims any = place;
  any[static_cast<size_t>(op.axis)] = NewIndex();
  return Times(At(*op.x, any), place[static_cast<size_t>(op.axis)] + Dim(op.exclusive ? 0 : 1));
}

// Of one number everywhere.
Element Evaluator::AtReduceSum(const Node& node, const Dims& place) {
  const auto op = View<ReduceSum>(node);
  if (!IsInteger(op.x->type.dtype)) return std::nullopt;
  Dims under;
  Dim count = Dim(1);
  size_t next = 0;
  for (int axis = 0; axis < op.x->type.rank(); ++axis) {
    const bool is_summed = std::find(op.axes.begin(), op.axes.end(), axis) != op.axes.end();
    if (is_summed) {
      under.push_back(NewIndex());
      count = count * Known(op.x->type.shape[static_cast<size_t>(axis)]);
      next += op.keep_dims ? 1 : 0;
    } else {
      under.push_back(place[next++]);
    }
  }
  return Times(At(*op.x, under), count);
}

// ---- choices -----------------------------------------------------------------
Element Evaluator::AtTriangle(const Node& node, const Dims& place) {
  const auto op = View<Triangle>(node);
  const Element x = At(*op.x, place);
  if (!x.has_value()) return std::nullopt;
  const Dim below = place[place.size() - 2] - place.back() + Dim(op.diagonal);
  const Condition kept{.at_least_zero = {op.upper ? Dim(0) - below : below}};
  return Chosen(kept, *x, x->kind == Kind::kBool ? Bool(false) : Number(0));
}

// where(a == b, x, y) is y if x and y differ by as much as a and b.
Element Evaluator::AtWhereEqual(const Node& node, const Dims& place) {
  const Node& equal = *node.operands[0]->def;
  const std::optional<Dims> under = PlaceIn(*node.operands[0], *node.results[0], place);
  if (!under.has_value()) return std::nullopt;
  const Element a = Operand(equal, 0, *under), b = Operand(equal, 1, *under);
  const Element x = Operand(node, 1, place), y = Operand(node, 2, place);
  for (const Element* element : {&a, &b, &x, &y}) {
    if (!element->has_value() || (*element)->kind != Kind::kInteger) return std::nullopt;
  }
  const Dim sides = a->integer - b->integer, results = x->integer - y->integer;
  if (sides.is_unknown() || results.is_unknown()) return std::nullopt;
  return results == sides || results == Dim(0) - sides ? y : std::nullopt;
}

Element Evaluator::AtWhere(const Node& node, const Dims& place) {
  if (Is<Equal>(node.operands[0]->def)) {
    const std::string why = why_;
    const Element chosen = AtWhereEqual(node, place);
    why_ = why;
    if (chosen.has_value()) return chosen;
  }
  const Element condition = Operand(node, 0, place);
  if (!condition.has_value() || condition->kind != Kind::kBool) return std::nullopt;
  if (condition->condition.always()) return Operand(node, 1, place);
  if (condition->condition.never) return Operand(node, 2, place);
  const Element x = Operand(node, 1, place), y = Operand(node, 2, place);
  return x.has_value() && y.has_value() ? Chosen(condition->condition, *x, *y) : std::nullopt;
}

// ---- arithmetic --------------------------------------------------------------
// A product over an axis of 1.
Element Evaluator::AtOuterProduct(const Node& node, const Dims& place) {
  const Linear op = ProductOf(node);
  const int lhs_rank = op.lhs->type.rank(), rhs_rank = op.rhs->type.rank();
  const int rank = node.results[0]->type.rank();
  if (lhs_rank < 2 || rhs_rank < 2 || !(Known(op.lhs->type.shape.back()) == Dim(1))) return std::nullopt;
  const auto under = [&](const Value& operand, const Dim& last_but_one, const Dim& last) -> Element {
    Dims at;
    for (int axis = 0; axis < operand.type.rank() - 2; ++axis) {
      const int of = axis + rank - operand.type.rank();
      const std::optional<Dim> index = IndexIn(operand, axis, *node.results[0], of, place[static_cast<size_t>(of)]);
      if (!index.has_value()) return std::nullopt;
      at.push_back(*index);
    }
    at.push_back(last_but_one);
    at.push_back(last);
    return At(operand, at);
  };
  const Dim &row = place[place.size() - 2], &column = place.back();
  const Element a = under(*op.lhs, row, Dim(0));
  const Element b = op.transpose_rhs ? under(*op.rhs, column, Dim(0)) : under(*op.rhs, Dim(0), column);
  return a.has_value() && b.has_value() ? Product(*a, *b) : std::nullopt;
}

Element Evaluator::AtCast(const Node& node, const Dims& place) {
  const Element x = At(*node.operands[0], place);
  const DType to = node.results[0]->type.dtype;
  if (!x.has_value()) return x;
  if (to == DType::kBool) return TruthOf(*x);
  if (x->kind == Kind::kBool) return Chosen(x->condition, Number(1), Number(0));
  return x->kind != Kind::kTable || IsFloat(to) ? x : std::nullopt;
}

Element Evaluator::AtUnary(const Node& node, const Dims& place) {
  const Element x = At(*node.operands[0], place);
  if (!x.has_value()) return x;
  if (Is<Not>(&node)) return Inverse(*x);
  if (Is<Cos>(&node)) return Turned(*x, Function::kCos);
  if (Is<Sin>(&node)) return Turned(*x, Function::kSin);
  if (Is<Neg>(&node)) return Negative(*x);
  if (Is<IsNan>(&node)) return NanOf(*x);
  return std::nullopt;
}

Element Evaluator::AtBinary(const Node& node, const Dims& place) {
  const Element a = Operand(node, 0, place);
  const Element b = a.has_value() ? Operand(node, 1, place) : std::nullopt;
  if (!b.has_value()) return std::nullopt;
  if (Is<Add>(&node)) {
    Element sum = Sum(*a, *b);
    const bool is_bias = a->kind == Kind::kTable || b->kind == Kind::kTable;
    if (!sum.has_value() && is_bias && why_.empty())
      why_ = absl::StrCat("a bias that ", node.results[0]->name, " adds");
    return sum;
  }
  if (Is<Mul>(&node)) return Product(*a, *b);
  if (Is<Div>(&node)) return IsFloat(node.results[0]->type.dtype) ? Quotient(*a, *b) : std::nullopt;
  if (Is<And>(&node)) return Conjunction(*a, *b);
  if (Is<Or>(&node)) return Disjunction(*a, *b);
  if (!Is<Sub>(&node)) return Comparison(node, *a, *b);
  const Element minus = Negative(*b);
  return minus.has_value() ? Sum(*a, *minus) : std::nullopt;
}

}  // namespace element

std::optional<ElementValue> ElementAt(const Value& value, const Dims& place, const ElementFacts& facts) {
  return element::Evaluator(facts).At(value, place);
}

}  // namespace llmc
