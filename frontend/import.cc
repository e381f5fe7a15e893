#include "frontend/import.h"

#include <sys/stat.h>

#include <map>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/mapped_file.h"
#include "files/path_check.h"
#include "frontend/safetensors.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace llmc {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::StatusOr<std::unique_ptr<Model>> ImportText(const std::string& path) {
  absl::StatusOr<MappedFile> file = MapFile(path);
  if (!file.ok()) return file.status();
  if (file->size > kMaxTextBytes) return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 1 GiB"));
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(file->view(), path);
  if (!model.ok()) return model.status();
  if (absl::Status s = Verify(**model, Phase::kFused); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(path, ": ", s.message()));
  }
  if (absl::Status s = ResolveWeights(model->get(), FolderOf(path)); !s.ok()) return s;
  return model;
}

// By the names that sources of imported weights have; those of constants of nodes are known only to the importer.
absl::StatusOr<NamedTensors> ReadOnnxTensors(const std::string& path) {
  absl::StatusOr<std::unique_ptr<Model>> model = ImportOnnx(path);
  if (!model.ok()) return model.status();
  NamedTensors tensors;
  for (const Value* weight : (*model)->weights) {
    tensors.emplace(weight->source.substr(weight->source.find('#') + 1), (*model)->data.at(weight->name));
  }
  return tensors;
}

absl::StatusOr<NamedTensors> ReadTensors(const std::string& folder, const std::string& name) {
  absl::StatusOr<std::string> resolved = ResolveInside(folder, name);
  if (!resolved.ok()) return resolved.status();
  const std::string path = absl::StrCat(folder, "/", name);
  if (absl::EndsWith(name, ".safetensors")) return ReadSafetensors(path);
  if (absl::EndsWith(name, ".onnx")) return ReadOnnxTensors(path);
  return absl::InvalidArgumentError(absl::StrCat(path, ": weights can be read from .safetensors and .onnx files only"));
}

bool SameShape(const Tensor& tensor, const TensorType& type) {
  if (tensor.rank() != type.rank()) return false;
  for (int i = 0; i < type.rank(); ++i) {
    if (!type.shape[i].is_constant() || type.shape[i].value() != tensor.shape()[i]) return false;
  }
  return true;
}

}  // namespace

absl::Status ResolveWeights(Model* model, const std::string& base_folder) {
  std::map<std::string, NamedTensors> files;
  for (const Value* weight : model->weights) {
    const auto refuse = [weight](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight->name, ": ", why));
    };
    const size_t hash = weight->source.find('#');
    if (hash == std::string::npos) return refuse("its source must be \"FILE#TENSOR\" to have contents");
    const std::string name = weight->source.substr(0, hash), tensor_name = weight->source.substr(hash + 1);
    auto file = files.find(name);
    if (file == files.end()) {
      absl::StatusOr<NamedTensors> tensors = ReadTensors(base_folder, name);
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

absl::StatusOr<std::unique_ptr<Model>> ImportModel(const std::string& path) {
  struct stat info;
  if (absl::StatusOr<std::string> canonical = CanonicalPath(path); !canonical.ok()) return canonical.status();
  if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return ImportHuggingFace(path);
  if (absl::EndsWith(path, ".onnx")) return ImportOnnx(path);
  if (absl::EndsWith(path, ".lir")) return ImportText(path);
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": not a model; wanted a Hugging Face folder (config.json and .safetensors files), a .onnx or a .lir file"));
}

}  // namespace llmc
