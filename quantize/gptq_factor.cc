#include "quantize/gptq_factor.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "quantize/products.h"

namespace llmc {
namespace {

constexpr int64_t kUploadNumbers = int64_t{8} << 20;  // of the matrix at a time
constexpr int64_t kStripe = 2048;                     // columns of which what lies below the diagonal is left out

}  // namespace

absl::StatusOr<std::unique_ptr<GptqFactor>> GptqFactor::Create(const std::vector<float>& gram, int64_t k,
                                                               const Options& options, Matrices* matrices) {
  auto factor = std::unique_ptr<GptqFactor>(new GptqFactor(options, k, matrices));
  factor->order_.resize(static_cast<size_t>(k));
  std::iota(factor->order_.begin(), factor->order_.end(), 0);
  if (options.act_order) {
    std::stable_sort(factor->order_.begin(), factor->order_.end(), [&](int64_t a, int64_t b) {
      return gram[static_cast<size_t>(a * k + a)] > gram[static_cast<size_t>(b * k + b)];
    });
  }
  RETURN_IF_ERROR(factor->Factor(gram));
  return factor;
}

absl::Status GptqFactor::Upload(const std::vector<float>& gram, Matrices::Memory* to) const {
  double mean = 0;
  for (int64_t i = 0; i < k_; ++i) {
    const double own = gram[static_cast<size_t>(i * k_ + i)];
    mean += (own == 0 ? 1 : own) / static_cast<double>(k_);
  }
  const int64_t rows = std::max<int64_t>(1, kUploadNumbers / k_);
  std::vector<float> some(static_cast<size_t>(std::min(rows, k_) * k_));
  for (int64_t begin = 0; begin < k_; begin += rows) {
    const int64_t count = std::min(rows, k_ - begin);
    ops::ParallelFor(count, 4.0 * static_cast<double>(count * k_), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const float* const from = gram.data() + order_[static_cast<size_t>(begin + r)] * k_;
        float* const row = some.data() + r * k_;
        for (int64_t c = 0; c < k_; ++c) row[c] = from[order_[static_cast<size_t>(c)]];
        float& own = row[begin + r];
        own = static_cast<float>((own == 0 ? 1 : own) + options_.damping * mean);
      }
    });
    RETURN_IF_ERROR(matrices_.Write(some.data(), count * k_, At(to, begin, 0)));
  }
  return absl::OkStatus();
}

// From the last block to the first: H_BB = C_BB C_BB^T, C_PB = H_PB U_BB^T of the columns P before it, and what is left
// of H_PP is H_PP - C_PB C_PB^T.
absl::Status GptqFactor::Factor(const std::vector<float>& gram) {
  const int64_t n = options_.block;
  ASSIGN_OR_RETURN(factor_, matrices_.Allocate(k_ * k_));
  ASSIGN_OR_RETURN(inverses_, matrices_.Allocate(blocks() * n * n));
  ASSIGN_OR_RETURN(negative_, matrices_.Allocate(n * n));
  ASSIGN_OR_RETURN(one_, matrices_.Allocate(n * n));
  std::vector<float> one(static_cast<size_t>(n * n), 0);
  for (int64_t i = 0; i < n; ++i) one[static_cast<size_t>(i * n + i)] = 1;
  RETURN_IF_ERROR(matrices_.Write(one.data(), n * n, {one_.get(), 0, n}));
  inverse_.resize(static_cast<size_t>(blocks() * n * n));
  ASSIGN_OR_RETURN(const auto rest, matrices_.Allocate(k_ * k_));
  ASSIGN_OR_RETURN(const auto panel, matrices_.Allocate(k_ * n));
  RETURN_IF_ERROR(Upload(gram, rest.get()));
  for (int64_t block = blocks() - 1; block >= 0; --block) RETURN_IF_ERROR(FactorBlock(block, rest.get(), panel.get()));
  return absl::OkStatus();
}

absl::Status GptqFactor::FactorBlock(int64_t block, Matrices::Memory* rest, Matrices::Memory* panel) {
  const int64_t n = Width(block), begin = Begin(block), at = begin * options_.block;
  const Matrices::Place packed = {panel, 0, n}, one = {one_.get(), 0, options_.block};
  RETURN_IF_ERROR(matrices_.Multiply({.m = n, .n = n, .k = n}, At(rest, begin, begin), one, packed));
  std::vector<float> corner(static_cast<size_t>(n * n)), inverse(corner.size());
  RETURN_IF_ERROR(matrices_.Read(packed, n * n, corner.data()));
  RETURN_IF_ERROR(UpperFactor(n, corner.data(), inverse.data()));
  std::copy(inverse.begin(), inverse.end(), inverse_.begin() + at);
  const Matrices::Place up = {inverses_.get(), at, n}, negative = {negative_.get(), 0, n};
  RETURN_IF_ERROR(matrices_.Write(inverse.data(), n * n, up));
  RETURN_IF_ERROR(matrices_.Write(corner.data(), n * n, packed));
  RETURN_IF_ERROR(matrices_.Multiply({.m = n, .n = n, .k = n}, packed, one, At(factor_.get(), begin, begin)));
  if (begin == 0) return absl::OkStatus();
  for (float& number : inverse) number = -number;
  RETURN_IF_ERROR(matrices_.Write(inverse.data(), n * n, negative));
  const Matrices::Product solve = {.m = begin, .n = n, .k = n, .transposed = true};
  RETURN_IF_ERROR(matrices_.Multiply(solve, At(rest, 0, begin), up, At(factor_.get(), 0, begin)));
  RETURN_IF_ERROR(matrices_.Multiply(solve, At(rest, 0, begin), negative, packed));
  for (int64_t first = 0; first < begin; first += kStripe) {
    const int64_t columns = std::min(kStripe, begin - first);
    RETURN_IF_ERROR(matrices_.Multiply({.m = first + columns, .n = columns, .k = n, .transposed = true, .adds = true},
                                       packed, At(factor_.get(), first, begin), At(rest, 0, first)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> GptqFactor::Read() const {
  std::vector<float> numbers(static_cast<size_t>(k_ * k_));
  RETURN_IF_ERROR(matrices_.Read(At(factor_.get(), 0, 0), k_ * k_, numbers.data()));
  return numbers;
}

absl::StatusOr<std::unique_ptr<GptqFactor::Errors>> GptqFactor::Errors::Create(const GptqFactor* factor, int64_t rows) {
  auto errors = std::unique_ptr<Errors>(new Errors(factor, rows));
  Matrices& matrices = factor->matrices_;
  ASSIGN_OR_RETURN(errors->errors_, matrices.Allocate(rows * factor->k_));
  ASSIGN_OR_RETURN(errors->sums_, matrices.Allocate(rows * factor->options_.block));
  ASSIGN_OR_RETURN(errors->block_, matrices.Allocate(rows * factor->options_.block));
  return errors;
}

absl::Status GptqFactor::Errors::Compensation(int64_t block, float* out) {
  const int64_t n = factor_.Width(block), begin = factor_.Begin(block);
  if (begin == 0) {
    std::fill_n(out, rows_ * n, 0.0f);
    return absl::OkStatus();
  }
  Matrices& matrices = factor_.matrices_;
  const Matrices::Place sums = {sums_.get(), 0, n}, own = {block_.get(), 0, n};
  RETURN_IF_ERROR(matrices.Multiply({.m = rows_, .n = n, .k = begin}, factor_.At(errors_.get(), 0, 0),
                                    factor_.At(factor_.factor_.get(), 0, begin), sums));
  RETURN_IF_ERROR(matrices.Multiply({.m = rows_, .n = n, .k = n}, sums,
                                    {factor_.inverses_.get(), begin * factor_.options_.block, n}, own));
  return matrices.Read(own, rows_ * n, out);
}

absl::Status GptqFactor::Errors::Add(int64_t block, const float* errors) {
  const int64_t n = factor_.Width(block), begin = factor_.Begin(block);
  if (begin + n == factor_.k_) return absl::OkStatus();  // nothing is behind it
  Matrices& matrices = factor_.matrices_;
  const Matrices::Place own = {block_.get(), 0, n}, one = {factor_.one_.get(), 0, factor_.options_.block};
  RETURN_IF_ERROR(matrices.Write(errors, rows_ * n, own));
  return matrices.Multiply({.m = rows_, .n = n, .k = n}, own, one, factor_.At(errors_.get(), 0, begin));
}

}  // namespace llmc
