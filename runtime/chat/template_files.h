// The chat templates that come with a model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "files/side_files.h"
#include "nlohmann/json.hpp"

namespace llmc {

struct TemplateFile {
  std::string name;    // "default", "tool_use", "rag", ...
  std::string source;  // where it stands, for errors
  std::string text;
};

struct TemplateFiles {
  std::vector<TemplateFile> templates;  // may be none
  // The special tokens of tokenizer_config.json by name (bos_token, ...), as variables for the templates.
  nlohmann::ordered_json special_tokens = nlohmann::ordered_json::object();
};

// As transformers finds them: chat_template.jinja is the default, else that of tokenizer_config.json (a text, or a list
// of objects with name and template), else that of chat_template.json. Those in additional_chat_templates/ come beside,
// each named by its file. `folder` holds the last two; empty: there are none, as for a plan. InvalidArgument: a file is
// no JSON object, or a key has another type.
absl::StatusOr<TemplateFiles> ReadTemplateFiles(const SideFiles& files, const std::string& folder);

// The one of that name. Without a name: "tool_use" where there are tools and such a template, else "default", else the
// only one. NotFound: there is none, or none of that name; the message says which there are.
absl::StatusOr<TemplateFile> ChooseTemplate(const TemplateFiles& files, absl::string_view name, bool has_tools);

}  // namespace llmc
