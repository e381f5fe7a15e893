// Methods of strings, as Python has them.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/text_operations.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

template <bool left, bool right>
Value StripMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "strip", {"chars"});
  const std::string chars = bound.String(0, "");
  const bool spaces = !bound.has(0) || bound[0].is_none();
  return run.Str(Strip(run, self.text(), spaces ? nullptr : &chars, left, right));
}

template <bool right>
Value SplitMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "split", {"sep", "maxsplit"});
  const std::string separator = bound.String(0, "");
  const bool spaces = !bound.has(0) || bound[0].is_none();
  return StringList(run, Split(run, self.text(), spaces ? nullptr : &separator, bound.Int(1, -1), right));
}

Value SplitLinesMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "splitlines", {"keepends"});
  return StringList(run, SplitLines(run, self.text(), bound.Flag(0, false)));
}

Value ReplaceMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "replace", {"old", "new", "count"}, 2);
  const std::string from = bound.String(0, "");
  if (!bound[0].is_string() || !bound[1].is_string()) run.budget()->Fail("replace() needs strings");
  return run.Str(Replace(run, self.text(), from, bound[1].text(), bound.Int(2, -1)));
}

template <std::string (*convert)(absl::string_view)>
Value ConvertMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "a method of strings", {});
  return run.Str(Convert(run, self.text(), convert));
}

Value JoinMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "join", {"iterable"}, 1);
  if (!IsIterable(bound[0])) run.budget()->Fail("can only join an iterable");
  std::vector<Text> parts;
  for (const Value& item : ItemsOf(run, bound[0])) {
    if (!item.is_string()) {
      run.budget()->Fail(absl::StrCat("join() needs strings, not ", TypeName(item)));
    }
    parts.push_back(item.text());
  }
  return run.Str(Join(run, parts, self.text()));
}

// The part of a string that start and end, in code points, leave: its bytes.
ByteRange PartOfString(Interpreter& run, const Value& self, const Bound& bound, size_t start, size_t end) {
  const auto at = [&](size_t index, int64_t otherwise) {
    if (!bound.has(index) || bound[index].is_none()) return otherwise;
    const int64_t given = bound.Int(index, 0), length = self.length();
    return std::clamp<int64_t>(given < 0 ? given + length : given, 0, length);
  };
  run.budget()->StepBytes(self.bytes().size());
  const int64_t from = at(start, 0), to = at(end, self.length());
  if (bound.has(start) && bound[start].is_integer() && bound[start].as_int() > self.length()) {
    return {self.bytes().size() + 1, self.bytes().size()};
  }
  return {OffsetOf(self.bytes(), from), OffsetOf(self.bytes(), to)};
}

template <bool at_end>
Value BeginsMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const char* const name = at_end ? "endswith" : "startswith";
  const Bound bound(run.budget(), arguments, name, {"affix", "start", "end"}, 1);
  const ByteRange range = PartOfString(run, self, bound, 1, 2);
  if (range.begin > range.end) return Value::Bool(false);
  const absl::string_view part = self.bytes().substr(range.begin, range.end - range.begin);
  std::vector<Value> affixes = {bound[0]};
  if (bound[0].is(Kind::kTuple)) affixes = bound[0].items();
  for (const Value& affix : affixes) {
    if (!affix.is_string()) {
      run.budget()->Fail(absl::StrCat(name, "() needs a string or a tuple of strings, not ", TypeName(affix)));
    }
    if (at_end ? absl::EndsWith(part, affix.bytes()) : absl::StartsWith(part, affix.bytes())) return Value::Bool(true);
  }
  return Value::Bool(false);
}

template <bool right, bool must>
Value FindMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "find", {"sub", "start", "end"}, 1);
  const std::string wanted = bound.String(0, "");
  const ByteRange range = PartOfString(run, self, bound, 1, 2);
  size_t found = absl::string_view::npos;
  if (range.begin <= range.end) {
    const absl::string_view part = self.bytes().substr(range.begin, range.end - range.begin);
    found = right ? part.rfind(wanted) : part.find(wanted);
  }
  if (found == absl::string_view::npos) {
    if (must) run.budget()->Fail("substring not found");
    return Value::Int(-1);
  }
  return Value::Int(CodePoints(self.bytes().substr(0, range.begin + found)));
}

Value CountMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "count", {"sub", "start", "end"}, 1);
  const std::string wanted = bound.String(0, "");
  const ByteRange range = PartOfString(run, self, bound, 1, 2);
  if (range.begin > range.end) return Value::Int(0);
  const absl::string_view part = self.bytes().substr(range.begin, range.end - range.begin);
  if (wanted.empty()) return Value::Int(CodePoints(part) + 1);
  int64_t count = 0;
  for (size_t at = part.find(wanted); at != absl::string_view::npos; at = part.find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value::Int(count);
}

Value FormatMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  return run.Str(BraceFormat(run, self.text(), arguments));
}

template <int left>
Value PadMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "a method that fills", {"width", "fillchar"}, 1);
  return run.Str(Pad(run, self.text(), bound.Int(0, 0), bound.String(1, " "), left));
}

Value ZFillMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "zfill", {"width"}, 1);
  const bool has_sign = !self.bytes().empty() && (self.bytes()[0] == '-' || self.bytes()[0] == '+');
  if (!has_sign) return run.Str(Pad(run, self.text(), bound.Int(0, 0), "0", 2));
  TextBuilder text(run.budget());
  text.Append(self.text(), 0, 1);
  text.Append(
      Pad(run, PartOf(run, self.text(), 1, self.bytes().size()), std::max<int64_t>(bound.Int(0, 0), 1) - 1, "0", 2));
  return run.Str(text.Build());
}

template <bool right>
Value PartitionMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "partition", {"sep"}, 1);
  const std::string separator = bound.String(0, "");
  if (separator.empty()) run.budget()->Fail("empty separator");
  const absl::string_view bytes = self.bytes();
  const size_t found = right ? bytes.rfind(separator) : bytes.find(separator);
  const Value empty = run.Str("");
  if (found == absl::string_view::npos) {
    return right ? Value::Tuple(run.budget(), {empty, empty, self}) : Value::Tuple(run.budget(), {self, empty, empty});
  }
  const size_t after = found + separator.size();
  return Value::Tuple(run.budget(),
                      {run.Str(PartOf(run, self.text(), 0, found)), run.Str(PartOf(run, self.text(), found, after)),
                       run.Str(PartOf(run, self.text(), after, bytes.size()))});
}

template <bool at_end>
Value RemoveMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "removeprefix", {"affix"}, 1);
  const std::string affix = bound.String(0, "");
  const absl::string_view bytes = self.bytes();
  if (at_end && absl::EndsWith(bytes, affix)) return run.Str(PartOf(run, self.text(), 0, bytes.size() - affix.size()));
  if (!at_end && absl::StartsWith(bytes, affix)) {
    return run.Str(PartOf(run, self.text(), affix.size(), bytes.size()));
  }
  return self;
}

// Whether all characters are so, of which there is at least one.
template <bool (*is)(char32_t)>
Value AllMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "a method of strings", {});
  run.budget()->StepBytes(self.bytes().size());
  for (size_t i = 0; i < self.bytes().size();) {
    const auto [c, bytes] = CodePointAt(self.bytes(), i);
    if (!is(c)) return Value::Bool(false);
    i += bytes;
  }
  return Value::Bool(!self.bytes().empty());
}
bool IsAlnum(char32_t c) { return IsAlpha(c) || IsNumeric(c); }

// Whether all cased characters are so, of which there is at least one.
template <bool (*is)(char32_t)>
Value CasedMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "a method of strings", {});
  run.budget()->StepBytes(self.bytes().size());
  bool found = false;
  for (size_t i = 0; i < self.bytes().size();) {
    const auto [c, bytes] = CodePointAt(self.bytes(), i);
    if (IsCased(c) && !is(c)) return Value::Bool(false);
    found |= IsCased(c);
    i += bytes;
  }
  return Value::Bool(found);
}

Value TitleMethod(Interpreter& run, const Value& self, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "istitle", {});
  run.budget()->StepBytes(self.bytes().size());
  bool found = false, in_word = false;
  for (size_t i = 0; i < self.bytes().size();) {
    const auto [c, bytes] = CodePointAt(self.bytes(), i);
    if (IsCased(c) && IsLower(c) != in_word) return Value::Bool(false);
    found |= IsCased(c);
    in_word = IsCased(c);
    i += bytes;
  }
  return Value::Bool(found);
}

constexpr NamedFilter kStringMethods[] = {
    {"capitalize", ConvertMethod<Capitalize>},
    {"center", PadMethod<1>},
    {"count", CountMethod},
    {"endswith", BeginsMethod<true>},
    {"find", FindMethod<false, false>},
    {"format", FormatMethod},
    {"index", FindMethod<false, true>},
    {"isalnum", AllMethod<IsAlnum>},
    {"isalpha", AllMethod<IsAlpha>},
    {"isdecimal", AllMethod<IsDecimal>},
    {"isdigit", AllMethod<IsDigit>},
    {"islower", CasedMethod<IsLower>},
    {"isnumeric", AllMethod<IsNumeric>},
    {"isspace", AllMethod<IsSpace>},
    {"istitle", TitleMethod},
    {"isupper", CasedMethod<IsUpper>},
    {"join", JoinMethod},
    {"ljust", PadMethod<0>},
    {"lower", ConvertMethod<Lower>},
    {"lstrip", StripMethod<true, false>},
    {"partition", PartitionMethod<false>},
    {"removeprefix", RemoveMethod<false>},
    {"removesuffix", RemoveMethod<true>},
    {"replace", ReplaceMethod},
    {"rfind", FindMethod<true, false>},
    {"rindex", FindMethod<true, true>},
    {"rjust", PadMethod<2>},
    {"rpartition", PartitionMethod<true>},
    {"rsplit", SplitMethod<true>},
    {"rstrip", StripMethod<false, true>},
    {"split", SplitMethod<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", BeginsMethod<false>},
    {"strip", StripMethod<true, true>},
    {"swapcase", ConvertMethod<SwapCase>},
    {"title", ConvertMethod<TitleCase>},
    {"upper", ConvertMethod<Upper>},
    {"zfill", ZFillMethod},
};

}  // namespace

absl::Span<const NamedFilter> StringMethods() { return kStringMethods; }

}  // namespace llmc::jinja
