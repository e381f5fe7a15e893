// The files next to a Hugging Face checkpoint that running a language model needs, as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace llmc {

// Absent files are nullopt. Only the two configs have been parsed: whoever uses the others checks them.
struct SideFiles {
  std::optional<std::string> config;             // config.json
  std::optional<std::string> generation_config;  // generation_config.json
  std::optional<std::string> tokenizer;          // tokenizer.json
  std::optional<std::string> tokenizer_config;   // tokenizer_config.json
  std::optional<std::string> chat_template;      // chat_template.jinja
  // From generation_config.json, else config.json.
  std::vector<int64_t> eos_ids;  // may be empty
  std::optional<int64_t> bos_id;
  std::optional<int64_t> max_positions;  // from config.json: tokens of a sequence
};

// A file that is too large, leads out of the folder, or is no regular file is an error.
absl::StatusOr<SideFiles> ReadSideFiles(const std::string& folder);

}  // namespace llmc
