#include "quantize/nested_scales.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace llmc {
namespace {

std::vector<float> MakeMap() {
  constexpr int kExponents = 7;
  std::vector<float> map = {0, 1};
  for (int i = 0; i < kExponents; ++i) {
    // The middles of equal parts of [0.1, 1], as many as the exponent leaves fraction bits for.
    const int parts = 1 << i;
    for (int j = 0; j < parts; ++j) {
      const double middle = 0.1 + 0.9 * (j + 0.5) / parts;
      const auto number = static_cast<float>(middle * std::pow(10, i - (kExponents - 1)));
      map.insert(map.end(), {number, -number});
    }
  }
  std::sort(map.begin(), map.end());
  return map;
}

uint8_t NearestCode(float x) {
  const std::vector<float>& map = NestedScaleMap();
  const auto above = std::lower_bound(map.begin(), map.end(), x);
  if (above == map.begin()) return 0;
  const bool takes_below = above == map.end() || x - *(above - 1) < *above - x;
  return static_cast<uint8_t>(above - map.begin() - (takes_below ? 1 : 0));
}

}  // namespace

const std::vector<float>& NestedScaleMap() {
  static const std::vector<float>* const map = new std::vector<float>(MakeMap());
  return *map;
}

NestedScales NestScales(const Tensor& scales) {
  const std::vector<float> s = scales.ToFloats();
  const auto count = static_cast<int64_t>(s.size()), blocks = (count + NestedScales::kBlock - 1) / NestedScales::kBlock;
  NestedScales nested{.codes = Tensor(DType::kU8, {count}), .block_scale = Tensor(DType::kF32, {blocks})};
  nested.offset = static_cast<float>(std::accumulate(s.begin(), s.end(), 0.0) / static_cast<double>(count));
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * NestedScales::kBlock, end = std::min(count, begin + NestedScales::kBlock);
    float amax = 0;
    for (int64_t i = begin; i < end; ++i) amax = std::max(amax, std::abs(s[static_cast<size_t>(i)] - nested.offset));
    nested.block_scale.mutable_data<float>()[b] = amax;
    for (int64_t i = begin; i < end; ++i) {
      const float x = amax == 0 ? 0 : (s[static_cast<size_t>(i)] - nested.offset) / amax;
      nested.codes.mutable_data<uint8_t>()[i] = NearestCode(x);
    }
  }
  return nested;
}

Tensor NestedScales::Decoded(Shape shape) const {
  Tensor scales(DType::kF32, std::move(shape));
  for (int64_t i = 0; i < scales.size(); ++i) {
    const float product = NestedScaleMap()[codes.data<uint8_t>()[i]] * block_scale.data<float>()[i / kBlock];
    scales.mutable_data<float>()[i] = product + offset;
  }
  return scales;
}

}  // namespace llmc
