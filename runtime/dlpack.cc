#include "runtime/dlpack.h"

#include <dlpack/dlpack.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "runtime/device/device.h"

namespace llmc {
namespace {

// More dimensions than any model has: what is said of a tensor's shape is read before it can be checked.
constexpr int kMostDims = 64;

struct TypePair {
  DType ours;
  uint8_t code, bits;
};
constexpr uint8_t kCodeOfBool = 6;  // kDLBool, which headers of DLPack have from 0.8 on
constexpr std::array<TypePair, 10> kTypes = {{{DType::kF64, kDLFloat, 64},
                                              {DType::kF32, kDLFloat, 32},
                                              {DType::kF16, kDLFloat, 16},
                                              {DType::kBF16, kDLBfloat, 16},
                                              {DType::kI64, kDLInt, 64},
                                              {DType::kI32, kDLInt, 32},
                                              {DType::kI16, kDLInt, 16},
                                              {DType::kI8, kDLInt, 8},
                                              {DType::kU8, kDLUInt, 8},
                                              {DType::kBool, kCodeOfBool, 8}}};

// What a tensor of ours keeps for others.
struct Lent {
  DLManagedTensor managed = {};
  std::vector<int64_t> shape;
  std::shared_ptr<const char> bytes;
};

absl::StatusOr<DLManagedTensor*> Lend(DType type, const std::vector<int64_t>& shape, std::shared_ptr<const char> bytes,
                                      DLDevice device) {
  for (const TypePair& pair : kTypes) {
    if (pair.ours != type) continue;
    auto lent = std::make_unique<Lent>();
    lent->shape = shape;
    lent->bytes = std::move(bytes);
    DLTensor& tensor = lent->managed.dl_tensor;
    tensor.data = const_cast<char*>(lent->bytes.get());
    tensor.device = device;
    tensor.ndim = static_cast<int>(shape.size());
    tensor.dtype = {.code = pair.code, .bits = pair.bits, .lanes = 1};
    tensor.shape = lent->shape.data();
    tensor.strides = nullptr;  // row-major, in one piece
    lent->managed.manager_ctx = lent.get();
    lent->managed.deleter = [](DLManagedTensor* self) {
      // Who reads it may have let go of it when its kernels were given to some stream, before they ran.
      const DLDevice& device = self->dl_tensor.device;
      if (device.device_type == kDLCUDA) WaitForDevice(device.device_id);
      delete static_cast<Lent*>(self->manager_ctx);
    };
    return &lent.release()->managed;
  }
  return absl::UnimplementedError(absl::StrCat("DLPack has no type for elements of ", DTypeName(type)));
}

absl::StatusOr<DType> TypeOf(const DLDataType& type) {
  for (const TypePair& pair : kTypes) {
    if (pair.code == type.code && pair.bits == type.bits && type.lanes == 1) return pair.ours;
  }
  return absl::UnimplementedError(absl::StrCat(
      "a DLPack tensor's elements are of type code ", static_cast<int>(type.code), " with ",
      static_cast<int>(type.bits), " bits and ", type.lanes, " lanes: llmc takes floats, bf16, integers and bool"));
}

// Dims of one element may have any stride, and so may all where there is no element.
bool IsOnePiece(const std::vector<int64_t>& shape, const int64_t* strides) {
  if (strides == nullptr) return true;
  int64_t inner = 1;
  bool is_one_piece = true;
  if (absl::c_linear_search(shape, 0)) return true;
  for (size_t i = shape.size(); i-- > 0;) {
    is_one_piece = is_one_piece && (shape[i] == 1 || strides[i] == inner);
    if (__builtin_mul_overflow(inner, shape[i], &inner)) return false;
  }
  return is_one_piece;
}

}  // namespace

absl::StatusOr<DLManagedTensor*> ToDlpack(const HostTensor& tensor) {
  RETURN_IF_ERROR(tensor.Check());
  return Lend(tensor.type, tensor.shape, tensor.bytes, {kDLCPU, 0});
}

absl::StatusOr<DLManagedTensor*> ToDlpack(const DeviceTensor& tensor) {
  RETURN_IF_ERROR(tensor.Check());
  return Lend(tensor.type, tensor.shape, tensor.data, {kDLCUDA, tensor.device});
}

absl::StatusOr<AnyTensor> FromDlpack(DLManagedTensor* managed) {
  if (managed == nullptr) return absl::InvalidArgumentError("there is no DLPack tensor");
  const DLTensor& from = managed->dl_tensor;
  if (from.ndim < 0 || from.ndim > kMostDims || (from.ndim > 0 && from.shape == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("a DLPack tensor of ", from.ndim, " dimensions has no shape"));
  }
  const bool is_host = from.device.device_type == kDLCPU || from.device.device_type == kDLCUDAHost;
  if (!is_host && from.device.device_type != kDLCUDA && from.device.device_type != kDLCUDAManaged) {
    return absl::UnimplementedError(absl::StrCat("a DLPack tensor lies on a device of type ",
                                                 static_cast<int>(from.device.device_type),
                                                 ": llmc takes those of the host and of CUDA"));
  }
  ASSIGN_OR_RETURN(const DType type, TypeOf(from.dtype));
  const std::vector<int64_t> shape(from.shape, from.shape + from.ndim);
  const bool has_bytes = from.data != nullptr;
  // An address that only says whether there is one.
  static constexpr char kSomewhere = 0;
  const HostTensor checked = {
      .type = type, .shape = shape, .bytes = {std::shared_ptr<const char>(), has_bytes ? &kSomewhere : nullptr}};
  RETURN_IF_ERROR(checked.Check());
  if (!IsOnePiece(shape, from.strides)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a DLPack tensor of [", absl::StrJoin(shape, ", "), "] has strides [",
                     absl::StrJoin(std::vector<int64_t>(from.strides, from.strides + from.ndim), ", "),
                     "]: llmc takes row-major ones; make it contiguous first"));
  }
  const char* const data = static_cast<const char*>(from.data) + (has_bytes ? from.byte_offset : 0);
  if (is_host && reinterpret_cast<uintptr_t>(data) % (DTypeBits(type) / 8) != 0) {
    return absl::InvalidArgumentError("a DLPack tensor's elements are not aligned");
  }
  const std::shared_ptr<DLManagedTensor> owner(managed, [](DLManagedTensor* taken) {
    if (taken->deleter != nullptr) taken->deleter(taken);
  });
  const std::shared_ptr<const char> bytes(owner, data);
  if (is_host) return HostTensor{.type = type, .shape = shape, .bytes = bytes};
  return DeviceTensor{.type = type, .shape = shape, .device = from.device.device_id, .data = bytes};
}

}  // namespace llmc
