// Methods and attributes of dicts, lists and numbers, and which names of Python are kept from templates.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"

namespace llmc::jinja {
namespace {

template <ViewObject::What what>
Value DictView(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "a view of a dict", {});
  return Value::OfObject(Kind::kView, std::make_shared<ViewObject>(run.budget(), self, what));
}

Value DictGet(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "get", {"key", "default"}, 1);
  const Value* found = self.As<DictObject>()->Find(bound[0]);
  return found != nullptr ? *found : bound.Or(1, Value::None());
}

Value Itself(Interpreter&, const Value& self, Arguments&) { return self; }

Value ListIndex(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "index", {"value"}, 1);
  for (size_t i = 0; i < self.items().size(); ++i) {
    if (Equals(run, self.items()[i], bound[0])) return Value::Int(static_cast<int64_t>(i));
  }
  run.budget()->Fail("list.index(x): x not in list");
}

Value ListCount(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "count", {"value"}, 1);
  return Value::Int(std::count_if(self.items().begin(), self.items().end(),
                                  [&](const Value& item) { return Equals(run, item, bound[0]); }));
}

Value FloatIsInteger(Interpreter&, const Value& self, Arguments&) {
  return Value::Bool(self.as_float() == static_cast<double>(static_cast<int64_t>(self.as_float())));
}

constexpr NamedFilter kDictMethods[] = {{"copy", Itself},
                                        {"get", DictGet},
                                        {"items", DictView<ViewObject::kItems>},
                                        {"keys", DictView<ViewObject::kKeys>},
                                        {"values", DictView<ViewObject::kValues>}};
constexpr NamedFilter kListMethods[] = {{"copy", Itself}, {"count", ListCount}, {"index", ListIndex}};
constexpr NamedFilter kTupleMethods[] = {{"count", ListCount}, {"index", ListIndex}};
constexpr NamedFilter kFloatMethods[] = {{"is_integer", FloatIsInteger}};

// What would change a value, which the sandbox of transformers hides.
constexpr absl::string_view kListChanges[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};
constexpr absl::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
// Python's names that are not here: using one must not look like a value that is undefined.
constexpr absl::string_view kOtherOfNumbers[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes",
    "fromhex",          "hex",       "imag",       "numerator", "real",        "to_bytes"};
constexpr absl::string_view kOtherOfStrings[] = {"casefold",    "encode",    "expandtabs", "format_map", "isidentifier",
                                                 "isprintable", "maketrans", "translate",  "isascii"};
constexpr absl::string_view kOtherOfDicts[] = {"fromkeys"};
constexpr absl::string_view kOtherOfRanges[] = {"start", "step", "stop"};
constexpr absl::string_view kOtherOfViews[] = {"mapping", "isdisjoint"};
constexpr absl::string_view kOtherOfGenerators[] = {"gi_code", "gi_frame", "throw", "send", "close"};

absl::Span<const NamedFilter> MethodsOf(Kind kind) {
  switch (kind) {
    case Kind::kDict:
      return kDictMethods;
    case Kind::kList:
      return kListMethods;
    case Kind::kTuple:
      return kTupleMethods;
    case Kind::kFloat:
      return kFloatMethods;
    case Kind::kString:
      return StringMethods();
    default:
      return {};
  }
}

bool IsAmong(absl::Span<const absl::string_view> names, absl::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::Span<const absl::string_view> OtherNamesOf(Kind kind) {
  switch (kind) {
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return kOtherOfNumbers;
    case Kind::kString:
      return kOtherOfStrings;
    case Kind::kDict:
      return kOtherOfDicts;
    case Kind::kRange:
      return kOtherOfRanges;
    case Kind::kView:
      return kOtherOfViews;
    case Kind::kGenerator:
      return kOtherOfGenerators;
    default:
      return {};
  }
}

}  // namespace

std::optional<Value> MethodOf(Interpreter& run, const Value& value, absl::string_view name) {
  for (const NamedFilter& method : MethodsOf(value.kind())) {
    if (method.name == name && value.is_markup()) {
      run.budget()->Refuse(absl::StrCat("the method ", name, "() of a text that is marked safe is not supported"));
    }
    if (method.name == name) return MakeMethod(run.budget(), name, value, method.function);
  }
  const bool changes =
      (value.is(Kind::kList) && IsAmong(kListChanges, name)) || (value.is(Kind::kDict) && IsAmong(kDictChanges, name));
  const bool is_internal = name.size() > 4 && absl::StartsWith(name, "__") && absl::EndsWith(name, "__");
  if (changes || (is_internal && !value.is(Kind::kDict))) {
    return Value::Undefined(
        run.budget(), absl::StrCat("access to attribute '", name, "' of '", TypeName(value), "' object is unsafe"));
  }
  if (IsAmong(OtherNamesOf(value.kind()), name)) {
    run.budget()->Refuse(absl::StrCat("the attribute '", name, "' of '", TypeName(value), "' is not supported"));
  }
  return std::nullopt;
}

}  // namespace llmc::jinja
