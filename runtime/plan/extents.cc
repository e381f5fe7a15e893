#include "runtime/plan/extents.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

absl::Status TooSmall(absl::string_view what, int64_t bytes) {
  return absl::InvalidArgumentError(absl::StrCat("the plan is damaged: the step goes beyond the ", bytes, " bytes of ",
                                                 what, "; compile the model again"));
}

// Of `count` matrices of `elements`, one every `stride`. No sum of 64-bit numbers overflows here.
__int128 BytesOf(int64_t count, __int128 stride, __int128 elements, DType type) {
  return ((count - 1) * stride + elements) * DTypeBits(type) / 8;
}

}  // namespace

absl::StatusOr<int64_t> EvaluateSize(const std::string& text, const StepDims& dims) {
  ASSIGN_OR_RETURN(const DimExpression expression, DimExpression::Parse(text));
  return expression.Evaluate(dims);
}

absl::StatusOr<std::vector<int64_t>> EvaluateShape(const PlanShape& shape, const StepDims& dims) {
  std::vector<int64_t> sizes;
  for (const std::string& text : shape) {
    ASSIGN_OR_RETURN(const int64_t size, EvaluateSize(text, dims));
    sizes.push_back(size);
  }
  return sizes;
}

absl::StatusOr<int64_t> TensorBytes(DType type, const std::vector<int64_t>& shape) {
  int64_t bits = DTypeBits(type);
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(bits, size, &bits)) return absl::InvalidArgumentError("it has no size");
  }
  return bits / 8 + (bits % 8 != 0);
}

absl::Status CheckProduct(const MatrixProducts::Shape& p, const ProductBytes& bytes) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return absl::OkStatus();
  const __int128 m = p.m, n = p.n, k = p.k;
  if (BytesOf(p.batch, m * n, m * n, p.out) > bytes.out) return TooSmall("its result", bytes.out);
  if (k > 0 && BytesOf(p.batch, p.x_stride, m * k, p.in) > bytes.x) return TooSmall("its first operand", bytes.x);
  if (k > 0 && BytesOf(p.batch, p.weight_stride, n * k, p.in) > bytes.weight)
    return TooSmall("its weight", bytes.weight);
  if (p.bias && BytesOf(1, 0, n, p.out) > bytes.bias) return TooSmall("its bias", bytes.bias);
  if (p.residual && BytesOf(1, 0, m * n, p.out) > bytes.residual) return TooSmall("its residual", bytes.residual);
  if (p.scales == MatrixProducts::Shape::Scales::kNone) return absl::OkStatus();
  const bool is_of_all = p.scales == MatrixProducts::Shape::Scales::kOfAll;
  for (const auto& [count, room] : {std::pair(m, bytes.x_scale), std::pair(n, bytes.weight_scale)}) {
    if (BytesOf(1, 0, is_of_all ? 1 : count, DType::kF32) > room) return TooSmall("its scales", room);
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(absl::string_view what, int64_t bytes, int64_t room) {
  if (bytes <= room) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the plan is damaged: ", what, " takes ", bytes,
                                                 " bytes and has a place of ", room, "; compile the model again"));
}

absl::Status CheckCopy(int64_t bytes, int64_t to, int64_t from) {
  if (bytes > to) return TooSmall("its result", to);
  if (bytes > from) return TooSmall("its operand", from);
  return absl::OkStatus();
}

}  // namespace llmc
