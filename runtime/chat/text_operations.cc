#include "runtime/chat/text_operations.h"

#include <algorithm>

#include "runtime/chat/unicode.h"

namespace llmc::jinja {

Text PartOf(Interpreter& run, const Text& text, size_t begin, size_t end) {
  TextBuilder part(run.budget());
  part.Append(text, begin, end);
  return part.Build();
}

Text Strip(Interpreter& run, const Text& text, const std::string* chars, bool left, bool right) {
  run.budget()->StepBytes(text.bytes.size());
  const auto [begin, end] =
      chars == nullptr ? StripSpace(text.bytes, left, right) : StripChars(text.bytes, *chars, left, right);
  return PartOf(run, text, begin, end);
}

Text Replace(Interpreter& run, const Text& text, absl::string_view from, const Text& to, int64_t most) {
  run.budget()->StepBytes(text.bytes.size());
  TextBuilder result(run.budget());
  const absl::string_view bytes = text.bytes;
  size_t at = 0;
  if (from.empty()) {
    while (most != 0) {
      --most;
      result.Append(to);
      if (at == bytes.size()) return result.Build();
      const size_t next = at + CodePointAt(bytes, at).second;
      result.Append(text, at, next);
      at = next;
    }
  }
  while (most != 0 && !from.empty()) {
    const size_t found = bytes.find(from, at);
    if (found == absl::string_view::npos) break;
    --most;
    result.Append(text, at, found);
    result.Append(to);
    at = found + from.size();
  }
  result.Append(text, at, bytes.size());
  return result.Build();
}

namespace {

// The last part, which is not split further, keeps the white space at its far end.
std::vector<ByteRange> SplitAtSpace(absl::string_view bytes, int64_t most, bool right) {
  std::vector<ByteRange> parts;
  size_t begin = 0, end = bytes.size();
  while (true) {
    if (right) {
      end = begin + StripSpace(bytes.substr(begin, end - begin), false, true).second;
    } else {
      begin += StripSpace(bytes.substr(begin, end - begin), true, false).first;
    }
    if (begin == end) return parts;
    if (most-- == 0) {
      parts.push_back({begin, end});
      return parts;
    }
    size_t at = right ? end : begin;
    if (right) {
      while (at > begin && !IsSpace(CodePointAt(bytes, Before(bytes, at)).first)) at = Before(bytes, at);
      parts.push_back({at, end});
      end = at;
    } else {
      while (at < end && !IsSpace(CodePointAt(bytes, at).first)) at += CodePointAt(bytes, at).second;
      parts.push_back({begin, at});
      begin = at;
    }
  }
}

std::vector<ByteRange> SplitAtText(Interpreter& run, absl::string_view bytes, absl::string_view separator, int64_t most,
                                   bool right) {
  if (separator.empty()) run.budget()->Fail("empty separator");
  std::vector<ByteRange> parts;
  size_t begin = 0, end = bytes.size();
  while (most != 0) {
    const absl::string_view rest = bytes.substr(0, end);
    const size_t found = right ? rest.rfind(separator) : rest.find(separator, begin);
    if (found == absl::string_view::npos) break;
    --most;
    if (right) {
      parts.push_back({found + separator.size(), end});
      end = found;
    } else {
      parts.push_back({begin, found});
      begin = found + separator.size();
    }
  }
  parts.push_back({begin, end});
  return parts;
}

}  // namespace

std::vector<Text> Split(Interpreter& run, const Text& text, const std::string* separator, int64_t most, bool right) {
  run.budget()->StepBytes(text.bytes.size());
  std::vector<ByteRange> ranges = separator == nullptr ? SplitAtSpace(text.bytes, most, right)
                                                       : SplitAtText(run, text.bytes, *separator, most, right);
  if (right) std::reverse(ranges.begin(), ranges.end());
  std::vector<Text> parts;
  for (const ByteRange& range : ranges) parts.push_back(PartOf(run, text, range.begin, range.end));
  return parts;
}

std::vector<Text> SplitLines(Interpreter& run, const Text& text, bool keep_ends) {
  const absl::string_view bytes = text.bytes;
  run.budget()->StepBytes(bytes.size());
  std::vector<Text> lines;
  size_t begin = 0;
  for (size_t i = 0; i < bytes.size();) {
    const auto [c, size] = CodePointAt(bytes, i);
    size_t next = i + size;
    if (IsLineBreak(c)) {
      if (c == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      lines.push_back(PartOf(run, text, begin, keep_ends ? next : i));
      begin = next;
    }
    i = next;
  }
  if (begin < bytes.size()) lines.push_back(PartOf(run, text, begin, bytes.size()));
  return lines;
}

Text Join(Interpreter& run, const std::vector<Text>& parts, const Text& separator) {
  TextBuilder text(run.budget());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text.Append(separator);
    text.Append(parts[i]);
  }
  return text.Build();
}

Text Convert(Interpreter& run, const Text& text, const std::function<std::string(absl::string_view)>& convert) {
  run.budget()->StepBytes(text.bytes.size());
  run.budget()->CheckRoom(static_cast<int64_t>(text.bytes.size()) * 6);
  TextBuilder result(run.budget());
  result.Append(convert(text.bytes), text.is_data());
  return result.Build();
}

Text Pad(Interpreter& run, const Text& text, int64_t width, absl::string_view fill, int left) {
  if (CodePoints(fill) != 1) run.budget()->Fail("the fill character must be exactly one character long");
  const int64_t length = CodePoints(text.bytes), missing = std::max<int64_t>(width - length, 0);
  run.budget()->CheckRoom(missing);
  // As CPython's str.center(): which side is longer depends on the width.
  const int64_t before = left == 1 ? missing / 2 + (missing & width & 1) : left == 2 ? missing : 0;
  TextBuilder result(run.budget());
  for (int64_t i = 0; i < before; ++i) result.Append(fill, false);
  result.Append(text);
  for (int64_t i = before; i < missing; ++i) result.Append(fill, false);
  return result.Build();
}

Text EscapeHtml(Interpreter& run, const Text& text) {
  constexpr absl::string_view kFrom = "&<>'\"";
  constexpr absl::string_view kTo[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  TextBuilder result(run.budget());
  const absl::string_view bytes = text.bytes;
  size_t plain = 0;
  for (size_t at = bytes.find_first_of(kFrom); at != bytes.npos; at = bytes.find_first_of(kFrom, plain)) {
    result.Append(text, plain, at);
    result.Append(kTo[kFrom.find(bytes[at])], text.is_data());
    plain = at + 1;
  }
  result.Append(text, plain, text.bytes.size());
  return result.Build();
}

Value StringList(Interpreter& run, std::vector<Text> parts) {
  std::vector<Value> items;
  for (Text& part : parts) items.push_back(run.Str(std::move(part)));
  return Value::List(run.budget(), std::move(items));
}

}  // namespace llmc::jinja
