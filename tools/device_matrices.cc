#include "tools/device_matrices.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr int64_t kNumberBytes = 4;

struct DeviceNumbers : Matrices::Memory {
  DeviceMemory memory;
};

DevicePointer PointerTo(const Matrices::Place& place) {
  return static_cast<DeviceNumbers*>(place.memory)->memory.data() + static_cast<uint64_t>(place.at * kNumberBytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMatrices>> DeviceMatrices::Create(Device* device) {
  auto matrices = std::unique_ptr<DeviceMatrices>(new DeviceMatrices(device));
  ASSIGN_OR_RETURN(matrices->products_, MatrixProducts::Create(device));
  return matrices;
}

absl::StatusOr<std::unique_ptr<Matrices::Memory>> DeviceMatrices::Allocate(int64_t numbers) {
  RETURN_IF_ERROR(device_->Use());
  auto memory = std::make_unique<DeviceNumbers>();
  absl::StatusOr<DeviceMemory> allocated = device_->Allocate(numbers * kNumberBytes);
  if (absl::IsResourceExhausted(allocated.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(allocated.status().message(), kDeviceIsFull));
  }
  ASSIGN_OR_RETURN(memory->memory, std::move(allocated));
  RETURN_IF_ERROR(device_->FillBytes(memory->memory.data(), 0, numbers * kNumberBytes));
  return memory;
}

absl::Status DeviceMatrices::Write(const float* from, int64_t count, const Place& to) {
  RETURN_IF_ERROR(device_->Use());
  RETURN_IF_ERROR(device_->CopyToDevice(PointerTo(to), from, count * kNumberBytes));
  return device_->Synchronize();
}

absl::Status DeviceMatrices::Read(const Place& from, int64_t count, float* to) {
  RETURN_IF_ERROR(device_->Use());
  RETURN_IF_ERROR(device_->CopyToHost(to, PointerTo(from), count * kNumberBytes));
  return device_->Synchronize();
}

absl::Status DeviceMatrices::Multiply(const Product& p, const Place& x, const Place& w, const Place& out) {
  RETURN_IF_ERROR(device_->Use());
  return products_->Multiply(
      {.m = p.m,
       .n = p.n,
       .k = p.k,
       .in = DType::kF32,
       .out = DType::kF32,
       .transposed = p.transposed,
       .x_row = x.row,
       .weight_row = w.row,
       .out_row = out.row,
       .residual = p.adds},
      {.out = PointerTo(out), .x = PointerTo(x), .weight = PointerTo(w), .residual = p.adds ? PointerTo(out) : 0});
}

}  // namespace llmc
