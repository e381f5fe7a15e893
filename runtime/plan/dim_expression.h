// Sizes that depend on a step's dims, as plans write them: integers, symbols, + - * / (rounding down), parentheses and
// functions:
//   step(a)                             0 if a is 1, else 1: whether an axis of size a moves under a larger one
//   max(a, b)                           the larger
//   broadcast(a, b)                     the size of two axes under each other; they must be the same or 1
//   within(low, high, size)             high - low; 0 <= low <= high <= size must hold
//   slice_start(start, end, step, size) the first of the elements that slice_by takes
//   slice_size(start, end, step, size)  how many these are
//   range_size(start, limit, delta)     the length of a range of integers
//   select(a, b, c)                     a if a is positive, b if a is 0, c if a is negative
// and, for elements of small tensors from which sizes are computed,
//   min, quotient (toward 0), remainder (of it), modulo (of the divisor's sign), power, less, less_equal, equal (1 or
//   0), bit_and, bit_or, bit_xor, where(c, a, b) (a if c is not 0), wrap(a, n) (the lowest n bits, with their sign)
//   real(a), single_of(a)               a as f64 or f32; numbers that are no integers are the bits of their f64
//   single(x), half(x), brain(x)        rounded to f32, f16, bf16
//   integer(x)                          toward 0
//   real_add, real_sub, real_mul, real_div, real_power, real_max, real_min, real_floor, real_ceil, real_round,
//   real_sqrt, real_abs, real_neg, real_less, real_less_equal, real_equal, real_range_size
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

using StepDims = std::map<std::string, int64_t>;  // the sizes of symbols in one run

class DimExpression {
 public:
  static constexpr size_t kMaxLength = 65536;  // of a text
  static constexpr int kMaxDepth = 64;         // of parentheses and calls in each other

  // InvalidArgument, with the text, if it is none, or is past these bounds.
  static absl::StatusOr<DimExpression> Parse(absl::string_view text);

  // The symbols in it, in their order, as often as they stand there.
  std::vector<std::string> Symbols() const;

  // InvalidArgument: a symbol has no size, the result overflows, a divisor is 0, or a function has no value.
  absl::StatusOr<int64_t> Evaluate(const StepDims& dims) const;

 private:
  friend class DimExpressionParser;
  enum class Op : uint8_t { kNumber, kSymbol, kAdd, kSubtract, kMultiply, kDivide, kCall };
  // In the order of a stack machine.
  struct Item {
    Op op = Op::kNumber;
    int64_t number = 0;  // or which function
    std::string symbol;
  };
  std::string text_;
  std::vector<Item> items_;
};

}  // namespace llmc
