#include "quantize/products.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "ir/ops_internal.h"

namespace llmc {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<RowMatrix>;
using ConstRows = Eigen::Map<const RowMatrix>;

// Rows that one thread takes at once: enough for a product to be worth it.
constexpr int64_t kChunk = 64;

void ForRowChunks(int64_t rows, double work, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t chunks = (rows + kChunk - 1) / kChunk;
  ops::ParallelFor(chunks, work, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) f(c * kChunk, std::min(rows, (c + 1) * kChunk));
  });
}

double Work(int64_t a, int64_t b, int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

}  // namespace

void AddGram(const float* x, int64_t rows, int64_t k, float* gram) {
  const ConstRows of(x, rows, k);
  Rows sum(gram, k, k);
  ForRowChunks(k, Work(rows, k, k), [&](int64_t begin, int64_t end) {
    sum.middleRows(begin, end - begin).noalias() += of.middleCols(begin, end - begin).transpose() * of;
  });
}

std::vector<double> SquaredOutputs(const float* d, int64_t rows, int64_t k, const float* gram) {
  const ConstRows of(d, rows, k), all(gram, k, k);
  std::vector<double> sums(static_cast<size_t>(rows), 0);
  ForRowChunks(rows, Work(rows, k, k), [&](int64_t begin, int64_t end) {
    const auto part = of.middleRows(begin, end - begin);
    const RowMatrix product = part * all;
    for (int64_t r = begin; r < end; ++r) {
      sums[static_cast<size_t>(r)] = product.row(r - begin).cast<double>().dot(of.row(r).cast<double>());
    }
  });
  return sums;
}

absl::StatusOr<std::vector<float>> InverseFactor(const std::vector<float>& gram, int64_t k, double damping) {
  using Matrix = Eigen::MatrixXd;
  Matrix h = ConstRows(gram.data(), k, k).cast<double>();
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) {
    if (h(i, i) == 0) h(i, i) = 1;
    mean += h(i, i) / static_cast<double>(k);
  }
  h.diagonal().array() += damping * mean;
  Eigen::LLT<Matrix> factor(h);
  if (factor.info() != Eigen::Success) {
    return absl::InvalidArgumentError("the products of its inputs have no inverse; give a longer calibration text");
  }
  h = factor.solve(Matrix::Identity(k, k));
  factor.compute(h);
  if (factor.info() != Eigen::Success) {
    return absl::InvalidArgumentError("the inverse of the products of its inputs is not positive; give a longer text");
  }
  std::vector<float> upper(static_cast<size_t>(k * k));
  Rows(upper.data(), k, k) = Matrix(factor.matrixU()).cast<float>();
  return upper;
}

void SubtractProduct(const float* e, int64_t rows, int64_t n, const float* u, int64_t from, int64_t k, int64_t begin,
                     float* w) {
  if (begin >= k) return;
  const ConstRows errors(e, rows, n), factor(u, k, k);
  Rows to(w, rows, k);
  ForRowChunks(rows, Work(rows, n, k - begin), [&](int64_t first, int64_t last) {
    to.block(first, begin, last - first, k - begin).noalias() -=
        errors.middleRows(first, last - first) * factor.block(from, begin, n, k - begin);
  });
}

}  // namespace llmc
