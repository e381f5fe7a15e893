// Python's two ways to put values into a text: "%s" % value and "{}".format(value).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/text_operations.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

constexpr int64_t kMostPrecision = 200;  // digits, or characters of a text

// How a value is to be shown: [[fill]align][sign][0][width][,][.precision][type], or what stands behind a percent sign.
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // < > ^ =
  char sign = '-';
  int64_t width = 0;
  bool groups = false;
  int64_t precision = -1;
  char type = 0;
};

// Reads digits; -1: there are none.
int64_t TakeNumber(Interpreter& run, absl::string_view text, size_t* at) {
  const size_t begin = *at;
  while (*at < text.size() && text[*at] >= '0' && text[*at] <= '9') ++*at;
  int64_t number = -1;
  if (*at > begin && !absl::SimpleAtoi(text.substr(begin, *at - begin), &number)) {
    run.budget()->Fail("a number in a format is too large");
  }
  return number;
}

std::string GroupDigits(std::string digits) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string FloatDigits(double value, char type, int64_t precision) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : "inf";
  char format[] = "%.*f";
  format[3] = type == '%' ? 'f' : type;
  std::string digits(512, '\0');
  const auto count = static_cast<int>(precision < 0 ? 6 : precision);
  digits.resize(static_cast<size_t>(
      std::max(0, std::snprintf(digits.data(), digits.size(), format, count, type == '%' ? value * 100 : value))));
  return type == '%' ? digits + "%" : digits;
}

std::string IntegerDigits(uint64_t magnitude, char type) {
  if (type == 'x') return absl::StrCat(absl::Hex(magnitude));
  if (type == 'X') return absl::AsciiStrToUpper(absl::StrCat(absl::Hex(magnitude)));
  const uint64_t base = type == 'o' ? 8 : type == 'b' ? 2 : 10;
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + magnitude % base));
    magnitude /= base;
  } while (magnitude > 0);
  return digits;
}

// The digits of a number's magnitude, and whether it is below 0.
std::string NumberDigits(Interpreter& run, const Value& value, const FormatSpec& spec, bool* negative) {
  const bool is_float_type = absl::StrContains("eEfFgG%", spec.type) && spec.type != 0;
  std::string digits;
  if (value.is_integer() && !is_float_type) {
    *negative = value.as_int() < 0;
    const auto bits = static_cast<uint64_t>(value.as_int());
    digits = IntegerDigits(*negative ? 0 - bits : bits, spec.type);
  } else {
    const double number = value.as_float();
    *negative = std::signbit(number);
    if (is_float_type) {
      digits = FloatDigits(std::abs(number), spec.type, spec.precision);
    } else {
      if (spec.precision >= 0) run.budget()->Refuse("a precision without 'f', 'e' or 'g' is not supported");
      digits = FloatText(std::abs(number));
    }
  }
  return spec.groups ? GroupDigits(std::move(digits)) : digits;
}

Text Padded(Interpreter& run, const Text& text, const FormatSpec& spec, char align) {
  return Pad(run, text, spec.width, spec.fill, align == '>' ? 2 : align == '^' ? 1 : 0);
}

Text NumberText(Interpreter& run, const Value& value, const FormatSpec& spec) {
  bool negative = false;
  const std::string digits = NumberDigits(run, value, spec, &negative);
  const std::string sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  TextBuilder text(run.budget());
  if (spec.align == '=') {
    text.Append(sign, value.is_data());
    TextBuilder body(run.budget());
    body.Append(digits, value.is_data());
    FormatSpec rest = spec;
    rest.width -= static_cast<int64_t>(sign.size());
    text.Append(Padded(run, body.Build(), rest, '>'));
    return text.Build();
  }
  text.Append(absl::StrCat(sign, digits), value.is_data());
  FormatSpec centered = spec;
  return Padded(run, text.Build(), centered, spec.align == 0 ? '>' : spec.align);
}

Text CutText(Interpreter& run, const Text& text, const FormatSpec& spec) {
  if (spec.precision < 0) return text;
  return PartOf(run, text, 0, OffsetOf(text.bytes, spec.precision));
}

FormatSpec ParseSpec(Interpreter& run, absl::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  const auto is_align = [&](size_t i) { return i < text.size() && absl::StrContains("<>^=", text[i]); };
  const size_t first = text.empty() ? 0 : CodePointAt(text, 0).second;
  if (!text.empty() && is_align(first)) {
    spec.fill = std::string(text.substr(0, first));
    spec.align = text[first];
    at = first + 1;
  } else if (is_align(0)) {
    spec.align = text[at++];
  }
  if (at < text.size() && absl::StrContains("+- ", text[at])) spec.sign = text[at++];
  if (at < text.size() && text[at] == '0') {
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    ++at;
  }
  spec.width = std::max<int64_t>(TakeNumber(run, text, &at), 0);
  if (at < text.size() && text[at] == ',') {
    spec.groups = true;
    ++at;
  }
  if (at < text.size() && text[at] == '.') {
    spec.precision = TakeNumber(run, text, &++at);
    if (spec.precision < 0) run.budget()->Fail("format specifier missing precision");
  }
  if (at < text.size() && absl::StrContains("bdeEfFgGosxX%", text[at])) spec.type = text[at++];
  if (at != text.size()) run.budget()->Refuse(absl::StrCat("the format '", text.substr(0, 50), "' is not supported"));
  if (spec.precision > kMostPrecision) run.budget()->Exhaust("digits of precision", kMostPrecision);
  return spec;
}

Text FormatOne(Interpreter& run, const Value& value, absl::string_view text) {
  if (text.empty()) return StrOf(run, value);
  const FormatSpec spec = ParseSpec(run, text);
  if (value.is_string() && (spec.type == 0 || spec.type == 's')) {
    if (spec.align == '=') run.budget()->Fail("'=' alignment not allowed in string format specifier");
    return Padded(run, CutText(run, value.text(), spec), spec, spec.align);
  }
  const bool is_integer_type = absl::StrContains("bdoxX", spec.type) && spec.type != 0;
  if (!value.is_number() || spec.type == 's' || (value.is(Kind::kFloat) && is_integer_type) ||
      (value.is_integer() && spec.precision >= 0 && (spec.type == 0 || is_integer_type)) ||
      (value.is(Kind::kBool) && spec.type == 0)) {
    run.budget()->Fail(
        absl::StrCat("the format '", text.substr(0, 50), "' is not for an object of type '", TypeName(value), "'"));
  }
  return NumberText(run, value, spec);
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter& run, const Text& format, const Arguments& arguments)
      : run_(run), format_(format), bytes_(format.bytes), arguments_(arguments), result_(run.budget()) {}

  Text Run() {
    while (at_ < bytes_.size()) {
      const size_t brace = std::min(bytes_.find_first_of("{}", at_), bytes_.size());
      result_.Append(format_, at_, brace);
      at_ = brace + 1;
      if (brace == bytes_.size()) break;
      if (at_ < bytes_.size() && bytes_[at_] == bytes_[brace]) {
        result_.Append(format_, at_, at_ + 1);
        ++at_;
      } else if (bytes_[brace] == '}') {
        run_.budget()->Fail("Single '}' encountered in format string");
      } else {
        Field();
      }
    }
    return result_.Build();
  }

 private:
  void Field() {
    const size_t end = bytes_.find('}', at_);
    if (end == absl::string_view::npos) run_.budget()->Fail("expected '}' before end of string");
    absl::string_view field = bytes_.substr(at_, end - at_), spec;
    at_ = end + 1;
    if (absl::StrContains(field, '{')) run_.budget()->Refuse("a format inside of a format is not supported");
    if (const size_t colon = field.find(':'); colon != absl::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = 's';
    bool converts = false;
    if (const size_t mark = field.find('!'); mark != absl::string_view::npos) {
      converts = true;
      conversion = mark + 2 == field.size() ? field[mark + 1] : 0;
      field = field.substr(0, mark);
    }
    if (conversion != 's' && conversion != 'r') run_.budget()->Fail("a format has a conversion that is not !s or !r");
    Value value = Get(field);
    if (converts) value = run_.Str(conversion == 'r' ? ReprOf(run_, value) : StrOf(run_, value));
    result_.Append(FormatOne(run_, value, spec));
  }

  // name.attribute[item] and so on.
  Value Get(absl::string_view field) {
    size_t at = std::min(field.find_first_of(".["), field.size());
    Value value = First(field.substr(0, at));
    while (at < field.size()) {
      const bool is_item = field[at] == '[';
      const size_t end = is_item ? field.find(']', at) : std::min(field.find_first_of(".[", at + 1), field.size());
      if (end == absl::string_view::npos || end == at + 1) run_.budget()->Fail("a field of a format has a wrong name");
      const absl::string_view name = field.substr(at + 1, end - at - 1);
      int64_t index = 0;
      if (!is_item) {
        value = run_.Attribute(value, name);
      } else {
        value = run_.Item(value, absl::SimpleAtoi(name, &index) ? Value::Int(index) : run_.Str(name));
      }
      at = end + (is_item ? 1 : 0);
    }
    return value;
  }

  Value First(absl::string_view name) {
    size_t digits = 0;
    int64_t index = TakeNumber(run_, name, &digits);
    if (!name.empty() && digits != name.size()) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      run_.budget()->Fail(absl::StrCat("format() has no argument '", name.substr(0, 100), "'"));
    }
    if ((name.empty() ? numbered_ : counted_)) {
      run_.budget()->Fail("a format has fields with numbers and fields without");
    }
    (name.empty() ? counted_ : numbered_) = true;
    if (name.empty()) index = next_++;
    if (index >= static_cast<int64_t>(arguments_.positional.size())) {
      run_.budget()->Fail("Replacement index out of range for positional arguments");
    }
    return arguments_.positional[static_cast<size_t>(index)];
  }

  Interpreter& run_;
  const Text& format_;
  const absl::string_view bytes_;
  const Arguments& arguments_;
  TextBuilder result_;
  size_t at_ = 0;
  int64_t next_ = 0;
  bool counted_ = false, numbered_ = false;
};

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& run, const Text& format, const Value& values)
      : run_(run), format_(format), bytes_(format.bytes), values_(values), result_(run.budget()) {
    if (values.is(Kind::kTuple)) {
      items_ = values.items();
    } else {
      items_ = {values};
    }
  }

  Text Run() {
    while (at_ < bytes_.size()) {
      const size_t percent = std::min(bytes_.find('%', at_), bytes_.size());
      result_.Append(format_, at_, percent);
      at_ = percent + 1;
      if (percent < bytes_.size()) Directive();
    }
    // Python takes for a mapping what has items, but no tuple or string.
    const bool is_mapping =
        values_.is_undefined() || (LengthOf(values_) >= 0 && !values_.is(Kind::kTuple) && !values_.is_string());
    if (next_ < items_.size() && !is_mapping) {
      run_.budget()->Fail("not all arguments converted during string formatting");
    }
    return result_.Build();
  }

 private:
  void Directive() {
    FormatSpec spec;
    std::optional<Value> named;
    if (at_ < bytes_.size() && bytes_[at_] == '(') {
      const size_t end = bytes_.find(')', at_);
      if (end == absl::string_view::npos) run_.budget()->Fail("incomplete format key");
      if (!values_.is(Kind::kDict)) run_.budget()->Fail("format requires a mapping");
      named = run_.Item(values_, run_.Str(bytes_.substr(at_ + 1, end - at_ - 1)));
      ExpectDefined(run_, *named);
      at_ = end + 1;
    }
    bool zeros = false;
    for (; at_ < bytes_.size() && absl::StrContains("0- +", bytes_[at_]); ++at_) {
      if (bytes_[at_] == '0') zeros = true;
      if (bytes_[at_] == '-') spec.align = '<';
      if (bytes_[at_] == '+' || (bytes_[at_] == ' ' && spec.sign != '+')) spec.sign = bytes_[at_];
    }
    spec.width = std::max<int64_t>(TakeNumber(run_, bytes_, &at_), 0);
    if (at_ < bytes_.size() && bytes_[at_] == '.') {
      spec.precision = std::max<int64_t>(TakeNumber(run_, bytes_, &++at_), 0);
      if (spec.precision > kMostPrecision) run_.budget()->Exhaust("digits of precision", kMostPrecision);
    }
    if (at_ >= bytes_.size()) run_.budget()->Fail("incomplete format");
    spec.type = bytes_[at_++];
    if (spec.type == '%') return result_.Append("%", false);
    if (!named.has_value()) {
      if (next_ >= items_.size()) run_.budget()->Fail("not enough arguments for format string");
      named = items_[next_++];
    }
    if (zeros && spec.align == 0 && spec.type != 's' && spec.type != 'r') {
      spec.fill = "0";
      spec.align = '=';
    }
    result_.Append(One(*named, spec));
  }

  Text One(const Value& value, FormatSpec spec) {
    const char align = spec.align == '<' ? '<' : '>';
    if (spec.type == 's' || spec.type == 'r') {
      const Text text = spec.type == 's' ? StrOf(run_, value) : ReprOf(run_, value);
      return Padded(run_, CutText(run_, text, spec), spec, align);
    }
    ExpectDefined(run_, value);
    if (!absl::StrContains("diuoxXeEfFgG", spec.type)) {
      run_.budget()->Refuse(absl::StrCat("the format '%", std::string(1, spec.type), "' is not supported"));
    }
    if (!value.is_number()) {
      run_.budget()->Fail(
          absl::StrCat("%", std::string(1, spec.type), " format: a real number is required, not ", TypeName(value)));
    }
    if (absl::StrContains("eEfFgG", spec.type)) return NumberText(run_, value, spec);
    if (spec.precision >= 0) run_.budget()->Refuse("a precision of an integer is not supported");
    Value whole = value;
    if (value.is(Kind::kFloat)) {
      if (!absl::StrContains("diu", spec.type)) run_.budget()->Fail("an integer is required, not float");
      if (!(std::abs(value.as_float()) < 9e18)) run_.budget()->Refuse("a number needs more than 64 bits");
      whole = Value::Int(static_cast<int64_t>(value.as_float())).WithData(value.is_data());
    }
    if (absl::StrContains("iu", spec.type)) spec.type = 'd';
    return NumberText(run_, whole, spec);
  }

  Interpreter& run_;
  const Text& format_;
  const absl::string_view bytes_;
  const Value& values_;
  std::vector<Value> items_;
  TextBuilder result_;
  size_t at_ = 0, next_ = 0;
};

}  // namespace

Text BraceFormat(Interpreter& run, const Text& format, const Arguments& arguments) {
  return BraceFormatter(run, format, arguments).Run();
}

Text PercentFormat(Interpreter& run, const Text& format, const Value& values) {
  return PercentFormatter(run, format, values).Run();
}

}  // namespace llmc::jinja
