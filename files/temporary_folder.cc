#include "files/temporary_folder.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace llmc {

namespace fs = std::filesystem;

namespace {

// The folders that there are. They come, go and get their names under the mutex. Never destroyed, as another thread may
// hold it when the program ends.
struct Folders {
  std::mutex mutex;
  std::set<std::string> paths;
};
Folders& All() {
  static Folders* const folders = new Folders;
  return *folders;
}

}  // namespace

// Called under the mutex.
TemporaryFolder::TemporaryFolder(std::string path) : path_(std::move(path)) { All().paths.insert(path_); }

void RemoveTemporaryFoldersForGood() {
  Folders& folders = All();
  folders.mutex.lock();
  for (const std::string& path : folders.paths) {
    // Another thread may still put files into it.
    std::error_code error;
    for (int tries = 0; tries < 100 && fs::exists(path, error); ++tries) fs::remove_all(path, error);
  }
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::Create() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  std::string path = (parent / "llmc-XXXXXX").string();
  const std::lock_guard<std::mutex> lock(All().mutex);
  if (!error && mkdtemp(path.data()) != nullptr) return TemporaryFolder(std::move(path));
  return absl::FailedPreconditionError(
      absl::StrCat("no temporary folder can be made", error ? "" : absl::StrCat(" in ", parent.string()), ": ",
                   error ? error.message() : std::strerror(errno), "; set TMPDIR to a folder that can be written"));
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::CreateBeside(const std::string& given) {
  const fs::path path = fs::path(given).has_filename() ? fs::path(given) : fs::path(given).parent_path();
  std::string name = path.string() + ".tmp-XXXXXX";
  const std::lock_guard<std::mutex> lock(All().mutex);
  if (mkdtemp(name.data()) != nullptr) return TemporaryFolder(std::move(name));
  return absl::FailedPreconditionError(absl::StrCat(given, ": cannot be made: ", std::strerror(errno)));
}

absl::Status TemporaryFolder::MoveTo(const std::string& path) {
  // The permissions that the umask leaves, from a folder that is made in the usual way.
  const std::string probe = PathOf(".permissions");
  struct stat info = {};
  const bool is_ready = mkdir(probe.c_str(), 0777) == 0 && stat(probe.c_str(), &info) == 0 &&
                        rmdir(probe.c_str()) == 0 && chmod(path_.c_str(), info.st_mode & 0777) == 0;
  const std::lock_guard<std::mutex> lock(All().mutex);
  // rename() replaces an empty folder, and nothing else.
  if (!is_ready || std::rename(path_.c_str(), path.c_str()) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be made: ", std::strerror(errno)));
  }
  All().paths.erase(path_);
  path_.clear();
  return absl::OkStatus();
}

TemporaryFolder& TemporaryFolder::operator=(TemporaryFolder&& other) noexcept {
  std::swap(path_, other.path_);
  return *this;
}

TemporaryFolder::~TemporaryFolder() {
  if (path_.empty()) return;
  std::error_code ignored;
  const std::lock_guard<std::mutex> lock(All().mutex);
  fs::remove_all(path_, ignored);
  All().paths.erase(path_);
}

std::string TemporaryFolder::PathOf(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

}  // namespace llmc
