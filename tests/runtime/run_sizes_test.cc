// What the inputs of a run say of a model's dims.
#include "runtime/device/run_sizes.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace llmc {
namespace {

using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

// Of a decoder with its cache: `length` is an element of the input `lengths`.
plan::Manifest DecoderManifest() {
  plan::Manifest manifest;
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(R"pb(
                                                      dims { name: "B" max: 8 }
                                                      dims { name: "P" max: 100 }
                                                      dims { name: "N" max: 16 }
                                                      entry_points {
                                                        inputs { name: "x" dtype: "f32" shape: "B" shape: "4" }
                                                        inputs { name: "mask" dtype: "i64" shape: "B" shape: "P + 1" }
                                                        inputs { name: "lengths" dtype: "i32" shape: "2" }
                                                      })pb",
                                                    &manifest));
  return manifest;
}

plan::Program RulesOfSizes() {
  plan::Program program;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"pb(size_rules { symbol: "N" input: "lengths" element: 1 label: "%y = slice %x" })pb", &program));
  return program;
}

class RunSizes : public testing::Test {
 protected:
  RunSizes() {
    inputs_["x"] = {.type = DType::kF32, .shape = {2, 4}, .bytes = 32, .host = bytes_};
    inputs_["mask"] = {.type = DType::kI64, .shape = {2, 8}, .bytes = 128, .host = bytes_};
    inputs_["lengths"] = {.type = DType::kI32, .shape = {2}, .bytes = 8, .host = reinterpret_cast<char*>(lengths_)};
  }
  absl::StatusOr<StepDims> Sizes() {
    return SizesOfRun(manifest_, program_, inputs_, [&](void* to, DevicePointer from, int64_t bytes) {
      ++reads_;
      std::memcpy(to, reinterpret_cast<const void*>(from), static_cast<size_t>(bytes));
      return read_status_;
    });
  }
  std::string Error() { return std::string(Sizes().status().message()); }

  plan::Manifest manifest_ = DecoderManifest();
  plan::Program program_ = RulesOfSizes();
  char bytes_[128] = {};
  int32_t lengths_[2] = {3, 5};
  GivenInputs inputs_;
  int reads_ = 0;
  absl::Status read_status_;
};

TEST_F(RunSizes, AreThoseOfShapesAndOfElements) {
  const auto sizes = Sizes();
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_THAT(*sizes, UnorderedElementsAre(Pair("B", 2), Pair("P", 7), Pair("N", 5)));
  EXPECT_EQ(reads_, 0);
}

// Here the device's memory is the host's.
TEST_F(RunSizes, ElementsOfInputsOnTheDeviceAreRead) {
  inputs_["lengths"].host = nullptr;
  inputs_["lengths"].device = reinterpret_cast<DevicePointer>(lengths_);
  inputs_["x"].host = nullptr;
  const auto sizes = Sizes();
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->at("N"), 5);
  EXPECT_EQ(reads_, 1) << "x only gives its shape";
  read_status_ = absl::InternalError("gone");
  EXPECT_THAT(Error(), HasSubstr("gone\n  at: %y = slice %x"));
  EXPECT_EQ(Sizes().status().code(), absl::StatusCode::kInternal) << "it is not the caller's fault";
}

TEST_F(RunSizes, ThatCannotBeAreRefused) {
  lengths_[1] = 17;
  EXPECT_THAT(Error(), HasSubstr("N is 17, its bound is 16\n  at: %y = slice %x"));
  lengths_[1] = 5;
  inputs_["lengths"].shape = {1};
  EXPECT_THAT(Error(), HasSubstr("input lengths: is [1], the model wants [2]"));
  inputs_["lengths"].shape = {2};
  inputs_["mask"].shape = {3, 8};
  EXPECT_THAT(Error(), HasSubstr("input mask: dim 0 is 3, but B is 2"));
  inputs_["mask"].shape = {2, 8};
  inputs_["x"].type = DType::kF16;
  EXPECT_THAT(Error(), HasSubstr("input x: is f16[2, 4], the model wants f32[B, 4]"));
  inputs_.erase("x");
  EXPECT_THAT(Error(), HasSubstr("the input x is missing"));
}

}  // namespace
}  // namespace llmc
