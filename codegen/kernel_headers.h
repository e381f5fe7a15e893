// The files of kernels/, as NVRTC gets them: from memory.
#pragma once

#include "absl/types/span.h"

namespace llmc {

struct KernelHeader {
  const char* name;  // "kernels/common.cuh"
  const char* text;
};
absl::Span<const KernelHeader> KernelHeaders();

}  // namespace llmc
