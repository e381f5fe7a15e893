#include "runtime/host/host_tensors.h"

#include "base/status_macros.h"

namespace llmc {

static_assert(static_cast<int>(ElementType::kF64) == static_cast<int>(DType::kF64));
static_assert(static_cast<int>(ElementType::kF8E4M3) == static_cast<int>(DType::kF8E4M3));
static_assert(static_cast<int>(ElementType::kI64) == static_cast<int>(DType::kI64));
static_assert(static_cast<int>(ElementType::kU8) == static_cast<int>(DType::kU8));
static_assert(static_cast<int>(ElementType::kBool) == static_cast<int>(DType::kBool) && kNumDTypes == 14);

HostTensor ToHostTensor(const Tensor& tensor) {
  return {.type = static_cast<ElementType>(tensor.dtype()), .shape = tensor.shape(), .bytes = tensor.owner()};
}

absl::StatusOr<Tensor> FromHostTensor(const HostTensor& tensor) {
  RETURN_IF_ERROR(tensor.Check());
  return Tensor(static_cast<DType>(tensor.type), tensor.shape, tensor.bytes);
}

}  // namespace llmc
