#include "tools/model_source.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "ir/verify.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxDumpBytes = int64_t{1} << 30;
constexpr absl::string_view kPlanMagic = "LLMCPLAN";

}  // namespace

bool IsPlanFile(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::ifstream file(path, std::ios::binary);
  std::string magic(kPlanMagic.size(), '\0');
  file.read(magic.data(), static_cast<std::streamsize>(magic.size()));
  return file.gcount() == static_cast<std::streamsize>(magic.size()) && magic == kPlanMagic;
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

absl::StatusOr<std::optional<DType>> ParseDtypeOption(const std::string& text) {
  if (text.empty()) return std::optional<DType>();
  absl::StatusOr<DType> dtype = ParseDType(text);
  if (!dtype.ok() || (*dtype != DType::kF32 && *dtype != DType::kF16 && *dtype != DType::kBF16)) {
    return absl::InvalidArgumentError(absl::StrCat("--dtype: '", text, "' is not f32, f16 or bf16"));
  }
  return std::optional<DType>(*dtype);
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const std::string& path, const std::string& weights_folder,
                                                 Progress* progress) {
  progress->Stage("import");
  std::error_code error;
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": there is no such file or folder"));
  if (!IsTextFile(path)) return ImportModel(path);
  absl::StatusOr<std::string> text = ReadTextFile(path, kMaxDumpBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(*text, path);
  if (!model.ok()) return model;
  if (absl::Status status = Verify(**model, Phase::kImported); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  }
  const std::string folder = weights_folder.empty() ? FolderOf(path) : FolderOf(weights_folder);
  if (absl::Status status = ResolveWeights(model->get(), folder); !status.ok()) return status;
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const std::string& path, const PipelineOptions& options,
                                                     Ledger* ledger, Progress* progress) {
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(path, "", progress);
  if (!model.ok()) return model;
  progress->Stage("passes");
  if (absl::Status status = RunPipeline(model->get(), options, ledger); !status.ok()) return status;
  return model;
}

}  // namespace llmc
