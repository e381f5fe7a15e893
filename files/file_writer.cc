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
#include <fstream>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

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

// Of this process, without setting it, which would be for all threads; nullopt where the system does not tell.
std::optional<mode_t> Umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    if (!absl::ConsumePrefix(&text, "Umask:")) continue;
    mode_t mask = 0;
    for (const char c : absl::StripAsciiWhitespace(text)) {
      if (c < '0' || c > '7') return std::nullopt;
      mask = mask * 8 + static_cast<mode_t>(c - '0');
    }
    return mask;
  }
  return std::nullopt;
}

// `make` gets names beside `target` that nobody can foresee, until one is free. Empty: it failed otherwise.
template <class Make>
std::string MakeBeside(const std::string& target, Make make) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    uint64_t random = 0;
    if (getentropy(&random, sizeof(random)) != 0) break;
    std::string name = absl::StrCat(target, ".", absl::Hex(random, absl::kZeroPad16), ".tmp");
    if (make(name)) return name;
    if (errno != EEXIST) break;
  }
  return "";
}

std::string DescriptorPath(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

}  // namespace

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& path, uint32_t mode) {
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
                            : writer->OpenTemporary(exists ? info.st_mode & 0777 : mode, exists);
  if (!status.ok()) return status;
  return writer;
}

absl::Status FileWriter::OpenExisting() {
  in_place_ = true;
  fd_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  return fd_ < 0 ? Error("written") : absl::OkStatus();
}

// A file without a name goes away with the process, however that ends. Not all file systems have such, and old kernels
// forget the umask for some, so it is also applied here. What replaces a file is closed to others until it has the old
// file's permissions.
absl::Status FileWriter::OpenTemporary(uint32_t mode, bool exists) {
  const std::string folder = fs::path(target_).parent_path().string();
  if (const std::optional<mode_t> mask = Umask(); mask.has_value()) {
    fd_ = open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, exists ? 0600 : mode & ~*mask);
  }
  if (fd_ >= 0 && access(DescriptorPath(fd_).c_str(), F_OK) != 0) {  // no /proc: it could not be named
    close(fd_);
    fd_ = -1;
  }
  if (fd_ < 0) {
    temporary_ = MakeBeside(target_, [&](const std::string& name) {
      fd_ = open(name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, exists ? 0600 : mode);
      return fd_ >= 0;
    });
  }
  if (fd_ < 0) return Error("written");
  return !exists || fchmod(fd_, mode) == 0 ? absl::OkStatus() : Error("written");
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
    RETURN_IF_ERROR(WriteAt(size_, bytes));
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
    RETURN_IF_ERROR(Write({kZeros, n}));
  }
  return absl::OkStatus();
}

// linkat cannot replace a file, so a file without a name gets another one first.
absl::Status FileWriter::Name() {
  if (temporary_.empty()) {
    const std::string from = DescriptorPath(fd_);
    temporary_ = MakeBeside(target_, [&](const std::string& name) {
      return linkat(AT_FDCWD, from.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    });
  }
  if (temporary_.empty()) return Error("named");
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) return Error("named");
  temporary_.clear();
  return absl::OkStatus();
}

absl::Status FileWriter::Commit() {
  if (!in_place_) {
    if (fsync(fd_) != 0) return Error("written");
    RETURN_IF_ERROR(Name());
  }
  return close(std::exchange(fd_, -1)) == 0 ? absl::OkStatus() : Error("written");
}

absl::Status WriteWholeFile(const std::string& path, absl::string_view bytes, uint32_t mode) {
  ASSIGN_OR_RETURN(std::unique_ptr<FileWriter> file, FileWriter::Create(path, mode));
  RETURN_IF_ERROR(file->Write(bytes));
  return file->Commit();
}

}  // namespace llmc
