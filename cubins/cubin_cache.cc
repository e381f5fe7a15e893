#include "cubins/cubin_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cubins/nvrtc.h"
#include "files/file_writer.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// An entry is this, the digest of the cubin, the cubin.
constexpr absl::string_view kMagic = "LLMCCUBN";
constexpr absl::string_view kEnding = ".cubin";

absl::string_view View(const Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }

// Numbers and parts with their sizes before them: different lists are different bytes.
class KeyMaker {
 public:
  KeyMaker& Add(uint64_t number) {
    hash_.Update(&number, sizeof(number));
    return *this;
  }
  KeyMaker& Add(absl::string_view part) {
    Add(uint64_t{part.size()});
    hash_.Update(part.data(), part.size());
    return *this;
  }
  Digest Key() { return hash_.Finish(); }

 private:
  Sha256 hash_;
};

// Whether nobody else (but root) can have written it.
bool IsOurs(const struct stat& info) {
  return (info.st_uid == geteuid() || info.st_uid == 0) && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// -1 if there is none that is ours.
int OpenFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat info = {};
  if (fd >= 0 && fstat(fd, &info) == 0 && IsOurs(info)) return fd;
  if (fd >= 0) close(fd);
  return -1;
}

// The bytes of a regular file of ours, whose time of use becomes now.
std::optional<std::string> ReadEntry(int folder, const std::string& name) {
  const int fd = openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || !IsOurs(info) || info.st_size > CubinCache::kMaxBytes) {
    return std::nullopt;
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = read(fd, &bytes[at], bytes.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    at += static_cast<size_t>(n);
  }
  futimens(fd, nullptr);  // what Trim goes by; that it fails changes nothing
  return bytes;
}

}  // namespace

Digest CubinKey(const KernelSource& kernel, absl::Span<const SourceFile> headers, absl::string_view compiler,
                bool fast_compile) {
  KeyMaker key;
  key.Add("llmc cubin 2").Add(compiler).Add(kernel.target).Add(kernel.entry).Add(kernel.text);
  const std::vector<const char*> flags = NvrtcFlags(fast_compile);
  key.Add(flags.size());
  for (const char* flag : flags) key.Add(absl::string_view(flag));
  key.Add(headers.size());
  for (const SourceFile& file : headers) key.Add(file.name).Add(file.text);
  return key.Key();
}

std::string CubinCache::NameOf(const Digest& key) { return absl::StrCat(absl::BytesToHexString(View(key)), kEnding); }

std::optional<std::string> CubinCache::Find(const Digest& key) const {
  const int folder = folder_.empty() ? -1 : OpenFolder(folder_);
  if (folder < 0) return std::nullopt;
  const auto close_folder = absl::MakeCleanup([folder] { close(folder); });
  const std::optional<std::string> entry = ReadEntry(folder, NameOf(key));
  absl::string_view bytes = entry.has_value() ? *entry : absl::string_view();
  if (!absl::ConsumePrefix(&bytes, kMagic) || bytes.size() < sizeof(Digest)) return std::nullopt;
  const absl::string_view digest = bytes.substr(0, sizeof(Digest)), cubin = bytes.substr(sizeof(Digest));
  if (View(HashBytes(cubin)) != digest) return std::nullopt;
  return std::string(cubin);
}

void CubinCache::Store(const Digest& key, absl::string_view cubin) const {
  if (folder_.empty()) return;
  std::error_code ignored;
  fs::create_directories(fs::path(folder_).parent_path(), ignored);
  mkdir(folder_.c_str(), 0700);
  const int folder = OpenFolder(folder_);
  if (folder < 0) return;
  close(folder);
  const std::string path = absl::StrCat(folder_, "/", NameOf(key));
  fs::remove(path, ignored);  // what is there was not found, so it is no entry
  WriteWholeFile(path, absl::StrCat(kMagic, View(HashBytes(cubin)), cubin), 0600).IgnoreError();
}

void CubinCache::Trim() const {
  struct Entry {
    fs::file_time_type used;
    int64_t bytes;
    fs::path path;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    struct stat info = {};
    if (!absl::EndsWith(it->path().string(), kEnding) || stat(it->path().c_str(), &info) != 0) continue;
    std::error_code ignored;
    entries.push_back({it->last_write_time(ignored), info.st_size, it->path()});
    total += info.st_size;
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= max_bytes_) break;
    std::error_code ignored;
    if (fs::remove(entry.path, ignored)) total -= entry.bytes;
  }
}

}  // namespace llmc
