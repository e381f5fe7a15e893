#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/chat/parser_internal.h"

namespace llmc::jinja {
namespace {

bool IsCompareOperator(const Token& token) {
  for (const absl::string_view op : {"==", "!=", "<", "<=", ">", ">="}) {
    if (token.Is(op)) return true;
  }
  return false;
}

}  // namespace

ExpressionPtr Parser::ParseExpression(bool with_condition) {
  const Level level(this);
  if (!with_condition) return ParseOr();
  ExpressionPtr value = ParseOr();
  while (SkipName("if")) {
    ExpressionPtr test = ParseOr();
    ExpressionPtr otherwise = SkipName("else") ? ParseExpression() : nullptr;
    value = New(Expression::kIf, "", std::move(value), std::move(test), std::move(otherwise));
  }
  return value;
}

ExpressionPtr Parser::ParseOr() {
  ExpressionPtr left = ParseAnd();
  while (SkipName("or")) left = New(Expression::kBinary, "or", std::move(left), ParseAnd());
  return left;
}

ExpressionPtr Parser::ParseAnd() {
  ExpressionPtr left = ParseNot();
  while (SkipName("and")) left = New(Expression::kBinary, "and", std::move(left), ParseNot());
  return left;
}

ExpressionPtr Parser::ParseNot() {
  const Level level(this);
  if (SkipName("not")) return New(Expression::kUnary, "not", ParseNot());
  return ParseCompare();
}

ExpressionPtr Parser::ParseCompare() {
  ExpressionPtr first = ParseSum();
  ExpressionPtr compare;
  while (true) {
    std::string op;
    if (IsCompareOperator(now())) {
      op = Next().text;
    } else if (SkipName("in")) {
      op = "in";
    } else if (now().IsName("not") && Look().IsName("in")) {
      Next();
      Next();
      op = "not in";
    } else {
      break;
    }
    if (compare == nullptr) compare = New(Expression::kCompare, "", std::move(first));
    compare->operators.push_back(std::move(op));
    AddChild(compare.get(), ParseSum());
  }
  return compare == nullptr ? std::move(first) : std::move(compare);
}

ExpressionPtr Parser::ParseSum() {
  ExpressionPtr left = ParseConcat();
  while (now().Is("+") || now().Is("-")) {
    std::string op = Next().text;
    left = New(Expression::kBinary, std::move(op), std::move(left), ParseConcat());
  }
  return left;
}

ExpressionPtr Parser::ParseConcat() {
  ExpressionPtr first = ParseProduct();
  if (!now().Is("~")) return first;
  ExpressionPtr concat = New(Expression::kConcat, "", std::move(first));
  while (Skip("~")) AddChild(concat.get(), ParseProduct());
  return concat;
}

ExpressionPtr Parser::ParseProduct() {
  ExpressionPtr left = ParsePower();
  while (now().Is("*") || now().Is("/") || now().Is("//") || now().Is("%")) {
    std::string op = Next().text;
    left = New(Expression::kBinary, std::move(op), std::move(left), ParsePower());
  }
  return left;
}

// Unlike Python's, these group from the left.
ExpressionPtr Parser::ParsePower() {
  ExpressionPtr left = ParseUnary();
  while (Skip("**")) left = New(Expression::kBinary, "**", std::move(left), ParseUnary());
  return left;
}

ExpressionPtr Parser::ParseUnary(bool with_filter) {
  const Level level(this);
  ExpressionPtr value;
  if (now().Is("-") || now().Is("+")) {
    std::string op = Next().text;
    value = New(Expression::kUnary, std::move(op), ParseUnary(false));
  } else {
    value = ParsePrimary();
  }
  value = ParsePostfix(std::move(value));
  return with_filter ? ParseFilters(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::ParsePrimary() {
  const Token& token = now();
  budget_->line = token.line;
  switch (token.kind) {
    case Token::kName:
      return ParseNamed();
    case Token::kString: {
      std::string text;
      while (now().kind == Token::kString) text += Next().text;
      return NewConstant({.kind = Constant::kString, .text = std::move(text)});
    }
    case Token::kInteger: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(Next().text, &value)) Unexpected();
      return NewConstant({.kind = Constant::kInt, .integer = value});
    }
    case Token::kFloat: {
      double value = 0;
      if (!absl::SimpleAtod(Next().text, &value)) Unexpected();
      return NewConstant({.kind = Constant::kFloat, .number = value});
    }
    default:
      break;
  }
  if (Skip("(")) {
    ExpressionPtr value = ParseTuple(true, true);
    Expect(")");
    return value;
  }
  if (token.Is("[")) return ParseList();
  if (token.Is("{")) return ParseDict();
  Unexpected();
}

ExpressionPtr Parser::ParseNamed() {
  const std::string name = TakeName();
  if (name == "true" || name == "True") return NewConstant({.kind = Constant::kBool, .integer = 1});
  if (name == "false" || name == "False") return NewConstant({.kind = Constant::kBool});
  if (name == "none" || name == "None") return NewConstant({.kind = Constant::kNone});
  for (OpenMacro& macro : macros_) {
    macro.caller |= name == "caller";
    macro.varargs |= name == "varargs";
    macro.kwargs |= name == "kwargs";
  }
  ExpressionPtr value = New(Expression::kName, name);
  value->symbol = SymbolOf(name);
  return value;
}

ExpressionPtr Parser::ParseList() {
  Expect("[");
  ExpressionPtr list = New(Expression::kList);
  while (!now().Is("]")) {
    if (!list->children.empty()) Expect(",");
    if (now().Is("]")) break;
    AddChild(list.get(), ParseExpression());
  }
  Expect("]");
  return list;
}

ExpressionPtr Parser::ParseDict() {
  Expect("{");
  ExpressionPtr dict = New(Expression::kDict);
  while (!now().Is("}")) {
    if (!dict->children.empty()) Expect(",");
    if (now().Is("}")) break;
    AddChild(dict.get(), ParseExpression());
    Expect(":");
    AddChild(dict.get(), ParseExpression());
  }
  Expect("}");
  return dict;
}

ExpressionPtr Parser::ParsePostfix(ExpressionPtr value) {
  while (true) {
    if (now().Is(".") || now().Is("[")) {
      value = ParseSubscript(std::move(value));
    } else if (now().Is("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

ExpressionPtr Parser::ParseFilters(ExpressionPtr value) {
  while (true) {
    if (Skip("|")) {
      value = ParseFilter(std::move(value));
    } else if (SkipName("is")) {
      value = ParseTest(std::move(value));
    } else if (now().Is("(")) {
      value = ParseCall(std::move(value));
    } else {
      return value;
    }
  }
}

// Behind the "|". Without a value, that of a filter block.
ExpressionPtr Parser::ParseFilter(ExpressionPtr value) {
  std::string name = TakeName();
  while (Skip(".")) absl::StrAppend(&name, ".", TakeName());
  ExpressionPtr filter = New(Expression::kFilter, std::move(name), std::move(value));
  if (now().Is("(")) ParseArguments(filter.get());
  return filter;
}

// Behind the "is".
ExpressionPtr Parser::ParseTest(ExpressionPtr value) {
  const bool negated = SkipName("not");
  std::string name = TakeName();
  while (Skip(".")) absl::StrAppend(&name, ".", TakeName());
  ExpressionPtr test = New(Expression::kTest, std::move(name), std::move(value));
  const bool is_value = now().kind == Token::kName || now().kind == Token::kString || now().kind == Token::kInteger ||
                        now().kind == Token::kFloat || now().Is("[") || now().Is("{");
  if (now().Is("(")) {
    ParseArguments(test.get());
  } else if (is_value && !now().IsName("else") && !now().IsName("or") && !now().IsName("and")) {
    if (now().IsName("is")) budget_->Fail("tests cannot be chained with 'is'");
    ExpressionPtr argument = ParsePostfix(ParsePrimary());
    test->depth = std::max(test->depth, argument->depth + 1);
    test->arguments.push_back({Argument::kPositional, "", std::move(argument)});
    budget_->CheckDepth(test->depth);
  }
  return negated ? New(Expression::kUnary, "not", std::move(test)) : std::move(test);
}

ExpressionPtr Parser::ParseSubscript(ExpressionPtr value) {
  if (Skip(".")) {
    if (now().kind == Token::kName) return New(Expression::kAttribute, Next().text, std::move(value));
    if (now().kind != Token::kInteger) Unexpected();
    return New(Expression::kItem, "", std::move(value), ParsePrimary());
  }
  Expect("[");
  ExpressionPtr index = ParseSubscripted();
  if (now().Is(",")) {
    ExpressionPtr tuple = New(Expression::kTuple, "", std::move(index));
    while (Skip(",")) AddChild(tuple.get(), ParseSubscripted());
    index = std::move(tuple);
  }
  Expect("]");
  return New(Expression::kItem, "", std::move(value), std::move(index));
}

ExpressionPtr Parser::ParseSubscripted() {
  ExpressionPtr parts[3];
  bool is_slice = false;
  for (int i = 0; i < 3; ++i) {
    if (!now().Is(":") && !now().Is("]") && !now().Is(",")) parts[i] = ParseExpression();
    if (i == 2 || !now().Is(":")) break;
    is_slice = true;
    Next();
  }
  if (!is_slice) {
    if (parts[0] == nullptr) Unexpected();
    return std::move(parts[0]);
  }
  ExpressionPtr slice = New(Expression::kSlice, "", std::move(parts[0]), std::move(parts[1]), std::move(parts[2]));
  slice->children.resize(3);
  return slice;
}

ExpressionPtr Parser::ParseCall(ExpressionPtr value) {
  ExpressionPtr call = New(Expression::kCall, "", std::move(value));
  ParseArguments(call.get());
  return call;
}

void Parser::ParseArguments(Expression* call) {
  Expect("(");
  bool first = true;
  Argument::How last = Argument::kPositional;
  while (!now().Is(")")) {
    if (!first) Expect(",");
    first = false;
    if (now().Is(")")) break;
    Argument argument{Argument::kPositional, "", nullptr};
    if (Skip("*")) {
      argument.how = Argument::kStar;
    } else if (Skip("**")) {
      argument.how = Argument::kDoubleStar;
    } else if (now().kind == Token::kName && Look().Is("=")) {
      argument.how = Argument::kNamed;
      argument.name = TakeName();
      Next();
    }
    // Positional ones come first, then named ones and *, then **.
    if (argument.how == Argument::kPositional ? last != Argument::kPositional : last == Argument::kDoubleStar) {
      budget_->Fail("the arguments of a call are in the wrong order");
    }
    last = argument.how;
    argument.value = ParseExpression();
    call->depth = std::max(call->depth, argument.value->depth + 1);
    call->arguments.push_back(std::move(argument));
  }
  Expect(")");
  budget_->CheckDepth(call->depth);
}

bool Parser::IsTupleEnd(absl::string_view ends_at) const {
  return now().kind == Token::kVariableEnd || now().kind == Token::kBlockEnd || now().Is(")") ||
         (!ends_at.empty() && now().IsName(ends_at));
}

ExpressionPtr Parser::ParseTuple(bool with_condition, bool in_parentheses, absl::string_view ends_at) {
  std::vector<ExpressionPtr> values;
  bool is_tuple = false;
  while (true) {
    if (!values.empty()) Expect(",");
    if (IsTupleEnd(ends_at)) break;
    values.push_back(ParseExpression(with_condition));
    if (!now().Is(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !values.empty()) return std::move(values[0]);
  if (values.empty() && !in_parentheses) Unexpected();
  ExpressionPtr tuple = New(Expression::kTuple);
  for (ExpressionPtr& value : values) AddChild(tuple.get(), std::move(value));
  return tuple;
}

}  // namespace llmc::jinja
