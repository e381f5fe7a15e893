#include "runtime/device_tensor.h"

namespace llmc {
namespace {

// What the two have in common.
HostTensor Like(const DeviceTensor& tensor) {
  return {.type = tensor.type, .shape = tensor.shape, .bytes = tensor.data};
}

}  // namespace

absl::Status DeviceTensor::Check() const { return Like(*this).Check(); }
int64_t DeviceTensor::size() const { return Like(*this).size(); }
int64_t DeviceTensor::byte_size() const { return Like(*this).byte_size(); }

}  // namespace llmc
