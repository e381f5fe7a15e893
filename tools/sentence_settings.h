// What sentence-transformers keeps beside a model of how texts are read.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "files/side_files.h"
#include "nlohmann/json.hpp"

namespace llmc {

// Puts what concerns texts into the files that plans keep; `transformer` is the folder of config.json, which may be
// inside the other. sentence_bert_config.json with `do_lower_case`: tokenizer.json gets the normalizer Lowercase before
// its own, as sentence-transformers does it; a vocab.txt gets do_lower_case. An object "sentence_transformers" of
// config.json gets `max_seq_length` of that file, and of config_sentence_transformers.json `prompts`,
// `default_prompt_name`, `similarity_fn_name` and `activation_fn`. What is wrong in them becomes the error of
// tokenizer.json or of config.json. Other folders are left alone.
void AddSentenceSettings(const std::string& folder, const std::string& transformer, SideFiles* files);

// config.json, and its object "sentence_transformers"; {} where there is none.
absl::StatusOr<nlohmann::json> ConfigOf(const SideFiles& files);
absl::StatusOr<nlohmann::json> SentenceSettingsOf(const SideFiles& files);

// What to put before every text: the prompt of that name; without a name the default one, or "" where there is none.
// InvalidArgument lists the names that there are.
absl::StatusOr<std::string> PromptOf(const SideFiles& files, const std::optional<std::string>& name);

}  // namespace llmc
