#include "frontend/import.h"

#include <sys/stat.h>

#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "files/random_source.h"
#include "frontend/formats/safetensors.h"
#include "frontend/huggingface/gguf.h"
#include "frontend/onnx/import.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace llmc {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

// By the names that sources of imported weights have; those of constants of nodes are known only to the importer.
absl::StatusOr<NamedTensors> ReadOnnxTensors(const std::string& path, MappedFile file, const ImportOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ImportOnnx(path, std::move(file), options));
  NamedTensors tensors;
  for (const Value* weight : model->weights) {
    tensors.emplace(SplitWeightSource(weight->source)->second, model->data.at(weight->name));
  }
  return tensors;
}

absl::StatusOr<NamedTensors> ReadGgufTensors(const std::string& path, const MappedFile& mapped) {
  ASSIGN_OR_RETURN(const GgufFile file, ReadGgufModelFiles(path, mapped));
  ASSIGN_OR_RETURN(const hf::GgufModel model, hf::ReadGgufModel(path, file));
  NamedTensors tensors;
  for (const auto& [name, tensor] : model.checkpoint) tensors.emplace(name, tensor.tensor);
  return tensors;
}

absl::StatusOr<NamedTensors> ReadTensors(const std::string& folder, const std::string& name,
                                         const ImportOptions& options) {
  ASSIGN_OR_RETURN(MappedFile file, MapInside(folder, name));
  const std::string path = absl::StrCat(folder, "/", name);
  if (absl::EndsWith(name, ".safetensors")) return ReadSafetensors(path, file);
  if (absl::EndsWith(name, ".onnx")) return ReadOnnxTensors(path, std::move(file), options);
  if (absl::EndsWith(name, ".gguf")) return ReadGgufTensors(path, file);
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": weights can be read from .safetensors, .gguf and .onnx files only"));
}

bool SameShape(const Tensor& tensor, const TensorType& type) {
  if (tensor.rank() != type.rank()) return false;
  for (int i = 0; i < type.rank(); ++i) {
    if (!type.shape[i].is_constant() || type.shape[i].value() != tensor.shape()[i]) return false;
  }
  return true;
}

}  // namespace

absl::Status ResolveWeights(Model* model, const std::string& base_folder, const ImportOptions& options) {
  // The dims and inputs may be the text's own.
  ImportOptions of_files = options;
  std::set<std::string> known;
  if (of_files.known == nullptr) of_files.known = &known;
  of_files.warnings = nullptr;
  std::map<std::string, NamedTensors> files;
  for (const Value* weight : model->weights) {
    if (ParseRandomSource(weight->source).has_value()) continue;
    const auto refuse = [weight](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight->name, ": ", why));
    };
    const auto source = SplitWeightSource(weight->source);
    if (!source.has_value()) return refuse("its source must be \"FILE#TENSOR\" to have contents");
    const auto& [name, tensor_name] = *source;
    auto file = files.find(name);
    if (file == files.end()) {
      absl::StatusOr<NamedTensors> tensors = ReadTensors(base_folder, name, of_files);
      if (!tensors.ok()) return absl::Status(tensors.status().code(), refuse(tensors.status().message()).message());
      file = files.emplace(name, *std::move(tensors)).first;
    }
    const auto tensor = file->second.find(tensor_name);
    if (tensor == file->second.end()) {
      return refuse(absl::StrCat(base_folder, "/", name, " has no tensor ", Quoted(tensor_name)));
    }
    if (tensor->second.dtype() != weight->type.dtype || !SameShape(tensor->second, weight->type)) {
      return refuse(absl::StrCat("its type is ", weight->type.ToString(), ", but ", base_folder, "/", name, " has ",
                                 DTypeName(tensor->second.dtype()), ShapeToString(tensor->second.shape())));
    }
    model->data[weight->name] = tensor->second;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelKind> FindModelKind(const std::string& path) {
  struct stat info;
  if (absl::StatusOr<std::string> canonical = CanonicalPath(path); !canonical.ok()) return canonical.status();
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return ModelKind::kHuggingFace;
  if (absl::EndsWith(path, ".onnx")) return ModelKind::kOnnx;
  if (absl::EndsWith(path, ".gguf")) return ModelKind::kGguf;
  if (absl::EndsWith(path, ".lir")) return ModelKind::kText;
  const auto refuse = [&path](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", why));
  };
  if (absl::EndsWith(path, ".safetensors")) {
    return refuse("holds weights only; give the folder that holds them together with config.json");
  }
  return refuse(
      "not a model; wanted a Hugging Face folder (config.json and .safetensors files), a .onnx, a .gguf or a .lir "
      "file");
}

absl::StatusOr<std::unique_ptr<Model>> ImportText(const std::string& path, const std::string& weights_folder,
                                                  const ImportOptions& options) {
  ASSIGN_OR_RETURN(MappedFile file, MapFile(path));
  if (file.size > kMaxTextBytes) return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 1 GiB"));
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ParseModel(file.view(), path));
  if (absl::Status s = Verify(*model, Phase::kImported); !s.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", s.message()));
  }
  if (absl::Status s = ResolveWeights(model.get(), weights_folder, options); !s.ok()) return s;
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> ImportModel(const std::string& path, std::vector<IgnoredTensor>* ignored,
                                                   const ImportOptions& options) {
  ASSIGN_OR_RETURN(ModelKind kind, FindModelKind(path));
  if (kind != ModelKind::kHuggingFace && !options.pooling.pool.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": --pool is for Hugging Face folders; what this model computes is fixed"));
  }
  if (kind != ModelKind::kHuggingFace && options.form != DecoderForm::kServed) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": --form is for Hugging Face folders; what this model computes is fixed"));
  }
  if (kind != ModelKind::kHuggingFace && options.quantized.activations) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": --quantize-activations is for Hugging Face folders of quantized checkpoints, which say how"));
  }
  switch (kind) {
    case ModelKind::kHuggingFace:
    case ModelKind::kGguf:
      if (options.empty())
        return kind == ModelKind::kGguf
                   ? ImportGguf(path, ignored)
                   : ImportHuggingFace(path, ignored, options.pooling, options.form, options.quantized);
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": --dim and --set are for ONNX files and dumps; the dims of the model of ",
                       kind == ModelKind::kGguf ? "a GGUF file" : "a Hugging Face folder",
                       " are those of a step, which the engine chooses"));
    case ModelKind::kOnnx:
      return ImportOnnx(path, options);
    case ModelKind::kText:
      return ImportText(path, FolderOf(path), options);
  }
  return absl::InternalError("a kind of model is not handled");
}

}  // namespace llmc
