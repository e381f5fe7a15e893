// The products and decompositions that calibration is made of, for matrices in rows of f32. Uses all cores.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace llmc {

// gram[k, k] += x^T x of x[rows, k].
void AddGram(const float* x, int64_t rows, int64_t k, float* gram);

// Of each row r of d, r gram r^T: the sum of (x r^T)^2 over all x that gram is of.
std::vector<double> SquaredOutputs(const float* d, int64_t rows, int64_t k, const float* gram);

// The upper triangle U with U^T U = (gram + damping * mean of its diagonal)^-1, in rows; where a diagonal element is 0,
// it counts as 1. InvalidArgument: the matrix is not positive definite.
absl::StatusOr<std::vector<float>> InverseFactor(const std::vector<float>& gram, int64_t k, double damping);

// w[r, begin..k) -= e[r, :] u[:, begin..k), of e[rows, n] and n rows of u[., k] from `from` on.
void SubtractProduct(const float* e, int64_t rows, int64_t n, const float* u, int64_t from, int64_t k, int64_t begin,
                     float* w);

}  // namespace llmc
