// Filters that call other filters and tests on items, and those that look at attributes.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/chat/attribute_path.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {

AttributePath::AttributePath(Interpreter& run, const Value& attribute, std::optional<Value> otherwise)
    : otherwise_(std::move(otherwise)) {
  if (attribute.is_none()) return;
  if (!attribute.is_string()) {
    parts_.push_back(attribute);
    return;
  }
  for (const absl::string_view part : absl::StrSplit(attribute.bytes(), '.')) {
    int64_t index = 0;
    const bool is_index = !part.empty() && part.find_first_not_of("0123456789") == absl::string_view::npos &&
                          absl::SimpleAtoi(part, &index);
    parts_.push_back(is_index ? Value::Int(index) : run.Str(part));
  }
}

Value AttributePath::Of(Interpreter& run, const Value& value) const {
  Value result = value;
  for (const Value& part : parts_) {
    result = run.Item(result, part);
    if (result.is_undefined() && otherwise_.has_value()) result = *otherwise_;
  }
  return result;
}

Value CaseKey(Interpreter& run, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  run.budget()->StepBytes(value.bytes().size());
  return run.Str(Lower(value.bytes()), value.text().is_data());
}

namespace {

// Takes the first of the arguments that have no name.
Value TakeFirst(Interpreter& run, Arguments* arguments, absl::string_view filter) {
  if (arguments->positional.empty()) run.budget()->Fail(absl::StrCat(filter, " needs an argument"));
  Value first = std::move(arguments->positional[0]);
  arguments->positional.erase(arguments->positional.begin());
  return first;
}

std::string TakeFirstName(Interpreter& run, Arguments* arguments, absl::string_view filter) {
  const Value first = TakeFirst(run, arguments, filter);
  if (!first.is_string()) run.budget()->Fail(absl::StrCat(filter, " needs the name of a filter or test"));
  return std::string(first.bytes());
}

// Jinja maps and selects nothing of what is false, be it a number.
std::vector<Value> ItemsIfAny(Interpreter& run, const Value& value) {
  return IsTrue(run, value) ? ItemsOf(run, value) : std::vector<Value>();
}

Value MapFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  if (arguments.positional.empty() && !arguments.named.empty()) {
    const Bound bound(run.budget(), arguments, "map", {"attribute", "default"}, 1);
    const AttributePath path(run, bound[0],
                             bound.has(1) && !bound[1].is_none() ? std::optional<Value>(bound[1]) : std::nullopt);
    return Value::Generator(run.budget(), value, [&run, value, path] {
      std::vector<Value> mapped;
      for (const Value& item : ItemsIfAny(run, value)) mapped.push_back(path.Of(run, item));
      return mapped;
    });
  }
  const std::string name = TakeFirstName(run, &arguments, "map");
  return Value::Generator(run.budget(), value, [&run, value, name, arguments] {
    std::vector<Value> mapped;
    for (const Value& item : ItemsIfAny(run, value)) {
      Arguments rest = arguments;
      mapped.push_back(run.Filter(name, item, rest));
    }
    return mapped;
  });
}

template <bool keeps, bool by_attribute>
Value SelectFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const AttributePath path(run, by_attribute ? TakeFirst(run, &arguments, "selectattr") : Value::None());
  const bool has_test = !arguments.positional.empty();
  const std::string test = has_test ? TakeFirstName(run, &arguments, "select") : "";
  return Value::Generator(run.budget(), value, [&run, value, path, has_test, test, arguments] {
    std::vector<Value> selected;
    for (const Value& item : ItemsIfAny(run, value)) {
      const Value tested = path.Of(run, item);
      Arguments rest = arguments;
      if ((has_test ? run.Test(test, tested, rest) : IsTrue(run, tested)) == keeps) selected.push_back(item);
    }
    return selected;
  });
}

Value DefaultFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "default", {"default_value", "boolean"});
  const bool replaces = value.is_undefined() || (bound.Flag(1, false) && !IsTrue(run, value));
  return replaces ? bound.Or(0, run.Str("")) : value;
}

// Only attributes, no items.
Value AttrFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "attr", {"name"}, 1);
  ExpectDefined(run, value);
  const std::string name = bound.String(0, "");
  const Value attribute = run.Attribute(value, name);
  const bool is_item = value.is(Kind::kDict) && value.As<DictObject>()->Find(name) != nullptr;
  if (!is_item || attribute.is(Kind::kObject)) return attribute;
  return Value::Undefined(run.budget(), absl::StrCat("'dict object' has no attribute '", name, "'"));
}

constexpr NamedFilter kSelectionFilters[] = {
    {"attr", AttrFilter},
    {"d", DefaultFilter},
    {"default", DefaultFilter},
    {"map", MapFilter},
    {"reject", SelectFilter<false, false>},
    {"rejectattr", SelectFilter<false, true>},
    {"select", SelectFilter<true, false>},
    {"selectattr", SelectFilter<true, true>},
};

}  // namespace

absl::Span<const NamedFilter> SelectionFilters() { return kSelectionFilters; }

}  // namespace llmc::jinja
