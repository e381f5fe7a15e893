// What the files beside a language model say, and what of them cannot be used.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "files/side_files.h"
#include "ir/graph.h"
#include "runtime/engine/generation_config.h"

namespace llmc {

struct LanguageFiles {
  absl::StatusOr<GenerationConfig> generation = GenerationConfig();
  absl::Status tokenizer;  // OK if it can be used, or there is none
};

LanguageFiles ReadLanguageFiles(const SideFiles& files);

// What of them cannot be used, for reports: lines, and the members "tokenizer" and "generation".
std::string LanguageFilesText(const LanguageFiles& files, absl::string_view indent);
nlohmann::ordered_json LanguageFilesJson(const LanguageFiles& files);

// A warning on stderr if generation_config.json was left out.
void WarnOfLeftOut(const absl::StatusOr<GenerationConfig>& generation);

// Whether `llmc generate` runs it: with a paged cache, or with ids in and logits out.
bool IsLanguageModel(const Model& model);

// Tokens of a sequence by config.json; 0: it does not say.
absl::StatusOr<int64_t> MaxContextOf(const SideFiles& files);

}  // namespace llmc
