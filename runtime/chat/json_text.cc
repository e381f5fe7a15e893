// json.dumps of Python, of the values of a template.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/unicode.h"

namespace llmc::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Interpreter& run, const JsonStyle& style) : run_(run), style_(style), text_(run.budget()) {}
  Text Build() { return text_.Build(); }

  void Write(const Value& value, int depth) {
    run_.budget()->Step();
    run_.budget()->CheckDepth(depth);
    switch (value.kind()) {
      case Kind::kNone:
        return Plain("null");
      case Kind::kBool:
        return text_.Append(value.as_bool() ? "true" : "false", value.is_data());
      case Kind::kInt:
        return text_.Append(absl::StrCat(value.as_int()), value.is_data());
      case Kind::kFloat:
        return text_.Append(Number(value.as_float()), value.is_data());
      case Kind::kString:
        return String(value.text());
      case Kind::kList:
      case Kind::kTuple:
        return List(value.items(), depth);
      case Kind::kDict:
        return Dict(*value.As<DictObject>(), depth);
      default:
        run_.budget()->Fail(absl::StrCat("Object of type ", TypeName(value), " is not JSON serializable"));
    }
  }

 private:
  void Plain(absl::string_view text) { text_.Append(text, false); }

  static std::string Number(double value) {
    const std::string text = FloatText(value);
    return text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
  }

  void NewLine(int depth) {
    if (!style_.indent.has_value()) return;
    Plain("\n");
    for (int i = 0; i < depth; ++i) Plain(*style_.indent);
  }

  void List(const std::vector<Value>& items, int depth) {
    if (items.empty()) return Plain("[]");
    Plain("[");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) Plain(style_.item_separator);
      NewLine(depth + 1);
      Write(items[i], depth + 1);
    }
    NewLine(depth);
    Plain("]");
  }

  void Dict(const DictObject& dict, int depth) {
    if (dict.entries.empty()) return Plain("{}");
    std::vector<DictObject::Entry> entries = dict.entries;
    if (style_.sorted) {
      std::stable_sort(entries.begin(), entries.end(),
                       [this](const auto& a, const auto& b) { return Compare(run_, a.first, b.first, "<") < 0; });
    }
    Plain("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) Plain(style_.item_separator);
      NewLine(depth + 1);
      Key(entries[i].first);
      Plain(style_.key_separator);
      Write(entries[i].second, depth + 1);
    }
    NewLine(depth);
    Plain("}");
  }

  void Key(const Value& key) {
    if (key.is_string()) return String(key.text());
    if (!key.is_none() && !key.is_number()) {
      run_.budget()->Fail(absl::StrCat("keys must be str, int, float, bool or None, not ", TypeName(key)));
    }
    Plain("\"");
    Write(key, 0);
    Plain("\"");
  }

  void String(const Text& text) {
    Plain("\"");
    const absl::string_view bytes = text.bytes;
    size_t plain = 0;  // where what stands for itself begins
    for (size_t i = 0; i < bytes.size();) {
      const auto [c, size] = CodePointAt(bytes, i);
      const std::string escape = Escape(c);
      if (!escape.empty()) {
        text_.Append(text, plain, i);
        text_.Append(escape, text.is_data());
        plain = i + size;
      }
      i += size;
    }
    text_.Append(text, plain, bytes.size());
    Plain("\"");
  }

  // Empty: it stands for itself.
  std::string Escape(char32_t c) const {
    if (c == '"' || c == '\\') return {'\\', static_cast<char>(c)};
    constexpr absl::string_view kFrom = "\n\r\t\f\b", kTo = "nrtfb";
    const size_t simple = c < 0x20 ? kFrom.find(static_cast<char>(c)) : absl::string_view::npos;
    if (simple != absl::string_view::npos) return {'\\', kTo[simple]};
    if (c >= 0x20 && (!style_.ascii || c < 0x7F)) return "";
    if (c < 0x10000) return absl::StrFormat("\\u%04x", static_cast<uint32_t>(c));
    const uint32_t rest = static_cast<uint32_t>(c) - 0x10000;
    return absl::StrFormat("\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  }

  Interpreter& run_;
  const JsonStyle& style_;
  TextBuilder text_;
};

}  // namespace

Text JsonOf(Interpreter& run, const Value& value, const JsonStyle& style) {
  JsonWriter writer(run, style);
  writer.Write(value, 0);
  return writer.Build();
}

}  // namespace llmc::jinja
