#include "files/temporary_folder.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
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

absl::StatusOr<TemporaryFolder> TemporaryFolder::CreateBeside(const std::string& given) {
  const fs::path path = fs::path(given).has_filename() ? fs::path(given) : fs::path(given).parent_path();
  std::string name = path.string() + ".tmp-XXXXXX";
  if (mkdtemp(name.data()) != nullptr) return TemporaryFolder(std::move(name));
  return absl::FailedPreconditionError(absl::StrCat(given, ": cannot be made: ", std::strerror(errno)));
}

absl::Status TemporaryFolder::MoveTo(const std::string& path) {
  // The permissions that the umask leaves, from a folder that is made in the usual way.
  const std::string probe = PathOf(".permissions");
  struct stat info = {};
  const bool is_ready = mkdir(probe.c_str(), 0777) == 0 && stat(probe.c_str(), &info) == 0 &&
                        rmdir(probe.c_str()) == 0 && chmod(path_.c_str(), info.st_mode & 0777) == 0;
  // rename() replaces an empty folder, and nothing else.
  if (!is_ready || std::rename(path_.c_str(), path.c_str()) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be made: ", std::strerror(errno)));
  }
  path_.clear();
  return absl::OkStatus();
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
