// A folder for files that nobody else may see or foresee.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// Removed with all that is in it when this goes away. Movable.
class TemporaryFolder {
 public:
  // A new folder in the system's folder for temporary files (TMPDIR), for its owner alone. FailedPrecondition: none can
  // be made there.
  static absl::StatusOr<TemporaryFolder> Create();
  // One beside `path`, that MoveTo(path) can make it. FailedPrecondition: none can be made there.
  static absl::StatusOr<TemporaryFolder> CreateBeside(const std::string& path);
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryFolder& operator=(TemporaryFolder&& other) noexcept;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  std::string PathOf(absl::string_view name) const;  // of a file in it

  // Gives the folder a name and the permissions of a new one, so that it stays. FailedPrecondition: something but an
  // empty folder has the name.
  absl::Status MoveTo(const std::string& path);

 private:
  explicit TemporaryFolder(std::string path);

  std::string path_;
};

// Removes all that there are, for a program that is about to end in another way than by returning. Those who make, move
// or remove one after this wait forever.
void RemoveTemporaryFoldersForGood();

}  // namespace llmc
