// Which texts `llmc embed` computes together.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tools/text_model.h"

namespace llmc {
namespace {

constexpr int64_t kMany = int64_t{1} << 20;

TEST(TextsOfBatch, AsManyAsFit) {
  const std::vector<int64_t> lengths(300, 64);
  EXPECT_EQ(TextsOfBatch(lengths, 16384, kMany), 256);
  EXPECT_EQ(TextsOfBatch(lengths, 16383, kMany), 255);
  EXPECT_EQ(TextsOfBatch(lengths, 16384, 100), 100) << "the model takes no more";
  EXPECT_EQ(TextsOfBatch(lengths, kMany, kMany), 300) << "there are no more";
  EXPECT_EQ(TextsOfBatch(lengths, 63, kMany), 1) << "one text is computed whatever its length";
}

TEST(TextsOfBatch, EndsBeforeMuchPaddingOnceItIsFull) {
  // 20 texts of 200 tokens, then of 100: the first of those adds 100 of 4,200, the third 300 of 4,600.
  std::vector<int64_t> lengths(20, 200);
  lengths.resize(60, 100);
  EXPECT_EQ(TextsOfBatch(lengths, kMany, kMany), 22);
}

TEST(TextsOfBatch, FewTokensAreOneBatchHoweverTheyAreSpread) {
  EXPECT_EQ(TextsOfBatch({500, 3, 2, 1, 1}, kMany, kMany), 5) << "2,500 tokens, of which 2,000 came before the last";
  EXPECT_EQ(TextsOfBatch({500, 3, 2, 1, 1, 1}, kMany, kMany), 5);
}

TEST(PackedTextsOfBatch, CountTheirOwnTokens) {
  EXPECT_EQ(PackedTextsOfBatch({500, 3, 2, 1}, 506, kMany), 4);
  EXPECT_EQ(PackedTextsOfBatch({500, 3, 2, 1}, 505, kMany), 3);
  EXPECT_EQ(PackedTextsOfBatch({500, 3, 2, 1}, 506, 2), 2) << "the model takes no more";
  EXPECT_EQ(PackedTextsOfBatch({500, 3}, 1, kMany), 1) << "one text is computed whatever its length";
}

}  // namespace
}  // namespace llmc
