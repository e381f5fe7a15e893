#include "passes/proof/literal.h"

#include <cfloat>
#include <cmath>

#include "ir/ops.h"

namespace llmc {
namespace {

constexpr int64_t kMaxLiteral = 4096;  // so that looking at a constant takes bounded time

double RoundingOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 8e-3;
    case DType::kF16:
      return 1e-3;
    default:
      return 2e-6;
  }
}

}  // namespace

const Tensor* LiteralOf(const Value* value) {
  if (value == nullptr || !Is<Constant>(value->def)) return nullptr;
  return &std::get<Tensor>(value->def->attrs.at("value"));
}

std::optional<double> NumberOf(const Value* value) {
  const Tensor* literal = LiteralOf(value);
  if (literal == nullptr || literal->size() == 0 || literal->size() > kMaxLiteral) return std::nullopt;
  const double number = literal->GetFloat(0);
  for (int64_t i = 1; i < literal->size(); ++i) {
    if (literal->GetFloat(i) != number) return std::nullopt;
  }
  return number;
}

bool IsNear(const Value* value, double number) {
  const std::optional<double> held = NumberOf(value);
  return held.has_value() && std::abs(*held - number) <= RoundingOf(value->type.dtype) * std::abs(number);
}

bool IsScalarNumber(const Value* value) {
  const Tensor* literal = LiteralOf(value);
  return literal != nullptr && literal->size() == 1 && literal->rank() <= 1;
}

bool HidesScores(double number, DType dtype) {
  const double lowest = dtype == DType::kF16 ? -65504 : -FLT_MAX;
  return number <= lowest / 2;
}

Tensor Filled(DType dtype, const Shape& shape, double number) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.SetFloat(i, number);
  return tensor;
}

}  // namespace llmc
