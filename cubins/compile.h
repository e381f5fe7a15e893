// Many kernels to cubins, on all cores, through the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cubins/source.h"

namespace llmc {

struct CompileOptions {
  std::string cache_folder;   // empty: no cache
  bool fast_compile = false;  // as NvrtcOptions
  // Called with how many are done, never by two threads at once.
  std::function<void(int64_t done, int64_t total)> on_kernel;
};

// The order in which kernels are compiled: which takes longest, by what is known of kernels of its name, comes first.
// Of equals the last one does, which is that of most rows.
std::vector<size_t> CompileOrder(absl::Span<const KernelSource> kernels);

// The cubins of kernels, in their order. The bytes do not depend on the cache. Errors are those of CompileToCubin, of
// the first kernel that has one.
absl::StatusOr<std::vector<std::string>> CompileKernels(absl::Span<const KernelSource> kernels,
                                                        absl::Span<const SourceFile> headers,
                                                        const CompileOptions& options);

}  // namespace llmc
