// Python's arithmetic, on integers of 64 bits and floats, and what + and * do to strings and lists.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/operators.h"
#include "runtime/chat/text_operations.h"

namespace llmc::jinja {
namespace {

[[noreturn]] void Overflow(Interpreter& run) {
  run.budget()->Refuse("an integer needs more than 64 bits, which is not supported");
}

int64_t FloorDivide(Interpreter& run, int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) Overflow(run);
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

int64_t FloorModulo(int64_t a, int64_t b) {
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value IntegerPower(Interpreter& run, int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) run.budget()->Fail("0.0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1, square = base;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, square, &result)) Overflow(run);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(square, square, &square)) Overflow(run);
  }
  return Value::Int(result);
}

Value Integers(Interpreter& run, absl::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    return IntegerPower(run, a, b);
  } else {
    if (b == 0) run.budget()->Fail(op == "/" ? "division by zero" : "integer division or modulo by zero");
    if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    result = op == "//" ? FloorDivide(run, a, b) : FloorModulo(a, b);
  }
  if (overflow) Overflow(run);
  return Value::Int(result);
}

Value Floats(Interpreter& run, absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") {
    if (a == 0 && b < 0) run.budget()->Fail("0.0 cannot be raised to a negative power");
    if (a < 0 && b != std::floor(b)) run.budget()->Refuse("a complex number is not supported");
    const double power = std::pow(a, b);
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) run.budget()->Fail("a power is too large");
    return Value::Float(power);
  }
  if (b == 0) {
    run.budget()->Fail(op == "/"   ? "float division by zero"
                       : op == "%" ? "float modulo"
                                   : "float floor division by zero");
  }
  if (op == "/") return Value::Float(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == "%") return Value::Float(rest == 0 ? std::copysign(0.0, b) : rest);
  const double quotient = (a - rest) / b;
  double floor = std::floor(quotient);
  if (quotient - floor > 0.5) floor += 1;
  return Value::Float(quotient == 0 ? std::copysign(0.0, a / b) : floor);
}

Value Repeat(Interpreter& run, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (value.is_string()) {
    run.budget()->CheckRoom(static_cast<int64_t>(
        std::min<__int128>(static_cast<__int128>(value.bytes().size()) * times, int64_t{1} << 62)));
    TextBuilder text(run.budget());
    if (!value.bytes().empty()) {
      for (int64_t i = 0; i < times; ++i) text.Append(value.text());
    }
    return Value::String(run.budget(), text.Build());
  }
  const __int128 count = static_cast<__int128>(value.items().size()) * times;
  run.budget()->CheckRoom(static_cast<int64_t>(std::min<__int128>(count * sizeof(Value), int64_t{1} << 62)));
  run.budget()->Step(static_cast<int64_t>(count));
  std::vector<Value> items;
  if (!value.items().empty()) {
    items.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < times; ++i) items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.is(Kind::kList) ? Value::List(run.budget(), std::move(items))
                               : Value::Tuple(run.budget(), std::move(items));
}

bool IsSequenceToRepeat(const Value& value) {
  return value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple);
}

}  // namespace

Value Arithmetic(Interpreter& run, absl::string_view op, const Value& a, const Value& b) {
  if (a.is_markup() != b.is_markup() && a.is_string() && b.is_string() && op == "+") {
    const auto escaped = [&run](const Value& part) {
      return part.is_markup() ? part : run.Str(EscapeHtml(run, part.text())).WithMarkup(true);
    };
    return Arithmetic(run, op, escaped(a), escaped(b));
  }
  if (a.is_markup() && op == "%") run.budget()->Refuse("% of a text that is marked safe is not supported");
  if (a.is_string() && op == "%") return Value::String(run.budget(), PercentFormat(run, a.text(), b));
  ExpectDefined(run, a);
  ExpectDefined(run, b);
  if (a.is_number() && b.is_number()) {
    const bool integers = a.is_integer() && b.is_integer();
    return (integers ? Integers(run, op, a.as_int(), b.as_int()) : Floats(run, op, a.as_float(), b.as_float()))
        .WithData(a.is_data() || b.is_data());
  }
  if (op == "+" && a.kind() == b.kind() && IsSequenceToRepeat(a)) {
    if (a.is_string()) {
      TextBuilder text(run.budget());
      text.Append(a.text());
      text.Append(b.text());
      return Value::String(run.budget(), text.Build()).WithMarkup(a.is_markup());
    }
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    run.budget()->Step(static_cast<int64_t>(items.size()));
    return a.is(Kind::kList) ? Value::List(run.budget(), std::move(items))
                             : Value::Tuple(run.budget(), std::move(items));
  }
  if (op == "*" && IsSequenceToRepeat(a) && b.is_integer()) return Repeat(run, a, b.as_int()).WithMarkup(a.is_markup());
  if (op == "*" && IsSequenceToRepeat(b) && a.is_integer()) return Repeat(run, b, a.as_int()).WithMarkup(b.is_markup());
  if (op == "+" && a.is_string()) {
    run.budget()->Fail(absl::StrCat("can only concatenate str (not \"", TypeName(b), "\") to str"));
  }
  run.budget()->Fail(
      absl::StrCat("unsupported operand types for ", op, ": '", TypeName(a), "' and '", TypeName(b), "'"));
}

Value Negate(Interpreter& run, const Value& value) {
  ExpectDefined(run, value);
  if (value.is_integer()) {
    if (value.as_int() == INT64_MIN) Overflow(run);
    return Value::Int(-value.as_int()).WithData(value.is_data());
  }
  if (value.is(Kind::kFloat)) return Value::Float(-value.as_float()).WithData(value.is_data());
  run.budget()->Fail(absl::StrCat("bad operand type for unary -: '", TypeName(value), "'"));
}

}  // namespace llmc::jinja
