// tokenizer_config.json: what transformers keeps beside tokenizer.json.
#ifndef LLMC_RUNTIME_TEXT_TOKENIZER_CONFIG_H_
#define LLMC_RUNTIME_TEXT_TOKENIZER_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace llmc {

struct TokenizerConfig {
  // Whether a text gets the begin (end) token; nullopt: as tokenizer.json's post-processor says.
  absl::optional<bool> add_bos_token, add_eos_token;
  absl::optional<std::string> bos_token, eos_token;  // their texts
};

// `name` is the file's name, for errors. InvalidArgument: it is no JSON object, or one of these keys has another type.
// An empty text gives an empty configuration.
absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(absl::string_view json, absl::string_view name);

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_TOKENIZER_CONFIG_H_
