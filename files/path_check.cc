#include "files/path_check.h"

#include <climits>
#include <cstdlib>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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
  absl::StatusOr<std::string> root = CanonicalPath(folder);
  if (!root.ok()) return root.status();
  absl::StatusOr<std::string> path = CanonicalPath(absl::StrCat(folder, "/", name));
  if (!path.ok()) return path.status();
  if (absl::StartsWith(*path, *root == "/" ? "/" : absl::StrCat(*root, "/"))) return path;
  const std::string blobs = BlobsOf(*root);
  if (!blobs.empty() && absl::StartsWith(*path, blobs)) return path;
  return absl::InvalidArgumentError(absl::StrCat("file name ", Quoted(name),
                                                 " is refused: it leads out of the model's folder ", folder, " to ",
                                                 *path, "; put the file itself into the folder"));
}

absl::StatusOr<bool> ExistsInside(const std::string& folder, absl::string_view name) {
  absl::StatusOr<std::string> path = ResolveInside(folder, name);
  if (path.ok()) return true;
  if (absl::IsNotFound(path.status())) return false;
  return path.status();
}

}  // namespace llmc
