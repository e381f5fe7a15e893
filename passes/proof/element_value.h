// What one element of a tensor is, told from the graph, as a function of its place: enough to prove what masks hide and
// which positions angles turn by. A place is a dim for each axis, in symbols of the caller's.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace llmc {

// Holds where every one of these is at least 0; everywhere if there is none.
struct Condition {
  bool never = false;
  std::vector<Dim> at_least_zero;

  bool always() const { return !never && at_least_zero.empty(); }
  bool operator==(const Condition&) const = default;
};

struct ElementValue {
  // kInteger: a number without a fraction, of whatever type.
  // kMasked: `number` where the condition holds, else `otherwise`.
  // kTable: function(factor * inner * table[place]) * outer, where `table` is a weight or a constant.
  enum class Kind : uint8_t { kInteger, kBool, kNumber, kMasked, kTable };
  enum class Function : uint8_t { kNone, kCos, kSin };

  Kind kind = Kind::kNumber;
  Dim integer;
  Condition condition;
  double number = 0, otherwise = 0;
  bool is_bound = false;  // `otherwise` is the most that it is, no number
  Function function = Function::kNone;
  Dim factor = Dim(1);
  double inner = 1, outer = 1;
  const Value* table = nullptr;
  Dims place;

  bool operator==(const ElementValue&) const = default;
};

// What the caller knows. What is told holds in every run in which all of it is true.
struct ElementFacts {
  const Model* model = nullptr;  // null: nothing is known of what weights hold
  std::map<const Value*, std::function<ElementValue(const Dims& place)>> params;
  std::map<std::string, Dim, std::less<>> dims;  // symbols, and what they are equal to
  DimEnv most;                                   // the most that a symbol is, those of places among them
  Dims nonempty;                                 // symbols that are at least 1
};

ElementValue IntegerElement(Dim value);

// Nothing where the graph does not tell.
std::optional<ElementValue> ElementAt(const Value& value, const Dims& place, const ElementFacts& facts);

}  // namespace llmc
