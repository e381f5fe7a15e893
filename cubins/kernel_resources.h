// What a compiled kernel takes of a GPU, read from its cubin: no GPU and no tool of the CUDA toolkit is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

struct KernelResources {
  std::string entry;
  int64_t registers = 0;  // of a thread
  // Of a thread, in local memory: registers that were spilled, and arrays with changing indices.
  int64_t stack_bytes = 0;
  // Of a block, besides those that a launch asks for; since sm_90 with the 1,024 that the system keeps of a block that
  // has any.
  int64_t shared_bytes = 0;
  int64_t code_bytes = 0;  // of instructions
};

// The kernels of a cubin, an ELF file of 64 bits whose attributes are those that `cuobjdump --dump-elf` prints as
// EIATTR_…, in the order of its symbols. InvalidArgument: it is none; nothing of it is trusted.
absl::StatusOr<std::vector<KernelResources>> ResourcesOf(absl::string_view cubin);

}  // namespace llmc
