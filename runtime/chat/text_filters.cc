// Filters of strings.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/text_operations.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

template <std::string (*convert)(absl::string_view)>
Value ConvertFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound none(run.budget(), arguments, "a filter of strings", {});
  return run.Str(Convert(run, StrOf(run, value), convert)).WithMarkup(value.is_markup());
}

// Jinja's own title case: words end at white space and brackets, so that "it's" becomes "It's".
std::string JinjaTitle(absl::string_view text) {
  std::string result;
  size_t begin = 0;
  const auto add_word = [&](size_t end) {
    if (end == begin) return;
    const size_t first = CodePointAt(text, begin).second;
    absl::StrAppend(&result, Upper(text.substr(begin, first)), Lower(text.substr(begin + first, end - begin - first)));
  };
  for (size_t i = 0; i < text.size();) {
    const auto [c, bytes] = CodePointAt(text, i);
    if (IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      add_word(i);
      absl::StrAppend(&result, text.substr(i, bytes));
      begin = i + bytes;
    }
    i += bytes;
  }
  add_word(text.size());
  return result;
}

Value TrimFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "trim", {"chars"});
  const std::string chars = bound.String(0, "");
  const bool spaces = !bound.has(0) || bound[0].is_none();
  return run.Str(Strip(run, StrOf(run, value), spaces ? nullptr : &chars, true, true)).WithMarkup(value.is_markup());
}

Value ReplaceFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "replace", {"old", "new", "count"}, 2);
  const int64_t most = bound.has(2) && bound[2].is_none() ? -1 : bound.Int(2, -1);
  return run.Str(Replace(run, StrOf(run, value), StrOf(run, bound[0]).bytes, StrOf(run, bound[1]), most));
}

Value StringFilter(Interpreter& run, const Value& value, Arguments&) {
  return run.Str(StrOf(run, value)).WithMarkup(value.is_markup());
}

Value SafeFilter(Interpreter& run, const Value& value, Arguments&) {
  return run.Str(StrOf(run, value)).WithMarkup(true);
}

template <bool always>
Value EscapeFilter(Interpreter& run, const Value& value, Arguments&) {
  if (value.is_markup() && !always) return value;
  return run.Str(EscapeHtml(run, StrOf(run, value))).WithMarkup(true);
}

Value IndentFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "indent", {"width", "first", "blank"});
  if (!value.is_string()) {
    ExpectDefined(run, value);
    run.budget()->Fail(absl::StrCat("indent needs a string, not ", TypeName(value)));
  }
  Text indent;
  if (bound.has(0) && bound[0].is_string()) {
    indent = bound[0].text();
  } else {
    indent = Pad(run, Text(), bound.Int(0, 4), " ", 0);
  }
  TextBuilder with_newline(run.budget());
  with_newline.Append(value.text());
  with_newline.Append("\n", false);
  const std::vector<Text> lines = SplitLines(run, with_newline.Build(), false);
  TextBuilder result(run.budget());
  if (bound.Flag(1, false)) result.Append(indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      result.Append("\n", false);
      if (bound.Flag(2, false) || !lines[i].bytes.empty()) result.Append(indent);
    }
    result.Append(lines[i]);
  }
  return run.Str(result.Build());
}

Value TruncateFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "truncate", {"length", "killwords", "end", "leeway"});
  const int64_t length = bound.Int(0, 255);
  const bool has_leeway = bound.has(3) && !bound[3].is_none();
  const Value end = bound.Or(2, run.Str("..."));
  if (!end.is_string()) run.budget()->Fail("the end of truncate must be a string");
  if (length < end.length()) run.budget()->Fail("truncate: the length is below that of the end");
  const int64_t given = LengthOf(value);
  if (given >= 0 && given <= length + (has_leeway ? bound.Int(3, 5) : 5)) return value;
  if (!value.is_string()) run.budget()->Fail(absl::StrCat("truncate cannot cut a '", TypeName(value), "'"));
  const Value cut = CodePointsOf(run, value, 0, length - end.length());
  TextBuilder result(run.budget());
  const std::string space = " ";
  result.Append(bound.Flag(1, false) ? cut.text() : Split(run, cut.text(), &space, 1, true)[0]);
  result.Append(end.text());
  return run.Str(result.Build());
}

Value WordCountFilter(Interpreter& run, const Value& value, Arguments&) {
  const Text text = StrOf(run, value);
  run.budget()->StepBytes(text.bytes.size());
  int64_t count = 0;
  bool in_word = false;
  for (size_t i = 0; i < text.bytes.size();) {
    const auto [c, bytes] = CodePointAt(text.bytes, i);
    count += IsWord(c) && !in_word ? 1 : 0;
    in_word = IsWord(c);
    i += bytes;
  }
  return Value::Int(count);
}

Value CenterFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "center", {"width"});
  return run.Str(Pad(run, StrOf(run, value), bound.Int(0, 80), " ", 1));
}

Value FormatFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    run.budget()->Fail("can't handle positional and keyword arguments at the same time");
  }
  std::vector<DictObject::Entry> entries;
  for (const auto& [name, item] : arguments.named) entries.emplace_back(run.Str(name), item);
  const Value values = entries.empty() ? Value::Tuple(run.budget(), arguments.positional)
                                       : DictObject::Make(run.budget(), std::move(entries));
  return run.Str(PercentFormat(run, StrOf(run, value), values));
}

// As transformers has it: json.dumps without the escapes for HTML that Jinja's own adds.
Value ToJsonFilter(Interpreter& run, const Value& value, Arguments& arguments) {
  const Bound bound(run.budget(), arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style{.ascii = bound.Flag(0, false), .sorted = bound.Flag(3, false)};
  if (bound.has(1) && bound[1].is_string()) {
    style.indent = std::string(bound[1].bytes());
  } else if (bound.has(1) && !bound[1].is_none()) {
    style.indent = Pad(run, Text(), bound.Int(1, 0), " ", 0).bytes;
  }
  style.item_separator = style.indent.has_value() ? "," : ", ";
  style.key_separator = ": ";
  if (bound.has(2) && !bound[2].is_none()) {
    const std::vector<Value> separators = ItemsOf(run, bound[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      run.budget()->Fail("separators of tojson must be two strings");
    }
    style.item_separator = std::string(separators[0].bytes());
    style.key_separator = std::string(separators[1].bytes());
  }
  return run.Str(JsonOf(run, value, style));
}

constexpr NamedFilter kTextFilters[] = {
    {"capitalize", ConvertFilter<Capitalize>},
    {"center", CenterFilter},
    {"e", EscapeFilter<false>},
    {"escape", EscapeFilter<false>},
    {"forceescape", EscapeFilter<true>},
    {"format", FormatFilter},
    {"indent", IndentFilter},
    {"lower", ConvertFilter<Lower>},
    {"replace", ReplaceFilter},
    {"safe", SafeFilter},
    {"string", StringFilter},
    {"title", ConvertFilter<JinjaTitle>},
    {"tojson", ToJsonFilter},
    {"trim", TrimFilter},
    {"truncate", TruncateFilter},
    {"upper", ConvertFilter<Upper>},
    {"wordcount", WordCountFilter},
};

}  // namespace

absl::Span<const NamedFilter> TextFilters() { return kTextFilters; }

}  // namespace llmc::jinja
