// Python's operators and conversions on values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "runtime/chat/value.h"

namespace llmc::jinja {

// All of them fail as Python would raise. `depth` counts values in each other.

bool IsTrue(Interpreter& run, const Value& value);
bool Equals(Interpreter& run, const Value& a, const Value& b, int depth = 0);
// Below, at or above 0.
int Compare(Interpreter& run, const Value& a, const Value& b, absl::string_view op, int depth = 0);
bool Contains(Interpreter& run, const Value& container, const Value& item);
// + - * / // % **
Value Arithmetic(Interpreter& run, absl::string_view op, const Value& a, const Value& b);
Value Negate(Interpreter& run, const Value& value);

// str(value) and repr(value).
Text StrOf(Interpreter& run, const Value& value);
Text ReprOf(Interpreter& run, const Value& value, int depth = 0);
std::string FloatText(double value);

// len(value); -1: it has none.
int64_t LengthOf(const Value& value);
bool IsIterable(const Value& value);
// What iterating over the value gives; uses up a generator.
std::vector<Value> ItemsOf(Interpreter& run, const Value& value);
std::vector<Value> ViewItems(Interpreter& run, const ViewObject& view);
// One code point of a string, or a part of it by code points.
Value CodePointsOf(Interpreter& run, const Value& string, int64_t begin, int64_t end);
// string[start:stop:step] and so on; nullptr for what is left out.
Value Slice(Interpreter& run, const Value& value, const Value* start, const Value* stop, const Value* step);

// Fails where it is undefined.
void ExpectDefined(Interpreter& run, const Value& value);

}  // namespace llmc::jinja
