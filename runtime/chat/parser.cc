#include "runtime/chat/parser.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/chat/parser_internal.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::kBlockEnd:
    case Token::kVariableEnd:
      return "the end of the tag";
    case Token::kEnd:
      return "the end of the template";
    case Token::kData:
    case Token::kBlockBegin:
    case Token::kVariableBegin:
      return "the beginning of a tag or of text";
    default:
      return absl::StrCat("'", token.text.substr(0, 100), "'");
  }
}

}  // namespace

const Token& Parser::Next() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  budget_->line = tokens_[at_].line;
  return token;
}

bool Parser::Skip(absl::string_view op) {
  if (!now().Is(op)) return false;
  Next();
  return true;
}

bool Parser::SkipName(absl::string_view name) {
  if (!now().IsName(name)) return false;
  Next();
  return true;
}

void Parser::Expect(absl::string_view op) {
  if (!Skip(op)) budget_->Fail(absl::StrCat("expected '", op, "', found ", Describe(now())));
}

void Parser::ExpectName(absl::string_view name) {
  if (!SkipName(name)) budget_->Fail(absl::StrCat("expected '", name, "', found ", Describe(now())));
}

std::string Parser::TakeName() {
  if (now().kind != Token::kName) budget_->Fail(absl::StrCat("expected a name, found ", Describe(now())));
  if (IsDecimal(CodePointAt(now().text, 0).first)) Unexpected();
  return Next().text;
}

void Parser::Unexpected() { budget_->Fail(absl::StrCat("unexpected ", Describe(now()))); }

void Parser::End(Token::Kind kind) {
  if (now().kind != kind) budget_->Fail(absl::StrCat("expected the end of the tag, found ", Describe(now())));
  Next();
}

Symbol Parser::SymbolOf(const std::string& name) {
  const auto [place, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(program_.symbols.size()));
  if (is_new) program_.symbols.push_back(name);
  return place->second;
}

size_t Parser::AddConstant(Constant constant) {
  program_.constants.push_back(std::move(constant));
  return program_.constants.size() - 1;
}

ExpressionPtr Parser::New(Expression::Kind kind, std::string text) {
  budget_->Step();
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = now().line;
  expression->text = std::move(text);
  return expression;
}

ExpressionPtr Parser::New(Expression::Kind kind, std::string text, ExpressionPtr a, ExpressionPtr b, ExpressionPtr c) {
  ExpressionPtr expression = New(kind, std::move(text));
  if (a != nullptr) expression->line = a->line;
  for (ExpressionPtr* child : {&a, &b, &c}) AddChild(expression.get(), std::move(*child));
  while (expression->children.size() > 1 && expression->children.back() == nullptr) expression->children.pop_back();
  return expression;
}

ExpressionPtr Parser::NewConstant(Constant constant) {
  ExpressionPtr expression = New(Expression::kConstant);
  expression->constant = AddConstant(std::move(constant));
  return expression;
}

void Parser::AddChild(Expression* parent, ExpressionPtr child) {
  if (child != nullptr) parent->depth = std::max(parent->depth, child->depth + 1);
  parent->children.push_back(std::move(child));
  budget_->CheckDepth(parent->depth);
}

StatementPtr Parser::NewStatement(Statement::Kind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

Program Parser::Run() {
  program_.body = ParseBody({});
  return std::move(program_);
}

// Ends at a tag that begins with one of `ends`, behind its name's beginning: the name is the next token.
Body Parser::ParseBody(std::initializer_list<absl::string_view> ends) {
  const Level level(this);
  Body body;
  while (now().kind != Token::kEnd) {
    budget_->Step();
    const int line = now().line;
    if (now().kind == Token::kData) {
      StatementPtr data = NewStatement(Statement::kData, line);
      data->constant = AddConstant({.kind = Constant::kString, .text = Next().text});
      body.push_back(std::move(data));
    } else if (now().kind == Token::kVariableBegin) {
      Next();
      StatementPtr print = NewStatement(Statement::kPrint, line);
      print->values.push_back(ParseTuple());
      End(Token::kVariableEnd);
      body.push_back(std::move(print));
    } else {
      Next();
      for (const absl::string_view end : ends) {
        if (now().IsName(end)) return body;
      }
      StatementPtr statement = ParseStatement();
      if (statement != nullptr) body.push_back(std::move(statement));
      End(Token::kBlockEnd);
    }
  }
  if (ends.size() > 0) {
    budget_->Fail(absl::StrCat("the template ends inside of a block: {% ", *(ends.end() - 1), " %} is missing"));
  }
  return body;
}

Body Parser::ParseBlock(absl::string_view end) {
  End(Token::kBlockEnd);
  Body body = ParseBody({end});
  ExpectName(end);
  return body;
}

Body Parser::ParseText(absl::string_view end) {
  const int loops = std::exchange(loops_, 0);
  Body body = ParseBlock(end);
  loops_ = loops;
  return body;
}

StatementPtr Parser::ParseStatement() {
  const int line = now().line;
  if (now().kind != Token::kName) budget_->Fail(absl::StrCat("expected the name of a tag, found ", Describe(now())));
  const std::string name = Next().text;
  if (name == "if") return ParseIf(line);
  if (name == "for") return ParseFor(line);
  if (name == "set") return ParseSet(line);
  if (name == "with") return ParseWith(line);
  if (name == "macro") return ParseMacro(line);
  if (name == "call") return ParseCallBlock(line);
  if (name == "filter") return ParseFilterBlock(line);
  if (name == "print") return ParsePrint(line);
  if (name == "generation") return ParseGeneration(line);
  if (name == "break") return ParseLoopControl(line, Statement::kBreak);
  if (name == "continue") return ParseLoopControl(line, Statement::kContinue);
  if (name == "autoescape") return ParseAutoescape(line);
  for (const absl::string_view other : {"include", "import", "from", "extends", "block"}) {
    if (name == other) {
      budget_->Refuse(absl::StrCat("the tag '", name, "' is for templates of several files, which are not supported"));
    }
  }
  budget_->Fail(absl::StrCat("there is no tag '", name.substr(0, 100), "' here"));
}

StatementPtr Parser::ParseIf(int line) {
  StatementPtr statement = NewStatement(Statement::kIf, line);
  ExpressionPtr test = ParseTuple(false);
  while (true) {
    End(Token::kBlockEnd);
    Body body = ParseBody({"elif", "else", "endif"});
    statement->branches.push_back({std::move(test), std::move(body)});
    test = nullptr;
    if (SkipName("elif")) {
      test = ParseTuple(false);
    } else if (SkipName("else")) {
      statement->branches.push_back({nullptr, ParseBlock("endif")});
      return statement;
    } else {
      Next();
      return statement;
    }
  }
}

StatementPtr Parser::ParseFor(int line) {
  StatementPtr statement = NewStatement(Statement::kFor, line);
  statement->target = ParseTarget(false, "in");
  ExpectName("in");
  statement->values.push_back(ParseTuple(false, false, "recursive"));
  statement->values.push_back(SkipName("if") ? ParseExpression() : nullptr);
  statement->recursive = SkipName("recursive");
  End(Token::kBlockEnd);
  ++loops_;
  statement->body = ParseBody({"else", "endfor"});
  --loops_;
  if (Next().text == "else") statement->otherwise = ParseBlock("endfor");
  return statement;
}

StatementPtr Parser::ParseSet(int line) {
  ExpressionPtr target = ParseTarget(true, "");
  if (Skip("=")) {
    StatementPtr statement = NewStatement(Statement::kSet, line);
    statement->target = std::move(target);
    statement->values.push_back(ParseTuple());
    return statement;
  }
  StatementPtr statement = NewStatement(Statement::kSetBlock, line);
  statement->target = std::move(target);
  ExpressionPtr filter;
  while (Skip("|")) filter = ParseFilter(std::move(filter));
  if (filter != nullptr) statement->values.push_back(std::move(filter));
  statement->body = ParseText("endset");
  return statement;
}

StatementPtr Parser::ParseWith(int line) {
  StatementPtr statement = NewStatement(Statement::kWith, line);
  while (now().kind != Token::kBlockEnd) {
    if (!statement->targets.empty()) Expect(",");
    statement->targets.push_back(ParseTargetName(false));
    Expect("=");
    statement->values.push_back(ParseExpression());
  }
  statement->body = ParseBlock("endwith");
  return statement;
}

void Parser::ParseSignature(MacroSignature* signature) {
  Expect("(");
  bool first = true;
  while (!now().Is(")")) {
    if (!first) Expect(",");
    first = false;
    const ExpressionPtr parameter = ParseTargetName(false);
    signature->parameters.emplace_back(parameter->text, parameter->symbol);
    if (Skip("=")) {
      signature->defaults.push_back(ParseExpression());
    } else if (!signature->defaults.empty()) {
      budget_->Fail("a parameter without a default follows one with a default");
    }
  }
  Expect(")");
}

Body Parser::ParseMacroBody(MacroSignature* signature, absl::string_view end) {
  macros_.emplace_back();
  Body body = ParseText(end);
  signature->uses_caller = macros_.back().caller;
  signature->uses_varargs = macros_.back().varargs;
  signature->uses_kwargs = macros_.back().kwargs;
  macros_.pop_back();
  return body;
}

StatementPtr Parser::ParseMacro(int line) {
  StatementPtr statement = NewStatement(Statement::kMacro, line);
  const ExpressionPtr name = ParseTargetName(false);
  statement->symbol = name->symbol;
  statement->signature.name = name->text;
  ParseSignature(&statement->signature);
  statement->body = ParseMacroBody(&statement->signature, "endmacro");
  return statement;
}

StatementPtr Parser::ParseCallBlock(int line) {
  StatementPtr statement = NewStatement(Statement::kCallBlock, line);
  if (now().Is("(")) ParseSignature(&statement->signature);
  statement->values.push_back(ParseExpression());
  if (statement->values[0]->kind != Expression::kCall) budget_->Fail("the tag 'call' needs a call");
  statement->body = ParseMacroBody(&statement->signature, "endcall");
  return statement;
}

StatementPtr Parser::ParseFilterBlock(int line) {
  StatementPtr statement = NewStatement(Statement::kFilterBlock, line);
  ExpressionPtr filter = ParseFilter(nullptr);
  while (Skip("|")) filter = ParseFilter(std::move(filter));
  statement->values.push_back(std::move(filter));
  statement->body = ParseText("endfilter");
  return statement;
}

StatementPtr Parser::ParsePrint(int line) {
  StatementPtr statement = NewStatement(Statement::kPrint, line);
  while (now().kind != Token::kBlockEnd) {
    if (!statement->values.empty()) Expect(",");
    statement->values.push_back(ParseExpression());
  }
  return statement;
}

StatementPtr Parser::ParseGeneration(int line) {
  StatementPtr statement = NewStatement(Statement::kGeneration, line);
  MacroSignature signature;
  statement->body = ParseMacroBody(&signature, "endgeneration");
  return statement;
}

StatementPtr Parser::ParseLoopControl(int line, Statement::Kind kind) {
  if (loops_ == 0) budget_->Fail("a tag 'break' or 'continue' stands outside of a loop");
  return NewStatement(kind, line);
}

// Nothing is escaped, which `false` asks for.
StatementPtr Parser::ParseAutoescape(int line) {
  if (!SkipName("false") && !SkipName("False")) budget_->Refuse("the tag 'autoescape' is supported with false only");
  StatementPtr statement = NewStatement(Statement::kWith, line);
  statement->body = ParseBlock("endautoescape");
  return statement;
}

// One name, or several with commas, in parentheses or not.
ExpressionPtr Parser::ParseTarget(bool with_namespace, absl::string_view ends_at) {
  const Level level(this);
  std::vector<ExpressionPtr> targets;
  bool is_tuple = false;
  while (true) {
    if (!targets.empty()) Expect(",");
    if (!targets.empty() && (now().Is("=") || IsTupleEnd(ends_at))) break;
    if (Skip("(")) {
      targets.push_back(ParseTarget(with_namespace, ""));
      Expect(")");
    } else {
      targets.push_back(ParseTargetName(with_namespace));
    }
    if (!now().Is(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) return std::move(targets[0]);
  ExpressionPtr tuple = New(Expression::kTuple);
  for (ExpressionPtr& target : targets) AddChild(tuple.get(), std::move(target));
  return tuple;
}

ExpressionPtr Parser::ParseTargetName(bool with_namespace) {
  const std::string name = TakeName();
  for (const absl::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
    if (name == constant) budget_->Fail(absl::StrCat("cannot assign to '", name, "'"));
  }
  ExpressionPtr target = New(Expression::kName, name);
  target->symbol = SymbolOf(name);
  if (with_namespace && Skip(".")) return New(Expression::kAttribute, TakeName(), std::move(target));
  return target;
}

Program ParseTemplate(absl::string_view source, Budget* budget) {
  return Parser(Tokenize(source, budget), budget).Run();
}

}  // namespace llmc::jinja
