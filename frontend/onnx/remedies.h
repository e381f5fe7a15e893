// What to export differently, where something of an ONNX file is not supported.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// `op` and `reason` as in OnnxUnsupported.
std::string OnnxRemedy(absl::string_view op, absl::string_view reason);

}  // namespace llmc
