// Filters of lists, dicts and what else has items.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/chat/attribute_path.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/text_operations.h"

namespace llmc::jinja {
namespace {

Value LengthFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "length", {});
  const int64_t length = LengthOf(value);
  if (length < 0) run.budget()->Fail(absl::StrCat("object of type '", TypeName(value), "' has no len()"));
  return Value::Int(length);
}

Value FirstFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "first", {});
  if (value.is(Kind::kGenerator)) {
    if (std::optional<Value> item = value.As<GeneratorObject>()->Next()) return *item;
  } else if (value.is_string()) {
    if (value.length() > 0) return CodePointsOf(run, value, 0, 1);
  } else {
    const std::vector<Value> items = ItemsOf(run, value);
    if (!items.empty()) return items[0];
  }
  return Value::Undefined(run.budget(), "No first item, sequence was empty.");
}

Value LastFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "last", {});
  if (value.is(Kind::kGenerator)) run.budget()->Fail("'generator' object is not reversible");
  const std::vector<Value> items = ItemsOf(run, value);
  return items.empty() ? Value::Undefined(run.budget(), "No last item, sequence was empty.") : items.back();
}

Value ListFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "list", {});
  return Value::List(run.budget(), ItemsOf(run, value));
}

Value ReverseFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "reverse", {});
  std::vector<Value> items = ItemsOf(run, value);
  std::reverse(items.begin(), items.end());
  if (!value.is_string())
    return Value::Generator(run.budget(), Value::Tuple(run.budget(), items), [items] { return items; });
  TextBuilder text(run.budget());
  for (const Value& item : items) text.Append(item.text());
  return run.Str(text.Build());
}

Value JoinFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "join", {"d", "attribute"});
  std::vector<Text> parts;
  for (Value& item : ItemsOf(run, value)) {
    if (bound.has(1) && !bound[1].is_none()) item = AttributePath(run, bound[1]).Of(run, item);
    parts.push_back(StrOf(run, item));
  }
  return run.Str(Join(run, parts, bound.has(0) ? StrOf(run, bound[0]) : Text()));
}

Value ItemsFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "items", {});
  return Value::Generator(run.budget(), value, [&run, value] {
    if (value.is_undefined()) return std::vector<Value>();
    if (!value.is(Kind::kDict)) run.budget()->Fail("Can only get item pairs from a mapping.");
    return ViewItems(run, ViewObject(run.budget(), value, ViewObject::kItems));
  });
}

// Sorts by the keys, of which there is one for each item.
std::vector<Value> SortedBy(Interpreter& run, const std::vector<Value>& items, const std::vector<Value>& keys,
                            bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return Compare(run, keys[reverse ? b : a], keys[reverse ? a : b], "<") < 0;
  });
  std::vector<Value> sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

// Of each item the values of the attributes that `attribute` names, with commas between them.
std::vector<Value> SortKeys(Interpreter& run, const std::vector<Value>& items, const Value& attribute,
                            bool case_sensitive) {
  std::vector<AttributePath> paths;
  if (attribute.is_string()) {
    for (const absl::string_view part : absl::StrSplit(attribute.bytes(), ',')) {
      paths.emplace_back(run, run.Str(part));
    }
  } else {
    paths.emplace_back(run, attribute);
  }
  std::vector<Value> keys;
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) key.push_back(CaseKey(run, path.Of(run, item), case_sensitive));
    keys.push_back(Value::List(run.budget(), std::move(key)));
  }
  return keys;
}

Value SortFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "sort", {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = ItemsOf(run, value);
  const std::vector<Value> keys = SortKeys(run, items, bound.Or(2, Value::None()), bound.Flag(1, false));
  return Value::List(run.budget(), SortedBy(run, items, keys, bound.Flag(0, false)));
}

Value DictSortFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "dictsort", {"case_sensitive", "by", "reverse"});
  const std::string by = bound.String(1, "key");
  if (by != "key" && by != "value") run.budget()->Fail("You can only sort by either \"key\" or \"value\"");
  ExpectDefined(run, value);
  if (!value.is(Kind::kDict)) run.budget()->Fail("dictsort needs a mapping");
  const std::vector<Value> items = ViewItems(run, ViewObject(run.budget(), value, ViewObject::kItems));
  std::vector<Value> keys;
  for (const Value& item : items) {
    keys.push_back(CaseKey(run, item.items()[by == "key" ? 0 : 1], bound.Flag(0, false)));
  }
  return Value::List(run.budget(), SortedBy(run, items, keys, bound.Flag(2, false)));
}

std::vector<Value> UniqueItems(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "unique", {"case_sensitive", "attribute"});
  const std::vector<Value> items = ItemsOf(run, value);
  const AttributePath path(run, bound.Or(1, Value::None()));
  std::vector<DictObject::Entry> seen;
  std::vector<Value> keys, unique;
  for (const Value& item : items) {
    keys.push_back(CaseKey(run, path.Of(run, item), bound.Flag(0, false)));
    seen.emplace_back(keys.back(), Value::Int(static_cast<int64_t>(seen.size())));
  }
  // Of equal keys a dict keeps the last value: here the number of the first item.
  std::reverse(seen.begin(), seen.end());
  const Value first = DictObject::Make(run.budget(), std::move(seen));
  for (size_t i = 0; i < items.size(); ++i) {
    if (first.As<DictObject>()->Find(keys[i])->as_int() == static_cast<int64_t>(i)) unique.push_back(items[i]);
  }
  return unique;
}

template <bool wants_max>
Value ExtremeFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, wants_max ? "max" : "min", {"case_sensitive", "attribute"});
  const AttributePath path(run, bound.Or(1, Value::None()));
  std::optional<Value> best, best_key;
  for (const Value& item : ItemsOf(run, value)) {
    const Value key = CaseKey(run, path.Of(run, item), bound.Flag(0, false));
    if (best_key.has_value()) {
      const bool better = wants_max ? Compare(run, key, *best_key, ">") > 0 : Compare(run, key, *best_key, "<") < 0;
      if (!better) continue;
    }
    best = item;
    best_key = key;
  }
  return best.has_value() ? *best : Value::Undefined(run.budget(), "No aggregated item, sequence was empty.");
}

Value SumFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "sum", {"attribute", "start"});
  const AttributePath path(run, bound.Or(0, Value::None()));
  Value sum = bound.Or(1, Value::Int(0));
  if (sum.is_string()) run.budget()->Fail("sum() can't sum strings");
  for (const Value& item : ItemsOf(run, value)) sum = Arithmetic(run, "+", sum, path.Of(run, item));
  return sum;
}

std::vector<Value> BatchItems(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "batch", {"linecount", "fill_with"}, 1);
  const int64_t count = bound.Int(0, 1);
  std::vector<Value> batches, batch;
  const auto close = [&] { batches.push_back(Value::List(run.budget(), std::exchange(batch, {}))); };
  for (const Value& item : ItemsOf(run, value)) {
    if (static_cast<int64_t>(batch.size()) == count) close();
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const bool fills = bound.has(1) && !bound[1].is_none();
    if (fills && count > static_cast<int64_t>(batch.size())) {
      run.budget()->CheckRoom(count * static_cast<int64_t>(sizeof(Value)));
      batch.resize(static_cast<size_t>(count), bound[1]);
    }
    close();
  }
  return batches;
}

std::vector<Value> SliceItems(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "slice", {"slices", "fill_with"}, 1);
  const int64_t slices = bound.Int(0, 1);
  if (slices < 1) run.budget()->Fail("slice needs at least one slice");
  const std::vector<Value> items = ItemsOf(run, value);
  const auto length = static_cast<int64_t>(items.size());
  const int64_t each = length / slices, longer = length % slices;
  std::vector<Value> result;
  auto at = items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    run.budget()->Step();
    const auto end = at + each + (i < longer ? 1 : 0);
    std::vector<Value> slice(at, end);
    at = end;
    if (bound.has(1) && !bound[1].is_none() && i >= longer) slice.push_back(bound[1]);
    result.push_back(Value::List(run.budget(), std::move(slice)));
  }
  return result;
}

// What groupby makes: a pair whose parts have names.
struct GroupObject : ListObject {
  using ListObject::ListObject;
  std::optional<Value> Attribute(Interpreter&, absl::string_view name) override {
    if (name == "grouper") return items[0];
    if (name == "list") return items[1];
    return std::nullopt;
  }
};

Value GroupByFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "groupby", {"attribute", "default", "case_sensitive"}, 1);
  const bool case_sensitive = bound.Flag(2, false);
  const AttributePath path(run, bound[0],
                           bound.has(1) && !bound[1].is_none() ? std::optional<Value>(bound[1]) : std::nullopt);
  const std::vector<Value> items = ItemsOf(run, value);
  std::vector<Value> keys;
  for (const Value& item : items) keys.push_back(CaseKey(run, path.Of(run, item), case_sensitive));
  std::vector<Value> groups, group;
  std::optional<Value> key;
  const auto close = [&] {
    if (group.empty()) return;
    const Value grouper = path.Of(run, group[0]);
    const Value list = Value::List(run.budget(), std::exchange(group, {}));
    groups.push_back(
        Value::OfObject(Kind::kTuple, std::make_shared<GroupObject>(run.budget(), std::vector<Value>{grouper, list})));
  };
  for (const Value& item : SortedBy(run, items, keys, false)) {
    Value next = CaseKey(run, path.Of(run, item), case_sensitive);
    if (key.has_value() && !Equals(run, *key, next)) close();
    key = std::move(next);
    group.push_back(item);
  }
  close();
  return Value::List(run.budget(), std::move(groups));
}

// A filter that does nothing until its items are read.
template <std::vector<Value> (*items)(Interpreter&, const Value&, const Arguments&)>
Value LazyFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  return Value::Generator(run.budget(), value, [&run, value, arguments] { return items(run, value, arguments); });
}

constexpr NamedFilter kSequenceFilters[] = {
    {"batch", LazyFilter<BatchItems>},
    {"count", LengthFilter},
    {"dictsort", DictSortFilter},
    {"first", FirstFilter},
    {"groupby", GroupByFilter},
    {"items", ItemsFilter},
    {"join", JoinFilter},
    {"last", LastFilter},
    {"length", LengthFilter},
    {"list", ListFilter},
    {"max", ExtremeFilter<true>},
    {"min", ExtremeFilter<false>},
    {"reverse", ReverseFilter},
    {"slice", LazyFilter<SliceItems>},
    {"sort", SortFilter},
    {"sum", SumFilter},
    {"unique", LazyFilter<UniqueItems>},
};

}  // namespace

absl::Span<const NamedFilter> SequenceFilters() { return kSequenceFilters; }

}  // namespace llmc::jinja
