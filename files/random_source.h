// Weights of random numbers, for running and timing a model without its weights: what stands in a weight's source in
// place of a file, and the stream of numbers that belongs to it (kernels/layout/random_numbers.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// Uniform in [mean - width, mean + width), of integers rounded; with `bits` integers of all their bits.
struct RandomNumbers {
  uint64_t seed = 0;
  bool bits = false;
  double mean = 0;
  double width = 0;
};

// A weight's source: "random(seed=7, mean=0, width=0.035)#TENSOR", "random(seed=7, bits)#TENSOR".
std::string RandomSource(const RandomNumbers& numbers, absl::string_view tensor);
// nullopt if the source is a file.
std::optional<RandomNumbers> ParseRandomSource(absl::string_view source);

// Names the stream of numbers of a weight with this source; below 2^63.
uint64_t RandomKey(absl::string_view source);

}  // namespace llmc
