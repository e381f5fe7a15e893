// The products and decompositions that calibration is made of, for matrices in rows of f32. Uses all cores.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"

namespace llmc {

// gram[k, k] += x^T x of x[rows, k].
void AddGram(const float* x, int64_t rows, int64_t k, float* gram);

// Of each row r of d, r gram r^T: the sum of (x r^T)^2 over all x that gram is of.
std::vector<double> SquaredOutputs(const float* d, int64_t rows, int64_t k, const float* gram);

// h[n, n], symmetric, of which the upper triangle is read, becomes the upper triangle C of C C^T = h; `inverse` its
// inverse, in rows. InvalidArgument: it is not positive definite.
absl::Status UpperFactor(int64_t n, float* h, float* inverse);

}  // namespace llmc
