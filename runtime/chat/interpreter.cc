#include "runtime/chat/interpreter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {

const Value* Scope::Find(Symbol symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [name, value] : scope->values) {
      if (name == symbol) return &value;
    }
  }
  return nullptr;
}

void Scope::Set(Symbol symbol, Value value) {
  for (auto& [name, old] : values) {
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  }
  values.emplace_back(symbol, std::move(value));
}

Interpreter::Level::Level(Interpreter* run) : run_(run) {
  run->budget_->Step();
  if (++run->depth_ > run->budget_->limits().call_depth) {
    run->budget_->Exhaust("expressions and statements inside each other", run->budget_->limits().call_depth);
  }
}

Interpreter::Interpreter(const Program& program, Budget* budget, absl::flat_hash_map<std::string, Value> variables,
                         std::function<absl::Time()> now, absl::TimeZone zone)
    : program_(program),
      budget_(budget),
      now_(std::move(now)),
      zone_(zone),
      variables_(std::move(variables)),
      globals_(Globals(budget)),
      constants_(program.constants.size()),
      scope_(std::make_shared<Scope>(nullptr)),
      output_(budget) {}

// Macros lie in the scopes that they keep, and namespaces may lie in themselves: what they hold must go first.
Interpreter::~Interpreter() {
  for (const std::shared_ptr<Scope>& scope : captured_) scope->values.clear();
  for (const std::unique_ptr<NamespaceObject>& space : namespaces_) space->Clear();
}

Text Interpreter::Run() {
  Execute(program_.body);
  return output_.Build();
}

Text Interpreter::Buffered(absl::FunctionRef<void()> write) {
  TextBuilder before = std::exchange(output_, TextBuilder(budget_));
  ++buffers_;
  write();
  --buffers_;
  return std::exchange(output_, std::move(before)).Build();
}

void Interpreter::RunIn(std::shared_ptr<Scope> scope, absl::FunctionRef<void()> run) {
  std::shared_ptr<Scope> before = std::exchange(scope_, std::move(scope));
  run();
  scope_ = std::move(before);
}

Text Interpreter::RunBody(const Body& body, std::shared_ptr<Scope> scope) {
  return Buffered([&] { RunIn(std::move(scope), [&] { Execute(body); }); });
}

void Interpreter::Write(const Text& text) {
  output_.Append(text);
  if (buffers_ == 0) code_points_ += CodePoints(text.bytes);
  if (static_cast<int64_t>(output_.size()) > budget_->limits().output_bytes) {
    budget_->Exhaust("bytes of output", budget_->limits().output_bytes);
  }
}

Value Interpreter::Call(const Value& function, Arguments& arguments) {
  ExpectDefined(*this, function);
  if (!function.is(Kind::kObject)) {
    budget_->Fail(absl::StrCat("'", TypeName(function), "' object is not callable"));
  }
  return function.object()->Call(*this, arguments);
}

Value Interpreter::Filter(absl::string_view name, const Value& value, Arguments& arguments) {
  for (const auto& filters : {TextFilters(), NumberFilters(), SequenceFilters(), SelectionFilters()}) {
    for (const NamedFilter& filter : filters) {
      if (filter.name == name) return filter.function(*this, value, arguments);
    }
  }
  budget_->Refuse(absl::StrCat("there is no filter '", name.substr(0, 100), "', or it is not supported"));
}

bool Interpreter::Test(absl::string_view name, const Value& value, Arguments& arguments) {
  for (const NamedTest& test : ValueTests()) {
    if (test.name == name) return test.function(*this, value, arguments);
  }
  budget_->Refuse(absl::StrCat("there is no test '", name.substr(0, 100), "', or it is not supported"));
}

std::optional<Value> Interpreter::AttributeIfAny(const Value& value, absl::string_view name) {
  if (value.is(Kind::kObject)) return value.object()->Attribute(*this, name);
  if (value.is(Kind::kTuple)) {
    if (std::optional<Value> part = value.object()->Attribute(*this, name)) return part;
  }
  return MethodOf(*this, value, name);
}

std::optional<Value> Interpreter::ItemIfAny(const Value& value, const Value& index) {
  if (value.is(Kind::kDict)) {
    const Value* item = value.As<DictObject>()->Find(index);
    return item == nullptr ? std::nullopt : std::optional<Value>(*item);
  }
  const bool is_sequence =
      value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple) || value.is(Kind::kRange);
  if (!is_sequence || !index.is_integer()) return std::nullopt;
  const int64_t length = LengthOf(value);
  const int64_t at = index.as_int() < 0 ? index.as_int() + length : index.as_int();
  if (at < 0 || at >= length) return std::nullopt;
  if (value.is_string()) return CodePointsOf(*this, value, at, at + 1).WithMarkup(value.is_markup());
  if (value.is(Kind::kRange)) return Value::Int(value.As<RangeObject>()->start + at * value.As<RangeObject>()->step);
  return value.items()[static_cast<size_t>(at)];
}

namespace {

Value Missing(Interpreter& run, const Value& value, absl::string_view what) {
  const std::string of = value.is_none() ? "'None'" : absl::StrCat("'", TypeName(value), " object'");
  return Value::Undefined(run.budget(), absl::StrCat(of, " has no ", what));
}

}  // namespace

Value Interpreter::Attribute(const Value& value, absl::string_view name) {
  ExpectDefined(*this, value);
  if (std::optional<Value> attribute = AttributeIfAny(value, name)) return *attribute;
  if (value.is(Kind::kDict)) {
    if (const Value* item = value.As<DictObject>()->Find(name)) return *item;
  }
  return Missing(*this, value, absl::StrCat("attribute '", name, "'"));
}

Value Interpreter::Item(const Value& value, const Value& index) {
  ExpectDefined(*this, value);
  if (std::optional<Value> item = ItemIfAny(value, index)) return *item;
  if (index.is_string()) {
    if (std::optional<Value> attribute = AttributeIfAny(value, index.bytes())) return *attribute;
    return Missing(*this, value, absl::StrCat("attribute '", index.bytes(), "'"));
  }
  return Missing(*this, value, index.is_integer() ? absl::StrCat("element ", index.as_int()) : "such element");
}

Value Interpreter::NewNamespace(const std::vector<std::pair<std::string, Value>>& attributes) {
  auto space = std::make_unique<NamespaceObject>(budget_);
  for (const auto& [name, value] : attributes) space->Set(name, value);
  NamespaceObject* const object = space.get();
  namespaces_.push_back(std::move(space));
  return Value::OfObject(Kind::kObject, std::shared_ptr<Object>(std::shared_ptr<void>(), object));
}

Symbol Interpreter::SymbolOf(absl::string_view name) const {
  const auto place = std::find(program_.symbols.begin(), program_.symbols.end(), name);
  return place == program_.symbols.end() ? -1 : static_cast<Symbol>(place - program_.symbols.begin());
}

}  // namespace llmc::jinja
