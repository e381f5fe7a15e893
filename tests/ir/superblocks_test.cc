// Superblocks of GGUF, bit for bit as the gguf package decodes them (make_superblocks.py).
#include "ir/superblocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace llmc {
namespace {

struct Expected {
  absl::string_view name;
  int64_t elements, bytes;
  uint64_t hash;  // FNV-1a of the bytes of the numbers of kBlocks blocks
};
constexpr int kBlocks = 64;
constexpr Expected kExpected[] = {
    {"q4_0", 32, 18, 0x87689494020ecf55},       {"q4_1", 32, 20, 0x8438a355275722c5},
    {"q5_0", 32, 22, 0x77736719434f8494},       {"q5_1", 32, 24, 0x5e522df25dad052b},
    {"q8_0", 32, 34, 0xae2ed2108bd6b4c0},       {"q2_k", 256, 84, 0x6765369c92f01f06},
    {"q3_k", 256, 110, 0x6f1db29366cade16},     {"q4_k", 256, 144, 0x9173a4b8760ed3e2},
    {"q5_k", 256, 176, 0xdd8d70c07ffccc18},     {"q6_k", 256, 210, 0x8dca1d2cc8bfadc8},
    {"iq4_nl", 32, 18, 0x19f37ad79e2c1fd2},     {"iq4_xs", 256, 136, 0x68c104c73af9e9c6},
    {"mxfp4_gguf", 32, 17, 0x1ceac5d24992523a},
};

// As make_superblocks.py makes them.
std::vector<uint8_t> RandomBlocks(const EncodingFormat& format) {
  std::vector<uint8_t> bytes(static_cast<size_t>(kBlocks * format.superblock_bytes));
  uint64_t state = 1;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<uint8_t>(state >> 56);
  }
  for (const int at : format.halves_at) {
    if (at < 0) continue;
    for (int block = 0; block < kBlocks; ++block) bytes[block * format.superblock_bytes + at + 1] &= 0xbf;
  }
  return bytes;
}

uint64_t HashOf(const std::vector<float>& numbers) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const float number : numbers) {
    uint8_t bytes[4];
    std::memcpy(bytes, &number, 4);
    for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  }
  return hash;
}

TEST(Superblocks, DecodeAsTheGgufPackage) {
  ASSERT_EQ(SuperblockFormats().size(), std::size(kExpected));
  for (const EncodingFormat& format : SuperblockFormats()) {
    SCOPED_TRACE(format.name);
    const Expected& expected = kExpected[&format - SuperblockFormats().data()];
    ASSERT_EQ(format.name, expected.name);
    EXPECT_EQ(format.superblock, expected.elements);
    EXPECT_EQ(format.superblock_bytes, expected.bytes);
    const std::vector<uint8_t> blocks = RandomBlocks(format);
    std::vector<float> numbers(static_cast<size_t>(kBlocks * format.superblock));
    for (int i = 0; i < kBlocks; ++i) {
      format.decode_superblock(blocks.data() + i * format.superblock_bytes, numbers.data() + i * format.superblock);
    }
    EXPECT_EQ(HashOf(numbers), expected.hash);
  }
}

}  // namespace
}  // namespace llmc
