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

TEST(OutputMemory, OfResultsThatGrowIsThatOfRunsBefore) {
  CountingDevice device;
  OutputMemory<CountingDevice> memory(&device);
  std::shared_ptr<const char> cache = memory.Take(1);
  for (int64_t bytes = 2; bytes <= 100'000; bytes += 128) cache = memory.Take(bytes);  // while it has the one before
  EXPECT_LE(device.allocated, 2 * 11) << "sizes of 11 kinds up to 128 KiB";
}

TEST(OutputMemory, OfALargeResultIsNotGivenToASmallOne) {
  CountingDevice device;
  OutputMemory<CountingDevice> memory(&device);
  { const auto large = memory.Take(1'000'000), small = memory.Take(10); }
  const auto some = memory.Take(5), much = memory.Take(900'000);
  EXPECT_EQ(device.allocated, 2);
}

TEST(OutputMemory, ComesInSizesOfFewKinds) {
  using Memory = OutputMemory<CountingDevice>;
  EXPECT_EQ(Memory::SizeFor(0), 4096);
  EXPECT_EQ(Memory::SizeFor(4096), 4096);
  EXPECT_EQ(Memory::SizeFor(4097), 6144);
  EXPECT_EQ(Memory::SizeFor(6145), 8192);
  EXPECT_EQ(Memory::SizeFor(int64_t{40} << 30), int64_t{48} << 30);
}

TEST(OutputMemory, IsBounded) {
  CountingDevice device;
  OutputMemory<CountingDevice> memory(&device, 5 * 4096);
  const auto kept = memory.Take(8192);
  memory.Take(8192);
  EXPECT_NE(memory.Take(12288), nullptr) << "in place of one that is too small";
  EXPECT_EQ(memory.num_blocks(), 2u);
  EXPECT_EQ(memory.Take(12289), nullptr);
  EXPECT_NE(memory.Take(12288), nullptr) << "what was refused for took free ones, but there is room";
  device.fails = true;
  EXPECT_EQ(OutputMemory<CountingDevice>(&device).Take(1), nullptr);
}

// Has room for so many bytes at a time.
struct SmallDevice {
  int64_t room = 0;
  absl::StatusOr<std::shared_ptr<char>> AllocateShared(int64_t bytes) {
    if (bytes > room) return absl::ResourceExhaustedError("no memory");
    room -= bytes;
    return std::shared_ptr<char>(new char[static_cast<size_t>(bytes)], [this, bytes](const char* memory) {
      room += bytes;
      delete[] memory;
    });
  }
};

TEST(OutputMemory, GivesBackWhatNobodyHasWhereADeviceIsFull) {
  SmallDevice device = {.room = 3 * 4096};
  OutputMemory<SmallDevice> memory(&device);
  const auto kept = memory.Take(4096);
  memory.Take(6144);
  EXPECT_EQ(device.room, 2048);
  EXPECT_NE(memory.Take(8192), nullptr);
  EXPECT_EQ(memory.num_blocks(), 2u);
}

}  // namespace
}  // namespace llmc
