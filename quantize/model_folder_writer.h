// A Hugging Face folder that is written tensor by tensor and is there when it is whole.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "files/temporary_folder.h"
#include "frontend/formats/safetensors.h"

namespace llmc {

class ModelFolderWriter {
 public:
  struct Entry {
    std::string file;  // "model.safetensors", or that of a shard
    SafetensorsWriter::Entry entry;
  };
  // FailedPrecondition: `path` is there and no empty folder, or it cannot be made.
  static absl::StatusOr<ModelFolderWriter> Create(const std::string& path, const std::map<std::string, Entry>& entries);

  // In any order, each once.
  absl::Status Write(const std::string& name, const Tensor& tensor);
  absl::Status WriteText(const std::string& file, absl::string_view text);
  // The files of the folder that are no weights: tokenizer, chat template, generation config; but for config.json.
  absl::Status CopySideFiles(const std::string& from);
  // Gives the folder its name.
  absl::Status Commit();

 private:
  explicit ModelFolderWriter(TemporaryFolder folder) : folder_(std::move(folder)) {}

  std::string path_;
  TemporaryFolder folder_;
  std::map<std::string, std::unique_ptr<SafetensorsWriter>> files_;
  std::map<std::string, std::string> file_of_;  // by tensor
  int64_t bytes_ = 0;
};

}  // namespace llmc
