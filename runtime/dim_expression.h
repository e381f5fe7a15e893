// Sizes that depend on a step's dims, as plans write them: integers, symbols, + - * / (rounding down) and parentheses.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

class DimExpression {
 public:
  // InvalidArgument, with the text, if it is none or is nested deeper than 64.
  static absl::StatusOr<DimExpression> Parse(absl::string_view text);

  // InvalidArgument: a symbol has no size, the result overflows, or a divisor is 0.
  absl::StatusOr<int64_t> Evaluate(const std::map<std::string, int64_t>& dims) const;

 private:
  friend class DimExpressionParser;
  enum class Op : uint8_t { kNumber, kSymbol, kAdd, kSubtract, kMultiply, kDivide };
  // In the order of a stack machine.
  struct Item {
    Op op = Op::kNumber;
    int64_t number = 0;
    std::string symbol;
  };
  std::string text_;
  std::vector<Item> items_;
};

}  // namespace llmc
