// From files to graphs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "files/side_files.h"
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
// vocab_size]. Every tensor of the checkpoint is used or listed in `ignored` (may be null). A folder of
// sentence-transformers (modules.json with a Pooling), or one with a `pooling`, has the one output "embeddings" f32[B,
// size], a vector for each text; its dim L is at most the tokens that the folder says a text is cut to.
// Other forms of a decoder have no cache. kHiddenStates: input_ids i64[B, S] to "logits" f32[B, S, vocab_size] and
// "hidden_states" [B, S, size], which are behind the last norm. kPredictor, of the first layer that predicts further
// (arXiv:2412.19437, section 2.2): these hidden states and input_ids, at each place the token after the one that the
// hidden state is of, to "logits" of the token after that, and to "hidden_states" in front of its last norm.
absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFace(const std::string& folder,
                                                         std::vector<IgnoredTensor>* ignored = nullptr,
                                                         const PoolingChoice& pooling = {},
                                                         DecoderForm form = DecoderForm::kServed,
                                                         const QuantizedUse& use = {});

// Where the folder's config.json, weights and tokenizer are: in itself, or in the one inside it that modules.json of
// sentence-transformers names.
std::string TransformerFolder(const std::string& folder);

// What says how the weights of the folder are quantized, "config.json: quantization_config" or "hf_quant_config.json";
// "" where nothing does.
absl::StatusOr<std::string> FindQuantization(const std::string& folder);

// A GGUF file (frontend/formats/gguf.h) with the weights and the metadata of a decoder that the families of Hugging
// Face folders cover; the model is as of ImportHuggingFace. Sources of weights have the names of Hugging Face folders.
absl::StatusOr<std::unique_ptr<Model>> ImportGguf(const std::string& path,
                                                  std::vector<IgnoredTensor>* ignored = nullptr);
// What stands beside a model otherwise, from the file's metadata: config, generation_config, tokenizer and
// tokenizer_config. Each is an error where the file cannot be read.
SideFiles GgufSideFiles(const std::string& path);

// One thing that is wrong with a Hugging Face folder.
struct HfFinding {
  enum class Kind { kConfig, kCheckpoint, kMissing, kWrong, kExtra };  // the last three: tensors
  Kind kind = Kind::kConfig;
  std::string file;                       // in the folder; empty: none in particular
  std::string place = "";                 // the tensor
  std::string found = "", expected = "";  // of tensors
  std::string message = "";               // where those are empty: all of it, with the place
};
// What ImportHuggingFace finds, all of it at once.
struct HfReport {
  absl::Status status;              // as ImportHuggingFace says it
  std::vector<HfFinding> findings;  // none if that is OK
  std::vector<IgnoredTensor> ignored;
  std::vector<IgnoredTensor> warnings;   // of tensors that can be used, with what is odd about them
  std::vector<std::string> unread_keys;  // of config.json: nothing reads them here
  std::string quantization;              // "GPTQ, 4 bits"; empty: none
  bool has_signed_scales = false;        // scales of its integers may be negative
  std::vector<std::string> asked;        // what the quantized checkpoint asks for besides, and how it is had
  bool is_decoder = false;
  int64_t vocab_size = 0;  // rows of the embedding; 0: it is not known, or there is none
};
// `model` becomes the model, if there are no findings.
HfReport CheckHuggingFace(const std::string& folder, std::unique_ptr<Model>* model);

// The model of a folder's config.json alone, with weights of random numbers (files/random_source.h) that have no
// contents in Model::data: norms around 1, all others around 0 with a deviation of 0.02.
struct RandomWeights {
  uint64_t seed = 0;
  std::optional<DType> dtype;  // none: as config.json says, else f32
};
absl::StatusOr<std::unique_ptr<Model>> ImportHuggingFaceConfig(const std::string& folder, const RandomWeights& random,
                                                               const PoolingChoice& pooling = {},
                                                               DecoderForm form = DecoderForm::kServed,
                                                               const QuantizedUse& use = {});

// A .lir text; its weights are found in `weights_folder`. `options` are those with which ONNX files that hold weights
// are read: what is fixed decides which weights there are. The text itself is left as it is.
absl::StatusOr<std::unique_ptr<Model>> ImportText(const std::string& path, const std::string& weights_folder,
                                                  const ImportOptions& options = {});

enum class ModelKind { kHuggingFace, kOnnx, kGguf, kText };
// A folder, a .onnx, a .gguf or a .lir file; an error that says what to give instead for anything else.
absl::StatusOr<ModelKind> FindModelKind(const std::string& path);

// The model of either kind; a text's weights are next to it. A folder or a GGUF file with `options` that fix something
// is refused.
absl::StatusOr<std::unique_ptr<Model>> ImportModel(const std::string& path,
                                                   std::vector<IgnoredTensor>* ignored = nullptr,
                                                   const ImportOptions& options = {});

// Fills Model::data from the sources of the weights, for models that come from text. Files are relative to
// `base_folder`, and inside it: .safetensors, .gguf or .onnx. Weights of random numbers stay without contents. A weight
// without a source is an error.
absl::Status ResolveWeights(Model* model, const std::string& base_folder, const ImportOptions& options = {});

}  // namespace llmc
