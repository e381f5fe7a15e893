#include "runtime/chat/template_files.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "runtime/text/json_node.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kMostTemplateBytes = int64_t{4} << 20;
constexpr char kAdditional[] = "additional_chat_templates";

// A file of the folder; empty if it is not there.
absl::StatusOr<std::string> ReadTemplateFile(const std::string& folder, const std::string& name) {
  const absl::StatusOr<MappedFile> bytes = MapInside(folder, name);
  if (absl::IsNotFound(bytes.status())) return "";
  if (!bytes.ok()) return bytes.status();
  if (bytes->size > kMostTemplateBytes) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", name, ": larger than ", kMostTemplateBytes, " bytes"));
  }
  return std::string(bytes->view());
}

// The member "chat_template" of a file: a text, or a list of objects.
absl::Status ReadTemplateKey(const JsonNode& root, const std::string& source, std::vector<TemplateFile>* templates) {
  const absl::optional<JsonNode> key = root.Find("chat_template");
  if (!key) return absl::OkStatus();
  if (key->value().is_string()) {
    ASSIGN_OR_RETURN(std::string text, key->AsString());
    templates->push_back({"default", absl::StrCat(source, ": chat_template"), std::move(text)});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<JsonNode> nodes, root.GetArray("chat_template"));
  for (const JsonNode& node : nodes) {
    ASSIGN_OR_RETURN(std::string name, node.GetString("name"));
    ASSIGN_OR_RETURN(std::string text, node.GetString("template"));
    const std::string place = absl::StrCat(source, ": chat_template \"", name.substr(0, 100), "\"");
    templates->push_back({std::move(name), place, std::move(text)});
  }
  return absl::OkStatus();
}

// Members such as "bos_token": a text, or an object with the text in `content`.
absl::Status ReadSpecialTokens(const JsonNode& root, Json* tokens) {
  for (const auto& [key, value] : root.value().items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    if (value.is_string()) {
      (*tokens)[key] = value.get<std::string>();
    } else if (value.is_object()) {
      ASSIGN_OR_RETURN(const JsonNode node, root.Get(key));
      ASSIGN_OR_RETURN((*tokens)[key], node.GetString("content"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TemplateFiles> ReadTemplateFiles(const SideFiles& files, const std::string& folder) {
  TemplateFiles found;
  RETURN_IF_ERROR(files.chat_template.status());
  RETURN_IF_ERROR(files.tokenizer_config.status());
  if (!files.chat_template->empty()) {
    found.templates.push_back({"default", files.NameOf("chat_template.jinja"), *files.chat_template});
  }
  if (!files.tokenizer_config->empty()) {
    const std::string name = files.NameOf("tokenizer_config.json");
    ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(*files.tokenizer_config, name));
    const JsonNode root(&document, name, "");
    RETURN_IF_ERROR(root.ExpectObject());
    RETURN_IF_ERROR(ReadSpecialTokens(root, &found.special_tokens));
    if (found.templates.empty()) RETURN_IF_ERROR(ReadTemplateKey(root, name, &found.templates));
  }
  if (folder.empty()) return found;
  if (found.templates.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTemplateFile(folder, "chat_template.json"));
    if (!text.empty()) {
      const std::string name = absl::StrCat(folder, "/chat_template.json");
      ASSIGN_OR_RETURN(const nlohmann::json document, ParseTokenizerJson(text, name));
      const JsonNode root(&document, name, "");
      RETURN_IF_ERROR(root.ExpectObject());
      RETURN_IF_ERROR(ReadTemplateKey(root, name, &found.templates));
    }
  }
  for (const std::string& file : FilesEndingIn(absl::StrCat(folder, "/", kAdditional), ".jinja")) {
    const std::string name = absl::StrCat(kAdditional, "/", file);
    ASSIGN_OR_RETURN(std::string text, ReadTemplateFile(folder, name));
    found.templates.push_back(
        {std::string(absl::StripSuffix(file, ".jinja")), absl::StrCat(folder, "/", name), std::move(text)});
  }
  return found;
}

absl::StatusOr<TemplateFile> ChooseTemplate(const TemplateFiles& files, absl::string_view name, bool has_tools) {
  const auto find = [&](absl::string_view wanted) {
    return std::find_if(files.templates.begin(), files.templates.end(),
                        [&](const TemplateFile& file) { return file.name == wanted; });
  };
  auto chosen = files.templates.end();
  if (!name.empty()) {
    chosen = find(name);
  } else {
    if (has_tools) chosen = find("tool_use");
    if (chosen == files.templates.end()) chosen = find("default");
    if (chosen == files.templates.end() && files.templates.size() == 1) chosen = files.templates.begin();
  }
  if (chosen != files.templates.end()) return *chosen;
  if (files.templates.empty()) return absl::NotFoundError("the model comes without a chat template");
  const std::string names = absl::StrJoin(
      files.templates, ", ", [](std::string* out, const TemplateFile& file) { absl::StrAppend(out, file.name); });
  return absl::NotFoundError(
      absl::StrCat("the model has no chat template named ", name.empty() ? "default" : name, "; it has ", names));
}

}  // namespace llmc
