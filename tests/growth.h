// How processor time grows with size.
#pragma once

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>
#include <vector>

namespace llmc {

// The exponent e of time ~ size^e that fits points (size, seconds) best, by least squares of the logarithms: 1 is
// linear, 2 quadratic. Times below 0.02 s are noise and count as that.
inline double GrowthExponent(const std::vector<std::pair<double, double>>& points) {
  double x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [size, seconds] : points) {
    const double u = std::log(size), v = std::log(std::max(seconds, 0.02));
    x += u, y += v, xx += u * u, xy += u * v;
  }
  const auto n = static_cast<double>(points.size());
  return (n * xy - x * y) / (n * xx - x * x);
}

// Between n and n log n, with what caches add, and far from 2.
constexpr double kMostGrowth = 1.5;

inline double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace llmc
