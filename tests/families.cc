#include "tests/families.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// Unpacks `archive` into `folder`, which there is.
bool Unpack(const std::string& archive, const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    execlp("tar", "tar", "-xJf", archive.c_str(), "-C", folder.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

std::string FamiliesFolder() {
  // An archive that was packed anew has another size or time, and so another folder.
  const std::string archive = LLMC_FAMILIES_ARCHIVE;
  const auto packed = fs::last_write_time(archive).time_since_epoch().count();
  const std::string folder = absl::StrCat(LLMC_FAMILIES_FOLDER, "-", fs::file_size(archive), "-", packed);
  if (fs::exists(folder)) return folder;
  const std::string own = absl::StrCat(folder, ".", getpid());
  fs::create_directories(own);
  std::error_code error;
  if (!Unpack(archive, own)) {
    fs::remove_all(own, error);
    ADD_FAILURE() << archive << " cannot be unpacked by tar and xz";
    return "";
  }
  // Whole or not at all; where another test was first, this fails and that one's folder stays.
  fs::rename(own, folder, error);
  if (error) fs::remove_all(own, error);
  return folder;
}

}  // namespace llmc
