#include "quantize/model_folder_writer.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"
#include "files/path_check.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr absl::string_view kSideEndings[] = {".json", ".jinja", ".model", ".txt", ".md"};
constexpr absl::string_view kNotCopied[] = {"config.json", "hf_quant_config.json", kIndexFile};

// Beside weights, those that say how text goes in and out; any other *.json may be of another program's weights.
bool IsSideFile(const std::string& name) {
  for (const absl::string_view other : kNotCopied) {
    if (name == other || absl::EndsWith(name, ".index.json")) return false;
  }
  if (name == "LICENSE") return true;
  for (const absl::string_view ending : kSideEndings) {
    if (absl::EndsWith(name, ending)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ModelFolderWriter> ModelFolderWriter::Create(const std::string& path,
                                                            const std::map<std::string, Entry>& entries) {
  std::error_code error;
  const bool is_free = !fs::exists(path, error) || (fs::is_directory(path, error) && fs::is_empty(path, error));
  if (!is_free) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is there already; give a folder that is not, or remove it"));
  }
  ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::CreateBeside(path));
  ModelFolderWriter writer(std::move(folder));
  writer.path_ = path;
  std::map<std::string, std::map<std::string, SafetensorsWriter::Entry>> files;
  for (const auto& [name, entry] : entries) {
    files[entry.file][name] = entry.entry;
    writer.file_of_[name] = entry.file;
    writer.bytes_ += Tensor(entry.entry.dtype, Shape(entry.entry.shape), nullptr).bytes();
  }
  for (const auto& [file, of_file] : files) {
    ASSIGN_OR_RETURN(writer.files_[file], SafetensorsWriter::Create(writer.folder_.PathOf(file), of_file));
  }
  return writer;
}

absl::Status ModelFolderWriter::Write(const std::string& name, const Tensor& tensor) {
  const auto file = file_of_.find(name);
  if (file == file_of_.end()) return absl::InternalError(absl::StrCat(path_, ": ", name, " was not announced"));
  return files_.at(file->second)->Write(name, tensor);
}

absl::Status ModelFolderWriter::WriteText(const std::string& file, absl::string_view text) {
  return WriteWholeFile(folder_.PathOf(file), text);
}

absl::Status ModelFolderWriter::CopySideFiles(const std::string& from) {
  std::error_code error;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!IsSideFile(name) || !fs::is_regular_file(it->path(), error)) continue;
    ASSIGN_OR_RETURN(const MappedFile file, MapInside(from, name));
    RETURN_IF_ERROR(WriteText(name, file.view()));
  }
  return error ? absl::FailedPreconditionError(absl::StrCat(from, ": ", error.message())) : absl::OkStatus();
}

absl::Status ModelFolderWriter::Commit() {
  for (auto& [name, file] : files_) RETURN_IF_ERROR(file->Commit());
  const bool is_single = files_.size() == 1 && files_.begin()->first == kSingleFile;
  if (!is_single) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes_}}}, {"weight_map", file_of_}};
    RETURN_IF_ERROR(WriteText(kIndexFile, index.dump(2) + "\n"));
  }
  return folder_.MoveTo(path_);
}

}  // namespace llmc
