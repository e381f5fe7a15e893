#include "files/side_files.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "files/mapped_file.h"
#include "files/path_check.h"

namespace llmc {
namespace {

constexpr int64_t kSideMiB = 1 << 20;

struct SideFile {
  const char* name;
  absl::StatusOr<std::string> SideFiles::*member;
  int64_t max_bytes;
};
constexpr SideFile kSideFiles[] = {{"config.json", &SideFiles::config, kSideMiB},
                                   {"generation_config.json", &SideFiles::generation_config, kSideMiB},
                                   {"tokenizer.json", &SideFiles::tokenizer, 64 * kSideMiB},
                                   {"tokenizer_config.json", &SideFiles::tokenizer_config, 16 * kSideMiB},
                                   {"chat_template.jinja", &SideFiles::chat_template, 4 * kSideMiB}};

absl::StatusOr<std::string> ReadSideFile(const std::string& folder, const SideFile& file) {
  absl::StatusOr<MappedFile> bytes = MapInside(folder, file.name);
  if (absl::IsNotFound(bytes.status())) return "";
  if (!bytes.ok()) return bytes.status();
  if (bytes->size > file.max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(folder, "/", file.name, ": larger than ", file.max_bytes, " bytes"));
  }
  return std::string(bytes->view());
}

}  // namespace

SideFiles ReadSideFiles(const std::string& folder) {
  SideFiles files{.prefix = folder + "/"};
  for (const SideFile& file : kSideFiles) files.*file.member = ReadSideFile(folder, file);
  return files;
}

}  // namespace llmc
