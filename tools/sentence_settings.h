// What sentence-transformers keeps beside a model of how texts are read.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "files/side_files.h"

namespace llmc {

// Puts what concerns texts into the files that plans keep. sentence_bert_config.json with `do_lower_case`:
// tokenizer.json gets the normalizer Lowercase before its own, as sentence-transformers does it; a vocab.txt gets
// do_lower_case.
// config_sentence_transformers.json: config.json gets its `prompts` and `default_prompt_name` as an object
// "sentence_transformers". What is wrong in them becomes the error of tokenizer.json or of config.json. Other folders
// are left alone.
void AddSentenceSettings(const std::string& folder, SideFiles* files);

// What to put before every text: the prompt of that name; without a name the default one, or "" where there is none.
// InvalidArgument lists the names that there are.
absl::StatusOr<std::string> PromptOf(const SideFiles& files, const std::optional<std::string>& name);

}  // namespace llmc
