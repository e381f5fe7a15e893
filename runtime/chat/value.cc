#include "runtime/chat/value.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "runtime/chat/operators.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

// Equal keys have equal texts, and only those. Empty: Python cannot hash the value.
std::string HashKey(const Value& key) {
  switch (key.kind()) {
    case Kind::kNone:
      return "n";
    case Kind::kBool:
    case Kind::kInt:
      return absl::StrCat("i", key.as_int());
    case Kind::kFloat: {
      const double number = key.as_float();
      if (number == std::floor(number) && std::abs(number) < 9e18)
        return absl::StrCat("i", static_cast<int64_t>(number));
      return absl::StrCat("f", absl::string_view(reinterpret_cast<const char*>(&number), sizeof number));
    }
    case Kind::kString:
      return absl::StrCat("s", key.bytes());
    case Kind::kTuple: {
      std::string all = absl::StrCat("t", key.items().size(), ":");
      for (const Value& item : key.items()) {
        const std::string part = HashKey(item);
        if (part.empty()) return "";
        absl::StrAppend(&all, part.size(), ":", part);
      }
      return all;
    }
    case Kind::kUndefined:
      return "u";
    case Kind::kObject:
      return absl::StrCat("o", reinterpret_cast<uintptr_t>(key.object()));
    default:
      return "";
  }
}

}  // namespace

Object::Object(Budget* budget, size_t bytes, int depth)
    : budget_(budget), bytes_(static_cast<int64_t>(bytes) + 32), depth_(depth) {
  budget->CheckDepth(depth);
  budget->Take(bytes_);
}

Object::~Object() { budget_->GiveBack(bytes_); }

std::optional<Value> Object::Attribute(Interpreter&, absl::string_view) { return std::nullopt; }
Value Object::Call(Interpreter&, Arguments&) {
  budget_->Fail(absl::StrCat("'", TypeName(), "' object is not callable"));
}
std::optional<Text> Object::Repr(Interpreter&, int) { return std::nullopt; }

Value Value::Float(double value) {
  Value result(Kind::kFloat, 0, nullptr);
  result.float_ = value;
  return result;
}

Value Value::Undefined(Budget* budget, std::string reason) {
  Text text;
  text.bytes = std::move(reason);
  return Value(Kind::kUndefined, 0, std::make_shared<StringObject>(budget, std::move(text)));
}

Value Value::String(Budget* budget, Text text) {
  return Value(Kind::kString, 0, std::make_shared<StringObject>(budget, std::move(text)));
}

Value Value::String(Budget* budget, absl::string_view bytes, bool is_data) {
  TextBuilder builder(budget);
  builder.Append(bytes, is_data);
  return String(budget, builder.Build());
}

Value Value::List(Budget* budget, std::vector<Value> items) {
  return Value(Kind::kList, 0, std::make_shared<ListObject>(budget, std::move(items)));
}

Value Value::Tuple(Budget* budget, std::vector<Value> items) {
  return Value(Kind::kTuple, 0, std::make_shared<ListObject>(budget, std::move(items)));
}

Value Value::Generator(Budget* budget, const Value& source, std::function<std::vector<Value>()> make) {
  return Value(Kind::kGenerator, 0, std::make_shared<GeneratorObject>(budget, source.depth() + 1, std::move(make)));
}

const Text& Value::text() const { return As<StringObject>()->text; }
int64_t Value::length() const { return As<StringObject>()->length; }
const std::vector<Value>& Value::items() const { return As<ListObject>()->items; }

const std::string& Value::undefined_reason() const {
  static const std::string kUnnamed = "a value is undefined";
  return object_ == nullptr ? kUnnamed : text().bytes;
}

Value Value::WithData(bool is_data) const {
  Value result = *this;
  result.is_data_ = is_data;
  return result;
}

Value Value::WithMarkup(bool is_markup) const {
  Value result = *this;
  result.is_markup_ = is_markup;
  return result;
}

int DepthOf(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

StringObject::StringObject(Budget* budget, Text text)
    : Object(budget, sizeof(StringObject) + text.bytes.size() + text.data.size() * sizeof(ByteRange), 0),
      text(std::move(text)),
      length(CodePoints(this->text.bytes)) {}

ListObject::ListObject(Budget* budget, std::vector<Value> items)
    : Object(budget, sizeof(ListObject) + items.size() * sizeof(Value), DepthOf(items)), items(std::move(items)) {}

void GeneratorObject::Make() {
  if (make_ == nullptr) return;
  items_ = std::exchange(make_, nullptr)();
}

std::optional<Value> GeneratorObject::Next() {
  Make();
  return next_ < items_.size() ? std::optional<Value>(items_[next_++]) : std::nullopt;
}

std::vector<Value> GeneratorObject::TakeRest() {
  Make();
  items_.erase(items_.begin(), items_.begin() + static_cast<ptrdiff_t>(std::exchange(next_, 0)));
  return std::exchange(items_, {});
}

DictObject::DictObject(Budget* budget, size_t entries, int depth)
    : Object(budget, sizeof(DictObject) + entries * (2 * sizeof(Value) + 96), depth) {}

Value DictObject::Make(Budget* budget, std::vector<Entry> entries) {
  int depth = 0;
  for (const Entry& entry : entries) depth = std::max({depth, entry.first.depth(), entry.second.depth()});
  std::shared_ptr<DictObject> dict(new DictObject(budget, entries.size(), depth + 1));
  for (Entry& entry : entries) {
    budget->Step();
    const std::string key = HashKey(entry.first);
    if (key.empty()) budget->Fail(absl::StrCat("unhashable type: '", jinja::TypeName(entry.first), "'"));
    const auto [place, is_new] = dict->places_.try_emplace(key, dict->entries.size());
    if (is_new) {
      dict->entries.push_back(std::move(entry));
    } else {
      dict->entries[place->second].second = std::move(entry.second);
    }
  }
  return Value::OfObject(Kind::kDict, std::move(dict));
}

const Value* DictObject::Find(const Value& key) const {
  const auto place = places_.find(HashKey(key));
  return place == places_.end() ? nullptr : &entries[place->second].second;
}

const Value* DictObject::Find(absl::string_view key) const {
  const auto place = places_.find(absl::StrCat("s", key));
  return place == places_.end() ? nullptr : &entries[place->second].second;
}

RangeObject::RangeObject(Budget* budget, int64_t start, int64_t stop, int64_t step)
    : Object(budget, sizeof(RangeObject), 0), start(start), stop(stop), step(step) {}

int64_t RangeObject::count() const {
  // The distance may be 2^64 - 1: the numbers of a range are checked where it is made (count() <= 100000).
  const __int128 distance = static_cast<__int128>(stop) - start;
  if (step > 0)
    return distance <= 0 ? 0 : static_cast<int64_t>(std::min<__int128>((distance + step - 1) / step, INT64_MAX));
  return distance >= 0 ? 0 : static_cast<int64_t>(std::min<__int128>((distance + step + 1) / step, INT64_MAX));
}

ViewObject::ViewObject(Budget* budget, Value dict, What what)
    : Object(budget, sizeof(ViewObject), dict.depth() + 1), dict(std::move(dict)), what(what) {}

Bound::Bound(Budget* budget, const Arguments& arguments, absl::string_view function,
             std::initializer_list<absl::string_view> names, size_t required)
    : budget_(budget), function_(function), names_(names.begin(), names.end()), values_(names.size()) {
  if (arguments.positional.size() > names_.size()) {
    budget->Fail(absl::StrCat(function, "() takes at most ", names_.size(), " arguments, ", arguments.positional.size(),
                              " were given"));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto place = std::find(names_.begin(), names_.end(), name);
    if (place == names_.end()) budget->Fail(absl::StrCat(function, "() has no argument '", name, "'"));
    std::optional<Value>& slot = values_[static_cast<size_t>(place - names_.begin())];
    if (slot.has_value()) budget->Fail(absl::StrCat(function, "() got '", name, "' twice"));
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i].has_value()) budget->Fail(absl::StrCat(function, "() needs the argument '", names_[i], "'"));
  }
}

int64_t Bound::Int(size_t index, int64_t otherwise) const {
  if (!has(index)) return otherwise;
  if (!(*this)[index].is_integer()) {
    budget_->Fail(
        absl::StrCat("'", names_[index], "' of ", function_, "() must be an integer, is ", TypeName((*this)[index])));
  }
  return (*this)[index].as_int();
}

bool Bound::Flag(size_t index, bool otherwise) const {
  if (!has(index)) return otherwise;
  const Value& value = (*this)[index];
  if (value.is_none() || value.is_undefined()) return false;
  if (!value.is_number()) {
    budget_->Fail(absl::StrCat("'", names_[index], "' of ", function_, "() must be true or false"));
  }
  return value.as_float() != 0;
}

std::string Bound::String(size_t index, absl::string_view otherwise) const {
  if (!has(index) || (*this)[index].is_none()) return std::string(otherwise);
  if (!(*this)[index].is_string()) {
    budget_->Fail(
        absl::StrCat("'", names_[index], "' of ", function_, "() must be a string, is ", TypeName((*this)[index])));
  }
  return std::string((*this)[index].bytes());
}

FunctionObject::FunctionObject(Budget* budget, absl::string_view name, bool is_method, Value self, Native function)
    : Object(budget, sizeof(FunctionObject) + name.size(), self.depth() + 1),
      name_(name),
      is_method_(is_method),
      self_(std::move(self)),
      function_(std::move(function)) {}

Value MakeFunction(Budget* budget, absl::string_view name, Native function) {
  return Value::OfObject(Kind::kObject,
                         std::make_shared<FunctionObject>(budget, name, false, Value(), std::move(function)));
}

Value MakeMethod(Budget* budget, absl::string_view name, Value self, Native function) {
  return Value::OfObject(Kind::kObject,
                         std::make_shared<FunctionObject>(budget, name, true, std::move(self), std::move(function)));
}

std::optional<Value> NamespaceObject::Attribute(Interpreter&, absl::string_view name) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void NamespaceObject::Set(absl::string_view name, Value value) {
  budget()->Step(1 + static_cast<int64_t>(attributes_.size() / 8));
  for (auto& [key, old] : attributes_) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(std::string(name), std::move(value));
}

std::optional<Text> NamespaceObject::Repr(Interpreter& run, int depth) {
  std::vector<DictObject::Entry> entries;
  for (const auto& [key, value] : attributes_) entries.emplace_back(Value::String(budget(), key), value);
  TextBuilder text(budget());
  text.Append("<Namespace ", false);
  text.Append(ReprOf(run, DictObject::Make(budget(), std::move(entries)), depth + 1));
  text.Append(">", false);
  return text.Build();
}

absl::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kView: {
      static constexpr absl::string_view kNames[] = {"dict_keys", "dict_values", "dict_items"};
      return kNames[value.As<ViewObject>()->what];
    }
    case Kind::kGenerator:
      return "generator";
    case Kind::kObject:
      return value.object()->TypeName();
  }
  return "object";
}

}  // namespace llmc::jinja
