#include "runtime/device/random_weights.h"

#include <cmath>
#include <cstdint>

#include "kernels/layout/random_numbers.h"

namespace llmc {

void DrawRandomNumbers(const plan::RandomNumbers& random, absl::Span<float> out) {
  const float mean = static_cast<float>(random.mean()), width = static_cast<float>(random.width());
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bits = RandomBits(random.key(), i / kRandomNumbersOfBits);
    out[i] = std::fma(width, RandomNumber(bits, static_cast<int>(i % kRandomNumbersOfBits)), mean);
  }
}

void DrawRandomBits(const plan::RandomNumbers& random, absl::Span<char> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<char>(RandomBits(random.key(), i / 8) >> 8 * (i % 8));
  }
}

}  // namespace llmc
