// CUDA source to cubins, by NVRTC, which is opened when first needed. No GPU and no driver are needed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cubins/source.h"

namespace llmc {

// "13.0", with what tells its builds apart. NotFound: there is no NVRTC on this machine; the message says how to get
// it.
absl::StatusOr<std::string> NvrtcVersion();

struct NvrtcOptions {
  // Kernels compile in a fraction of the time, and may be slower on the GPU. Needs NVRTC 12.9.
  bool fast_compile = false;
  // Called, if there is one, when all is ready for the compiler.
  std::function<void()> on_begin;
};

// What the compiler is told, other than the target.
std::vector<const char*> NvrtcFlags(bool fast_compile);

// The code of `source` for `target` ("sm_90a"); it may include `headers` and nothing else. `name` is the file that
// errors show. NotFound: as NvrtcVersion; Internal: the source does not compile, with the compiler's log. Threads may
// call it together; NVRTC reads sources, about a tenth of the work, of one at a time.
absl::StatusOr<std::string> CompileToCubin(const std::string& source, const std::string& name, absl::string_view target,
                                           absl::Span<const SourceFile> headers, const NvrtcOptions& options = {});

}  // namespace llmc
