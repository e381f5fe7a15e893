// Checks of a manifest that came from a file.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/plan/plan.pb.h"

namespace llmc::plan {

// Every field that code relies on: offsets and sizes within their sections and files, indices, names that must differ,
// types, paths, arguments of steps. What a kernel does with its arguments cannot be checked: its code is code. An error
// is one clause without the file's name.
struct SectionBytes {
  uint64_t weights = 0, sources = 0, cubins = 0;
};
// Of TunedProducts: entries, and proposals of one product.
inline constexpr int kMaxTunedProducts = 4096;
inline constexpr int kMaxProposals = 16;
inline constexpr int kMaxTargets = 32;  // of a plan

absl::Status CheckManifest(const Manifest& manifest, const SectionBytes& sections);

}  // namespace llmc::plan
