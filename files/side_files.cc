#include "files/side_files.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "files/mapped_file.h"
#include "files/path_check.h"

namespace llmc {
namespace {

constexpr int64_t kSideMiB = 1 << 20;

struct TextFile {
  const char* name;
  absl::StatusOr<std::string> SideFiles::*member;
  int64_t max_bytes;
};
constexpr TextFile kTextFiles[] = {{"config.json", &SideFiles::config, kSideMiB},
                                   {"generation_config.json", &SideFiles::generation_config, kSideMiB},
                                   {"tokenizer_config.json", &SideFiles::tokenizer_config, 16 * kSideMiB},
                                   {"chat_template.jinja", &SideFiles::chat_template, 4 * kSideMiB}};
constexpr int64_t kMaxTokenizerFileBytes = 64 * kSideMiB;

absl::StatusOr<std::string> ReadSideFile(const std::string& folder, const std::string& name, int64_t max_bytes) {
  absl::StatusOr<MappedFile> bytes = MapInside(folder, name);
  if (absl::IsNotFound(bytes.status())) return "";
  if (!bytes.ok()) return bytes.status();
  if (bytes->size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", name, ": larger than ", max_bytes, " bytes"));
  }
  return std::string(bytes->view());
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<SideFile>> ReadTokenizerFiles(const std::string& folder, TokenizerFileChoice choose) {
  std::vector<SideFile> files;
  for (const std::string& name : choose(NamesIn(folder))) {
    absl::StatusOr<std::string> text = ReadSideFile(folder, name, kMaxTokenizerFileBytes);
    if (!text.ok()) return text.status();
    files.push_back({name, *std::move(text)});
  }
  return files;
}

}  // namespace

SideFiles ReadSideFiles(const std::string& folder, TokenizerFileChoice choose) {
  SideFiles files{.prefix = folder + "/"};
  for (const TextFile& file : kTextFiles) files.*file.member = ReadSideFile(folder, file.name, file.max_bytes);
  files.tokenizer = ReadTokenizerFiles(folder, choose);
  return files;
}

}  // namespace llmc
