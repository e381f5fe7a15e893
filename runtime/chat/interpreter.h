// Runs a template.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/chat/ast.h"
#include "runtime/chat/budget.h"
#include "runtime/chat/operators.h"
#include "runtime/chat/value.h"

namespace llmc::jinja {

// Names and their values. A macro keeps the scope in which it stands.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> parent) : parent(std::move(parent)) {}
  const Value* Find(Symbol symbol) const;
  void Set(Symbol symbol, Value value);

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> values;
};

// Code points of the output: [begin, end).
struct GenerationRange {
  int64_t begin;
  int64_t end;
};

// One run of a program. Not thread safe.
class Interpreter {
 public:
  // `now` and `zone` are what strftime_now shows. All must outlive the interpreter; `variables` are made with `budget`.
  Interpreter(const Program& program, Budget* budget, absl::flat_hash_map<std::string, Value> variables,
              std::function<absl::Time()> now, absl::TimeZone zone);
  ~Interpreter();

  Text Run();
  const std::vector<GenerationRange>& generation() const { return generation_; }

  // For filters, tests, methods and functions.
  Budget* budget() const { return budget_; }
  absl::Time now() const { return now_(); }
  absl::TimeZone zone() const { return zone_; }
  Value Call(const Value& function, Arguments& arguments);
  Value Filter(absl::string_view name, const Value& value, Arguments& arguments);
  bool Test(absl::string_view name, const Value& value, Arguments& arguments);
  // value.name and value[index], undefined where there is none.
  Value Attribute(const Value& value, absl::string_view name);
  Value Item(const Value& value, const Value& index);
  Value NewNamespace(const std::vector<std::pair<std::string, Value>>& attributes);
  Value Str(Text text) { return Value::String(budget_, std::move(text)); }
  Value Str(absl::string_view bytes, bool is_data = false) { return Value::String(budget_, bytes, is_data); }

  // For what calls back into the template. The parameters are set in `scope`, a new one.
  Text RunBody(const Body& body, std::shared_ptr<Scope> scope);
  Value Evaluate(const Expression& expression);
  const std::shared_ptr<Scope>& scope() const { return scope_; }
  Symbol SymbolOf(absl::string_view name) const;
  // A loop over `items`, to a text of its own; `depth` counts recursive calls of it from 0 on.
  Text RunLoopBuffered(const Statement& loop, const std::shared_ptr<Scope>& scope, const Value& items, int depth);
  // Another scope while `run` runs.
  void RunIn(std::shared_ptr<Scope> scope, absl::FunctionRef<void()> run);

 private:
  // What a body ended with.
  enum class Flow : uint8_t { kNormal, kBreak, kContinue };

  // A level of the interpreter's own recursion.
  class Level {
   public:
    explicit Level(Interpreter* run);
    ~Level() { --run_->depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Interpreter* run_;
  };

  // statements.cc
  Flow Execute(const Body& body);
  Flow ExecuteStatement(const Statement& statement);
  Flow If(const Statement& statement);
  void Loop(const Statement& statement, const Value& items, int depth);
  void Set(const Statement& statement);
  void SetBlock(const Statement& statement);
  Flow With(const Statement& statement);
  void CallBlock(const Statement& statement);
  void FilterBlock(const Statement& statement);
  void Generation(const Statement& statement);
  void Assign(const Expression& target, const Value& value);
  Value MakeMacro(const Statement& statement);
  // Output to a text of its own while `write` runs.
  Text Buffered(absl::FunctionRef<void()> write);
  void Write(const Text& text);
  std::shared_ptr<Scope> NewScope() const { return std::make_shared<Scope>(scope_); }

  // expressions.cc
  Value Lookup(const Expression& name);
  Value Binary(const Expression& expression);
  Value Compares(const Expression& expression);
  Value Concat(const Expression& expression);
  Value ItemOf(const Expression& expression);
  Value EvaluateFilter(const Expression& filter);
  Value EvaluateCall(const Expression& call, const Value* caller);
  Value Dict(const Expression& dict);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& expressions);
  Arguments EvaluateArguments(const Expression& call);
  std::optional<Value> AttributeIfAny(const Value& value, absl::string_view name);
  std::optional<Value> ItemIfAny(const Value& value, const Value& index);
  Value ConstantValue(size_t index);

  const Program& program_;
  Budget* const budget_;
  const std::function<absl::Time()> now_;
  const absl::TimeZone zone_;
  const absl::flat_hash_map<std::string, Value> variables_;
  absl::flat_hash_map<std::string, Value> globals_;
  std::vector<std::optional<Value>> constants_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>> captured_;  // by macros
  std::vector<std::unique_ptr<NamespaceObject>> namespaces_;
  std::optional<Value> filter_input_;  // of the filter block that is about to be filtered
  TextBuilder output_;
  int buffers_ = 0;          // that are open: what is written is not output yet
  int64_t code_points_ = 0;  // of the output
  std::vector<GenerationRange> generation_;
  int depth_ = 0;
};

// "...".format(...) and "..." % values.
Text BraceFormat(Interpreter& run, const Text& format, const Arguments& arguments);
Text PercentFormat(Interpreter& run, const Text& format, const Value& values);
// json.dumps, as transformers calls it for the filter tojson.
struct JsonStyle {
  bool ascii = false;
  bool sorted = false;
  std::optional<std::string> indent;
  std::string item_separator, key_separator;
};
Text JsonOf(Interpreter& run, const Value& value, const JsonStyle& style);

// Tables of names. A new filter, test or method is a row in a table of the file of its kind, a new kind a table here.
using FilterFunction = Value (*)(Interpreter& run, const Value& value, Arguments& arguments);
using TestFunction = bool (*)(Interpreter& run, const Value& value, const Arguments& arguments);
struct NamedFilter {
  absl::string_view name;
  FilterFunction function;
};
struct NamedTest {
  absl::string_view name;
  TestFunction function;
};
absl::Span<const NamedFilter> TextFilters();
absl::Span<const NamedFilter> NumberFilters();
absl::Span<const NamedFilter> SequenceFilters();
absl::Span<const NamedFilter> SelectionFilters();
absl::Span<const NamedTest> ValueTests();
// Methods of a type, nullopt if it has none of that name.
std::optional<Value> MethodOf(Interpreter& run, const Value& value, absl::string_view name);
absl::Span<const NamedFilter> StringMethods();
// range, namespace, raise_exception, ...
absl::flat_hash_map<std::string, Value> Globals(Budget* budget);

}  // namespace llmc::jinja
