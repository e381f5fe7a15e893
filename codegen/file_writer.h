// A file that appears under its name only when it is whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

class FileWriter {
 public:
  // Creates a temporary file beside `path`.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Create(const std::string& path);
  // Removes the temporary file if Commit did not happen.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  absl::Status Write(absl::string_view bytes);  // at the end
  absl::Status PadTo(uint64_t offset);          // zeros; `offset` must not lie before the end
  absl::Status WriteAt(uint64_t offset, absl::string_view bytes);
  uint64_t size() const { return size_; }
  absl::Status Commit();  // renames it

 private:
  FileWriter(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}
  absl::Status Error(absl::string_view action) const;

  std::string path_, temporary_;
  int fd_;
  uint64_t size_ = 0;
};

}  // namespace llmc
