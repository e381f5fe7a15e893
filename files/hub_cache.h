// Models in the cache that the tools of Hugging Face download into
// (https://huggingface.co/docs/huggingface_hub/guides/manage-cache). It is only read: nothing here opens a connection.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// A model by its name on the hub.
struct HubModel {
  std::string id;        // "org/name"
  std::string revision;  // a branch, a tag or a commit
};

// "org/name" or "org/name@revision"; without one the revision is "main". Nothing if the text has not that form: `org`
// and `name` are 1 to 96 of [A-Za-z0-9._-], begin and end with neither '.' nor '-', and hold no ".." and no "--"; the
// revision may have '/' too, but no ".." and no empty part.
std::optional<HubModel> ParseHubModel(absl::string_view text);

// Where the cache is by the environment: $HF_HUB_CACHE, else $HF_HOME/hub, else huggingface/hub in $XDG_CACHE_HOME,
// else in ~/.cache.
std::string HubCacheFolder();

// The folder of the model's snapshot, "CACHE/models--org--name/snapshots/COMMIT". NotFound, with the command that
// downloads it, if the model or its revision is not there, or if files of it are missing; InvalidArgument if what names
// the commit is damaged.
absl::StatusOr<std::string> FindInHubCache(const HubModel& model, const std::string& cache);

// For a message on a file that is missing from a folder: if the folder is a snapshot in such a cache, "; " with the
// command that downloads what is missing, else empty.
std::string DownloadHint(const std::string& folder);

}  // namespace llmc
