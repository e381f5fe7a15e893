#include "runtime/chat/operators.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

int Sign(double difference) { return difference < 0 ? -1 : difference > 0 ? 1 : 0; }

int CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  return Sign(static_cast<double>(static_cast<long double>(a.is_integer() ? a.as_int() : a.as_float()) -
                                  (b.is_integer() ? b.as_int() : b.as_float())));
}

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.as_int() == b.as_int();
  return !std::isnan(a.as_float()) && !std::isnan(b.as_float()) && CompareNumbers(a, b) == 0;
}

bool EqualDicts(Interpreter& run, const DictObject& a, const DictObject& b, int depth) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.Find(key);
    if (other == nullptr || !Equals(run, value, *other, depth)) return false;
  }
  return true;
}

std::string QuotedText(absl::string_view text) {
  const char quote = absl::StrContains(text, '\'') && !absl::StrContains(text, '"') ? '"' : '\'';
  std::string result(1, quote);
  for (size_t i = 0; i < text.size();) {
    const auto [c, bytes] = CodePointAt(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      absl::StrAppend(&result, "\\", text.substr(i, 1));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      absl::StrAppend(&result, text.substr(i, bytes));
    } else if (c < 0x100) {
      absl::StrAppendFormat(&result, "\\x%02x", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&result, "\\u%04x", static_cast<uint32_t>(c));
    } else {
      absl::StrAppendFormat(&result, "\\U%08x", static_cast<uint32_t>(c));
    }
    i += bytes;
  }
  return result + quote;
}

void AppendItems(Interpreter& run, const std::vector<Value>& items, absl::string_view open, absl::string_view close,
                 int depth, TextBuilder* text) {
  text->Append(open, false);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) text->Append(", ", false);
    text->Append(ReprOf(run, items[i], depth + 1));
  }
  text->Append(close, false);
}

void AppendDict(Interpreter& run, const DictObject& dict, int depth, TextBuilder* text) {
  text->Append("{", false);
  for (size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) text->Append(", ", false);
    text->Append(ReprOf(run, dict.entries[i].first, depth + 1));
    text->Append(": ", false);
    text->Append(ReprOf(run, dict.entries[i].second, depth + 1));
  }
  text->Append("}", false);
}

std::string RangeText(const RangeObject& range) {
  return range.step == 1 ? absl::StrCat("range(", range.start, ", ", range.stop, ")")
                         : absl::StrCat("range(", range.start, ", ", range.stop, ", ", range.step, ")");
}

}  // namespace

void ExpectDefined(Interpreter& run, const Value& value) {
  if (value.is_undefined()) run.budget()->Fail(value.undefined_reason());
}

bool IsTrue(Interpreter&, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.as_int() != 0;
    case Kind::kFloat:
      return value.as_float() != 0;
    default:
      return LengthOf(value) != 0;
  }
}

bool Equals(Interpreter& run, const Value& a, const Value& b, int depth) {
  run.budget()->Step();
  run.budget()->CheckDepth(depth);
  if (a.is_number() && b.is_number()) return EqualNumbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      run.budget()->StepBytes(std::min(a.bytes().size(), b.bytes().size()));
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        [&](const Value& x, const Value& y) { return Equals(run, x, y, depth + 1); });
    case Kind::kDict:
      return EqualDicts(run, *a.As<DictObject>(), *b.As<DictObject>(), depth + 1);
    case Kind::kRange: {
      const RangeObject &x = *a.As<RangeObject>(), &y = *b.As<RangeObject>();
      if (x.count() != y.count() || x.count() == 0) return x.count() == y.count();
      return x.start == y.start && (x.count() == 1 || x.step == y.step);
    }
    default:
      return a.object() == b.object();
  }
}

int Compare(Interpreter& run, const Value& a, const Value& b, absl::string_view op, int depth) {
  run.budget()->Step();
  run.budget()->CheckDepth(depth);
  ExpectDefined(run, a);
  ExpectDefined(run, b);
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b);
  if (a.is_string() && b.is_string()) {
    run.budget()->StepBytes(std::min(a.bytes().size(), b.bytes().size()));
    return a.bytes().compare(b.bytes());
  }
  if (a.kind() == b.kind() && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      if (!Equals(run, a.items()[i], b.items()[i])) return Compare(run, a.items()[i], b.items()[i], op, depth + 1);
    }
    return a.items().size() < b.items().size() ? -1 : a.items().size() > b.items().size() ? 1 : 0;
  }
  run.budget()->Fail(
      absl::StrCat("'", op, "' not supported between instances of '", TypeName(a), "' and '", TypeName(b), "'"));
}

bool Contains(Interpreter& run, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string()) {
        ExpectDefined(run, item);
        run.budget()->Fail(absl::StrCat("'in <string>' requires string as left operand, not ", TypeName(item)));
      }
      run.budget()->StepBytes(container.bytes().size() + item.bytes().size());
      return absl::StrContains(container.bytes(), item.bytes());
    case Kind::kDict:
      if (item.is(Kind::kList) || item.is(Kind::kDict)) {
        run.budget()->Fail(absl::StrCat("unhashable type: '", TypeName(item), "'"));
      }
      return container.As<DictObject>()->Find(item) != nullptr;
    default: {
      if (!IsIterable(container)) {
        run.budget()->Fail(absl::StrCat("argument of type '", TypeName(container), "' is not iterable"));
      }
      const std::vector<Value> items = ItemsOf(run, container);
      return std::any_of(items.begin(), items.end(), [&](const Value& other) { return Equals(run, other, item); });
    }
  }
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char shortest[32];
  const auto end = std::to_chars(shortest, shortest + sizeof shortest, value, std::chars_format::scientific).ptr;
  const absl::string_view text(shortest, static_cast<size_t>(end - shortest));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);
  char fixed[64];
  const auto fixed_end = std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed).ptr;
  std::string result(fixed, static_cast<size_t>(fixed_end - fixed));
  if (!absl::StrContains(result, '.')) result += ".0";
  return result;
}

Text StrOf(Interpreter& run, const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) return Text();
  return ReprOf(run, value);
}

Text ReprOf(Interpreter& run, const Value& value, int depth) {
  run.budget()->Step();
  run.budget()->CheckDepth(depth);
  TextBuilder text(run.budget());
  switch (value.kind()) {
    case Kind::kUndefined:
      text.Append("Undefined", false);
      break;
    case Kind::kNone:
      text.Append("None", false);
      break;
    case Kind::kBool:
      text.Append(value.as_bool() ? "True" : "False", value.is_data());
      break;
    case Kind::kInt:
      text.Append(absl::StrCat(value.as_int()), value.is_data());
      break;
    case Kind::kFloat:
      text.Append(FloatText(value.as_float()), value.is_data());
      break;
    case Kind::kString:
      if (value.is_markup()) text.Append("Markup(", false);
      text.Append(QuotedText(value.bytes()), value.text().is_data());
      if (value.is_markup()) text.Append(")", false);
      break;
    case Kind::kList:
      AppendItems(run, value.items(), "[", "]", depth, &text);
      break;
    case Kind::kTuple:
      AppendItems(run, value.items(), "(", value.items().size() == 1 ? ",)" : ")", depth, &text);
      break;
    case Kind::kDict:
      AppendDict(run, *value.As<DictObject>(), depth, &text);
      break;
    case Kind::kRange:
      text.Append(RangeText(*value.As<RangeObject>()), false);
      break;
    case Kind::kView:
      text.Append(TypeName(value), false);
      AppendItems(run, ViewItems(run, *value.As<ViewObject>()), "([", "])", depth, &text);
      break;
    case Kind::kGenerator:
    case Kind::kObject: {
      const std::optional<Text> repr = value.is(Kind::kObject) ? value.object()->Repr(run, depth) : std::nullopt;
      if (!repr.has_value()) {
        run.budget()->Refuse(absl::StrCat("the text of a '", TypeName(value),
                                          "' holds its address in memory, which no two programs print alike"));
      }
      text.Append(*repr);
      break;
    }
  }
  return text.Build();
}

int64_t LengthOf(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return value.length();
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.As<DictObject>()->entries.size());
    case Kind::kView:
      return LengthOf(value.As<ViewObject>()->dict);
    case Kind::kRange:
      return value.As<RangeObject>()->count();
    default:
      return -1;
  }
}

bool IsIterable(const Value& value) { return LengthOf(value) >= 0 || value.is(Kind::kGenerator); }

std::vector<Value> ViewItems(Interpreter& run, const ViewObject& view) {
  std::vector<Value> items;
  for (const auto& [key, value] : view.dict.As<DictObject>()->entries) {
    run.budget()->Step();
    if (view.what == ViewObject::kItems) {
      items.push_back(Value::Tuple(run.budget(), {key, value}));
    } else {
      items.push_back(view.what == ViewObject::kKeys ? key : value);
    }
  }
  return items;
}

std::vector<Value> ItemsOf(Interpreter& run, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kString: {
      const absl::string_view bytes = value.bytes();
      for (size_t i = 0; i < bytes.size();) {
        TextBuilder character(run.budget());
        const size_t end = i + CodePointAt(bytes, i).second;
        character.Append(value.text(), i, end);
        items.push_back(Value::String(run.budget(), character.Build()));
        i = end;
      }
      break;
    }
    case Kind::kList:
    case Kind::kTuple:
      items = value.items();
      break;
    case Kind::kDict:
      for (const auto& entry : value.As<DictObject>()->entries) items.push_back(entry.first);
      break;
    case Kind::kRange: {
      const RangeObject& range = *value.As<RangeObject>();
      for (int64_t i = 0; i < range.count(); ++i) items.push_back(Value::Int(range.start + i * range.step));
      break;
    }
    case Kind::kView:
      return ViewItems(run, *value.As<ViewObject>());
    case Kind::kGenerator:
      items = value.As<GeneratorObject>()->TakeRest();
      break;
    default:
      run.budget()->Fail(absl::StrCat("'", TypeName(value), "' object is not iterable"));
  }
  run.budget()->Step(static_cast<int64_t>(items.size()));
  return items;
}

Value CodePointsOf(Interpreter& run, const Value& string, int64_t begin, int64_t end) {
  const absl::string_view bytes = string.bytes();
  run.budget()->StepBytes(bytes.size());
  const bool is_ascii = static_cast<int64_t>(bytes.size()) == string.length();
  const size_t from = is_ascii ? static_cast<size_t>(begin) : OffsetOf(bytes, begin);
  const size_t to = is_ascii ? static_cast<size_t>(end) : from + OffsetOf(bytes.substr(from), end - begin);
  TextBuilder text(run.budget());
  text.Append(string.text(), from, to);
  return Value::String(run.budget(), text.Build());
}

Value Slice(Interpreter& run, const Value& value, const Value* start, const Value* stop, const Value* step) {
  const auto number = [&run](const Value* part, int64_t otherwise) {
    if (part == nullptr || part->is_none()) return otherwise;
    if (!part->is_integer()) {
      ExpectDefined(run, *part);
      run.budget()->Fail("slice indices must be integers or None");
    }
    return part->as_int();
  };
  const int64_t by = number(step, 1), length = LengthOf(value);
  if (by == 0) run.budget()->Fail("slice step cannot be zero");
  const auto bound = [&](const Value* part, int64_t otherwise) {
    if (part == nullptr || part->is_none()) return otherwise;
    int64_t at = number(part, 0);
    if (at < 0) at = std::max<int64_t>(at + length, by < 0 ? -1 : 0);
    return std::min(at, by < 0 ? length - 1 : length);
  };
  const int64_t first = bound(start, by < 0 ? length - 1 : 0), last = bound(stop, by < 0 ? -1 : length);
  if (value.is_string() && by == 1) {
    return CodePointsOf(run, value, first, std::max(first, last)).WithMarkup(value.is_markup());
  }
  const std::vector<Value> items = ItemsOf(run, value);
  std::vector<Value> taken;
  for (int64_t i = first; by > 0 ? i < last : i > last;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (value.is(Kind::kList)) return Value::List(run.budget(), std::move(taken));
  if (value.is(Kind::kTuple)) return Value::Tuple(run.budget(), std::move(taken));
  if (value.is(Kind::kRange)) run.budget()->Refuse("a slice of a range is not supported; make it a list first");
  TextBuilder text(run.budget());
  for (const Value& item : taken) text.Append(item.text());
  return Value::String(run.budget(), text.Build()).WithMarkup(value.is_markup());
}

}  // namespace llmc::jinja
