// The parser, whose parts are in two files: of expressions, and of statements.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/chat/ast.h"
#include "runtime/chat/budget.h"
#include "runtime/chat/lexer.h"

namespace llmc::jinja {

class Parser {
 public:
  Parser(std::vector<Token> tokens, Budget* budget) : tokens_(std::move(tokens)), budget_(budget) {}
  Program Run();

 private:
  // A level of the parser's own recursion.
  class Level {
   public:
    explicit Level(Parser* parser) : parser_(parser) { parser->budget_->CheckDepth(++parser->depth_); }
    ~Level() { --parser_->depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Parser* parser_;
  };

  // What a macro's body names, of those that are set for it.
  struct OpenMacro {
    bool caller = false, varargs = false, kwargs = false;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& Look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& Next();
  bool Skip(absl::string_view op);
  bool SkipName(absl::string_view name);
  void Expect(absl::string_view op);
  void ExpectName(absl::string_view name);
  std::string TakeName();
  [[noreturn]] void Unexpected();
  void End(Token::Kind kind);
  Symbol SymbolOf(const std::string& name);
  size_t AddConstant(Constant constant);

  ExpressionPtr New(Expression::Kind kind, std::string text = "");
  // With the children, whose depth counts.
  ExpressionPtr New(Expression::Kind kind, std::string text, ExpressionPtr a, ExpressionPtr b = nullptr,
                    ExpressionPtr c = nullptr);
  ExpressionPtr NewConstant(Constant constant);
  void AddChild(Expression* parent, ExpressionPtr child);

  // parser_expressions.cc
  ExpressionPtr ParseExpression(bool with_condition = true);
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseSum();
  ExpressionPtr ParseConcat();
  ExpressionPtr ParseProduct();
  ExpressionPtr ParsePower();
  ExpressionPtr ParseUnary(bool with_filter = true);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseNamed();
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParsePostfix(ExpressionPtr value);
  ExpressionPtr ParseFilters(ExpressionPtr value);
  ExpressionPtr ParseFilter(ExpressionPtr value);
  ExpressionPtr ParseTest(ExpressionPtr value);
  ExpressionPtr ParseSubscript(ExpressionPtr value);
  ExpressionPtr ParseSubscripted();
  ExpressionPtr ParseCall(ExpressionPtr value);
  void ParseArguments(Expression* call);
  // Values with commas between them: a tuple, unless it is one alone. `ends_at`: a name that ends it.
  ExpressionPtr ParseTuple(bool with_condition = true, bool in_parentheses = false, absl::string_view ends_at = "");
  bool IsTupleEnd(absl::string_view ends_at) const;

  // parser.cc
  Body ParseBody(std::initializer_list<absl::string_view> ends);
  // The same, up to and with the tag that ends it.
  Body ParseBlock(absl::string_view end);
  // The same for what is a text of its own: no loop around it can be left from within.
  Body ParseText(absl::string_view end);
  StatementPtr NewStatement(Statement::Kind kind, int line);
  StatementPtr ParseStatement();
  StatementPtr ParseIf(int line);
  StatementPtr ParseFor(int line);
  StatementPtr ParseSet(int line);
  StatementPtr ParseWith(int line);
  StatementPtr ParseMacro(int line);
  StatementPtr ParseCallBlock(int line);
  StatementPtr ParseFilterBlock(int line);
  StatementPtr ParsePrint(int line);
  StatementPtr ParseGeneration(int line);
  StatementPtr ParseLoopControl(int line, Statement::Kind kind);
  StatementPtr ParseAutoescape(int line);
  void ParseSignature(MacroSignature* signature);
  Body ParseMacroBody(MacroSignature* signature, absl::string_view end);
  ExpressionPtr ParseTarget(bool with_namespace, absl::string_view ends_at);
  ExpressionPtr ParseTargetName(bool with_namespace);

  std::vector<Token> tokens_;
  Budget* budget_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;  // open, of the function that is parsed
  Program program_;
  absl::flat_hash_map<std::string, Symbol> symbols_;
  std::vector<OpenMacro> macros_;
};

}  // namespace llmc::jinja
