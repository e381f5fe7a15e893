// Weights of random numbers, for running and timing a model without its weights: what stands in a weight's source in
// place of a file, and the stream of numbers that belongs to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// Uniform in [mean - width, mean + width).
struct RandomNumbers {
  uint64_t seed = 0;
  double mean = 0;
  double width = 0;
};

// A weight's source: "random(seed=7, mean=0, width=0.035)#TENSOR".
std::string RandomSource(const RandomNumbers& numbers, absl::string_view tensor);
// nullopt if the source is a file.
std::optional<RandomNumbers> ParseRandomSource(absl::string_view source);

// Names the stream of numbers of a weight with this source; below 2^63.
uint64_t RandomKey(absl::string_view source);

// The n-th 64 bits of a stream (splitmix64, by Sebastiano Vigna), four numbers of 16 bits, the lowest first. A number
// u, as a signed one, stands for mean + width * u / 2^15. kernels/common/random_weights.cuh draws the same.
inline uint64_t RandomBits(uint64_t key, uint64_t n) {
  uint64_t z = key + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

}  // namespace llmc
