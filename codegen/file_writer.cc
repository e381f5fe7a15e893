#include "codegen/file_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace llmc {

absl::StatusOr<std::unique_ptr<FileWriter>> FileWriter::Create(const std::string& path) {
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
  }
  // mkostemp makes files that only the owner reads; the umask decides for others.
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(fd, 0666 & ~mask);
  return std::unique_ptr<FileWriter>(new FileWriter(path, std::move(temporary), fd));
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

absl::Status FileWriter::Error(absl::string_view action) const {
  return absl::ResourceExhaustedError(absl::StrCat(path_, ": cannot be ", action, ": ", std::strerror(errno)));
}

absl::Status FileWriter::Write(absl::string_view bytes) {
  if (absl::Status status = WriteAt(size_, bytes); !status.ok()) return status;
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

absl::Status FileWriter::Commit() {
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const absl::Status status = Error("written");
    unlink(temporary_.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace llmc
