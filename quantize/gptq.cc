#include "quantize/gptq.h"

#include <algorithm>
#include <numeric>

#include "base/status_macros.h"
#include "ir/encoding_parts.h"
#include "ir/ops_internal.h"
#include "quantize/products.h"

namespace llmc {
namespace {

constexpr int64_t kGptqBlock = 128;  // columns whose errors are made up for at once further on (section 3.3, step 2)

class Gptq {
 public:
  Gptq(const Tensor& numbers, const Encoding* encoding, const GptqOptions& options, QuantizedParts parts)
      : e_(*encoding),
        options_(options),
        rows_(numbers.shape()[0]),
        k_(numbers.shape()[1]),
        parts_(std::move(parts)),
        quantizer_(*encoding, options.quantize, encoding->format->outer_scale ? parts_.outer.data<float>()[0] : 1),
        places_(*encoding, numbers.shape()) {
    for (int64_t i = 0; i < parts_.scale.size(); ++i) grids_.push_back(GridAt(parts_, e_, i));
    order_.resize(static_cast<size_t>(k_));
    std::iota(order_.begin(), order_.end(), 0);
    // Where a group begins, all that was rounded before must have been made up for in all of it.
    block_ = kGptqBlock;
    if (HasOwnScales()) block_ = e_.group >= kGptqBlock ? e_.group : kGptqBlock / e_.group * e_.group;
  }

  absl::StatusOr<std::vector<float>> Run(const float* numbers, const std::vector<float>& gram) {
    if (options_.act_order) {
      std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) {
        return gram[static_cast<size_t>(a * k_ + a)] > gram[static_cast<size_t>(b * k_ + b)];
      });
    }
    std::vector<float> ordered(static_cast<size_t>(k_ * k_));
    for (int64_t i = 0; i < k_; ++i) {
      for (int64_t j = 0; j < k_; ++j) ordered[i * k_ + j] = gram[order_[i] * k_ + order_[j]];
    }
    ASSIGN_OR_RETURN(factor_, InverseFactor(ordered, k_, options_.damping));
    weights_.resize(static_cast<size_t>(rows_ * k_));
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = 0; j < k_; ++j) weights_[r * k_ + j] = numbers[r * k_ + order_[j]];
    }
    for (int64_t begin = 0; begin < k_; begin += block_) RunBlock(begin, std::min(k_, begin + block_));
    std::vector<float> rounded(weights_.size());
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t j = 0; j < k_; ++j) rounded[r * k_ + order_[j]] = weights_[r * k_ + j];
    }
    for (size_t i = 0; i < grids_.size(); ++i) SetGrid(grids_[i], e_, static_cast<int64_t>(i), &parts_);
    return rounded;
  }

  const QuantizedParts& parts() const { return parts_; }

 private:
  // Whether scales are found as columns are reached, of what they have become.
  bool HasOwnScales() const { return e_.scale->per == Granularity::kGroup && !options_.act_order; }

  void RunBlock(int64_t begin, int64_t end) {
    const int64_t n = end - begin;
    std::vector<float> errors(static_cast<size_t>(rows_ * n));
    const double work = 20.0 * static_cast<double>(rows_) * static_cast<double>(n * n);
    ops::ParallelFor(rows_, work, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) RunRow(r, begin, end, errors.data() + r * n);
    });
    SubtractProduct(errors.data(), rows_, n, factor_.data(), begin, k_, end, weights_.data());
  }

  void RunRow(int64_t r, int64_t begin, int64_t end, float* errors) {
    float* const w = weights_.data() + r * k_;
    const PartOfRow part = places_.At(e_.scale->per, r);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t column = order_[static_cast<size_t>(j)];
      const int64_t grid = part.begin + (part.run == 0 ? 0 : column / part.run);
      if (HasOwnScales() && j % e_.group == 0) {
        const auto [min, max] = std::minmax_element(w + j, w + std::min(k_, j + e_.group));
        grids_[static_cast<size_t>(grid)] = quantizer_.GridFor(*min, *max);
      }
      const float* const factor = factor_.data() + j * k_;
      const float rounded = quantizer_.Nearest(w[j], grids_[static_cast<size_t>(grid)]);
      const float error = (w[j] - rounded) / factor[j];
      w[j] = rounded;
      errors[j - begin] = error;
      for (int64_t next = j + 1; next < end; ++next) w[next] -= error * factor[next];
    }
  }

  const Encoding& e_;
  const GptqOptions& options_;
  const int64_t rows_, k_;
  QuantizedParts parts_;
  const Quantizer quantizer_;
  const PartPlaces places_;
  int64_t block_ = 0;
  std::vector<Quantizer::Grid> grids_;
  std::vector<int64_t> order_;  // the columns as they are rounded
  std::vector<float> factor_;   // InverseFactor, in that order
  std::vector<float> weights_;  // in that order; rounded up to where it is
};

}  // namespace

absl::StatusOr<Tensor> GptqQuantized(const Tensor& numbers, const Encoding* encoding, DType dtype,
                                     const std::vector<float>& gram, const GptqOptions& options) {
  ASSIGN_OR_RETURN(QuantizedParts parts, PartsFor(numbers, *encoding, options.quantize));
  Gptq gptq(numbers, encoding, options, std::move(parts));
  ASSIGN_OR_RETURN(const std::vector<float> rounded, gptq.Run(numbers.data<float>(), gram));
  const Tensor tensor = Tensor::FromValues(DType::kF32, numbers.shape(), rounded);
  return QuantizedWith(tensor, encoding, dtype, gptq.parts(), options.quantize);
}

}  // namespace llmc
