// From files to graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/import_options.h"
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
absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path, const ImportOptions& options = {});

// `folder` has config.json and model.safetensors or its shards. One step "main" with the inputs of one with a paged
// cache (base/step_contract.h), states @kv0, @kv1, … with components k and v, and the output "logits" f32[R,
// vocab_size]. Every tensor of the checkpoint is used or listed in `ignored` (may be null).
absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFace(const std::string& folder,
                                                         std::vector<IgnoredTensor>* ignored = nullptr);

// The model of a folder's config.json alone, with weights of random numbers (files/random_source.h) that have no
// contents in Model::data: norms around 1, all others around 0 with a deviation of 0.02.
struct RandomWeights {
  uint64_t seed = 0;
  std::optional<DType> dtype;  // none: as config.json says, else f32
};
absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFaceConfig(const std::string& folder, const RandomWeights& random);

// A .lir text; its weights are found in `weights_folder`. `options` are those with which ONNX files that hold weights
// are read: what is fixed decides which weights there are. The text itself is left as it is.
absl::StatusOr<std::unique_ptr<Model>> ImportText(const std::string& path, const std::string& weights_folder,
                                                  const ImportOptions& options = {});

enum class ModelKind { kHuggingFace, kOnnx, kText };
// A folder, a .onnx or a .lir file; an error that says what to give instead for anything else.
absl::StatusOr<ModelKind> FindModelKind(const std::string& path);

// The model of either kind; a text's weights are next to it. A folder with `options` that fix something is refused.
absl::StatusOr<std::unique_ptr<Model>> ImportModel(const std::string& path,
                                                   std::vector<IgnoredTensor>* ignored = nullptr,
                                                   const ImportOptions& options = {});

// Fills Model::data from the sources of the weights, for models that come from text. Files are relative to
// `base_folder`, and inside it: .safetensors or .onnx. Weights of random numbers stay without contents. A weight
// without a source is an error.
absl::Status ResolveWeights(Model* model, const std::string& base_folder, const ImportOptions& options = {});

}  // namespace llmc
