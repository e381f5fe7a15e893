#include "frontend/onnx/fold.h"

#include <vector>

#include "ir/eval.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr int64_t kMaxFoldedElements = 64;   // of results: what a constant of the file is stored as, too
constexpr int64_t kMaxFoldedOperand = 1024;  // elements
constexpr int kMaxFoldedOps = 64;            // what one node becomes

std::optional<int64_t> KnownSize(const TensorType& type) {
  const Dim size = Product(type.shape);
  for (const Dim& dim : type.shape) {
    if (!dim.is_constant()) return std::nullopt;
  }
  return size.is_constant() ? std::optional(size.value()) : std::nullopt;
}

// Numbers that the language knows of a value.
std::optional<Tensor> KnownContents(const Value* value) {
  if (!value->contents.has_value() || IsFloat(value->type.dtype) || !KnownSize(value->type).has_value()) {
    return std::nullopt;
  }
  std::vector<int64_t> numbers;
  for (const Dim& dim : *value->contents) {
    if (!dim.is_constant()) return std::nullopt;
    numbers.push_back(dim.value());
  }
  Shape shape;
  for (const Dim& dim : value->type.shape) shape.push_back(dim.value());
  return Tensor::FromValues(value->type.dtype, shape, numbers);
}

std::optional<Tensor> KnownLiteral(const Value* value, const Model& model) {
  if (Is<Constant>(value->def)) {
    const Tensor& tensor = std::get<Tensor>(value->def->attrs.at("value"));
    return tensor.size() == KnownSize(value->type) ? std::optional(tensor) : std::nullopt;
  }
  if (std::optional<Tensor> numbers = KnownContents(value); numbers.has_value()) return numbers;
  if (value->kind != ValueKind::kWeight) return std::nullopt;
  const auto data = model.data.find(value->name);
  return data == model.data.end() ? std::nullopt : std::optional(data->second);
}

std::optional<Tensor> EvaluateKnown(const Value* value, const Model& model, int* ops) {
  const std::optional<int64_t> size = KnownSize(value->type);
  if (!size.has_value() || *size > kMaxFoldedOperand) return std::nullopt;
  if (std::optional<Tensor> literal = KnownLiteral(value, model); literal.has_value()) return literal;
  const Node* node = value->def;
  if (node == nullptr || node->results.size() != 1 || ++*ops > kMaxFoldedOps) return std::nullopt;
  if (node->op->info.touches_state()) return std::nullopt;
  std::vector<Tensor> tensors;
  for (const Value* operand : node->operands) {
    if (operand == nullptr) {
      tensors.emplace_back();
      continue;
    }
    std::optional<Tensor> tensor = EvaluateKnown(operand, model, ops);
    if (!tensor.has_value()) return std::nullopt;
    tensors.push_back(*std::move(tensor));
  }
  std::vector<const Tensor*> operands;
  for (size_t i = 0; i < tensors.size(); ++i) operands.push_back(node->operands[i] == nullptr ? nullptr : &tensors[i]);
  absl::StatusOr<Tensors> results = EvalNode(*node, operands, {});
  return results.ok() ? std::optional(std::move((*results)[0])) : std::nullopt;
}

}  // namespace

std::optional<Tensor> FoldedAtImport(const Value* value, const Model& model) {
  const std::optional<int64_t> size = KnownSize(value->type);
  const bool is_plain = value->def == nullptr || Is<Constant>(value->def) || KnownContents(value).has_value();
  if (is_plain || !size.has_value() || *size > kMaxFoldedElements) return std::nullopt;
  int ops = 0;
  return EvaluateKnown(value, model, &ops);
}

}  // namespace llmc
