// How a folder makes one vector of a text: modules.json of sentence-transformers, in the form of its versions 2 to 5
// and in that of version 6, or what the user chooses.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/huggingface/blocks.h"
#include "frontend/import_options.h"

namespace llmc::hf {

// Where config.json, the weights and the tokenizer are, inside the folder: what modules.json says of its Transformer,
// else "".
absl::StatusOr<std::string> TransformerPath(const std::string& folder);

// Nothing: the folder has no modules.json, or one of a Transformer alone (a cross-encoder), and nothing was chosen.
// Unimplemented: a module, or a setting of one, that llmc does not have, by its name. InvalidArgument: the files are
// wrong, or the folder says itself what was chosen.
absl::StatusOr<std::optional<EmbeddingSpec>> ReadEmbedding(const std::string& folder, const PoolingChoice& choice);

// Makes the vectors the only output of the model, and checks that sizes fit; a decoder becomes an encoder. `folder` has
// its config.json. Unimplemented: it is no model of text alone, or a decoder that has what encoders lack.
absl::Status SetEmbedding(EmbeddingSpec embedding, const std::string& folder, ModelSpec* spec);

// The folders with weights of their own, inside that of the model.
std::vector<std::string> ModuleFolders(const EmbeddingSpec& embedding);

}  // namespace llmc::hf
