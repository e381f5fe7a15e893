// From files to graphs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

// A tensor of the checkpoint that the model does not use, and why that is right.
struct IgnoredTensor {
  std::string name;
  std::string reason;
};

// Each importer gives a model that passes Verify(kImported), whose weights have contents in Model::data: views of
// mapped files, which must not change while the model is in use. Sources of weights ("file#tensor") name files relative
// to the model's folder. Errors name the file, the place in it and, where there is one, the remedy.

// `path` is a file; external data is read from its folder only.
absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path);

// `folder` has config.json and model.safetensors or its shards. One step "main" with the inputs of ir/ops_lm.h, states
// @kv0, @kv1, … [N, 2, kKvPageSize, kv_heads, head_dim] and the output "logits" f32[R, vocab_size]. Every tensor of the
// checkpoint is used or listed in `ignored` (may be null).
absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFace(const std::string& folder,
                                                         std::vector<IgnoredTensor>* ignored = nullptr);

// Tokens in a page of the KV cache of imported language models.
inline constexpr int64_t kKvPageSize = 16;

// A Hugging Face folder, a .onnx file, or a .lir text with its weights next to it.
absl::StatusOr<std::unique_ptr<Model>> ImportModel(const std::string& path);

// Fills Model::data from the sources of the weights, for models that come from text. Files are relative to
// `base_folder`, and inside it: .safetensors or .onnx. A weight without a source is an error.
absl::Status ResolveWeights(Model* model, const std::string& base_folder);

}  // namespace llmc
