#include "files/path_check.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

absl::Status CheckName(absl::string_view name) {
  auto refuse = [name](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("file name ", Quoted(name), " is refused: ", why));
  };
  if (name.empty()) return refuse("it is empty");
  if (name.size() >= PATH_MAX) return refuse("it is too long");
  if (absl::StrContains(name, '\0')) return refuse("it holds a NUL byte");
  if (name[0] == '/') return refuse("it is absolute; it must be relative to the model's folder");
  for (absl::string_view part : absl::StrSplit(name, '/')) {
    if (part.empty() || part == ".") return refuse("it has an empty or \".\" part");
    if (part == "..") return refuse("it has a \"..\" part; it must stay inside the model's folder");
  }
  return absl::OkStatus();
}

// For …/models--X/snapshots/REVISION[/…]: "…/models--X/blobs/", else empty.
std::string BlobsOf(absl::string_view folder) {
  const std::vector<absl::string_view> parts = absl::StrSplit(folder, '/');
  size_t length = 0;
  for (size_t i = 0; i + 2 < parts.size(); ++i) {
    length += parts[i].size();
    if (absl::StartsWith(parts[i], "models--") && parts[i + 1] == "snapshots") {
      return absl::StrCat(folder.substr(0, length), "/blobs/");
    }
    ++length;  // the slash
  }
  return "";
}

}  // namespace

std::string Quoted(absl::string_view name) {
  constexpr size_t kShown = 200;
  std::string text = absl::CHexEscape(name.substr(0, kShown));
  return name.size() > kShown ? absl::StrCat("\"", text, "…\"") : absl::StrCat("\"", text, "\"");
}

std::string FolderOf(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return path;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::vector<std::string> FilesEndingIn(const std::string& folder, absl::string_view ending) {
  constexpr size_t kMax = 100;
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (absl::EndsWith(name, ending) && names.size() < kMax) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string WeightSource(absl::string_view file, absl::string_view tensor) {
  return absl::StrCat(absl::StrReplaceAll(file, {{"%", "%25"}, {"#", "%23"}}), "#", tensor);
}

std::optional<std::pair<std::string, std::string>> SplitWeightSource(absl::string_view source) {
  const size_t hash = source.find('#');
  if (hash == absl::string_view::npos) return std::nullopt;
  return std::pair(absl::StrReplaceAll(source.substr(0, hash), {{"%25", "%"}, {"%23", "#"}}),
                   std::string(source.substr(hash + 1)));
}

absl::StatusOr<std::string> CanonicalPath(const std::string& path) {
  if (path.empty() || absl::StrContains(path, '\0')) {
    return absl::InvalidArgumentError(absl::StrCat("not a file name: ", Quoted(path)));
  }
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path.size() < PATH_MAX ? path : Quoted(path), ": cannot open"));
  }
  return std::string(resolved);
}

absl::StatusOr<std::string> ResolveInside(const std::string& folder, absl::string_view name) {
  if (absl::Status s = CheckName(name); !s.ok()) return s;
  ASSIGN_OR_RETURN(std::string root, CanonicalPath(folder));
  ASSIGN_OR_RETURN(std::string path, CanonicalPath(absl::StrCat(folder, "/", name)));
  if (absl::StartsWith(path, root == "/" ? "/" : absl::StrCat(root, "/"))) return path;
  const std::string blobs = BlobsOf(root);
  if (!blobs.empty() && absl::StartsWith(path, blobs)) return path;
  return absl::InvalidArgumentError(absl::StrCat("file name ", Quoted(name),
                                                 " is refused: it leads out of the model's folder ", folder, " to ",
                                                 path, "; put the file itself into the folder"));
}

absl::StatusOr<bool> ExistsInside(const std::string& folder, absl::string_view name) {
  absl::StatusOr<std::string> path = ResolveInside(folder, name);
  if (path.ok()) return true;
  if (absl::IsNotFound(path.status())) return false;
  return path.status();
}

}  // namespace llmc
