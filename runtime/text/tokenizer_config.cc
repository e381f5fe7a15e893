#include "runtime/text/tokenizer_config.h"

#include "base/status_macros.h"
#include "runtime/text/json_node.h"

namespace llmc {
namespace {

absl::Status ReadConfigFlag(const JsonNode& root, absl::string_view key, absl::optional<bool>* flag) {
  if (!root.Find(key)) return absl::OkStatus();
  const absl::StatusOr<bool> value = root.GetBool(key, false);
  if (value.ok()) *flag = *value;
  return value.status();
}

// A string, or an object with the string `content` and how it is matched.
absl::Status ReadConfigToken(const JsonNode& root, absl::string_view key, absl::optional<std::string>* token) {
  const absl::optional<JsonNode> node = root.Find(key);
  if (!node) return absl::OkStatus();
  const absl::StatusOr<std::string> text = node->value().is_object() ? node->GetString("content") : node->AsString();
  if (text.ok()) *token = *text;
  return text.status();
}

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(absl::string_view json, absl::string_view name) {
  TokenizerConfig config;
  if (json.empty()) return config;
  ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(json, name));
  const JsonNode root(&document, name, "");
  absl::Status status = root.ExpectObject();
  if (status.ok()) status = ReadConfigFlag(root, "add_bos_token", &config.add_bos_token);
  if (status.ok()) status = ReadConfigFlag(root, "add_eos_token", &config.add_eos_token);
  if (status.ok()) status = ReadConfigToken(root, "bos_token", &config.bos_token);
  if (status.ok()) status = ReadConfigToken(root, "eos_token", &config.eos_token);
  if (!status.ok()) return status;
  return config;
}

}  // namespace llmc
