// CUDA source to cubins, by NVRTC, which is opened when first needed. No GPU and no driver are needed.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

// The code of `source` for `target` ("sm_90a"); it may include the headers of kernels/ and nothing else. `name` is the
// file that errors show. NotFound: there is no NVRTC on this machine; Internal: the source does not compile, with the
// compiler's log. Threads may call it together.
absl::StatusOr<std::string> CompileToCubin(const std::string& source, const std::string& name,
                                           absl::string_view target);

}  // namespace llmc
