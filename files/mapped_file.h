// Read-only maps of regular files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// The bytes of a file. `data` owns the map; copies and views made with the aliasing constructor of shared_ptr keep it
// alive. Threads may read it together. Whoever changes or truncates the file meanwhile changes what is read, or ends
// the process with SIGBUS: model files must stay as they are while they are in use.
struct MappedFile {
  std::shared_ptr<const char> data;  // never null; page-aligned
  int64_t size = 0;
  int descriptor = -1;  // if MapOptions asked for it and the file is not empty: open for as long as the map is

  absl::string_view view() const { return {data.get(), static_cast<size_t>(size)}; }
  // Copies a part of the file to `to`. With a descriptor without mapping its pages: several threads that read so do not
  // wait for each other, as they do where each touches pages of a map for the first time, and a file that was truncated
  // after it was opened is an error (FailedPrecondition).
  absl::Status Read(int64_t offset, int64_t bytes, char* to) const;
};

struct MapOptions {
  bool keeps_descriptor = false;  // a process may have few of them
};

// Maps `path`, as the user gave it. Symbolic links are followed while the path is made canonical; the result is opened
// without following any, so a link that appears afterwards is refused. Anything but a regular file (a FIFO, a folder, a
// device) is refused without waiting.
absl::StatusOr<MappedFile> MapFile(const std::string& path, const MapOptions& options = {});
// Maps the file `name`, which comes from a file of the model, as ResolveInside (path_check.h) finds it in `folder`:
// what was checked is what is opened.
absl::StatusOr<MappedFile> MapInside(const std::string& folder, absl::string_view name);

}  // namespace llmc
