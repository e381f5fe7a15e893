#include "files/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/mapped_file.h"
#include "files/path_check.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr char kMainRevision[] = "main";
constexpr absl::string_view kRepositoryPrefix = "models--";

bool IsHubChar(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

bool IsHubName(absl::string_view name) {
  constexpr size_t kMaxLength = 96;
  const auto is_edge = [](char c) { return c == '.' || c == '-'; };
  return !name.empty() && name.size() <= kMaxLength && std::all_of(name.begin(), name.end(), IsHubChar) &&
         !is_edge(name.front()) && !is_edge(name.back()) && !absl::StrContains(name, "..") &&
         !absl::StrContains(name, "--");
}

bool IsRevision(absl::string_view revision) {
  constexpr size_t kMaxLength = 255;
  if (revision.size() > kMaxLength || absl::StrContains(revision, "..")) return false;
  for (absl::string_view part : absl::StrSplit(revision, '/')) {
    if (part.empty() || part == "." || !std::all_of(part.begin(), part.end(), IsHubChar)) return false;
  }
  return true;
}

// The SHA-1 or SHA-256 of a commit of git.
bool IsCommit(absl::string_view text) {
  return (text.size() == 40 || text.size() == 64) && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

std::string DownloadCommand(const HubModel& model) {
  return absl::StrCat("`hf download ", model.id,
                      model.revision == kMainRevision ? "" : absl::StrCat(" --revision ", model.revision), "`");
}

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// The commit that the revision stands for, as refs/REVISION says; a commit stands for itself.
absl::StatusOr<std::string> CommitOf(const HubModel& model, const std::string& repository) {
  constexpr int64_t kMaxBytes = 128;
  const std::string ref = absl::StrCat("refs/", model.revision);
  const absl::StatusOr<MappedFile> file = MapInside(repository, ref);
  if (absl::IsNotFound(file.status())) {
    if (IsCommit(model.revision)) return model.revision;
    return absl::NotFoundError(absl::StrCat(model.id, ": revision ", model.revision, " is not in ", repository,
                                            "; download it with ", DownloadCommand(model)));
  }
  if (!file.ok()) return file.status();
  const absl::string_view commit = absl::StripAsciiWhitespace(file->view().substr(0, kMaxBytes));
  if (file->size <= kMaxBytes && IsCommit(commit)) return std::string(commit);
  return absl::InvalidArgumentError(absl::StrCat(repository, "/", ref,
                                                 ": must be a commit of 40 hexadecimal digits, is ", Quoted(commit),
                                                 "; download the model again with ", DownloadCommand(model)));
}

// Files that a download has begun and not ended; " (2 unfinished files in PATH)".
std::string Unfinished(const std::string& repository) {
  const std::string blobs = repository + "/blobs";
  const size_t count = FilesEndingIn(blobs, ".incomplete").size();
  if (count == 0) return "";
  return absl::StrCat(" (", count, count == 1 ? " unfinished file" : " unfinished files", " in ", blobs, ")");
}

// A link of the snapshot to a file that is gone; empty: there is none.
std::string DeadLink(const std::string& snapshot) {
  constexpr int kMaxEntries = 100'000;
  int entries = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(snapshot, error), end; !error && it != end; it.increment(error)) {
    std::error_code none;
    if (++entries > kMaxEntries) break;
    if (it->is_symlink(none) && !fs::exists(it->path(), none)) return it->path().lexically_relative(snapshot).string();
  }
  return "";
}

// PATH/models--org--name/snapshots/COMMIT: the repository's folder and the model.
std::optional<std::pair<std::string, HubModel>> ModelOfSnapshot(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  const fs::path snapshot = path.has_filename() ? path : path.parent_path();
  const fs::path repository = snapshot.parent_path().parent_path();
  const std::string name = repository.filename().string();
  if (snapshot.parent_path().filename() != "snapshots" || !absl::StartsWith(name, kRepositoryPrefix)) {
    return std::nullopt;
  }
  const std::string id = absl::StrReplaceAll(absl::StripPrefix(name, kRepositoryPrefix), {{"--", "/"}});
  std::optional<HubModel> model = ParseHubModel(absl::StrCat(id, "@", snapshot.filename().string()));
  if (!model.has_value()) return std::nullopt;
  return std::pair(repository.string(), *std::move(model));
}

}  // namespace

std::optional<HubModel> ParseHubModel(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> at = absl::StrSplit(text, absl::MaxSplits('@', 1));
  const bool has_revision = at.first.size() < text.size();
  const std::vector<absl::string_view> parts = absl::StrSplit(at.first, '/');
  if (parts.size() != 2 || !IsHubName(parts[0]) || !IsHubName(parts[1])) return std::nullopt;
  const absl::string_view revision = has_revision ? at.second : kMainRevision;
  if (!IsRevision(revision)) return std::nullopt;
  return HubModel{.id = std::string(at.first), .revision = std::string(revision)};
}

std::string HubCacheFolder() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (const std::string hub = variable("HF_HUB_CACHE"); !hub.empty()) return hub;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string caches = variable("XDG_CACHE_HOME"); !caches.empty()) return caches + "/huggingface/hub";
  return variable("HOME") + "/.cache/huggingface/hub";
}

absl::StatusOr<std::string> FindInHubCache(const HubModel& model, const std::string& cache) {
  const std::string repository =
      absl::StrCat(cache, "/", kRepositoryPrefix, absl::StrReplaceAll(model.id, {{"/", "--"}}));
  if (!IsFolder(repository)) {
    return absl::NotFoundError(absl::StrCat(model.id,
                                            ": there is no such file or folder, and no model of this name in the "
                                            "Hugging Face cache ",
                                            cache, "; download it with ", DownloadCommand(model)));
  }
  ASSIGN_OR_RETURN(const std::string commit, CommitOf(model, repository));
  const std::string snapshot = absl::StrCat(repository, "/snapshots/", commit);
  const auto incomplete = [&](absl::string_view what) {
    return absl::NotFoundError(absl::StrCat(model.id, ": its download is not complete: ", what, Unfinished(repository),
                                            "; finish it with ", DownloadCommand(model)));
  };
  const absl::StatusOr<std::string> found = ResolveInside(repository, absl::StrCat("snapshots/", commit));
  if (absl::IsNotFound(found.status())) return incomplete(absl::StrCat("there is no ", snapshot));
  if (!found.ok()) return found.status();
  if (!IsFolder(snapshot)) return absl::InvalidArgumentError(absl::StrCat(snapshot, ": is not a folder"));
  if (const std::string link = DeadLink(snapshot); !link.empty()) {
    return incomplete(absl::StrCat(snapshot, "/", link, " leads to a file that is not there"));
  }
  return snapshot;
}

std::string DownloadHint(const std::string& folder) {
  const auto found = ModelOfSnapshot(folder);
  if (!found.has_value()) return "";
  const auto& [repository, model] = *found;
  return absl::StrCat("; the download into the Hugging Face cache may not be complete", Unfinished(repository),
                      ": finish it with ", DownloadCommand(model));
}

}  // namespace llmc
