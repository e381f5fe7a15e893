// Sums over several rows at once are those over one row at a time, bit for bit: what attention of the evaluator gives
// must not depend on how many rows it takes together.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "ir/ops_internal.h"

namespace llmc {
namespace {

std::vector<float> Numbers(int64_t count, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = normal(*random) * (((*random)() % 4 == 0) ? 1e6f : 1.0f);
  return numbers;
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TEST(ProductRows, AreThoseOfEachRow) {
  std::mt19937 random(1);
  for (int64_t size = 0; size < 140; ++size) {
    for (size_t count = 0; count < 13; ++count) {
      const std::vector<float> a = Numbers(size, &random), weights = Numbers(static_cast<int64_t>(count), &random);
      std::vector<std::vector<float>> rows;
      std::vector<const float*> at;
      for (size_t i = 0; i < count; ++i) rows.push_back(Numbers(size, &random));
      for (const std::vector<float>& row : rows) at.push_back(row.data());

      std::vector<float> dots(count, -1);
      ops::DotRows(a.data(), at, size, dots.data());
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(Bits(dots[i]), Bits(ops::Dot(a.data(), at[i], size))) << count << " rows of " << size;
      }
      std::vector<float> sums(static_cast<size_t>(size), -1), expected(static_cast<size_t>(size), 0);
      ops::SumScaled(weights.data(), at, size, sums.data());
      for (size_t i = 0; i < count; ++i) ops::AddScaled(weights[i], at[i], size, expected.data());
      for (int64_t c = 0; c < size; ++c) {
        ASSERT_EQ(Bits(sums[c]), Bits(expected[c])) << count << " rows of " << size << ", column " << c;
      }
    }
  }
}

}  // namespace
}  // namespace llmc
