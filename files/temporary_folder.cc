#include "files/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace llmc {

namespace fs = std::filesystem;

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  std::string path = (parent / "llmc-XXXXXX").string();
  if (!error && mkdtemp(path.data()) != nullptr) return TemporaryFolder(std::move(path));
  return absl::FailedPreconditionError(
      absl::StrCat("no temporary folder can be made", error ? "" : absl::StrCat(" in ", parent.string()), ": ",
                   error ? error.message() : std::strerror(errno), "; set TMPDIR to a folder that can be written"));
}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::PathOf(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

}  // namespace llmc
