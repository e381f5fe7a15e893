#include "tools/sentence_settings.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "frontend/formats/json_file.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr char kMember[] = "sentence_transformers";  // of config.json
constexpr char kPromptFile[] = "config_sentence_transformers.json";
constexpr char kTextFile[] = "sentence_bert_config.json";
constexpr int64_t kMaxTokenizerBytes = int64_t{64} << 20;

// An empty object where there is no such file.
absl::StatusOr<json> ReadObject(const std::string& folder, const char* name) {
  absl::StatusOr<json> object = ReadJsonFile(folder, name);
  if (absl::IsNotFound(object.status())) return json::object();
  if (!object.ok() || object->is_object()) return object;
  return absl::InvalidArgumentError(absl::StrCat(folder, "/", name, ": must be a JSON object"));
}

std::string JsonText(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

bool IsLowercase(const json& normalizer) {
  return normalizer.is_object() && normalizer.value("type", json()) == "Lowercase";
}

// The tokenizer.json whose texts are made lower case first.
absl::StatusOr<std::string> LowerCased(const std::string& tokenizer, const std::string& file) {
  ASSIGN_OR_RETURN(json parsed, ParseJson(tokenizer, file, kMaxTokenizerBytes));
  if (!parsed.is_object()) return tokenizer;  // whoever reads it says what is wrong
  const json own = parsed.value("normalizer", json());
  json steps = json::array();
  if (own.is_object() && own.value("type", json()) == "Sequence" && own.value("normalizers", json()).is_array()) {
    steps = own["normalizers"];
  } else if (!own.is_null()) {
    steps.push_back(own);
  }
  if (std::any_of(steps.begin(), steps.end(), IsLowercase)) return tokenizer;
  steps.insert(steps.begin(), json{{"type", "Lowercase"}});
  parsed["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
  return JsonText(parsed);
}

// Of a vocab.txt, by the key of tokenizer_config.json. Accents stay where they would have.
absl::Status LowerCaseWords(SideFiles* files) {
  if (!files->tokenizer_config.ok()) return absl::OkStatus();  // whoever reads it says what is wrong
  json config = json::object();
  if (!files->tokenizer_config->empty()) {
    ASSIGN_OR_RETURN(config,
                     ParseJson(*files->tokenizer_config, files->NameOf("tokenizer_config.json"), kMaxTokenizerBytes));
  }
  if (!config.is_object() || config.value("do_lower_case", json(true)) != json(false)) return absl::OkStatus();
  if (config.value("strip_accents", json()).is_null()) config["strip_accents"] = false;
  config["do_lower_case"] = true;
  files->tokenizer_config = JsonText(config);
  return absl::OkStatus();
}

absl::Status AddLowerCase(const std::string& folder, SideFiles* files) {
  ASSIGN_OR_RETURN(const json settings, ReadObject(folder, kTextFile));
  const JsonFields fields(&settings, absl::StrCat(folder, "/", kTextFile));
  ASSIGN_OR_RETURN(const bool is_lower, fields.Bool("do_lower_case", false));
  if (!is_lower || !files->tokenizer.ok() || files->tokenizer->empty()) return absl::OkStatus();
  SideFile& main = files->tokenizer->front();
  if (main.name == "vocab.txt") return LowerCaseWords(files);
  if (main.name != "tokenizer.json") {
    return absl::UnimplementedError(absl::StrCat(folder, "/", kTextFile, ": asks for do_lower_case, which ",
                                                 "needs tokenizer.json, and the tokenizer is that of ", main.name,
                                                 "; save it as tokenizer.json"));
  }
  ASSIGN_OR_RETURN(main.text, LowerCased(main.text, files->NameOf(main.name)));
  return absl::OkStatus();
}

absl::Status CheckPrompts(const json& settings, const std::string& file) {
  const JsonFields fields(&settings, file);
  RETURN_IF_ERROR(fields.String("default_prompt_name", "").status());
  const json* prompts = fields.Find("prompts");
  if (prompts == nullptr) return absl::OkStatus();
  const auto is_text = [](const json& prompt) { return prompt.is_string(); };
  if (prompts->is_object() && std::all_of(prompts->begin(), prompts->end(), is_text)) return absl::OkStatus();
  return fields.Wrong("prompts", "an object of strings");
}

absl::Status AddToConfig(const std::string& folder, const std::string& transformer, SideFiles* files) {
  ASSIGN_OR_RETURN(const json of_model, ReadObject(folder, kPromptFile));
  ASSIGN_OR_RETURN(const json of_texts, ReadObject(transformer, kTextFile));
  const bool has_some = !of_model.empty() || !of_texts.empty();
  if (!has_some || !files->config.ok() || files->config->empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckPrompts(of_model, absl::StrCat(folder, "/", kPromptFile)));
  absl::StatusOr<json> config = ParseJson(*files->config, files->NameOf("config.json"));
  if (!config.ok() || !config->is_object()) return absl::OkStatus();  // whoever reads it says what is wrong
  json kept = config->value(kMember, json::object());
  if (!kept.is_object()) kept = json::object();
  for (const char* key : {"prompts", "default_prompt_name", "similarity_fn_name", "activation_fn"}) {
    if (of_model.contains(key)) kept[key] = of_model[key];
  }
  if (of_texts.contains("max_seq_length")) kept["max_seq_length"] = of_texts["max_seq_length"];
  (*config)[kMember] = std::move(kept);
  files->config = JsonText(*config);
  return absl::OkStatus();
}

}  // namespace

void AddSentenceSettings(const std::string& folder, const std::string& transformer, SideFiles* files) {
  if (absl::Status status = AddLowerCase(transformer, files); !status.ok()) files->tokenizer = status;
  if (absl::Status status = AddToConfig(folder, transformer, files); !status.ok()) files->config = status;
}

absl::StatusOr<json> ConfigOf(const SideFiles& files) {
  if (!files.config.ok()) return files.config.status();
  if (files.config->empty()) return json::object();
  ASSIGN_OR_RETURN(json config, ParseJson(*files.config, files.NameOf("config.json")));
  return config.is_object() ? config : json::object();
}

absl::StatusOr<json> SentenceSettingsOf(const SideFiles& files) {
  ASSIGN_OR_RETURN(const json config, ConfigOf(files));
  json settings = config.value(kMember, json::object());
  return settings.is_object() ? settings : json::object();
}

absl::StatusOr<std::string> PromptOf(const SideFiles& files, const std::optional<std::string>& name) {
  ASSIGN_OR_RETURN(const json settings, SentenceSettingsOf(files));
  const std::string file = files.NameOf("config.json");
  RETURN_IF_ERROR(CheckPrompts(settings, file));
  const JsonFields fields(&settings, file);
  ASSIGN_OR_RETURN(const std::string standard, fields.String("default_prompt_name", ""));
  if (!name.has_value() && standard.empty()) return "";
  const std::string wanted = name.value_or(standard);
  const json* prompts = fields.Find("prompts");
  if (prompts != nullptr && prompts->contains(wanted)) return prompts->at(wanted).get<std::string>();
  std::vector<std::string> names;
  if (prompts != nullptr) {
    for (const auto& [known, prompt] : prompts->items()) names.push_back(known);
  }
  return absl::InvalidArgumentError(absl::StrCat("the model has no prompt '", wanted, "'; it has ",
                                                 names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

}  // namespace llmc
