// Filters that make numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

Value AbsFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "abs", {});
  ExpectDefined(run, value);
  if (!value.is_number()) run.budget()->Fail(absl::StrCat("bad operand type for abs(): '", TypeName(value), "'"));
  if (value.is(Kind::kFloat)) return Value::Float(std::abs(value.as_float())).WithData(value.is_data());
  return value.as_int() < 0 ? Negate(run, value) : Value::Int(value.as_int()).WithData(value.is_data());
}

// The number without white space around and single underscores inside; nullopt: they stand elsewhere.
std::optional<std::string> Digits(absl::string_view text) {
  const auto [begin, end] = StripSpace(text, true, true);
  std::string digits;
  for (size_t i = begin; i < end; ++i) {
    if (text[i] != '_') {
      digits += text[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at >= begin && at < end && absl::ascii_isalnum(static_cast<unsigned char>(text[at]));
    };
    if (i == begin || !is_digit(i - 1) || !is_digit(i + 1)) return std::nullopt;
  }
  return digits;
}

// int(text, base); nullopt: it is none.
std::optional<int64_t> ParseInteger(Interpreter& run, absl::string_view text, int base) {
  const std::optional<std::string> digits = Digits(text);
  if (!digits.has_value() || digits->empty()) return std::nullopt;
  absl::string_view rest = *digits;
  const bool negative = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.remove_prefix(1);
  const std::string prefix = absl::AsciiStrToLower(rest.substr(0, 2));
  if ((base == 16 && prefix == "0x") || (base == 8 && prefix == "0o") || (base == 2 && prefix == "0b")) {
    rest.remove_prefix(2);
  }
  if (rest.empty() || rest[0] == '-' || rest[0] == '+') return std::nullopt;
  const std::string number = absl::StrCat(negative ? "-" : "", rest);
  int64_t value = 0;
  const auto parsed = std::from_chars(number.data(), number.data() + number.size(), value, base);
  if (parsed.ptr != number.data() + number.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {
    run.budget()->Refuse("an integer needs more than 64 bits, which is not supported");
  }
  return value;
}

std::optional<double> ParseFloat(absl::string_view text) {
  const std::optional<std::string> digits = Digits(text);
  double value = 0;
  if (!digits.has_value() || digits->find_first_of("xX") != std::string::npos || !absl::SimpleAtod(*digits, &value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> WholeOf(Interpreter& run, double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (!(std::abs(value) < 9.2e18)) run.budget()->Refuse("an integer needs more than 64 bits, which is not supported");
  return static_cast<int64_t>(value);
}

Value IntFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "int", {"default", "base"});
  const int64_t base = bound.Int(1, 10);
  ExpectDefined(run, value);
  std::optional<int64_t> number;
  if (value.is_integer()) {
    number = value.as_int();
  } else if (value.is(Kind::kFloat)) {
    if (std::isinf(value.as_float())) run.budget()->Fail("cannot convert float infinity to integer");
    number = WholeOf(run, value.as_float());
  } else if (value.is_string()) {
    if (base < 2 || base > 36) run.budget()->Refuse("a base of int that is not from 2 to 36 is not supported");
    number = ParseInteger(run, value.bytes(), static_cast<int>(base));
    if (!number.has_value()) {
      if (const std::optional<double> real = ParseFloat(value.bytes()); real.has_value()) {
        if (std::isinf(*real)) run.budget()->Fail("cannot convert float infinity to integer");
        number = WholeOf(run, *real);
      }
    }
  }
  if (!number.has_value()) return bound.Or(0, Value::Int(0));
  return Value::Int(*number).WithData(value.is_data() || (value.is_string() && value.text().is_data()));
}

Value FloatFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "float", {"default"});
  ExpectDefined(run, value);
  std::optional<double> number;
  if (value.is_number()) number = value.as_float();
  if (value.is_string()) number = ParseFloat(value.bytes());
  if (!number.has_value()) return bound.Or(0, Value::Float(0));
  return Value::Float(*number).WithData(value.is_data() || (value.is_string() && value.text().is_data()));
}

// Python's round(), which rounds the exact number; halves go to the even neighbour.
double RoundExactly(double value, int64_t places) {
  if (!std::isfinite(value) || places > 300) return value;
  if (places < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-places));
    return std::isinf(unit) ? std::copysign(0.0, value) : std::nearbyint(value / unit) * unit;
  }
  char text[700];
  std::snprintf(text, sizeof text, "%.*f", static_cast<int>(places), value);
  return std::strtod(text, nullptr);
}

Value RoundFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "round", {"precision", "method"});
  const int64_t places = bound.Int(0, 0);
  const std::string method = bound.String(1, "common");
  ExpectDefined(run, value);
  if (!value.is_number()) run.budget()->Fail(absl::StrCat("type ", TypeName(value), " cannot be rounded"));
  if (method == "common") {
    if (value.is(Kind::kFloat)) return Value::Float(RoundExactly(value.as_float(), places)).WithData(value.is_data());
    if (places < 0) run.budget()->Refuse("rounding an integer to tens is not supported");
    return Value::Int(value.as_int()).WithData(value.is_data());
  }
  if (method != "ceil" && method != "floor") run.budget()->Fail("method must be common, ceil or floor");
  const double unit = std::pow(10.0, static_cast<double>(places)), scaled = value.as_float() * unit;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit).WithData(value.is_data());
}

constexpr NamedFilter kNumberFilters[] = {
    {"abs", AbsFilter}, {"float", FloatFilter}, {"int", IntFilter}, {"round", RoundFilter}};

}  // namespace

absl::Span<const NamedFilter> NumberFilters() { return kNumberFilters; }

}  // namespace llmc::jinja
