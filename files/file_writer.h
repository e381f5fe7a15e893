// The one way in which llmc writes files: a file appears under its name only when it is whole.
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
  // Writes to a file without a name beside `path`, or beside the file that `path` links to, until Commit. What exists
  // and is no regular file (a pipe, a device) is never replaced: the bytes go into it as they come. A folder is
  // refused. A new file has the permissions `mode` without those that the process's umask takes away; one that exists
  // keeps its own. The umask is not touched, and nothing that another user may have put beside the file is followed.
  static absl::StatusOr<std::unique_ptr<FileWriter>> Create(const std::string& path, uint32_t mode = 0666);
  // Without Commit, what was there stays as it was.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  absl::Status Write(absl::string_view bytes);                     // at the end
  absl::Status PadTo(uint64_t offset);                             // zeros; `offset` must not lie before the end
  absl::Status WriteAt(uint64_t offset, absl::string_view bytes);  // an error for pipes
  uint64_t size() const { return size_; }
  bool is_pipe() const { return pipe_; }
  absl::Status Commit();  // waits until the bytes are on the disk, then gives the file its name

 private:
  explicit FileWriter(std::string path) : path_(std::move(path)) {}
  absl::Status OpenExisting();
  absl::Status OpenTemporary(uint32_t mode, bool exists);
  absl::Status Name();
  absl::Status Error(absl::string_view action) const;

  std::string path_;       // as given
  std::string target_;     // what `path_` links to
  std::string temporary_;  // the name until Commit; empty: none
  int fd_ = -1;
  bool in_place_ = false;  // a pipe or a device
  bool pipe_ = false;
  uint64_t size_ = 0;
};

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes, uint32_t mode = 0666);

}  // namespace llmc
