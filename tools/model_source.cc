#include "tools/model_source.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// Nothing for "".
absl::StatusOr<std::optional<DType>> ParseDtypeOption(const std::string& text) {
  if (text.empty()) return std::optional<DType>();
  absl::StatusOr<DType> dtype = ParseDType(text);
  if (!dtype.ok() || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    return absl::InvalidArgumentError(absl::StrCat("--dtype: '", text, "' is not f32, f16 or bf16"));
  }
  return std::optional<DType>(*dtype);
}

absl::StatusOr<std::unique_ptr<Model>> LoadDump(const ModelSource& source) {
  absl::StatusOr<std::string> text = ReadTextFile(source.path, kMaxDumpBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(*text, source.path);
  if (!model.ok()) return model;
  if (absl::Status status = Verify(**model, Phase::kImported); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(source.path, ": ", status.message()));
  }
  absl::Status status = ResolveWeights(model->get(), source.Folder());
  if (!status.ok() && source.weights_folder.empty()) {
    return absl::Status(status.code(), absl::StrCat(status.message(), " (give the model's folder: --weights-folder)"));
  }
  if (!status.ok()) return status;
  return model;
}

absl::Status SetBounds(const DimEnv& bounds, Model* model) {
  for (const auto& [name, max] : bounds) {
    const auto dim = model->dims.find(name);
    if (dim == model->dims.end()) {
      const std::string known = absl::StrJoin(model->dims, ", ", absl::PairFormatter(" <= "));
      return absl::InvalidArgumentError(
          absl::StrCat("--bound: the model has no dim ", name, "; it has ", known.empty() ? "none" : known));
    }
    if (max > dim->second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bound: ", name, " is at most ", dim->second, " in the model, so it cannot be ", max));
    }
    dim->second = max;
  }
  return absl::OkStatus();
}

}  // namespace

std::string ModelSource::Folder() const { return FolderOf(weights_folder.empty() ? path : weights_folder); }

void AddModelOptions(CLI::App* command, ModelSource* source, const std::string& what) {
  command->add_option("MODEL", source->path, what)->required();
  command->add_option("--dtype", source->dtype, "of a model: f32, f16 or bf16 for all floating point");
  command->add_option("--weights-folder", source->weights_folder, "of a dump: where the model was that it came from");
}

bool IsTextFile(const std::string& path) { return absl::EndsWith(path, ".lir"); }

std::string FolderOf(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return path;
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return absl::NotFoundError(absl::StrCat(path, ": is not a file"));
  const auto size = fs::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (size > static_cast<uintmax_t>(max_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", size, " bytes, more than ", max_bytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return text.str();
}

absl::Status WriteTextFile(const std::string& path, absl::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Progress* progress) {
  progress->Stage("import");
  std::error_code error;
  if (!fs::exists(source.path, error)) {
    return absl::NotFoundError(absl::StrCat(source.path, ": there is no such file or folder"));
  }
  if (IsTextFile(source.path)) return LoadDump(source);
  if (!source.weights_folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--weights-folder is for dumps (.lir), and ", source.path, " is none"));
  }
  return ImportModel(source.path);
}

absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const ModelSource& source, PipelineOptions options, Ledger* ledger,
                                                     Progress* progress) {
  absl::StatusOr<std::optional<DType>> dtype = ParseDtypeOption(source.dtype);
  if (!dtype.ok()) return dtype.status();
  options.dtype = *dtype;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(source, progress);
  if (!model.ok()) return model;
  if (absl::Status status = SetBounds(source.bounds, model->get()); !status.ok()) return status;
  progress->Stage("passes");
  if (absl::Status status = RunPipeline(model->get(), options, ledger); !status.ok()) return status;
  return model;
}

}  // namespace llmc
