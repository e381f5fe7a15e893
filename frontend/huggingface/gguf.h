// Models in GGUF files: their metadata as config.json has it, their tensors under the names that a Hugging Face folder
// has, so that the families (family.h) read both.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "files/mapped_file.h"
#include "frontend/formats/gguf.h"
#include "frontend/formats/safetensors.h"
#include "frontend/huggingface/blocks.h"

namespace llmc::hf {

struct GgufModel {
  nlohmann::json config;  // as config.json
  DecoderSpec spec;       // of that, with what GGUF stores otherwise
  Checkpoint checkpoint;  // `file` is the name without the folder; tensors of experts are cut into one for each
  std::function<std::string(const std::string&)> stored_name;  // what GGUF calls a tensor, whether it is there or not
};

// `path` is used in errors, and for the name of the file. Unimplemented: an architecture, or a key of it in the
// metadata, that is not supported; all keys at once. Tensors of names that are not known keep them, for the account of
// weights.
absl::StatusOr<GgufModel> ReadGgufModel(const std::string& path, const GgufFile& file);

// As texts: tokenizer.json and tokenizer_config.json of the tokenizer in the metadata; both empty if it has none.
// Unimplemented: a kind of tokenizer that is not supported.
struct GgufTokenizer {
  std::string tokenizer, config;
};
absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const std::string& path, const GgufFile& file);

}  // namespace llmc::hf
