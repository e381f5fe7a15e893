#include "cubins/cubin_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "files/file_writer.h"
#include "files/mapped_file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// An entry is this, the digest of the cubin, the cubin.
constexpr absl::string_view kMagic = "LLMCCUBN";
constexpr absl::string_view kEnding = ".cubin";

absl::string_view View(const Digest& digest) { return {reinterpret_cast<const char*>(digest.data()), digest.size()}; }

}  // namespace

std::string CubinCache::PathOf(const Digest& key) const {
  return absl::StrCat(folder_, "/", absl::BytesToHexString(View(key)), kEnding);
}

std::optional<std::string> CubinCache::Find(const Digest& key) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = PathOf(key);
  const absl::StatusOr<MappedFile> file = MapFile(path);
  if (!file.ok()) return std::nullopt;
  absl::string_view bytes = file->view();
  if (!absl::ConsumePrefix(&bytes, kMagic) || bytes.size() < sizeof(Digest)) return std::nullopt;
  const absl::string_view digest = bytes.substr(0, sizeof(Digest)), cubin = bytes.substr(sizeof(Digest));
  if (View(HashBytes(cubin)) != digest) return std::nullopt;
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // what Trim goes by
  return std::string(cubin);
}

void CubinCache::Store(const Digest& key, absl::string_view cubin) const {
  if (folder_.empty()) return;
  std::error_code ignored;
  if (fs::create_directories(folder_, ignored)) fs::permissions(folder_, fs::perms::owner_all, ignored);
  const Digest digest = HashBytes(cubin);
  WriteWholeFile(PathOf(key), absl::StrCat(kMagic, View(digest), cubin)).IgnoreError();
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
