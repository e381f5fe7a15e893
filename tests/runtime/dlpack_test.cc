// Tensors that go to other libraries and come from them.
#include "runtime/dlpack.h"

#include <dlpack/dlpack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace llmc {
namespace {

using testing::HasSubstr;

// As another library makes one: counts how often it is deleted.
struct Foreign {
  std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7};
  std::vector<int64_t> shape = {2, 3}, strides = {3, 1};
  int deleted = 0;
  DLManagedTensor managed = {};

  Foreign() {
    managed.dl_tensor = {.data = values.data(),
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = shape.data(),
                         .strides = strides.data(),
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensor* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
  }
  DLTensor* operator->() { return &managed.dl_tensor; }
};

std::string ErrorOf(Foreign& foreign) {
  const auto taken = FromDlpack(&foreign.managed);
  EXPECT_FALSE(taken.ok());
  EXPECT_EQ(foreign.deleted, 0) << "it is still the caller's";
  return std::string(taken.status().message());
}

TEST(Dlpack, HostTensorsComeAndGoWithoutACopy) {
  for (const DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16,
                           DType::kI8, DType::kU8, DType::kBool}) {
    const HostTensor tensor = *HostTensor::Zeros(type, {2, 3});
    const auto managed = ToDlpack(tensor);
    ASSERT_TRUE(managed.ok()) << managed.status();
    EXPECT_EQ((*managed)->dl_tensor.data, tensor.bytes.get());
    EXPECT_EQ((*managed)->dl_tensor.dtype.bits, DTypeBits(type));
    const long users = tensor.bytes.use_count();
    {
      const auto back = FromDlpack(*managed);
      ASSERT_TRUE(back.ok()) << back.status();
      const HostTensor& same = std::get<HostTensor>(*back);
      EXPECT_EQ(same.bytes.get(), tensor.bytes.get());
      EXPECT_EQ(same.type, type);
      EXPECT_EQ(same.shape, tensor.shape);
    }
    EXPECT_EQ(tensor.bytes.use_count(), users - 1) << "the last copy calls the deleter";
  }
}

TEST(Dlpack, TensorsOfAGpuKeepItsNumber) {
  static char somewhere[64];  // an address that nobody reads
  const DeviceTensor tensor = {.type = DType::kBF16,
                               .shape = {4, 1, 8},
                               .device = 3,
                               .data = std::shared_ptr<const char>(std::shared_ptr<const char>(), somewhere)};
  const auto managed = ToDlpack(tensor);
  ASSERT_TRUE(managed.ok()) << managed.status();
  EXPECT_EQ((*managed)->dl_tensor.device.device_type, kDLCUDA);
  EXPECT_EQ((*managed)->dl_tensor.device.device_id, 3);
  (*managed)->dl_tensor.byte_offset = 16;
  const auto back = FromDlpack(*managed);
  ASSERT_TRUE(back.ok()) << back.status();
  const DeviceTensor& same = std::get<DeviceTensor>(*back);
  EXPECT_EQ(same.device, 3);
  EXPECT_EQ(same.data.get(), somewhere + 16);
  EXPECT_EQ(same.byte_size(), 64);
}

TEST(Dlpack, ForeignTensorsAreDeletedOnce) {
  Foreign foreign;
  {
    const auto taken = FromDlpack(&foreign.managed);
    ASSERT_TRUE(taken.ok()) << taken.status();
    const HostTensor copy = std::get<HostTensor>(*taken);
    EXPECT_EQ(copy.values<float>()[5], 5);
    EXPECT_EQ(foreign.deleted, 0);
  }
  EXPECT_EQ(foreign.deleted, 1);
  foreign.managed.deleter = nullptr;  // which may be
  EXPECT_TRUE(FromDlpack(&foreign.managed).ok());
}

TEST(Dlpack, StridesThatMeanNothingAreTaken) {
  Foreign foreign;
  foreign.shape = {1, 6};
  foreign.strides = {77, 1};
  EXPECT_TRUE(FromDlpack(&foreign.managed).ok()) << "a dim of one";
  foreign.shape = {0, 6};
  foreign.strides = {1, 1};
  foreign->data = nullptr;
  EXPECT_TRUE(FromDlpack(&foreign.managed).ok()) << "no elements";
  Foreign scalar;
  scalar->ndim = 0;
  scalar->shape = nullptr;
  scalar->strides = nullptr;
  const auto taken = FromDlpack(&scalar.managed);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(std::get<HostTensor>(*taken).size(), 1);
}

TEST(Dlpack, WhatCannotBeIsRefused) {
  EXPECT_FALSE(FromDlpack(nullptr).ok());
  Foreign foreign;
  foreign.strides = {1, 2};
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("strides [1, 2]: llmc takes row-major ones; make it contiguous first"));
  foreign.strides = {3, 1};
  foreign->device.device_type = kDLOpenCL;
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("device of type 4"));
  foreign->device.device_type = kDLCPU;
  foreign->dtype = {kDLComplex, 64, 1};
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("type code 5 with 64 bits"));
  foreign->dtype = {kDLFloat, 32, 4};
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("4 lanes"));
  foreign->dtype = {kDLFloat, 32, 1};
  foreign->byte_offset = 2;
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("not aligned"));
  foreign->byte_offset = 0;
  foreign.shape = {-2, 3};
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("negative"));
  foreign.shape = {std::numeric_limits<int64_t>::max(), 3};
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("too large"));
  foreign.shape = {2, 3};
  foreign->data = nullptr;
  EXPECT_THAT(ErrorOf(foreign), HasSubstr("no bytes"));
  for (const int dims : {-1, 1'000'000}) {
    foreign->ndim = dims;
    EXPECT_THAT(ErrorOf(foreign), HasSubstr("has no shape"));
  }

  const HostTensor bytes = *HostTensor::Zeros(DType::kF8E4M3, {2});
  EXPECT_THAT(std::string(ToDlpack(bytes).status().message()), HasSubstr("f8e4m3"));
  EXPECT_FALSE(ToDlpack(HostTensor{.shape = {2}}).ok()) << "no bytes";
}

}  // namespace
}  // namespace llmc
