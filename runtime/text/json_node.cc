#include "runtime/text/json_node.h"

#include <exception>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

constexpr int kMaxDepth = 64;

bool TooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseTokenizerJson(absl::string_view text, absl::string_view name) {
  if (TooDeep(text)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": JSON nested deeper than ", kMaxDepth, " levels"));
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not JSON: ", e.what()));
  }
}

absl::Status JsonNode::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", path_.empty() ? "top level" : path_, ": ", message));
}

absl::Status JsonNode::Unsupported(absl::string_view message) const {
  return absl::UnimplementedError(absl::StrCat(file_, ": ", path_.empty() ? "top level" : path_, ": ", message));
}

absl::StatusOr<std::string> JsonNode::AsString() const {
  if (!value_->is_string()) return Error(absl::StrCat("must be a string, is ", value_->type_name()));
  return value_->get_ref<const std::string&>();
}

absl::StatusOr<int64_t> JsonNode::AsInt(int64_t low, int64_t high) const {
  if (!value_->is_number_integer()) return Error(absl::StrCat("must be an integer, is ", value_->type_name()));
  // A number above int64 is stored unsigned; get<int64_t> would wrap it.
  const bool too_large = value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t number = too_large ? INT64_MAX : value_->get<int64_t>();
  if (too_large || number < low || number > high) {
    return Error(absl::StrCat("must be from ", low, " to ", high, ", is ", value_->dump()));
  }
  return number;
}

absl::Status JsonNode::ExpectObject() const {
  if (value_->is_object()) return absl::OkStatus();
  return Error(absl::StrCat("must be an object, is ", value_->type_name()));
}

absl::Status JsonNode::ExpectArray() const {
  if (value_->is_array()) return absl::OkStatus();
  return Error(absl::StrCat("must be an array, is ", value_->type_name()));
}

absl::optional<JsonNode> JsonNode::Find(absl::string_view key) const {
  if (!value_->is_object()) return absl::nullopt;
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return absl::nullopt;
  return JsonNode(&*it, file_, path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key));
}

absl::StatusOr<JsonNode> JsonNode::Get(absl::string_view key) const {
  if (const absl::Status status = ExpectObject(); !status.ok()) return status;
  absl::optional<JsonNode> node = Find(key);
  if (!node) return Error(absl::StrCat("needs a key \"", key, "\""));
  return *node;
}

absl::StatusOr<std::vector<JsonNode>> JsonNode::GetArray(absl::string_view key) const {
  const absl::StatusOr<JsonNode> node = Get(key);
  if (!node.ok()) return node.status();
  if (const absl::Status status = node->ExpectArray(); !status.ok()) return status;
  std::vector<JsonNode> elements;
  elements.reserve(node->value_->size());
  for (size_t i = 0; i < node->value_->size(); ++i) elements.push_back(node->Element(i));
  return elements;
}

absl::StatusOr<std::string> JsonNode::GetString(absl::string_view key) const {
  const absl::StatusOr<JsonNode> node = Get(key);
  if (!node.ok()) return node.status();
  return node->AsString();
}

absl::StatusOr<std::string> JsonNode::GetString(absl::string_view key, absl::string_view otherwise) const {
  const absl::optional<JsonNode> node = Find(key);
  return node ? node->AsString() : std::string(otherwise);
}

absl::StatusOr<bool> JsonNode::GetBool(absl::string_view key, bool otherwise) const {
  const absl::optional<JsonNode> node = Find(key);
  if (!node) return otherwise;
  if (!node->value_->is_boolean()) return node->Error(absl::StrCat("must be a bool, is ", node->value_->type_name()));
  return node->value_->get<bool>();
}

absl::StatusOr<int64_t> JsonNode::GetInt(absl::string_view key, int64_t low, int64_t high) const {
  const absl::StatusOr<JsonNode> node = Get(key);
  if (!node.ok()) return node.status();
  return node->AsInt(low, high);
}

JsonNode JsonNode::Element(size_t index) const {
  return JsonNode(&(*value_)[index], file_, absl::StrCat(path_, "[", index, "]"));
}

}  // namespace llmc
