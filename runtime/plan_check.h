// Checks of a manifest that came from a file.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/plan.pb.h"

namespace llmc::plan {

// Every field that code relies on: offsets and sizes within their sections and files, indices, names that must differ,
// types, paths. `weights_bytes` is the size of the section of weights. An error is one clause without the file's name.
absl::Status CheckManifest(const Manifest& manifest, uint64_t weights_bytes);

}  // namespace llmc::plan
