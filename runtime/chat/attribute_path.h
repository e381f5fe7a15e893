// The argument `attribute` of many filters.
#pragma once

#include <optional>
#include <vector>

#include "runtime/chat/interpreter.h"

namespace llmc::jinja {

// "a.b.0": an item of an item. Where there is none, `otherwise`, if it is given.
class AttributePath {
 public:
  AttributePath(Interpreter& run, const Value& attribute, std::optional<Value> otherwise = std::nullopt);
  Value Of(Interpreter& run, const Value& value) const;

 private:
  std::vector<Value> parts_;
  std::optional<Value> otherwise_;
};

// What values are compared by: in lower case, unless case counts.
Value CaseKey(Interpreter& run, const Value& value, bool case_sensitive);

}  // namespace llmc::jinja
