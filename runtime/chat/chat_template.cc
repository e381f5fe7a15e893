#include "runtime/chat/chat_template.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/chat/interpreter.h"
#include "runtime/chat/parser.h"
#include "runtime/text/utf8.h"

namespace llmc {

struct ChatTemplate::Parts {
  std::string name;
  std::string source;
  ChatTemplateOptions options;
  jinja::Program program;
};

namespace {

using Json = nlohmann::ordered_json;
using jinja::Budget;
using jinja::DictObject;
using jinja::Value;

// Makes the values of a template of what is JSON.
class FromJson {
 public:
  FromJson(Budget* budget, bool is_data) : budget_(budget), is_data_(is_data) {}

  Value Make(const Json& json, int depth = 0) const {
    budget_->Step();
    budget_->CheckDepth(depth);
    switch (json.type()) {
      case Json::value_t::null:
        return Value::None();
      case Json::value_t::boolean:
        return Value::Bool(json.get<bool>()).WithData(is_data_);
      case Json::value_t::number_integer:
        return Value::Int(json.get<int64_t>()).WithData(is_data_);
      case Json::value_t::number_unsigned:
        if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
          budget_->Refuse("an integer of the conversation needs more than 64 bits");
        }
        return Value::Int(json.get<int64_t>()).WithData(is_data_);
      case Json::value_t::number_float:
        return Value::Float(json.get<double>()).WithData(is_data_);
      case Json::value_t::string:
        return String(json.get_ref<const std::string&>());
      case Json::value_t::array: {
        std::vector<Value> items;
        items.reserve(json.size());
        for (const Json& item : json) items.push_back(Make(item, depth + 1));
        return Value::List(budget_, std::move(items));
      }
      case Json::value_t::object: {
        std::vector<DictObject::Entry> entries;
        entries.reserve(json.size());
        for (const auto& [key, item] : json.items()) entries.emplace_back(String(key), Make(item, depth + 1));
        return DictObject::Make(budget_, std::move(entries));
      }
      default:
        budget_->Fail("the conversation holds what is not JSON");
    }
  }

  Value String(const std::string& text) const {
    if (!IsValidUtf8(text)) budget_->Fail("the conversation holds text that is not valid UTF-8");
    return Value::String(budget_, text, is_data_);
  }

 private:
  Budget* budget_;
  bool is_data_;
};

// A message, whose role may count as the template's own text.
Value MessageValue(Budget* budget, const Json& message, const std::vector<std::string>& roles) {
  const FromJson data(budget, true), trusted(budget, false);
  if (!message.is_object()) return data.Make(message, 1);
  std::vector<DictObject::Entry> entries;
  for (const auto& [key, item] : message.items()) {
    const bool is_role =
        key == "role" && item.is_string() && std::find(roles.begin(), roles.end(), item) != roles.end();
    entries.emplace_back(data.String(key), (is_role ? trusted : data).Make(item, 2));
  }
  return DictObject::Make(budget, std::move(entries));
}

using Variables = absl::flat_hash_map<std::string, Value>;

Variables MakeVariables(Budget* budget, const ChatInput& input, const ChatTemplateOptions& options) {
  const FromJson data(budget, true), trusted(budget, false);
  Variables variables;
  for (const auto& [name, token] : options.special_tokens.items()) variables[name] = trusted.Make(token);
  for (const auto& [name, value] : input.variables.items()) variables[name] = data.Make(value);
  std::vector<Value> messages;
  if (!input.messages.is_array()) budget->Fail("the messages of a conversation must be a list");
  for (const Json& message : input.messages) messages.push_back(MessageValue(budget, message, options.roles));
  const std::pair<const char*, Value> own[] = {{"messages", Value::List(budget, std::move(messages))},
                                               {"tools", data.Make(input.tools)},
                                               {"documents", data.Make(input.documents)},
                                               {"add_generation_prompt", Value::Bool(input.add_generation_prompt)}};
  for (const auto& [name, value] : own) {
    if (input.variables.contains(name)) {
      budget->Fail(absl::StrCat("'", name, "' cannot be set as a further variable of the template"));
    }
    variables[name] = value;
  }
  return variables;
}

std::vector<ChatSegment> Segments(const jinja::Text& text) {
  std::vector<ChatSegment> segments;
  size_t at = 0;
  const auto add = [&](size_t end, bool from_template) {
    if (end > at) segments.push_back({text.bytes.substr(at, end - at), from_template});
    at = end;
  };
  for (const jinja::ByteRange& range : text.data) {
    add(range.begin, true);
    add(range.end, false);
  }
  add(text.bytes.size(), true);
  return segments;
}

// What `work` returns, or the error that it throws.
template <class Work>
auto Guarded(absl::string_view name, const Work& work) -> absl::StatusOr<decltype(work())> {
  try {
    return work();
  } catch (const jinja::TemplateError& error) {
    const std::string place = error.line() > 0 ? absl::StrCat(":", error.line()) : "";
    return absl::Status(error.code(), absl::StrCat(name, place, ": ", error.message()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(name, ": out of memory"));
  } catch (const std::length_error&) {
    return absl::ResourceExhaustedError(absl::StrCat(name, ": out of memory"));
  }
}

}  // namespace

std::string RenderedChat::text() const {
  std::string all;
  for (const ChatSegment& segment : segments) all += segment.text;
  return all;
}

ChatTemplate::ChatTemplate(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(absl::string_view text, absl::string_view name,
                                                                  ChatTemplateOptions options) {
  ASSIGN_OR_RETURN(jinja::Program program, Guarded(name, [&] {
                     Budget budget(options.limits);
                     return jinja::ParseTemplate(text, &budget);
                   }));
  auto parts =
      std::make_unique<Parts>(Parts{std::string(name), std::string(text), std::move(options), std::move(program)});
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(parts)));
}

const std::string& ChatTemplate::source() const { return parts_->source; }

absl::StatusOr<RenderedChat> ChatTemplate::Render(const ChatInput& input) const {
  return Guarded(parts_->name, [&] {
    Budget budget(parts_->options.limits);
    jinja::Interpreter interpreter(parts_->program, &budget, MakeVariables(&budget, input, parts_->options), input.now,
                                   input.zone);
    const jinja::Text text = interpreter.Run();
    RenderedChat chat{Segments(text), {}};
    for (const jinja::GenerationRange& range : interpreter.generation()) {
      chat.generation.push_back({range.begin, range.end});
    }
    return chat;
  });
}

}  // namespace llmc
