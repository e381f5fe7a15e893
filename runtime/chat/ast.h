// The syntax tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace llmc::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<Expression>;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

// What a name is called by: the same number for the same name.
using Symbol = int;

struct Argument {
  enum How : uint8_t { kPositional, kNamed, kStar, kDoubleStar } how;
  std::string name;
  ExpressionPtr value;
};

struct Expression {
  enum Kind : uint8_t {
    kConstant,   // number `constant`
    kName,       // `symbol`
    kList,       // children
    kTuple,      // children
    kDict,       // children: keys and values in turn
    kUnary,      // text: "not", "-", "+"
    kBinary,     // text: the operator, "and" and "or" too
    kConcat,     // children
    kCompare,    // children[0], then operators[i] children[i + 1]
    kIf,         // children: value, condition, otherwise (or nullptr)
    kAttribute,  // children[0].text
    kItem,       // children[0][children[1]]
    kSlice,      // children: start, stop, step, each or nullptr; only as children[1] of kItem
    kCall,       // children[0](arguments)
    kFilter,     // children[0] | text(arguments); children[0] is nullptr in a filter block
    kTest,       // children[0] is text(arguments)
  };
  Kind kind;
  int line = 0;
  int depth = 1;  // of expressions in each other
  Symbol symbol = 0;
  size_t constant = 0;
  std::string text;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  std::vector<Argument> arguments;
};

// A constant of the template.
struct Constant {
  enum Kind : uint8_t { kNone, kBool, kInt, kFloat, kString } kind;
  int64_t integer = 0;
  double number = 0;
  std::string text;
};

struct MacroSignature {
  std::string name;  // empty: of a call block
  std::vector<std::pair<std::string, Symbol>> parameters;
  std::vector<ExpressionPtr> defaults;                                  // of the last parameters
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;  // by name, in its body
};

struct Branch {
  ExpressionPtr test;  // nullptr: else
  Body body;
};

struct Statement {
  enum Kind : uint8_t {
    kData,         // text
    kPrint,        // values
    kIf,           // branches
    kFor,          // target in values[0] if values[1] (or nullptr); body, otherwise
    kSet,          // target = values[0]
    kSetBlock,     // target = body, through values[0], if there is one
    kWith,         // targets = values; body
    kMacro,        // symbol, signature, body
    kCallBlock,    // values[0] is the call; signature, body
    kFilterBlock,  // body through values[0]
    kGeneration,   // body
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  std::string text;
  size_t constant = 0;  // of kData
  ExpressionPtr target;
  std::vector<ExpressionPtr> targets, values;
  std::vector<Branch> branches;
  Body body, otherwise;
  bool recursive = false;
  Symbol symbol = 0;
  MacroSignature signature;
};

// A template, parsed.
struct Program {
  Body body;
  std::vector<std::string> symbols;  // the name of each
  std::vector<Constant> constants;
};

}  // namespace llmc::jinja
