#include "runtime/plan/dim_expression.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "runtime/plan/dim_functions.h"

namespace llmc {
namespace {

// Colons are in the names of base/step_contract.h alone.
bool IsSymbolChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == ':';
}

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

}  // namespace

class DimExpressionParser {
 public:
  explicit DimExpressionParser(absl::string_view text) : rest_(text) { result_.text_ = std::string(text); }

  absl::StatusOr<DimExpression> Parse() {
    if (rest_.size() > DimExpression::kMaxLength || !Sum(0) || !rest_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", result_.text_.substr(0, 100), "' is no size"));
    }
    return std::move(result_);
  }

 private:
  using Op = DimExpression::Op;

  void SkipSpace() {
    while (!rest_.empty() && rest_[0] == ' ') rest_.remove_prefix(1);
  }
  bool Take(char c) {
    SkipSpace();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    SkipSpace();
    return true;
  }
  void Push(Op op) { result_.items_.push_back({.op = op}); }

  bool Sum(int depth) {
    const bool negative = Take('-');
    if (negative) Push(Op::kNumber);
    if (!Product(depth)) return false;
    if (negative) Push(Op::kSubtract);
    while (true) {
      const Op op = Take('+') ? Op::kAdd : Take('-') ? Op::kSubtract : Op::kNumber;
      if (op == Op::kNumber) return true;
      if (!Product(depth)) return false;
      Push(op);
    }
  }

  bool Product(int depth) {
    if (!Factor(depth)) return false;
    while (true) {
      const Op op = Take('*') ? Op::kMultiply : Take('/') ? Op::kDivide : Op::kNumber;
      if (op == Op::kNumber) return true;
      if (!Factor(depth)) return false;
      Push(op);
    }
  }

  bool Factor(int depth) {
    if (depth > DimExpression::kMaxDepth) return false;
    if (Take('(')) return Sum(depth + 1) && Take(')');
    SkipSpace();
    size_t length = 0;
    while (length < rest_.size() && IsSymbolChar(rest_[length])) ++length;
    const absl::string_view word = rest_.substr(0, length);
    rest_.remove_prefix(length);
    if (word.empty()) return false;
    if (Take('(')) return Call(word, depth + 1);
    DimExpression::Item& item = result_.items_.emplace_back();
    if (absl::ascii_isdigit(static_cast<unsigned char>(word[0]))) return absl::SimpleAtoi(word, &item.number);
    item.op = Op::kSymbol;
    item.symbol = std::string(word);
    return true;
  }

  bool Call(absl::string_view name, int depth) {
    const absl::Span<const DimFunction> all = DimFunctions();
    const auto function = std::find_if(all.begin(), all.end(), [&](const DimFunction& f) { return f.name == name; });
    if (function == all.end()) return false;
    for (size_t i = 0; i < function->arity; ++i) {
      if ((i > 0 && !Take(',')) || !Sum(depth)) return false;
    }
    result_.items_.push_back({.op = Op::kCall, .number = function - all.begin()});
    return Take(')');
  }

  absl::string_view rest_;
  DimExpression result_;
};

absl::StatusOr<DimExpression> DimExpression::Parse(absl::string_view text) { return DimExpressionParser(text).Parse(); }

std::vector<std::string> DimExpression::Symbols() const {
  std::vector<std::string> symbols;
  for (const Item& item : items_) {
    if (item.op == Op::kSymbol) symbols.push_back(item.symbol);
  }
  return symbols;
}

absl::StatusOr<int64_t> DimExpression::Evaluate(const StepDims& dims) const {
  std::vector<int64_t> stack;
  for (const Item& item : items_) {
    if (item.op == Op::kNumber) {
      stack.push_back(item.number);
    } else if (item.op == Op::kSymbol) {
      const auto it = dims.find(item.symbol);
      if (it == dims.end()) return absl::InvalidArgumentError(absl::StrCat("dim ", item.symbol, " has no size"));
      stack.push_back(it->second);
    } else if (item.op == Op::kCall) {
      const DimFunction& function = DimFunctions()[static_cast<size_t>(item.number)];
      const std::vector<int64_t> arguments(stack.end() - static_cast<ptrdiff_t>(function.arity), stack.end());
      const std::optional<int64_t> value = function.call(arguments);
      if (!value.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", text_, "' has no value: ", function.name, "(", absl::StrJoin(arguments, ", "), ")"));
      }
      stack.resize(stack.size() - function.arity);
      stack.push_back(*value);
    } else {
      const int64_t b = stack.back();
      stack.pop_back();
      int64_t& a = stack.back();
      const bool wrong = item.op == Op::kAdd        ? __builtin_add_overflow(a, b, &a)
                         : item.op == Op::kSubtract ? __builtin_sub_overflow(a, b, &a)
                         : item.op == Op::kMultiply ? __builtin_mul_overflow(a, b, &a)
                                                    : b == 0 || (b == -1 && a == INT64_MIN);
      if (wrong) return absl::InvalidArgumentError(absl::StrCat("'", text_, "' overflows or divides by zero"));
      if (item.op == Op::kDivide) a = FloorDivide(a, b);
    }
  }
  return stack.back();
}

}  // namespace llmc
