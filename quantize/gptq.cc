#include "quantize/gptq.h"

#include <algorithm>

#include "base/status_macros.h"
#include "ir/encoding_parts.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

// Whether scales are found as columns are reached, of what they have become.
bool HasOwnScales(const Encoding& encoding, bool act_order) {
  return encoding.scale->per == Granularity::kGroup && !act_order;
}

class Gptq {
 public:
  Gptq(const Tensor& numbers, const Encoding* encoding, const GptqFactor& factor, const QuantizeOptions& options,
       QuantizedParts parts)
      : e_(*encoding),
        factor_(factor),
        has_own_scales_(HasOwnScales(*encoding, factor.options().act_order)),
        rows_(numbers.shape()[0]),
        k_(numbers.shape()[1]),
        numbers_(numbers.data<float>()),
        parts_(std::move(parts)),
        quantizer_(*encoding, options, encoding->format->outer_scale ? parts_.outer.data<float>()[0] : 1),
        places_(*encoding, numbers.shape()),
        rounded_(DType::kF32, numbers.shape()) {
    grids_.reserve(static_cast<size_t>(parts_.scale.size()));
    for (int64_t i = 0; i < parts_.scale.size(); ++i) grids_.push_back(GridAt(parts_, e_, i));
  }

  absl::Status Run() {
    ASSIGN_OR_RETURN(const std::unique_ptr<GptqFactor::Errors> errors, GptqFactor::Errors::Create(&factor_, rows_));
    std::vector<float> columns(static_cast<size_t>(rows_ * factor_.options().block));
    for (int64_t block = 0; block < factor_.blocks(); ++block) {
      RETURN_IF_ERROR(errors->Compensation(block, columns.data()));
      const int64_t n = factor_.Width(block);
      const double work = 20.0 * static_cast<double>(rows_) * static_cast<double>(n * n);
      float* const to = rounded_.mutable_data<float>();
      ops::ParallelFor(rows_, work, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) RunRow(r, block, columns.data() + r * n, to + r * k_);
      });
      RETURN_IF_ERROR(errors->Add(block, columns.data()));
    }
    for (size_t i = 0; i < grids_.size(); ++i) SetGrid(grids_[i], e_, static_cast<int64_t>(i), &parts_);
    return absl::OkStatus();
  }

  const Tensor& rounded() const { return rounded_; }
  const QuantizedParts& parts() const { return parts_; }

 private:
  // `w`: what is added to the columns of the block, and then their errors.
  void RunRow(int64_t r, int64_t block, float* w, float* rounded) {
    const int64_t begin = factor_.Begin(block), n = factor_.Width(block);
    const int64_t* const order = factor_.order().data() + begin;
    const float* const numbers = numbers_ + r * k_;
    const PartOfRow part = places_.At(e_.scale->per, r);
    for (int64_t j = 0; j < n; ++j) w[j] += numbers[order[j]];
    for (int64_t j = 0; j < n; ++j) {
      const int64_t column = order[j];
      const int64_t grid = part.begin + (part.run == 0 ? 0 : column / part.run);
      if (has_own_scales_ && column % e_.group == 0) {
        const auto [min, max] = std::minmax_element(w + j, w + std::min(n, j + e_.group));
        grids_[static_cast<size_t>(grid)] = quantizer_.GridFor(*min, *max);
      }
      const float* const factor = factor_.Inverse(block) + j * n;
      const float nearest = quantizer_.Nearest(w[j], grids_[static_cast<size_t>(grid)]);
      const float error = (w[j] - nearest) / factor[j];
      for (int64_t next = j + 1; next < n; ++next) w[next] -= error * factor[next];
      rounded[column] = nearest;
      w[j] = numbers[column] - nearest;
    }
  }

  const Encoding& e_;
  const GptqFactor& factor_;
  const bool has_own_scales_;
  const int64_t rows_, k_;
  const float* const numbers_;
  QuantizedParts parts_;
  const Quantizer quantizer_;
  const PartPlaces places_;
  Tensor rounded_;
  std::vector<Quantizer::Grid> grids_;
};

}  // namespace

GptqFactor::Options GptqOptionsFor(const Encoding& encoding, bool act_order) {
  GptqFactor::Options options{.act_order = act_order};
  if (!HasOwnScales(encoding, act_order)) return options;
  // Where a group begins, all that was rounded before must have been made up for in all of it.
  const int64_t group = encoding.group;
  options.block = group >= options.block ? group : options.block / group * group;
  return options;
}

absl::StatusOr<Tensor> GptqQuantized(const Tensor& numbers, const Encoding* encoding, DType dtype,
                                     const GptqFactor& factor, const QuantizeOptions& options) {
  ASSIGN_OR_RETURN(QuantizedParts parts, PartsFor(numbers, *encoding, options));
  Gptq gptq(numbers, encoding, factor, options, std::move(parts));
  RETURN_IF_ERROR(gptq.Run());
  return QuantizedWith(gptq.rounded(), encoding, dtype, gptq.parts(), options);
}

}  // namespace llmc
