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

using SquareMatrix = Eigen::MatrixXd;

double Work(int64_t a, int64_t b, int64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

// The Cholesky factor of a matrix in its lower triangle, panel by panel; the other one is left as it is. False: it is
// not positive definite.
bool FactorInPlace(SquareMatrix* h) {
  constexpr int64_t kPanel = 256;
  const int64_t k = h->rows();
  for (int64_t begin = 0; begin < k; begin += kPanel) {
    const int64_t n = std::min(kPanel, k - begin), end = begin + n, rest = k - end;
    const Eigen::LLT<SquareMatrix> corner(h->block(begin, begin, n, n));
    if (corner.info() != Eigen::Success) return false;
    h->block(begin, begin, n, n) = corner.matrixL();
    // Below it: rows L with L C^T = H.
    ForRowChunks(rest, Work(rest, n, n), [&](int64_t first, int64_t last) {
      auto rows = h->block(end + first, begin, last - first, n);
      corner.matrixU().solveInPlace<Eigen::OnTheRight>(rows);
    });
    // What is left of the lower triangle: H - L L^T.
    ForRowChunks(rest, Work(rest, rest, n), [&](int64_t first, int64_t last) {
      h->block(end + first, end, last - first, last).noalias() -=
          h->block(end + first, begin, last - first, n) * h->block(end, begin, last, n).transpose();
    });
  }
  return true;
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
  // With J, which turns rows or columns around, and the Cholesky factor C of J H J: H = J C C^T J, so H^-1 = U^T U with
  // U = J C^-1 J, which is upper triangular as C^-1 is lower triangular. H^-1 itself is never made.
  SquareMatrix h = ConstRows(gram.data(), k, k).reverse().cast<double>();
  double mean = 0;
  for (int64_t i = 0; i < k; ++i) {
    if (h(i, i) == 0) h(i, i) = 1;
    mean += h(i, i) / static_cast<double>(k);
  }
  h.diagonal().array() += damping * mean;
  if (!FactorInPlace(&h)) {
    return absl::InvalidArgumentError("the products of its inputs have no inverse; give a longer calibration text");
  }
  std::vector<float> upper(static_cast<size_t>(k * k));
  Rows to(upper.data(), k, k);
  // Columns of C^-1 do not depend on each other; above the diagonal they are 0.
  ForRowChunks(k, Work(k, k, k), [&](int64_t begin, int64_t end) {
    const int64_t n = k - begin;
    SquareMatrix columns = SquareMatrix::Identity(n, end - begin);
    h.bottomRightCorner(n, n).triangularView<Eigen::Lower>().solveInPlace(columns);
    to.block(0, k - end, n, end - begin) = columns.reverse().cast<float>();
  });
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
