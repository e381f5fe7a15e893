// Which files a model's files may name: only files inside the model's folder.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// The path without links, "." and "..". NotFound if there is no such file.
absl::StatusOr<std::string> CanonicalPath(const std::string& path);

// The canonical path of `name` (as a file of the model gives it) relative to `folder`. Refused: an empty name, one with
// a NUL, an absolute one, one with an empty, "." or ".." part, and one that leads out of the folder through links.
// One link out is allowed: a Hugging Face cache keeps the contents of models--X/snapshots/REVISION/… in
// models--X/blobs, so from a folder of that form a link into the blobs of the same models--X is followed.
absl::StatusOr<std::string> ResolveInside(const std::string& folder, absl::string_view name);

// Whether a file of that name is there, without following it out of the folder. Errors as ResolveInside, but absence is
// false.
absl::StatusOr<bool> ExistsInside(const std::string& folder, absl::string_view name);

// A folder itself, or the folder that a file is in.
std::string FolderOf(const std::string& path);

// The names in `folder` that end in `ending`, sorted; at most 100. None if it cannot be read.
std::vector<std::string> FilesEndingIn(const std::string& folder, absl::string_view ending);

// A weight's source, "FILE#TENSOR": in FILE, '#' is written "%23" and '%' is written "%25".
std::string WeightSource(absl::string_view file, absl::string_view tensor);
// File and tensor of a source; nullopt if there is no '#'.
std::optional<std::pair<std::string, std::string>> SplitWeightSource(absl::string_view source);

// A name from a file as it may be shown: quoted, control characters escaped, at most 200 bytes.
std::string Quoted(absl::string_view name);

}  // namespace llmc
