#include "codegen/memory/small_tensors.h"

#include <bit>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "ir/text.h"

namespace llmc {
namespace {

constexpr int64_t kMaxSmallElements = 64;
constexpr int kMaxSmallDepth = 256;  // of tensors that are computed from each other

// The types whose elements sizes can tell.
bool IsTold(DType dtype) { return IsFloat(dtype) ? DTypeBits(dtype) >= 16 : DTypeBits(dtype) >= 8; }

// -1 if a run alone tells how many there are, or there are many.
int64_t SmallCount(const TensorType& type) {
  int64_t count = 1;
  for (const Dim& dim : type.shape) {
    if (!dim.is_constant() || dim.value() < 0 || dim.value() > kMaxSmallElements) return -1;
    count *= dim.value();
    if (count > kMaxSmallElements) return -1;
  }
  return count;
}

Shape ShapeOfType(const TensorType& type) {
  Shape shape;
  for (const Dim& dim : type.shape) shape.push_back(dim.value());
  return shape;
}

// Names may hold any character, symbols may not.
Size SymbolOf(absl::string_view prefix, const Value* value, int64_t element) {
  std::string symbol(prefix);
  for (const char c : value->name.substr(1)) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c));
    absl::StrAppend(&symbol, plain ? std::string(1, c) : absl::StrCat("_", static_cast<unsigned char>(c)));
  }
  return Size::Text(absl::StrCat(symbol, ".", element));
}

bool IsSymbolText(const Size& size) {
  return absl::c_all_of(size.ToString(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  });
}

Size RealSize(double value) { return Size(std::bit_cast<int64_t>(value)); }

// A number that is one of f64, rounded to another floating-point type.
Size RoundedTo(const Size& size, DType dtype) {
  if (dtype == DType::kF64) return size;
  return Size::Call(dtype == DType::kF32 ? "single" : dtype == DType::kF16 ? "half" : "brain", {size});
}

// Rounded, or wrapped, as a result of a type. Arithmetic of 16-bit types is in f32.
Size StoredAs(const Size& size, DType dtype) {
  if (IsFloat(dtype)) return RoundedTo(DTypeBits(dtype) == 16 ? RoundedTo(size, DType::kF32) : size, dtype);
  if (dtype == DType::kU8) return Size::Call("bit_and", {size, Size(255)});
  const int bits = DTypeBits(dtype);
  return dtype == DType::kBool || bits == 64 ? size : Size::Call("wrap", {size, Size(bits)});
}

Size Converted(const Size& size, DType from, DType to) {
  if (from == to) return size;
  if (to == DType::kBool) {
    const Size zero =
        IsFloat(from) ? Size::Call("real_equal", {size, RealSize(0)}) : Size::Call("equal", {size, Size(0)});
    return Size::Call("where", {zero, Size(0), Size(1)});
  }
  if (IsFloat(to)) {
    if (IsFloat(from)) return RoundedTo(size, to);
    if (to == DType::kF32) return Size::Call("single_of", {size});
    return RoundedTo(Size::Call("real", {size}), to);
  }
  if (!IsFloat(from)) return StoredAs(size, to);
  const Size whole = Size::Call("integer", {size});
  if (DTypeBits(to) == 64) return whole;
  const bool is_unsigned = to == DType::kU8;
  const int64_t high = (int64_t{1} << (DTypeBits(to) - (is_unsigned ? 0 : 1))) - 1, low = is_unsigned ? 0 : -high - 1;
  return Size::Call("max", {Size(low), Size::Call("min", {Size(high), whole})});
}

SizeList LiteralElements(const Tensor& tensor, int64_t count) {
  SizeList sizes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = tensor.size() == 1 ? 0 : i;
    sizes.push_back(IsFloat(tensor.dtype()) ? RealSize(tensor.GetFloat(at)) : Size(tensor.GetInt(at)));
  }
  return sizes;
}

// The place in a tensor of shape `from` of what lies under each element of `to`; nothing if it is not broadcast to
// that.
std::optional<std::vector<int64_t>> PlacesUnder(const Shape& from, const Shape& to) {
  int64_t count = 1;
  for (const int64_t size : from) count *= size;
  std::vector<int64_t> places(static_cast<size_t>(count));
  absl::c_iota(places, 0);
  const Tensor tensor = Tensor::FromValues(DType::kI64, from, places);
  const absl::StatusOr<Tensors> spread = Expand{.shape = Dims(to.begin(), to.end())}.Eval({.in = {&tensor}});
  if (!spread.ok() || (*spread)[0].shape() != to) return std::nullopt;
  return (*spread)[0].ToInts();
}

// How many of the first operands of an op that only moves elements hold these; 0: it is none.
size_t MovedOperands(const Node& node) {
  if (!node.op->info.Has(kMoves)) return 0;
  return node.op->variadic() ? node.operands.size() : 1;
}

}  // namespace

std::optional<SizeList> ContentsOf(const Value* value) { return SmallTensors().ContentsOf(value); }

std::optional<SizeList> SmallTensors::ContentsOf(const Value* value) { return Find(value, 0); }

std::vector<plan::SizeRule> SmallTensors::TakeRules() {
  std::vector<plan::SizeRule> rules = std::exchange(inputs_, {});
  absl::c_move(std::exchange(computed_, {}), std::back_inserter(rules));
  return rules;
}

std::optional<SizeList> SmallTensors::Find(const Value* value, int depth) {
  if (const auto found = known_.find(value); found != known_.end()) return found->second;
  std::optional<SizeList> sizes;
  if (value->contents.has_value() && !IsFloat(value->type.dtype)) {
    sizes = ToSizes(*value->contents);
  } else if (!IsTold(value->type.dtype) || depth > kMaxSmallDepth) {
    return std::nullopt;
  } else if (value->def == nullptr) {
    sizes = FindInput(value);
  } else if (value->def->op->info.is_view()) {
    sizes = Find(value->def->operands[0], depth + 1);
  } else if (SmallCount(value->type) >= 0) {
    sizes = Compute(*value->def, depth);
  }
  known_[value] = sizes;
  return sizes;
}

std::optional<SizeList> SmallTensors::FindAll(const Value* value, int depth) {
  std::optional<SizeList> sizes = Find(value, depth);
  if (sizes.has_value() && SmallCount(value->type) != static_cast<int64_t>(sizes->size())) sizes.reset();
  return sizes;
}

std::optional<SizeList> SmallTensors::FindInput(const Value* value) {
  const bool is_index = value->type.dtype == DType::kI64 || value->type.dtype == DType::kI32;
  const int64_t count = SmallCount(value->type);
  if (value->kind != ValueKind::kParam || !is_index || count < 0) return std::nullopt;
  SizeList sizes;
  for (int64_t i = 0; i < count; ++i) {
    sizes.push_back(SymbolOf("in.", value, i));
    plan::SizeRule& rule = inputs_.emplace_back();
    rule.set_symbol(sizes.back().ToString());
    rule.set_input(value->name.substr(1));
    rule.set_element(i);
  }
  return sizes;
}

std::optional<SizeList> SmallTensors::Compute(const Node& node, int depth) {
  const Value* result = node.results[0];
  if (node.results.size() != 1) return std::nullopt;
  if (Is<Constant>(&node)) {
    const Tensor& tensor = std::get<Tensor>(node.attrs.at("value"));
    return LiteralElements(tensor, SmallCount(result->type));
  }
  const size_t moved = MovedOperands(node);
  const bool reduces = node.op->info.mixes == Mixes::kAxes;
  std::optional<SizeList> elements = moved > 0           ? Move(node, moved, depth)
                                     : Is<CumSum>(&node) ? RunningSum(node, depth)
                                     : reduces           ? Reduce(node, depth)
                                                         : Elementwise(node, depth);
  if (!elements.has_value() && Is<Gather>(&node)) elements = Pick(node, depth);
  if (!elements.has_value()) return std::nullopt;
  SizeList names;
  for (const Size& element : *elements) {
    names.push_back(element);
    if (element.has_dim() || IsSymbolText(element)) continue;
    names.back() = SymbolOf("v.", result, static_cast<int64_t>(names.size()) - 1);
    plan::SizeRule& rule = computed_.emplace_back();
    rule.set_symbol(names.back().ToString());
    rule.set_size(element.ToString());
    rule.set_label(PrintNode(node));
  }
  return names;
}

// The op itself, on the places of elements instead of them, says where each one goes.
std::optional<SizeList> SmallTensors::Move(const Node& node, size_t moved, int depth) {
  SizeList from;
  std::vector<Tensor> tensors(node.operands.size());
  std::vector<const Tensor*> operands(node.operands.size());
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Value* operand = node.operands[i];
    if (operand == nullptr) continue;
    const std::optional<SizeList> sizes = FindAll(operand, depth + 1);
    if (!sizes.has_value()) return std::nullopt;
    std::vector<int64_t> numbers;
    for (const Size& size : *sizes) {
      if (i >= moved && !size.is_number()) return std::nullopt;
      numbers.push_back(i < moved ? static_cast<int64_t>(from.size()) : size.number());
      if (i < moved) from.push_back(size);
    }
    tensors[i] = Tensor::FromValues(DType::kI64, ShapeOfType(operand->type), numbers);
    operands[i] = &tensors[i];
  }
  const Types types = {{DType::kI64, node.results[0]->type.shape}};
  const absl::StatusOr<Tensors> to = node.op->eval(node, {.in = operands, .result_types = &types});
  if (!to.ok() || (*to)[0].size() != SmallCount(node.results[0]->type)) return std::nullopt;
  SizeList sizes;
  for (const int64_t place : (*to)[0].ToInts()) sizes.push_back(from[static_cast<size_t>(place)]);
  return sizes;
}

// Single elements of a list of any length, such as the second of a range.
std::optional<SizeList> SmallTensors::Pick(const Node& gather, int depth) {
  const auto op = View<Gather>(gather);
  const std::optional<SizeList> indices = Find(op.indices, depth + 1);
  if (!indices.has_value() || op.x->type.rank() != 1) return std::nullopt;
  SizeList sizes;
  for (const Size& index : *indices) {
    if (!index.is_number()) return std::nullopt;
    const Size from_start = index.number() < 0 ? Size(op.x->type.shape[0]) + index : index;
    const std::optional<Size> size = At(op.x, from_start, depth + 1);
    if (!size.has_value()) return std::nullopt;
    sizes.push_back(*size);
  }
  return sizes;
}

// Where the list is shorter, the run fails at the op that reads it there.
std::optional<Size> SmallTensors::At(const Value* list, const Size& index, int depth) {
  if (index.is_number() && list->type.rank() == 1 && SmallCount(list->type) > index.number() && index.number() >= 0) {
    if (const std::optional<SizeList> all = Find(list, depth)) return (*all)[static_cast<size_t>(index.number())];
  }
  const Node* node = list->def;
  if (node == nullptr || depth > kMaxSmallDepth || !IsTold(list->type.dtype)) return std::nullopt;
  if (Is<Identity>(node)) return At(node->operands[0], index, depth + 1);
  if (Is<Cast>(node)) {
    const std::optional<Size> from = At(node->operands[0], index, depth + 1);
    if (!from.has_value()) return std::nullopt;
    return Converted(*from, node->operands[0]->type.dtype, list->type.dtype);
  }
  if (Is<SliceBy>(node)) return AtSlice(*node, index, depth);
  if (Is<Concat>(node)) return AtConcat(*node, index, depth);
  if (!Is<Range>(node)) return std::nullopt;
  const std::optional<SizeList> start = Find(node->operands[0], depth + 1), delta = Find(node->operands[2], depth + 1);
  if (!start.has_value() || !delta.has_value()) return std::nullopt;
  if (!IsFloat(list->type.dtype)) return StoredAs((*start)[0] + index * (*delta)[0], list->type.dtype);
  const Size step = Size::Call("real_mul", {Size::Call("real", {index}), (*delta)[0]});
  return RoundedTo(Size::Call("real_add", {(*start)[0], step}), list->type.dtype);
}

std::optional<Size> SmallTensors::AtSlice(const Node& node, const Size& index, int depth) {
  const auto op = View<SliceBy>(node);
  if (op.x->type.rank() != 1) return std::nullopt;
  const std::optional<SizeList> start = Find(op.starts, depth + 1), end = Find(op.ends, depth + 1);
  const std::optional<SizeList> step = op.steps == nullptr ? SizeList{Size(1)} : Find(op.steps, depth + 1);
  if (!start.has_value() || !end.has_value() || !step.has_value()) return std::nullopt;
  if (start->empty()) return At(op.x, index, depth + 1);
  const Size first = Size::Call("slice_start", {(*start)[0], (*end)[0], (*step)[0], Size(op.x->type.shape[0])});
  return At(op.x, first + index * (*step)[0], depth + 1);
}

// In the first operand that is known to be so long, or the last.
std::optional<Size> SmallTensors::AtConcat(const Node& node, const Size& index, int depth) {
  if (!index.is_number() || node.results[0]->type.rank() != 1) return std::nullopt;
  int64_t rest = index.number();
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Value* operand = node.operands[i];
    const Dim& size = operand->type.shape[0];
    const bool is_last = i + 1 == node.operands.size();
    if (!is_last && !size.is_constant()) return std::nullopt;
    if (is_last || rest < size.value()) return At(operand, Size(rest), depth + 1);
    rest -= size.value();
  }
  return std::nullopt;
}

std::optional<SizeList> SmallTensors::Elementwise(const Node& node, int depth) {
  if (!node.op->info.computes_elements()) return std::nullopt;
  const TensorType& type = node.results[0]->type;
  std::vector<SizeList> operands;
  for (const Value* operand : node.operands) {
    const std::optional<SizeList> sizes = FindAll(operand, depth + 1);
    if (!sizes.has_value()) return std::nullopt;
    const auto places = PlacesUnder(ShapeOfType(operand->type), ShapeOfType(type));
    if (!places.has_value()) return std::nullopt;
    SizeList& spread = operands.emplace_back();
    for (const int64_t place : *places) spread.push_back((*sizes)[static_cast<size_t>(place)]);
  }
  const DType dtype = node.operands.back()->type.dtype;
  const bool mixed = node.operands[0]->type.dtype != dtype && !Is<Where>(&node);
  if (mixed || (Is<Not>(&node) && dtype == DType::kBool)) return std::nullopt;
  SizeList sizes;
  for (size_t i = 0; i < static_cast<size_t>(SmallCount(type)); ++i) {
    SizeList own;
    for (const SizeList& operand : operands) own.push_back(operand[i]);
    if (Is<Cast>(&node)) {
      sizes.push_back(Converted(own[0], dtype, type.dtype));
      continue;
    }
    const std::optional<Size> size = ApplySizeFormula(node, own);
    if (!size.has_value()) return std::nullopt;
    sizes.push_back(Is<Where>(&node) ? *size : StoredAs(*size, type.dtype));
  }
  return sizes;
}

// Of a list of integers.
std::optional<SizeList> SmallTensors::RunningSum(const Node& node, int depth) {
  const auto op = View<CumSum>(node);
  const std::optional<SizeList> from = Find(op.x, depth + 1);
  if (!from.has_value() || op.x->type.rank() != 1 || IsFloat(op.x->type.dtype)) return std::nullopt;
  SizeList sums(from->size(), Size(0));
  Size sum = 0;
  for (size_t k = 0; k < from->size(); ++k) {
    const size_t i = op.reverse ? from->size() - 1 - k : k;
    if (op.exclusive) sums[i] = StoredAs(sum, op.x->type.dtype);
    sum = sum + (*from)[i];
    if (!op.exclusive) sums[i] = StoredAs(sum, op.x->type.dtype);
  }
  return sums;
}

std::optional<SizeList> SmallTensors::Reduce(const Node& node, int depth) {
  const Value* x = node.operands[0];
  const TensorType& type = node.results[0]->type;
  if (!ApplySizeFormula(node, {Size(0), Size(0)}).has_value()) return std::nullopt;
  const std::optional<SizeList> from = FindAll(x, depth + 1);
  if (!from.has_value() || from->empty()) return std::nullopt;
  const auto& axes = std::get<std::vector<int64_t>>(node.attrs.at("axes"));
  Shape kept = ShapeOfType(x->type);
  for (const int64_t axis : axes) kept[static_cast<size_t>(axis)] = 1;
  const std::vector<int64_t> to = PlacesUnder(kept, ShapeOfType(x->type)).value();
  std::vector<std::optional<Size>> sizes(static_cast<size_t>(SmallCount(type)));
  for (size_t i = 0; i < from->size(); ++i) {
    std::optional<Size>& size = sizes[static_cast<size_t>(to[i])];
    size = size.has_value() ? ApplySizeFormula(node, {*size, (*from)[i]}) : (*from)[i];
    if (!size.has_value()) return std::nullopt;
  }
  SizeList list;
  for (const std::optional<Size>& size : sizes) list.push_back(StoredAs(*size, type.dtype));
  return list;
}

}  // namespace llmc
