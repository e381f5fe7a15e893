#include "tools/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
bool json_is_printed = false;

}  // namespace

void PrintText(absl::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void PrintJson(const nlohmann::ordered_json& json) {
  json_is_printed = true;
  PrintText(absl::StrCat(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "\n"));
}

bool JsonIsPrinted() { return json_is_printed; }

absl::Status FlushOutput() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("standard output: cannot be written", errno == 0 ? "" : ": ",
                                                   errno == 0 ? "" : std::strerror(errno)));
}

absl::Status CheckOutput(const std::string& path, const std::vector<std::string>& inputs) {
  if (path.empty()) return absl::OkStatus();
  std::error_code error;
  if (fs::is_directory(path, error)) return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder, not a file"));
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be written: there is no folder ", folder.string(), "; make it first"));
  }
  for (const std::string& input : inputs) {
    if (!fs::equivalent(path, input, error)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": would be overwritten, but is read as ", input, ": give the output another name"));
  }
  return absl::OkStatus();
}

}  // namespace llmc
