// What a kernel tells becomes an error, once.
#include <gtest/gtest.h>

#include "runtime/device/device_error.h"

namespace llmc {
namespace {

TEST(DeviceErrorRecord, IsOneErrorAndThenFree) {
  plan::Manifest manifest;
  plan::DeviceError* device_error = manifest.add_device_errors();
  device_error->set_what("div: division of an integer by zero");
  device_error->set_label("%c = div %a, %b");
  device_error = manifest.add_device_errors();
  device_error->set_what("gather: index $0 is not in an axis of $1");
  device_error->set_label("%d = gather %x, %c");
  DeviceErrorRecord word;
  EXPECT_TRUE(TakeDeviceError(manifest, &word).ok());
  word = {.claimed = 1, .number = 2, .values = {-7, 5}};
  const absl::Status status = TakeDeviceError(manifest, &word);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(status.message(), "gather: index -7 is not in an axis of 5\n  at: %d = gather %x, %c");
  EXPECT_EQ(word.claimed, 0u) << "the next one may tell";
  EXPECT_TRUE(TakeDeviceError(manifest, &word).ok());
  word.number = 1;
  EXPECT_EQ(TakeDeviceError(manifest, &word).message(), "div: division of an integer by zero\n  at: %c = div %a, %b");
  word.number = 3;
  EXPECT_TRUE(absl::IsInternal(TakeDeviceError(manifest, &word))) << "a number that the plan does not have";
}

}  // namespace
}  // namespace llmc
