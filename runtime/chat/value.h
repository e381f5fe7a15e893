// The values of a template: those of Python that Jinja's sandbox leaves, none of which changes once it is made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "runtime/chat/budget.h"
#include "runtime/chat/provenance.h"

namespace llmc::jinja {

class Interpreter;
class Value;
struct Arguments;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kRange,
  kView,       // keys(), values() or items() of a dict
  kGenerator,  // what can be read once
  kObject,     // what has a class of its own: a namespace, a function, a loop
};

// What a value holds that is no number. It counts its memory, and how deep values lie in each other in it.
class Object {
 public:
  Object(Budget* budget, size_t bytes, int depth);
  virtual ~Object();
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  int depth() const { return depth_; }
  Budget* budget() const { return budget_; }

  // Of values of kObject. TypeName: as Python calls it. Attribute: nullopt if there is none of that name.
  virtual absl::string_view TypeName() const { return "object"; }
  virtual std::optional<Value> Attribute(Interpreter& run, absl::string_view name);
  virtual bool callable() const { return false; }
  virtual Value Call(Interpreter& run, Arguments& arguments);
  // As Python prints it; nullopt: with its address, which no two programs print alike.
  virtual std::optional<Text> Repr(Interpreter& run, int depth);

 private:
  Budget* const budget_;
  const int64_t bytes_;
  const int depth_;
};

class Value {
 public:
  Value() = default;  // undefined, without a name
  static Value None() { return Value(Kind::kNone, 0, nullptr); }
  static Value Bool(bool value) { return Value(Kind::kBool, value ? 1 : 0, nullptr); }
  static Value Int(int64_t value) { return Value(Kind::kInt, value, nullptr); }
  static Value Float(double value);
  // `reason` says what is undefined, for whoever uses it in a way that needs a value.
  static Value Undefined(Budget* budget, std::string reason);
  static Value String(Budget* budget, Text text);
  static Value String(Budget* budget, absl::string_view bytes, bool is_data = false);
  static Value List(Budget* budget, std::vector<Value> items);
  static Value Tuple(Budget* budget, std::vector<Value> items);
  // What is made of `source` when it is first read: an error of it comes then, or never.
  static Value Generator(Budget* budget, const Value& source, std::function<std::vector<Value>()> make);
  static Value OfObject(Kind kind, std::shared_ptr<Object> object) { return Value(kind, 0, std::move(object)); }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  // Python's bool is an int.
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }

  bool as_bool() const { return integer_ != 0; }
  int64_t as_int() const { return integer_; }
  double as_float() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(integer_); }
  const Text& text() const;
  absl::string_view bytes() const { return text().bytes; }
  int64_t length() const;                   // code points of a string
  const std::vector<Value>& items() const;  // of a list or tuple
  const std::string& undefined_reason() const;
  int depth() const { return object_ == nullptr ? 0 : object_->depth(); }
  Object* object() const { return object_.get(); }
  template <class T>
  T* As() const {
    return static_cast<T*>(object_.get());
  }

  // Of numbers: whether they came from the conversation. Texts know it of each byte.
  bool is_data() const { return is_data_; }
  Value WithData(bool is_data) const;

  // Of strings: whether the filter `safe` or `escape` made it. What + joins to such a one is escaped for HTML, as by
  // Python's Markup, though nothing else here escapes.
  bool is_markup() const { return is_markup_; }
  Value WithMarkup(bool is_markup) const;

 private:
  Value(Kind kind, int64_t integer, std::shared_ptr<Object> object)
      : kind_(kind), integer_(integer), object_(std::move(object)) {}

  Kind kind_ = Kind::kUndefined;
  bool is_data_ = false;
  bool is_markup_ = false;
  union {
    int64_t integer_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

int DepthOf(const std::vector<Value>& items);

struct StringObject : Object {
  StringObject(Budget* budget, Text text);
  const Text text;
  const int64_t length;  // code points
};

struct ListObject : Object {
  ListObject(Budget* budget, std::vector<Value> items);
  const std::vector<Value> items;
};

class GeneratorObject : public Object {
 public:
  GeneratorObject(Budget* budget, int depth, std::function<std::vector<Value>()> make)
      : Object(budget, sizeof(GeneratorObject), depth), make_(std::move(make)) {}
  std::optional<Value> Next();
  std::vector<Value> TakeRest();

 private:
  void Make();
  std::function<std::vector<Value>()> make_;
  std::vector<Value> items_;
  size_t next_ = 0;
};

// In the order of insertion, as Python's.
struct DictObject : Object {
  using Entry = std::pair<Value, Value>;
  // Of equal keys the first stays, with the last value. Fails on keys that Python cannot hash.
  static Value Make(Budget* budget, std::vector<Entry> entries);
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
  std::vector<Entry> entries;

 private:
  DictObject(Budget* budget, size_t entries, int depth);
  absl::flat_hash_map<std::string, size_t> places_;  // by HashKey
};

struct RangeObject : Object {
  RangeObject(Budget* budget, int64_t start, int64_t stop, int64_t step);
  const int64_t start, stop, step;
  int64_t count() const;
};

struct ViewObject : Object {
  enum What { kKeys, kValues, kItems };
  ViewObject(Budget* budget, Value dict, What what);
  const Value dict;
  const What what;
};

// Arguments of a call, in the order in which they stand.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// The arguments of a function that knows their names.
class Bound {
 public:
  // Fails on one that is unknown, given twice, or missing; the first `required` must be given.
  Bound(Budget* budget, const Arguments& arguments, absl::string_view function,
        std::initializer_list<absl::string_view> names, size_t required = 0);
  bool has(size_t index) const { return values_[index].has_value(); }
  const Value& operator[](size_t index) const { return *values_[index]; }
  Value Or(size_t index, Value otherwise) const { return has(index) ? *values_[index] : std::move(otherwise); }
  int64_t Int(size_t index, int64_t otherwise) const;
  bool Flag(size_t index, bool otherwise) const;
  // A string; `otherwise` where it is not given or none.
  std::string String(size_t index, absl::string_view otherwise) const;

 private:
  Budget* budget_;
  std::string function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

// A function or method written here. `self` is what the method was taken from.
using Native = std::function<Value(Interpreter& run, const Value& self, Arguments& arguments)>;

class FunctionObject : public Object {
 public:
  FunctionObject(Budget* budget, absl::string_view name, bool is_method, Value self, Native function);
  absl::string_view TypeName() const override { return is_method_ ? "builtin_function_or_method" : "function"; }
  bool callable() const override { return true; }
  Value Call(Interpreter& run, Arguments& arguments) override { return function_(run, self_, arguments); }

 private:
  const std::string name_;
  const bool is_method_;
  const Value self_;
  const Native function_;
};

Value MakeFunction(Budget* budget, absl::string_view name, Native function);
Value MakeMethod(Budget* budget, absl::string_view name, Value self, Native function);

// What namespace() makes: the one value that changes. The interpreter owns all of them, since they may hold each other.
class NamespaceObject : public Object {
 public:
  explicit NamespaceObject(Budget* budget) : Object(budget, sizeof(NamespaceObject), 0) {}
  absl::string_view TypeName() const override { return "Namespace"; }
  std::optional<Value> Attribute(Interpreter& run, absl::string_view name) override;
  std::optional<Text> Repr(Interpreter& run, int depth) override;
  void Set(absl::string_view name, Value value);
  void Clear() { attributes_.clear(); }

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

// As Python calls the type: "str", "int", ...
absl::string_view TypeName(const Value& value);

}  // namespace llmc::jinja
