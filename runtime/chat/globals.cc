// The functions that every template has: Jinja's, and the two that transformers adds.
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/chat/interpreter.h"
#include "runtime/text/utf8.h"

namespace llmc::jinja {
namespace {

constexpr int64_t kMostOfRange = 100000;       // as in Jinja's sandbox
constexpr size_t kMostOfTimeFormat = 1 << 12;  // bytes

Value Range(Interpreter& run, const Value&, Arguments& arguments) {
  Bound bound(run.budget(), arguments, "range", {"start", "stop", "step"}, 1);
  const bool one = !bound.has(1);
  const int64_t first = bound.Int(0, 0), second = bound.Int(1, 0), step = bound.Int(2, 1);
  if (step == 0) run.budget()->Fail("range() arg 3 must not be zero");
  auto range = std::make_shared<RangeObject>(run.budget(), one ? 0 : first, one ? first : second, step);
  if (range->count() > kMostOfRange) {
    run.budget()->Exhaust("numbers in a range", kMostOfRange);
  }
  return Value::OfObject(Kind::kRange, std::move(range));
}

// What dict() and namespace() are made of.
std::vector<DictObject::Entry> EntriesOf(Interpreter& run, const Arguments& arguments, absl::string_view function) {
  std::vector<DictObject::Entry> entries;
  if (arguments.positional.size() > 1) run.budget()->Fail(absl::StrCat(function, "() takes one argument without name"));
  for (const Value& from : arguments.positional) {
    ExpectDefined(run, from);
    if (from.is(Kind::kDict)) {
      entries = from.As<DictObject>()->entries;
      continue;
    }
    for (const Value& pair : ItemsOf(run, from)) {
      if (!IsIterable(pair) || LengthOf(pair) != 2) run.budget()->Fail(absl::StrCat(function, "() needs pairs"));
      std::vector<Value> items = ItemsOf(run, pair);
      entries.emplace_back(std::move(items[0]), std::move(items[1]));
    }
  }
  for (const auto& [name, value] : arguments.named) entries.emplace_back(run.Str(name), value);
  return entries;
}

Value Dict(Interpreter& run, const Value&, Arguments& arguments) {
  return DictObject::Make(run.budget(), EntriesOf(run, arguments, "dict"));
}

Value Namespace(Interpreter& run, const Value&, Arguments& arguments) {
  std::vector<std::pair<std::string, Value>> attributes;
  for (const auto& [name, value] : EntriesOf(run, arguments, "namespace")) {
    if (!name.is_string()) run.budget()->Fail("an attribute of a namespace has a name that is no string");
    attributes.emplace_back(std::string(name.bytes()), value);
  }
  return run.NewNamespace(attributes);
}

Value RaiseException(Interpreter& run, const Value&, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "raise_exception", {"message"}, 1);
  run.budget()->Fail(absl::StrCat("the template refuses the conversation: ", StrOf(run, bound[0]).bytes));
}

// Python's datetime.now().strftime(format): what the C library makes of a time that names no zone.
Value StrftimeNow(Interpreter& run, const Value&, Arguments& arguments) {
  const std::string format = Bound(run.budget(), arguments, "strftime_now", {"format"}, 1).String(0, "");
  if (format.size() > kMostOfTimeFormat) run.budget()->Exhaust("bytes of a format of time", kMostOfTimeFormat);
  const absl::Time now = run.now();
  std::tm time = absl::ToTM(now, run.zone());
  std::string adapted;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      adapted += format[i] == '%' ? "%%" : std::string(1, format[i]);
      continue;
    }
    const char what = format[++i];
    if (what == 'f') {
      absl::StrAppendFormat(&adapted, "%06d", absl::ToUnixMicros(now) % 1000000);
    } else if (what != 'z' && what != 'Z') {
      adapted += {'%', what};
    }
  }
  if (adapted.empty()) return run.Str("");
  adapted += '.';  // so that nothing made is no error
  std::string text(format.size() * 64 + 64, '\0');
  text.resize(std::strftime(text.data(), text.size(), adapted.c_str(), &time));
  if (text.empty()) run.budget()->Fail("strftime_now() cannot show the time in that format");
  text.pop_back();
  return run.Str(RepairUtf8(text));
}

// cycler(a, b, ...): its items in turn.
class CyclerObject : public Object, public std::enable_shared_from_this<CyclerObject> {
 public:
  CyclerObject(Budget* budget, std::vector<Value> items)
      : Object(budget, sizeof(CyclerObject) + items.size() * sizeof(Value), DepthOf(items)), items_(std::move(items)) {}
  absl::string_view TypeName() const override { return "Cycler"; }
  std::optional<Value> Attribute(Interpreter& run, absl::string_view name) override {
    if (name == "current") return items_[at_];
    if (name == "next") {
      return MakeFunction(run.budget(), name, [self = shared_from_this()](Interpreter&, const Value&, Arguments&) {
        const Value item = self->items_[self->at_];
        self->at_ = (self->at_ + 1) % self->items_.size();
        return item;
      });
    }
    if (name == "reset") {
      return MakeFunction(run.budget(), name, [self = shared_from_this()](Interpreter&, const Value&, Arguments&) {
        self->at_ = 0;
        return Value::None();
      });
    }
    return std::nullopt;
  }

 private:
  const std::vector<Value> items_;
  size_t at_ = 0;
};

Value Cycler(Interpreter& run, const Value&, Arguments& arguments) {
  if (arguments.positional.empty()) run.budget()->Fail("cycler() needs at least one item");
  return Value::OfObject(Kind::kObject, std::make_shared<CyclerObject>(run.budget(), std::move(arguments.positional)));
}

// joiner(text): empty at the first call, then the text.
class JoinerObject : public Object {
 public:
  JoinerObject(Budget* budget, Value separator)
      : Object(budget, sizeof(JoinerObject), separator.depth() + 1), separator_(std::move(separator)) {}
  absl::string_view TypeName() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value Call(Interpreter& run, Arguments&) override { return std::exchange(used_, true) ? separator_ : run.Str(""); }

 private:
  const Value separator_;
  bool used_ = false;
};

Value Joiner(Interpreter& run, const Value&, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "joiner", {"sep"});
  return Value::OfObject(Kind::kObject,
                         std::make_shared<JoinerObject>(run.budget(), bound.has(0) ? bound[0] : run.Str(", ")));
}

Value Lipsum(Interpreter& run, const Value&, Arguments&) {
  run.budget()->Refuse("lipsum() makes random text, which is not supported");
}

struct Global {
  absl::string_view name;
  FilterFunction function;
};
constexpr Global kGlobals[] = {{"cycler", Cycler},       {"dict", Dict},
                               {"joiner", Joiner},       {"lipsum", Lipsum},
                               {"namespace", Namespace}, {"raise_exception", RaiseException},
                               {"range", Range},         {"strftime_now", StrftimeNow}};

}  // namespace

absl::flat_hash_map<std::string, Value> Globals(Budget* budget) {
  absl::flat_hash_map<std::string, Value> globals;
  for (const Global& global : kGlobals) {
    globals.emplace(std::string(global.name), MakeFunction(budget, global.name, global.function));
  }
  return globals;
}

}  // namespace llmc::jinja
