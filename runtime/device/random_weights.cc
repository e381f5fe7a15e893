#include "runtime/device/random_weights.h"

#include <cmath>
#include <cstdint>

#include "files/random_source.h"

namespace llmc {

void DrawRandomNumbers(const plan::RandomNumbers& random, absl::Span<float> out) {
  const float mean = static_cast<float>(random.mean()), width = static_cast<float>(random.width());
  for (size_t i = 0; i < out.size(); ++i) {
    const auto bits = static_cast<int16_t>(RandomBits(random.key(), i / 4) >> (16 * (i % 4)));
    out[i] = std::fma(width, static_cast<float>(bits) * 0x1p-15f, mean);
  }
}

}  // namespace llmc
