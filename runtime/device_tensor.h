// Arrays in the memory of a GPU, as programs that use the runtime give and get them: what one run leaves there the next
// one takes without a way through the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "runtime/host_tensor.h"

namespace llmc {

// Laid out as a HostTensor. Copies share the bytes, which must not be written, and may be let go of on any thread, also
// when the plan that made them is gone: when kernels of others that read them are done, since a later run may write to
// the same memory.
struct DeviceTensor {
  DType type = DType::kF32;
  std::vector<int64_t> shape = {0};
  int device = 0;                    // as in "cuda:N" (LoadOptions::device)
  std::shared_ptr<const char> data;  // byte_size() of them: an address on the GPU, not one that the host can read

  // InvalidArgument: a dimension is negative, the size overflows or is above 1 TiB, or there are no bytes.
  absl::Status Check() const;

  int64_t size() const;  // elements
  int64_t byte_size() const;
};

using NamedDeviceTensors = std::map<std::string, DeviceTensor>;

// What runs on a GPU take.
using AnyTensor = std::variant<HostTensor, DeviceTensor>;
using NamedAnyTensors = std::map<std::string, AnyTensor>;

}  // namespace llmc
