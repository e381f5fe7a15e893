// What stands behind "is".
#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

template <Kind... kinds>
bool IsOf(Interpreter&, const Value& value, const Arguments&) {
  return ((value.kind() == kinds) || ...);
}

const Value& TestOther(Interpreter& run, const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) run.budget()->Fail("this test needs one argument");
  return arguments.positional[0];
}

bool IsDefined(Interpreter&, const Value& value, const Arguments&) { return !value.is_undefined(); }
bool IsNumberTest(Interpreter&, const Value& value, const Arguments&) { return value.is_number(); }
bool IsTrueTest(Interpreter&, const Value& value, const Arguments&) { return value.is(Kind::kBool) && value.as_bool(); }
bool IsFalseTest(Interpreter&, const Value& value, const Arguments&) {
  return value.is(Kind::kBool) && !value.as_bool();
}
bool IsIterableTest(Interpreter&, const Value& value, const Arguments&) { return IsIterable(value); }
bool IsSequence(Interpreter&, const Value& value, const Arguments&) {
  return LengthOf(value) >= 0 && !value.is(Kind::kView);
}
bool IsCallable(Interpreter&, const Value& value, const Arguments&) {
  // Of an undefined value too Python says that it can be called.
  return value.is_undefined() || (value.is(Kind::kObject) && value.object()->callable());
}

int64_t Modulo(Interpreter& run, const Value& value, const Value& by) {
  const Value rest = Arithmetic(run, "%", value, by);
  if (rest.is_string()) return -1;  // of a format: no number is left
  if (!rest.is_integer()) return rest.as_float() == 0 ? 0 : rest.as_float() == 1 ? 1 : 2;
  return rest.as_int();
}
bool IsOdd(Interpreter& run, const Value& value, const Arguments&) { return Modulo(run, value, Value::Int(2)) == 1; }
bool IsEven(Interpreter& run, const Value& value, const Arguments&) { return Modulo(run, value, Value::Int(2)) == 0; }
bool IsDivisible(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Modulo(run, value, TestOther(run, arguments)) == 0;
}

bool IsEqual(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Equals(run, value, TestOther(run, arguments));
}
bool IsUnequal(Interpreter& run, const Value& value, const Arguments& arguments) {
  return !Equals(run, value, TestOther(run, arguments));
}
bool IsIn(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Contains(run, TestOther(run, arguments), value);
}
bool IsBelow(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Compare(run, value, TestOther(run, arguments), "<") < 0;
}
bool IsAtMost(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Compare(run, value, TestOther(run, arguments), "<=") <= 0;
}
bool IsAbove(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Compare(run, value, TestOther(run, arguments), ">") > 0;
}
bool IsAtLeast(Interpreter& run, const Value& value, const Arguments& arguments) {
  return Compare(run, value, TestOther(run, arguments), ">=") >= 0;
}

bool IsSame(Interpreter& run, const Value& value, const Arguments& arguments) {
  const Value& other = TestOther(run, arguments);
  if (value.kind() != other.kind()) return false;
  if (value.object() != nullptr || other.object() != nullptr) return value.object() == other.object();
  return Equals(run, value, other);
}

// Of a string's cased characters, of which there must be one.
bool IsCasedAs(Interpreter& run, const Value& value, bool (*is_case)(char32_t)) {
  const Text text = StrOf(run, value);
  bool found = false;
  for (size_t i = 0; i < text.bytes.size();) {
    const auto [c, bytes] = CodePointAt(text.bytes, i);
    if (IsCased(c)) {
      if (!is_case(c)) return false;
      found = true;
    }
    i += bytes;
  }
  return found;
}
bool IsLowerTest(Interpreter& run, const Value& value, const Arguments&) { return IsCasedAs(run, value, IsLower); }
bool IsUpperTest(Interpreter& run, const Value& value, const Arguments&) { return IsCasedAs(run, value, IsUpper); }

bool IsFilter(Interpreter&, const Value& value, const Arguments&) {
  if (!value.is_string()) return false;
  for (const auto& filters : {TextFilters(), NumberFilters(), SequenceFilters(), SelectionFilters()}) {
    for (const NamedFilter& filter : filters) {
      if (filter.name == value.bytes()) return true;
    }
  }
  return false;
}
bool IsTest(Interpreter&, const Value& value, const Arguments&) {
  if (!value.is_string()) return false;
  for (const NamedTest& test : ValueTests()) {
    if (test.name == value.bytes()) return true;
  }
  return false;
}

constexpr NamedTest kTests[] = {
    {"!=", IsUnequal},
    {"<", IsBelow},
    {"<=", IsAtMost},
    {"==", IsEqual},
    {">", IsAbove},
    {">=", IsAtLeast},
    {"boolean", IsOf<Kind::kBool>},
    {"callable", IsCallable},
    {"defined", IsDefined},
    {"divisibleby", IsDivisible},
    {"eq", IsEqual},
    {"equalto", IsEqual},
    {"even", IsEven},
    {"false", IsFalseTest},
    {"filter", IsFilter},
    {"float", IsOf<Kind::kFloat>},
    {"ge", IsAtLeast},
    {"greaterthan", IsAbove},
    {"gt", IsAbove},
    {"in", IsIn},
    {"integer", IsOf<Kind::kInt>},
    {"iterable", IsIterableTest},
    {"le", IsAtMost},
    {"lessthan", IsBelow},
    {"lower", IsLowerTest},
    {"lt", IsBelow},
    {"mapping", IsOf<Kind::kDict>},
    {"ne", IsUnequal},
    {"none", IsOf<Kind::kNone>},
    {"number", IsNumberTest},
    {"odd", IsOdd},
    {"sameas", IsSame},
    {"sequence", IsSequence},
    {"string", IsOf<Kind::kString>},
    {"test", IsTest},
    {"true", IsTrueTest},
    {"undefined", IsOf<Kind::kUndefined>},
    {"upper", IsUpperTest},
};

}  // namespace

absl::Span<const NamedTest> ValueTests() { return kTests; }

}  // namespace llmc::jinja
