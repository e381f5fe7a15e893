#include "tools/model_source.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/path_check.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
constexpr absl::string_view kPlanMagic = "LLMCPLAN";

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
  absl::StatusOr<std::unique_ptr<Model>> model = ImportText(source.path, source.Folder());
  if (model.ok() || !source.weights_folder.empty() || !absl::StartsWith(model.status().message(), "weight ")) {
    return model;
  }
  return absl::Status(model.status().code(),
                      absl::StrCat(model.status().message(), " (give the model's folder: --weights-folder)"));
}

}  // namespace

std::string ModelSource::Folder() const { return FolderOf(weights_folder.empty() ? path : weights_folder); }

void AddModelOptions(CLI::App* command, ModelSource* source, const std::string& what) {
  command->add_option("MODEL", source->path, what)->required();
  command->add_option("--dtype", source->dtype, "of a model: f32, f16 or bf16 for all floating point");
  command->add_option("--weights-folder", source->weights_folder, "of a dump: where the model was that it came from");
}

bool IsPlanFile(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string magic(kPlanMagic.size(), '\0');
  file.read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return file.gcount() == static_cast<std::streamsize>(magic.size()) && magic == kPlanMagic;
}

bool IsTextFile(const std::string& path) { return absl::EndsWith(path, ".lir"); }

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

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Progress* progress,
                                                 std::vector<IgnoredTensor>* ignored) {
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
  return ImportModel(source.path, ignored);
}

absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const ModelSource& source, PipelineOptions options, Ledger* ledger,
                                                     Progress* progress) {
  absl::StatusOr<std::optional<DType>> dtype = ParseDtypeOption(source.dtype);
  if (!dtype.ok()) return dtype.status();
  options.dtype = *dtype;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(source, progress);
  if (!model.ok()) return model;
  progress->Stage("passes");
  if (absl::Status status = RunPipeline(model->get(), options, ledger); !status.ok()) return status;
  return model;
}

}  // namespace llmc
