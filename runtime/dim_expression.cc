#include "runtime/dim_expression.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace llmc {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxLength = 65536;

bool IsSymbolChar(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.'; }

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

using Value = std::optional<int64_t>;

struct SliceBounds {
  int64_t start = 0, count = 0;
};

// As ONNX Slice clamps them; the step is not 0.
SliceBounds Clamp(absl::Span<const int64_t> a) {
  const int64_t step = a[2], size = a[3];
  const auto clamp = [size](int64_t bound, int64_t low, int64_t high) {
    return std::clamp(bound < 0 ? bound + size : bound, low, std::max(low, high));
  };
  SliceBounds bounds;
  bounds.start = step > 0 ? clamp(a[0], 0, size) : clamp(a[0], -1, size - 1);
  const int64_t stop = step > 0 ? clamp(a[1], 0, size) : clamp(a[1], -1, size - 1);
  if (step > 0 && stop > bounds.start) bounds.count = (stop - bounds.start - 1) / step + 1;
  if (step < 0 && stop < bounds.start) bounds.count = (stop - bounds.start + 1) / step + 1;
  if (bounds.count == 0) bounds.start = 0;
  return bounds;
}

Value Within(absl::Span<const int64_t> a) {
  return 0 <= a[0] && a[0] <= a[1] && a[1] <= a[2] ? Value(a[1] - a[0]) : std::nullopt;
}
Value Broadcast(absl::Span<const int64_t> a) {
  if (a[0] == a[1] || a[1] == 1) return a[0];
  return a[0] == 1 ? Value(a[1]) : std::nullopt;
}
Value RangeSize(absl::Span<const int64_t> a) {
  if (a[2] == 0) return std::nullopt;
  const __int128 distance = a[2] > 0 ? static_cast<__int128>(a[1]) - a[0] : static_cast<__int128>(a[0]) - a[1];
  const __int128 delta = a[2] > 0 ? static_cast<__int128>(a[2]) : -static_cast<__int128>(a[2]);
  const __int128 size = distance <= 0 ? 0 : (distance + delta - 1) / delta;
  return size > INT64_MAX ? std::nullopt : Value(static_cast<int64_t>(size));
}

struct Function {
  absl::string_view name;
  size_t arity;
  Value (*call)(absl::Span<const int64_t>);
};
constexpr Function kFunctions[] = {
    {"step", 1, [](absl::Span<const int64_t> a) { return Value(a[0] == 1 ? 0 : 1); }},
    {"max", 2, [](absl::Span<const int64_t> a) { return Value(std::max(a[0], a[1])); }},
    {"broadcast", 2, Broadcast},
    {"within", 3, Within},
    {"slice_start", 4,
     [](absl::Span<const int64_t> a) { return a[2] == 0 || a[3] < 0 ? std::nullopt : Value(Clamp(a).start); }},
    {"slice_size", 4,
     [](absl::Span<const int64_t> a) { return a[2] == 0 || a[3] < 0 ? std::nullopt : Value(Clamp(a).count); }},
    {"range_size", 3, RangeSize},
    {"select", 3, [](absl::Span<const int64_t> a) { return Value(a[0] > 0    ? a[0]
                                                                 : a[0] == 0 ? a[1]
                                                                             : a[2]); }},
};

}  // namespace

class DimExpressionParser {
 public:
  explicit DimExpressionParser(absl::string_view text) : rest_(text) { result_.text_ = std::string(text); }

  absl::StatusOr<DimExpression> Parse() {
    if (rest_.size() > kMaxLength || !Sum(0) || !rest_.empty()) {
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
    if (depth > kMaxDepth) return false;
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
    const auto* const function =
        std::find_if(std::begin(kFunctions), std::end(kFunctions), [&](const Function& f) { return f.name == name; });
    if (function == std::end(kFunctions)) return false;
    for (size_t i = 0; i < function->arity; ++i) {
      if ((i > 0 && !Take(',')) || !Sum(depth)) return false;
    }
    result_.items_.push_back({.op = Op::kCall, .number = function - std::begin(kFunctions)});
    return Take(')');
  }

  absl::string_view rest_;
  DimExpression result_;
};

absl::StatusOr<DimExpression> DimExpression::Parse(absl::string_view text) { return DimExpressionParser(text).Parse(); }

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
      const Function& function = kFunctions[item.number];
      const std::vector<int64_t> arguments(stack.end() - static_cast<ptrdiff_t>(function.arity), stack.end());
      const Value value = function.call(arguments);
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
