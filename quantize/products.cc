#include "quantize/products.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "ir/ops_internal.h"
#include "quantize/matrices.h"

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

class HostMemory : public Matrices::Memory {
 public:
  explicit HostMemory(int64_t count) : numbers_(static_cast<size_t>(count)) {}
  float* numbers() { return numbers_.data(); }

 private:
  std::vector<float> numbers_;
};

float* NumbersAt(const Matrices::Place& place) { return static_cast<HostMemory*>(place.memory)->numbers() + place.at; }

class HostMatrices : public Matrices {
 public:
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(int64_t numbers) override {
    return std::make_unique<HostMemory>(numbers);
  }
  absl::Status Write(const float* from, int64_t count, const Place& to) override {
    std::copy_n(from, count, NumbersAt(to));
    return absl::OkStatus();
  }
  absl::Status Read(const Place& from, int64_t count, float* to) override {
    std::copy_n(NumbersAt(from), count, to);
    return absl::OkStatus();
  }
  absl::Status Multiply(const Product& p, const Place& x, const Place& w, const Place& out) override {
    using Strided = Eigen::Map<RowMatrix, 0, Eigen::OuterStride<>>;
    const Strided all(NumbersAt(x), p.m, p.k, Eigen::OuterStride<>(x.row));
    const Strided weight(NumbersAt(w), p.transposed ? p.n : p.k, p.transposed ? p.k : p.n, Eigen::OuterStride<>(w.row));
    Strided sums(NumbersAt(out), p.m, p.n, Eigen::OuterStride<>(out.row));
    ForRowChunks(p.m, Work(p.m, p.n, p.k), [&](int64_t first, int64_t last) {
      auto to = sums.middleRows(first, last - first);
      const auto rows = all.middleRows(first, last - first);
      if (!p.adds) to.setZero();
      if (p.transposed) {
        to.noalias() += rows * weight.transpose();
      } else {
        to.noalias() += rows * weight;
      }
    });
    return absl::OkStatus();
  }
};

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

absl::Status UpperFactor(int64_t n, float* h, float* inverse) {
  // With J, which turns rows or columns around, and the Cholesky factor L of J H J: H = J L L^T J, so C = J L J.
  using SquareMatrix = Eigen::MatrixXd;
  Rows of(h, n, n);
  const SquareMatrix upper = of.cast<double>().selfadjointView<Eigen::Upper>();
  const Eigen::LLT<SquareMatrix> turned(upper.reverse());
  if (turned.info() != Eigen::Success || !turned.matrixLLT().allFinite()) {
    return absl::InvalidArgumentError(
        "the products of its inputs are not finite, or too large for f32: the model makes inputs of the calibration "
        "text that no method can use");
  }
  const SquareMatrix factor = SquareMatrix(turned.matrixL()).reverse();
  SquareMatrix solved = SquareMatrix::Identity(n, n);
  factor.triangularView<Eigen::Upper>().solveInPlace(solved);
  of = factor.cast<float>();
  Rows(inverse, n, n) = solved.cast<float>();
  return absl::OkStatus();
}

std::unique_ptr<Matrices> NewHostMatrices() { return std::make_unique<HostMatrices>(); }

}  // namespace llmc
