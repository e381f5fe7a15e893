// Which memory outputs get: that of others that are gone.
#include "runtime/device/output_memory.h"

#include <gtest/gtest.h>

namespace llmc {
namespace {

struct CountingDevice {
  int allocated = 0;
  bool fails = false;
  absl::StatusOr<std::shared_ptr<char>> AllocateShared(int64_t bytes) {
    if (fails) return absl::ResourceExhaustedError("no memory");
    ++allocated;
    return std::shared_ptr<char>(new char[static_cast<size_t>(bytes)], std::default_delete<char[]>());
  }
};

TEST(OutputMemory, IsTakenAgainWhenNobodyHasIt) {
  CountingDevice device;
  OutputMemory<CountingDevice> memory(&device);
  std::shared_ptr<const char> first = memory.Take(100), second = memory.Take(100);
  EXPECT_NE(first, second);
  const std::shared_ptr<const char> copy = first;
  const char* const at = first.get();
  first.reset();
  EXPECT_NE(memory.Take(100).get(), at) << "a copy has it";
  EXPECT_EQ(device.allocated, 3);
  second.reset();
  memory.Take(80);
  EXPECT_EQ(device.allocated, 3);
}

TEST(OutputMemory, TheSmallestThatFits) {
  CountingDevice device;
  OutputMemory<CountingDevice> memory(&device);
  { const auto large = memory.Take(1000), small = memory.Take(10); }
  const auto some = memory.Take(5), much = memory.Take(900);
  EXPECT_EQ(device.allocated, 2) << "the small one first";
}

TEST(OutputMemory, IsBounded) {
  CountingDevice device;
  OutputMemory<CountingDevice> memory(&device, 250);
  const auto kept = memory.Take(100);
  memory.Take(100);
  EXPECT_NE(memory.Take(150), nullptr) << "in place of one that is too small";
  EXPECT_EQ(memory.num_blocks(), 2u);
  EXPECT_EQ(memory.Take(151), nullptr);
  EXPECT_NE(memory.Take(150), nullptr) << "what was refused for took free ones, but there is room";
  device.fails = true;
  EXPECT_EQ(OutputMemory<CountingDevice>(&device).Take(1), nullptr);
}

}  // namespace
}  // namespace llmc
