#include "files/mapped_file.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/drop_pages.h"
#include "files/path_check.h"

namespace llmc {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view what) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", what));
}

// Opens a path that has no links in any part of it.
int OpenCanonical(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY;
#ifdef SYS_openat2
  open_how how = {};
  how.flags = kFlags;
  how.resolve = RESOLVE_NO_SYMLINKS;
  const long fd = syscall(SYS_openat2, AT_FDCWD, path.c_str(), &how, sizeof(how));
  // Kernels before 5.6 and some sandboxes do not have the call.
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(fd);
#endif
  return open(path.c_str(), kFlags);
}

// `path` is for errors.
absl::StatusOr<MappedFile> MapCanonical(const std::string& canonical, const std::string& path,
                                        const MapOptions& options) {
  const int fd = OpenCanonical(canonical);
  if (fd < 0) return SystemError(path, "cannot open the file");
  auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(path, "cannot read the file's attributes");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file", S_ISDIR(info.st_mode) ? " but a folder" : ""));
  }
  MappedFile file;
  file.size = info.st_size;
  if (file.size == 0) {  // mmap refuses an empty range.
    static const char kEmpty = 0;
    file.data = std::shared_ptr<const char>(&kEmpty, [](const char*) {});
    return file;
  }
  void* map = mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) return SystemError(path, "cannot map the file");
  AddMap(static_cast<const char*>(map), static_cast<size_t>(file.size));
  if (options.keeps_descriptor) {
    file.descriptor = fd;
    std::move(close_fd).Cancel();
  }
  const auto unmap = [size = file.size, kept = file.descriptor](const char* data) {
    RemoveMap(data);
    munmap(const_cast<char*>(data), static_cast<size_t>(size));
    if (kept >= 0) close(kept);
  };
  file.data = std::shared_ptr<const char>(static_cast<const char*>(map), unmap);
  return file;
}

}  // namespace

absl::Status MappedFile::Read(int64_t offset, int64_t bytes, char* to) const {
  if (descriptor < 0) {
    if (bytes > 0) std::memcpy(to, data.get() + offset, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  while (bytes > 0) {
    const ssize_t count = pread(descriptor, to, static_cast<size_t>(bytes), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, "cannot read the file");
    if (count == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the file ends at byte ", offset, ", but had ", size, " bytes when it was opened"));
    }
    offset += count;
    bytes -= count;
    to += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<MappedFile> MapFile(const std::string& path, const MapOptions& options) {
  ASSIGN_OR_RETURN(std::string canonical, CanonicalPath(path));
  return MapCanonical(canonical, path, options);
}

absl::StatusOr<MappedFile> MapInside(const std::string& folder, absl::string_view name) {
  ASSIGN_OR_RETURN(std::string canonical, ResolveInside(folder, name));
  return MapCanonical(canonical, absl::StrCat(folder, "/", name), {});
}

}  // namespace llmc
