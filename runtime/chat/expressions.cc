#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"

namespace llmc::jinja {
namespace {

bool CompareBy(Interpreter& run, absl::string_view op, const Value& a, const Value& b) {
  if (op == "==") return Equals(run, a, b);
  if (op == "!=") return !Equals(run, a, b);
  if (op == "in") return Contains(run, b, a);
  if (op == "not in") return !Contains(run, b, a);
  // Nothing is below, at or above what is not a number.
  const auto is_nan = [](const Value& value) {
    return value.is(Kind::kFloat) && value.as_float() != value.as_float();  // NOLINT(misc-redundant-expression)
  };
  const int order = Compare(run, a, b, op);
  if (is_nan(a) || is_nan(b)) return false;
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

}  // namespace

Value Interpreter::ConstantValue(size_t index) {
  std::optional<Value>& value = constants_[index];
  if (value.has_value()) return *value;
  const Constant& constant = program_.constants[index];
  switch (constant.kind) {
    case Constant::kNone:
      value = Value::None();
      break;
    case Constant::kBool:
      value = Value::Bool(constant.integer != 0);
      break;
    case Constant::kInt:
      value = Value::Int(constant.integer);
      break;
    case Constant::kFloat:
      value = Value::Float(constant.number);
      break;
    case Constant::kString:
      value = Str(constant.text);
      break;
  }
  return *value;
}

Value Interpreter::Lookup(const Expression& name) {
  if (const Value* value = scope_->Find(name.symbol)) return *value;
  if (const auto place = variables_.find(name.text); place != variables_.end()) return place->second;
  if (const auto place = globals_.find(name.text); place != globals_.end()) return place->second;
  return Value::Undefined(budget_, absl::StrCat("'", name.text, "' is undefined"));
}

Value Interpreter::Evaluate(const Expression& expression) {
  const Level level(this);
  budget_->line = expression.line;
  switch (expression.kind) {
    case Expression::kConstant:
      return ConstantValue(expression.constant);
    case Expression::kName:
      return Lookup(expression);
    case Expression::kList:
      return Value::List(budget_, EvaluateAll(expression.children));
    case Expression::kTuple:
      return Value::Tuple(budget_, EvaluateAll(expression.children));
    case Expression::kDict:
      return Dict(expression);
    case Expression::kUnary: {
      const Value value = Evaluate(*expression.children[0]);
      if (expression.text == "not") return Value::Bool(!IsTrue(*this, value));
      if (expression.text == "-") return Negate(*this, value);
      ExpectDefined(*this, value);
      if (!value.is_number()) budget_->Fail(absl::StrCat("bad operand type for unary +: '", TypeName(value), "'"));
      return value.is(Kind::kBool) ? Value::Int(value.as_int()).WithData(value.is_data()) : value;
    }
    case Expression::kBinary:
      return Binary(expression);
    case Expression::kConcat:
      return Concat(expression);
    case Expression::kCompare:
      return Compares(expression);
    case Expression::kIf:
      if (IsTrue(*this, Evaluate(*expression.children[1]))) return Evaluate(*expression.children[0]);
      if (expression.children.size() > 2) return Evaluate(*expression.children[2]);
      return Value::Undefined(budget_, "the inline if-expression evaluated to false and no else section was defined");
    case Expression::kAttribute:
      return Attribute(Evaluate(*expression.children[0]), expression.text);
    case Expression::kItem:
      return ItemOf(expression);
    case Expression::kCall:
      return EvaluateCall(expression, nullptr);
    case Expression::kFilter:
      return EvaluateFilter(expression);
    case Expression::kTest: {
      const Value value = Evaluate(*expression.children[0]);
      Arguments arguments = EvaluateArguments(expression);
      return Value::Bool(Test(expression.text, value, arguments));
    }
    case Expression::kSlice:
      break;
  }
  budget_->Refuse("a slice inside of a tuple of indices is not supported");
}

Value Interpreter::Binary(const Expression& expression) {
  Value left = Evaluate(*expression.children[0]);
  if (expression.text == "and") return IsTrue(*this, left) ? Evaluate(*expression.children[1]) : left;
  if (expression.text == "or") return IsTrue(*this, left) ? left : Evaluate(*expression.children[1]);
  const Value right = Evaluate(*expression.children[1]);
  budget_->line = expression.line;
  return Arithmetic(*this, expression.text, left, right);
}

Value Interpreter::Compares(const Expression& expression) {
  Value left = Evaluate(*expression.children[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = Evaluate(*expression.children[i + 1]);
    if (!CompareBy(*this, expression.operators[i], left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::Concat(const Expression& expression) {
  TextBuilder text(budget_);
  for (const Value& part : EvaluateAll(expression.children)) text.Append(StrOf(*this, part));
  return Str(text.Build());
}

Value Interpreter::ItemOf(const Expression& expression) {
  const Value value = Evaluate(*expression.children[0]);
  const Expression& index = *expression.children[1];
  if (index.kind != Expression::kSlice) return Item(value, Evaluate(index));
  ExpectDefined(*this, value);
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) parts[i] = index.children[i] == nullptr ? Value::None() : Evaluate(*index.children[i]);
  if (!value.is_string() && !value.is(Kind::kList) && !value.is(Kind::kTuple) && !value.is(Kind::kRange)) {
    budget_->Fail(absl::StrCat("a '", TypeName(value), "' object has no slices"));
  }
  return Slice(*this, value, &parts[0], &parts[1], &parts[2]);
}

Value Interpreter::EvaluateFilter(const Expression& filter) {
  const Value value = filter.children[0] == nullptr ? *filter_input_ : Evaluate(*filter.children[0]);
  Arguments arguments = EvaluateArguments(filter);
  budget_->line = filter.line;
  return Filter(filter.text, value, arguments);
}

Value Interpreter::EvaluateCall(const Expression& call, const Value* caller) {
  const Value function = Evaluate(*call.children[0]);
  Arguments arguments = EvaluateArguments(call);
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  budget_->line = call.line;
  return Call(function, arguments);
}

Value Interpreter::Dict(const Expression& dict) {
  std::vector<Value> all = EvaluateAll(dict.children);
  std::vector<DictObject::Entry> entries;
  for (size_t i = 0; i + 1 < all.size(); i += 2) entries.emplace_back(std::move(all[i]), std::move(all[i + 1]));
  return DictObject::Make(budget_, std::move(entries));
}

std::vector<Value> Interpreter::EvaluateAll(const std::vector<ExpressionPtr>& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) values.push_back(Evaluate(*expression));
  return values;
}

Arguments Interpreter::EvaluateArguments(const Expression& call) {
  Arguments arguments;
  for (const Argument& argument : call.arguments) {
    Value value = Evaluate(*argument.value);
    switch (argument.how) {
      case Argument::kPositional:
        arguments.positional.push_back(std::move(value));
        break;
      case Argument::kNamed:
        arguments.named.emplace_back(argument.name, std::move(value));
        break;
      case Argument::kStar:
        for (Value& item : ItemsOf(*this, value)) arguments.positional.push_back(std::move(item));
        break;
      case Argument::kDoubleStar:
        ExpectDefined(*this, value);
        if (!value.is(Kind::kDict)) budget_->Fail("the argument after ** must be a mapping");
        for (const auto& [key, item] : value.As<DictObject>()->entries) {
          if (!key.is_string()) budget_->Fail("keywords must be strings");
          budget_->Step();
          arguments.named.emplace_back(std::string(key.bytes()), item);
        }
        break;
    }
  }
  return arguments;
}

}  // namespace llmc::jinja
