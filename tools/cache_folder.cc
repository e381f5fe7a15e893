#include "tools/cache_folder.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

// Unset and empty are the same, as for XDG_CACHE_HOME.
std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string CubinFolder() {
  if (const std::string folder = Environment("LLMC_CACHE_DIR"); !folder.empty()) return absl::StrCat(folder, "/cubins");
  if (const std::string folder = Environment("XDG_CACHE_HOME"); !folder.empty()) {
    return absl::StrCat(folder, "/llmc/cubins");
  }
  if (const std::string home = Environment("HOME"); !home.empty()) return absl::StrCat(home, "/.cache/llmc/cubins");
  return "";
}

}  // namespace llmc
