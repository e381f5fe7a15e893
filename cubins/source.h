// CUDA source and what it includes, all in memory.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace llmc {

struct SourceFile {
  absl::string_view name;  // "kernels/common/common.cuh", as it is included
  absl::string_view text;
};

struct KernelSource {
  std::string entry;  // the kernel's name
  absl::string_view text;
  std::string target;  // to compile for: "sm_90a"
};

// Those of `headers` that `source` includes, directly or through others, in the order of `headers`.
std::vector<SourceFile> IncludedFiles(absl::string_view source, absl::Span<const SourceFile> headers);

}  // namespace llmc
