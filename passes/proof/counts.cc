#include "passes/proof/counts.h"

#include <algorithm>

#include "ir/ops.h"

namespace llmc {
namespace {

bool IsTruth(const Value& value) { return value.type.dtype == DType::kBool; }
bool IsNarrow(const Value& value) { return IsInteger(value.type.dtype) && DTypeBits(value.type.dtype) < 32; }

Origin OriginOfLeaf(const Value& value) {
  if (value.kind == ValueKind::kState || IsNarrow(value)) return Origin::kData;
  if (!IsFloat(value.type.dtype)) return Origin::kCounted;
  const Dims& shape = value.type.shape;
  const auto longs = std::count_if(shape.begin(), shape.end(), [](const Dim& dim) { return !(dim == Dim(1)); });
  return value.kind == ValueKind::kWeight && longs <= 1 ? Origin::kCounted : Origin::kData;
}

bool RoundsToIntegers(const Node& node) { return node.op->info.Has(kRoundsToIntegers); }

bool TellsIntegersApart(const Node& node) { return node.op->info.Has(kRoundsToIntegers | kNeedsWholeNumbers); }

// Bytes, and what products sum of them, are data as floats are.
Origin OriginOfResult(const Node& node, const Value& result, Origin operands, bool has_integer_data) {
  if (operands != Origin::kData) {
    return IsNarrow(result) && operands == Origin::kRounded ? Origin::kData : operands;
  }
  if (IsFloat(result.type.dtype)) return RoundsToIntegers(node) ? Origin::kRounded : Origin::kData;
  return IsNarrow(result) || has_integer_data ? Origin::kData : Origin::kRounded;
}

void AddOrigins(const Block& block, absl::flat_hash_map<const Value*, Origin>* origins) {
  for (const auto& node : block.nodes) {
    Origin operands = Origin::kCounted;
    bool has_integer_data = false;
    for (const Value* operand : node->operands) {
      if (operand == nullptr || Is<ShapeOf>(node.get())) continue;
      const Origin origin = origins->at(operand);
      operands = std::max(operands, origin);
      has_integer_data |= origin == Origin::kData && IsInteger(operand->type.dtype) && !IsTruth(*operand);
    }
    for (const Value* result : node->results) {
      (*origins)[result] = OriginOfResult(*node, *result, operands, has_integer_data);
    }
  }
}

}  // namespace

absl::flat_hash_map<const Value*, Origin> OriginsOf(const Model& model) {
  absl::flat_hash_map<const Value*, Origin> origins;
  for (const auto* values : {&model.weights, &model.states}) {
    for (const Value* value : *values) origins[value] = OriginOfLeaf(*value);
  }
  AddOrigins(model.prepare, &origins);
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) origins[param] = OriginOfLeaf(*param);
    AddOrigins(step->block, &origins);
  }
  return origins;
}

bool IsPlace(const Node& node, size_t operand) { return node.op->UseOf(operand) == Use::kPlaces; }

ExactCounts::ExactCounts(const Model& model, DType dtype) : dtype_(dtype), origins_(OriginsOf(model)) {
  for (const auto& step : model.steps) AddBlock(step->block);
  AddBlock(model.prepare);
}

bool ExactCounts::IsExact(const Value* value) const {
  if (!needed_.contains(value) || !Keeps(value)) return false;
  const Node* node = value->def;
  return node == nullptr || Is<Cast>(node) || Takes(node) ||
         std::none_of(node->operands.begin(), node->operands.end(),
                      [](const Value* operand) { return operand != nullptr && IsFloat(operand->type.dtype); });
}

bool ExactCounts::IsWidened(const Value* value) const {
  return needed_.contains(value) && Keeps(value) && !IsExact(value);
}

// Whether the type holds more integers than `dtype_`.
bool ExactCounts::Keeps(const Value* value) const {
  const DType dtype = value->type.dtype;
  return dtype == DType::kF64 || dtype == DType::kF32 || (dtype == DType::kF16 && dtype_ == DType::kBF16);
}

// Whether more than a rounding would change if the floats that the node takes were rounded. Where bytes are made of
// data, 16 bits hold all of them.
bool ExactCounts::IsTaken(const Node& node, Origin origin) const {
  if (TellsIntegersApart(node)) return true;
  for (const Value* result : node.results) {
    if (IsFloat(result->type.dtype)) {
      if (needed_.contains(result)) return true;
    } else if (origin == Origin::kCounted || DTypeBits(result->type.dtype) > 8 || IsTruth(*result)) {
      return true;
    }
  }
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (node.operands[i] != nullptr && IsFloat(node.operands[i]->type.dtype) && IsPlace(node, i)) return true;
  }
  return false;
}

// From the last node to the first, so that it is known of all results whether they are wanted.
void ExactCounts::AddBlock(const Block& block) {
  for (auto it = block.nodes.rbegin(); it != block.nodes.rend(); ++it) {
    const Node& node = **it;
    std::vector<const Value*> floats;
    for (const Value* operand : node.operands) {
      if (operand != nullptr && IsFloat(operand->type.dtype)) floats.push_back(operand);
    }
    Origin origin = Origin::kCounted;
    for (const Value* value : floats) origin = std::max(origin, Keeps(value) ? origins_.at(value) : Origin::kData);
    if (floats.empty() || origin == Origin::kData || !IsTaken(node, origin)) continue;
    nodes_.insert(&node);
    needed_.insert(floats.begin(), floats.end());
    for (const Value* result : node.results) {
      if (IsFloat(result->type.dtype)) needed_.insert(result);
    }
  }
}

}  // namespace llmc
