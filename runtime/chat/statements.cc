#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"

namespace llmc::jinja {
namespace {

class MacroObject : public Object {
 public:
  MacroObject(Budget* budget, const Statement* statement, std::shared_ptr<Scope> scope)
      : Object(budget, sizeof(MacroObject), 1), statement_(statement), scope_(scope) {}
  absl::string_view TypeName() const override { return "Macro"; }
  bool callable() const override { return true; }

  std::optional<Value> Attribute(Interpreter& run, absl::string_view name) override {
    const MacroSignature& signature = statement_->signature;
    if (name == "name") return signature.name.empty() ? Value::None() : run.Str(signature.name);
    if (name == "catch_kwargs") return Value::Bool(signature.uses_kwargs);
    if (name == "catch_varargs") return Value::Bool(signature.uses_varargs);
    if (name == "caller") return Value::Bool(signature.uses_caller);
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    for (const auto& parameter : signature.parameters) names.push_back(run.Str(parameter.first));
    return Value::Tuple(run.budget(), std::move(names));
  }

  std::optional<Text> Repr(Interpreter& run, int) override {
    const std::string& name = statement_->signature.name;
    TextBuilder text(run.budget());
    text.Append(name.empty() ? "<Macro anonymous>" : absl::StrCat("<Macro '", name, "'>"), false);
    return text.Build();
  }

  Value Call(Interpreter& run, Arguments& arguments) override {
    const auto captured = scope_.lock();
    auto scope = std::make_shared<Scope>(captured);
    run.RunIn(scope, [&] { Bind(run, arguments, scope.get()); });
    const int line = run.budget()->line;
    Value result = run.Str(run.RunBody(statement_->body, std::move(scope)));
    run.budget()->line = line;
    return result;
  }

 private:
  // Takes the argument of that name out of those that are given by name.
  static std::optional<Value> Take(Arguments* arguments, absl::string_view name) {
    for (auto it = arguments->named.begin(); it != arguments->named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      arguments->named.erase(it);
      return value;
    }
    return std::nullopt;
  }

  void Bind(Interpreter& run, Arguments& arguments, Scope* scope) const {
    const MacroSignature& signature = statement_->signature;
    const size_t parameters = signature.parameters.size(), given = arguments.positional.size();
    bool has_caller = false;  // among the parameters
    for (size_t i = 0; i < parameters; ++i) {
      const auto& [name, symbol] = signature.parameters[i];
      has_caller |= name == "caller";
      std::optional<Value> value = i < given ? std::move(arguments.positional[i]) : Take(&arguments, name);
      const size_t without_default = parameters - signature.defaults.size();
      if (!value.has_value() && i >= without_default) value = run.Evaluate(*signature.defaults[i - without_default]);
      if (!value.has_value()) {
        value = Value::Undefined(run.budget(), absl::StrCat("parameter '", name, "' was not provided"));
      }
      scope->Set(symbol, *std::move(value));
    }
    if (signature.uses_caller && !has_caller) {
      std::optional<Value> caller = Take(&arguments, "caller");
      if (!caller.has_value()) caller = Value::Undefined(run.budget(), "No caller defined");
      scope->Set(run.SymbolOf("caller"), *std::move(caller));
    }
    BindRest(run, arguments, scope);
  }

  void BindRest(Interpreter& run, Arguments& arguments, Scope* scope) const {
    const MacroSignature& signature = statement_->signature;
    const size_t parameters = signature.parameters.size();
    if (signature.uses_kwargs) {
      std::vector<DictObject::Entry> entries;
      for (auto& [name, value] : arguments.named) entries.emplace_back(run.Str(name), value);
      scope->Set(run.SymbolOf("kwargs"), DictObject::Make(run.budget(), std::move(entries)));
    } else if (!arguments.named.empty()) {
      run.budget()->Fail(
          absl::StrCat("macro '", signature.name, "' takes no keyword argument '", arguments.named[0].first, "'"));
    }
    std::vector<Value> rest;
    for (size_t i = parameters; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
    if (signature.uses_varargs) {
      scope->Set(run.SymbolOf("varargs"), Value::Tuple(run.budget(), std::move(rest)));
    } else if (!rest.empty()) {
      run.budget()->Fail(absl::StrCat("macro '", signature.name, "' takes not more than ", parameters, " arguments"));
    }
  }

  const Statement* const statement_;
  const std::weak_ptr<Scope> scope_;  // which holds this, and which the interpreter keeps
};

// The variable `loop`, and the items that are left. Items are tested only when they are needed, as Jinja does.
class LoopObject : public Object {
 public:
  LoopObject(Budget* budget, std::vector<Value> items, std::function<bool(const Value&)> test, int recursion,
             std::function<Value(const Value&)> recurse)
      : Object(budget, sizeof(LoopObject) + items.size() * sizeof(Value), DepthOf(items)),
        items_(std::move(items)),
        test_(std::move(test)),
        recursion_(recursion),
        recurse_(std::move(recurse)) {}
  absl::string_view TypeName() const override { return "LoopContext"; }
  bool callable() const override { return recurse_ != nullptr; }

  // The next item, nullopt after the last.
  std::optional<Value> Next() {
    std::optional<Value> next = after_.has_value() ? std::exchange(after_, std::nullopt) : Pull();
    if (!next.has_value()) return std::nullopt;
    previous_ = std::exchange(current_, next);
    ++index0_;
    return next;
  }

  std::optional<Value> Attribute(Interpreter& run, absl::string_view name) override {
    if (name == "index") return Value::Int(index0_ + 1);
    if (name == "index0") return Value::Int(index0_);
    if (name == "first") return Value::Bool(index0_ == 0);
    if (name == "last") return Value::Bool(!Peek().has_value());
    if (name == "length") return Value::Int(Length());
    if (name == "revindex") return Value::Int(Length() - index0_);
    if (name == "revindex0") return Value::Int(Length() - index0_ - 1);
    if (name == "depth") return Value::Int(recursion_ + 1);
    if (name == "depth0") return Value::Int(recursion_);
    if (name == "previtem") {
      return previous_.value_or(Value::Undefined(run.budget(), "there is no previous item"));
    }
    if (name == "nextitem") return Peek().value_or(Value::Undefined(run.budget(), "there is no next item"));
    if (name == "cycle") {
      const int64_t index = index0_;
      return MakeFunction(run.budget(), name, [index](Interpreter& run, const Value&, Arguments& arguments) {
        const auto count = static_cast<int64_t>(arguments.positional.size());
        if (count == 0) run.budget()->Fail("no items for cycling given");
        return arguments.positional[static_cast<size_t>(index % count)];
      });
    }
    if (name == "changed") {
      return MakeFunction(run.budget(), name, [](Interpreter& run, const Value&, Arguments&) -> Value {
        run.budget()->Refuse("loop.changed is not supported; compare with loop.previtem");
      });
    }
    return std::nullopt;
  }

  Value Call(Interpreter& run, Arguments& arguments) override {
    if (recurse_ == nullptr) run.budget()->Fail("a loop must have the 'recursive' marker to be called");
    return recurse_(Bound(run.budget(), arguments, "loop", {"iterable"}, 1)[0]);
  }

 private:
  std::optional<Value> Pull() {
    while (at_ < items_.size()) {
      const Value& item = items_[at_++];
      if (test_ == nullptr || test_(item)) return item;
    }
    return std::nullopt;
  }
  const std::optional<Value>& Peek() {
    if (!after_.has_value()) after_ = Pull();
    return after_;
  }
  int64_t Length() {
    if (test_ != nullptr) {
      std::vector<Value> rest;
      while (std::optional<Value> item = Pull()) rest.push_back(*std::move(item));
      items_ = std::move(rest);
      at_ = 0;
      test_ = nullptr;
    }
    return index0_ + 1 + (after_.has_value() ? 1 : 0) + static_cast<int64_t>(items_.size() - at_);
  }

  std::vector<Value> items_;
  size_t at_ = 0;
  std::function<bool(const Value&)> test_;
  const int recursion_;
  const std::function<Value(const Value&)> recurse_;
  int64_t index0_ = -1;
  std::optional<Value> previous_, current_, after_;
};

}  // namespace

Interpreter::Flow Interpreter::Execute(const Body& body) {
  for (const StatementPtr& statement : body) {
    if (const Flow flow = ExecuteStatement(*statement); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecuteStatement(const Statement& statement) {
  const Level level(this);
  budget_->line = statement.line;
  switch (statement.kind) {
    case Statement::kData:
      Write(ConstantValue(statement.constant).text());
      break;
    case Statement::kPrint:
      for (const ExpressionPtr& value : statement.values) Write(StrOf(*this, Evaluate(*value)));
      break;
    case Statement::kIf:
      return If(statement);
    case Statement::kFor:
      Loop(statement, Evaluate(*statement.values[0]), 0);
      break;
    case Statement::kSet:
      Set(statement);
      break;
    case Statement::kSetBlock:
      SetBlock(statement);
      break;
    case Statement::kWith:
      return With(statement);
    case Statement::kMacro:
      scope_->Set(statement.symbol, MakeMacro(statement));
      break;
    case Statement::kCallBlock:
      CallBlock(statement);
      break;
    case Statement::kFilterBlock:
      FilterBlock(statement);
      break;
    case Statement::kGeneration:
      Generation(statement);
      break;
    case Statement::kBreak:
      return Flow::kBreak;
    case Statement::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::If(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.test == nullptr || IsTrue(*this, Evaluate(*branch.test))) return Execute(branch.body);
  }
  return Flow::kNormal;
}

void Interpreter::Loop(const Statement& statement, const Value& iterable, int depth) {
  const std::shared_ptr<Scope> outer = scope_;
  std::function<bool(const Value&)> test;
  if (statement.values[1] != nullptr) {
    test = [this, &statement, outer](const Value& item) {
      bool passes = false;
      RunIn(std::make_shared<Scope>(outer), [&] {
        Assign(*statement.target, item);
        passes = IsTrue(*this, Evaluate(*statement.values[1]));
      });
      return passes;
    };
  }
  std::function<Value(const Value&)> recurse;
  if (statement.recursive) {
    recurse = [this, &statement, outer, depth](const Value& items) {
      return Str(RunLoopBuffered(statement, outer, items, depth + 1));
    };
  }
  const auto loop =
      std::make_shared<LoopObject>(budget_, ItemsOf(*this, iterable), std::move(test), depth, std::move(recurse));
  const Symbol symbol = SymbolOf("loop");
  bool none_ended = true;  // as Jinja has it: `else` also follows when every item was left by break or continue
  while (std::optional<Value> item = loop->Next()) {
    Flow flow = Flow::kNormal;
    RunIn(NewScope(), [&] {
      if (symbol >= 0) scope_->Set(symbol, Value::OfObject(Kind::kObject, loop));
      Assign(*statement.target, *item);
      flow = Execute(statement.body);
    });
    if (flow == Flow::kBreak) break;
    if (flow == Flow::kNormal) none_ended = false;
  }
  if (none_ended && !statement.otherwise.empty()) {
    RunIn(NewScope(), [&] { Execute(statement.otherwise); });
  }
}

Text Interpreter::RunLoopBuffered(const Statement& loop, const std::shared_ptr<Scope>& scope, const Value& items,
                                  int depth) {
  return Buffered([&] { RunIn(scope, [&] { Loop(loop, items, depth); }); });
}

void Interpreter::Assign(const Expression& target, const Value& value) {
  if (target.kind == Expression::kName) {
    scope_->Set(target.symbol, value);
  } else if (target.kind == Expression::kAttribute) {
    const Value space = Lookup(*target.children[0]);
    auto* object = space.is(Kind::kObject) ? dynamic_cast<NamespaceObject*>(space.object()) : nullptr;
    if (object == nullptr) budget_->Fail("cannot assign an attribute on what is no namespace");
    object->Set(target.text, value);
  } else {
    if (!IsIterable(value)) budget_->Fail(absl::StrCat("cannot unpack non-iterable ", TypeName(value), " object"));
    const std::vector<Value> items = ItemsOf(*this, value);
    if (items.size() != target.children.size()) {
      budget_->Fail(absl::StrCat("expected ", target.children.size(), " values to unpack, got ", items.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) Assign(*target.children[i], items[i]);
  }
}

void Interpreter::Set(const Statement& statement) { Assign(*statement.target, Evaluate(*statement.values[0])); }

void Interpreter::SetBlock(const Statement& statement) {
  Value value = Str(RunBody(statement.body, NewScope()));
  if (!statement.values.empty()) {
    filter_input_ = std::move(value);
    value = Evaluate(*statement.values[0]);
  }
  Assign(*statement.target, value);
}

Interpreter::Flow Interpreter::With(const Statement& statement) {
  std::vector<Value> values = EvaluateAll(statement.values);
  Flow flow = Flow::kNormal;
  RunIn(NewScope(), [&] {
    for (size_t i = 0; i < values.size(); ++i) Assign(*statement.targets[i], values[i]);
    flow = Execute(statement.body);
  });
  return flow;
}

Value Interpreter::MakeMacro(const Statement& statement) {
  if (captured_.empty() || captured_.back() != scope_) {
    budget_->Take(static_cast<int64_t>(sizeof(Scope) + sizeof(Value)));
    captured_.push_back(scope_);
  }
  return Value::OfObject(Kind::kObject, std::make_shared<MacroObject>(budget_, &statement, scope_));
}

void Interpreter::CallBlock(const Statement& statement) {
  const Value caller = MakeMacro(statement);
  Write(StrOf(*this, EvaluateCall(*statement.values[0], &caller)));
}

void Interpreter::FilterBlock(const Statement& statement) {
  filter_input_ = Str(RunBody(statement.body, NewScope()));
  Write(StrOf(*this, Evaluate(*statement.values[0])));
}

// As transformers counts: from the end of what was output before, also where the block itself is inside of a macro.
void Interpreter::Generation(const Statement& statement) {
  const Text text = RunBody(statement.body, NewScope());
  budget_->StepBytes(text.bytes.size());
  generation_.push_back({code_points_, code_points_ + LengthOf(Str(text))});
  Write(text);
}

}  // namespace llmc::jinja
