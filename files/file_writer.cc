#include "files/file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// The file that a chain of links ends at, which need not exist.
std::string FollowLinks(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(target, error); ++i) {
    target = target.parent_path() / fs::read_symlink(target, error);
  }
  return target.string();
}

// It can only be read by setting it, and is the same for all threads.
mode_t Umask() {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const mode_t mask = umask(0);
  umask(mask);
  return mask;
}

std::string DescriptorPath(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& path) {
  std::unique_ptr<FileWriter> writer(new FileWriter(path));
  struct stat info = {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return writer->Error("written");
  if (exists && access(path.c_str(), W_OK) != 0) return writer->Error("written");
  if (exists && S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, ": is a folder"));
  writer->pipe_ = exists && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode));
  writer->target_ = FollowLinks(path);
  absl::Status status = exists && !S_ISREG(info.st_mode)
                            ? writer->OpenExisting()
                            : writer->OpenTemporary(exists ? info.st_mode & 0777 : 0666 & ~Umask());
  if (!status.ok()) return status;
  return writer;
}

absl::Status FileWriter::OpenExisting() {
  in_place_ = true;
  fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  return fd_ < 0 ? Error("written") : absl::OkStatus();
}

// A file without a name goes away with the process, however that ends. Not all file systems have such.
absl::Status FileWriter::OpenTemporary(uint32_t mode) {
  const std::string folder = fs::path(target_).parent_path().string();
  fd_ = open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (fd_ >= 0 && access(DescriptorPath(fd_).c_str(), F_OK) != 0) {  // no /proc: it could not be named
    close(fd_);
    fd_ = -1;
  }
  if (fd_ < 0) {
    temporary_ = target_ + ".XXXXXX";
    fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
  }
  if (fd_ < 0) return Error("written");
  return fchmod(fd_, mode) == 0 ? absl::OkStatus() : Error("written");
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status FileWriter::Error(absl::string_view action) const {
  const absl::StatusCode code =
      errno == ENOSPC || errno == EDQUOT ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kFailedPrecondition;
  return absl::Status(code, absl::StrCat(path_, ": cannot be ", action, ": ", std::strerror(errno)));
}

absl::Status FileWriter::Write(absl::string_view bytes) {
  if (!pipe_) {
    if (absl::Status status = WriteAt(size_, bytes); !status.ok()) return status;
  }
  for (absl::string_view rest = pipe_ ? bytes : ""; !rest.empty();) {
    const ssize_t n = write(fd_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Error("written");
    rest.remove_prefix(static_cast<size_t>(n));
  }
  size_ += bytes.size();
  return absl::OkStatus();
}

absl::Status FileWriter::WriteAt(uint64_t offset, absl::string_view bytes) {
  constexpr size_t kPiece = size_t{1} << 26;
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), std::min(bytes.size(), kPiece), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Error("written");
    bytes.remove_prefix(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status FileWriter::PadTo(uint64_t offset) {
  static constexpr char kZeros[4096] = {};
  while (size_ < offset) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(offset - size_, sizeof(kZeros)));
    if (absl::Status status = Write({kZeros, n}); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// linkat cannot replace a file, so a file without a name gets another one first.
absl::Status FileWriter::Name() {
  if (temporary_.empty()) {
    const std::string name = absl::StrCat(target_, ".", getpid(), ".tmp");
    unlink(name.c_str());  // of a process that had our number and was killed here
    if (linkat(AT_FDCWD, DescriptorPath(fd_).c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return Error("named");
    }
    temporary_ = name;
  }
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) return Error("named");
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status FileWriter::Commit() {
  if (!in_place_) {
    if (fsync(fd_) != 0) return Error("written");
    if (absl::Status status = Name(); !status.ok()) return status;
  }
  return close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : Error("written");
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes) {
  absl::StatusOr<std::unique_ptr<FileWriter>> file = FileWriter::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Write(bytes); !status.ok()) return status;
  return (*file)->Commit();
}

}  // namespace llmc
