#include "ir/cached_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ir/ops_internal.h"

namespace llmc {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The least and the greatest code.
struct CodeRange {
  float low, high;
};

CodeRange CodeRangeOf(DType codes) {
  switch (codes) {
    case DType::kI8:
      return {-128, 127};
    case DType::kU8:
      return {0, 255};
    case DType::kI4:
      return {-8, 7};
    case DType::kU4:
      return {0, 15};
    case DType::kF8E4M3:
      return {-448, 448};
    default:
      return {-57344, 57344};
  }
}

float GreatestOf(DType dtype) {
  if (dtype == DType::kF16) return 65504;
  if (dtype == DType::kBF16) return BFloat16ToFloat(0x7f7f);
  return std::numeric_limits<float>::max();
}

// Integers; what is no number becomes 0, beside a scale that is none.
float RoundedCode(float x, const CodeRange& range) {
  return std::isnan(x) ? 0.0f : std::clamp(std::nearbyint(x), range.low, range.high);
}

}  // namespace

CachedRows::CachedRows(const StateType& state, const StateComponent& component, const Tensor& memory,
                       const Tensor* static_scale)
    : encoding_(component.type.encoding), group_(component.HeadDim()), codes_(state, component, memory) {
  if (encoding_ == nullptr) return;
  if (encoding_->group > 0) group_ = encoding_->group;
  if (component.parts() > 1) scales_.emplace(state, component, memory, 1);
  if (component.parts() > 2) zeros_.emplace(state, component, memory, 2);
  if (static_scale != nullptr) static_scale_ = *static_scale;
}

float CachedRows::StaticScale(int64_t head) const {
  if (static_scale_.size() == 0) return 1;
  return static_scale_.data<float>()[static_scale_.size() == 1 ? 0 : head];
}

void CachedRows::Write(const float* row, int64_t slot, int64_t head) {
  if (encoding_ == nullptr) {
    ops::Store<float>(row, codes_.AtSlot(slot, head), head_dim(), &codes_.elements());
    return;
  }
  for (int64_t i = 0; i < head_dim(); i += group_) WriteGroup(row + i, group_, slot, head, i / group_);
}

void CachedRows::WriteGroup(const float* x, int64_t n, int64_t slot, int64_t head, int64_t group) {
  const DType type = encoding_->format->codes;
  const CodeRange range = CodeRangeOf(type);
  const bool is_finite = std::all_of(x, x + n, [](float each) { return std::isfinite(each); });
  const auto [least, most] = std::minmax_element(x, x + n);
  const float low = zeros_.has_value() ? std::min(0.0f, *least) : 0,
              high = zeros_.has_value() ? std::max(0.0f, *most) : std::max(-*least, *most);
  float scale = StaticScale(head), zero = 0;
  if (scales_.has_value()) {
    const int64_t at = scales_->AtSlot(slot, head) + group;
    scale = (high - low) / range.high;
    scale = is_finite && std::isfinite(scale) ? std::min(scale, GreatestOf(encoding_->scale->dtype)) : kNan;
    scales_->elements().SetFloat(at, scale);
    scale = static_cast<float>(scales_->elements().GetFloat(at));
  }
  if (zeros_.has_value()) {
    zero = scale == 0 ? 0 : RoundedCode(-low / scale, {0, range.high});
    zeros_->elements().SetInt(zeros_->AtSlot(slot, head) + group, static_cast<int64_t>(zero));
  }
  std::vector<float> codes(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const float code = scale == 0 ? 0 : x[i] / scale;
    if (IsFloat(type)) {
      codes[i] = std::isfinite(x[i]) ? std::clamp(code, range.low, range.high) : kNan;
    } else {
      codes[i] = RoundedCode(RoundedCode(code, {-512, 512}) + zero, range);
    }
  }
  ops::Store<float>(codes.data(), codes_.AtSlot(slot, head) + group * group_, n, &codes_.elements());
}

void CachedRows::Read(int64_t page, int64_t head, int64_t token, float* row) const {
  ops::Load<float>(codes_.elements(), codes_.At(page, head, token), head_dim(), row);
  if (encoding_ == nullptr) return;
  for (int64_t begin = 0; begin < head_dim(); begin += group_) {
    const int64_t group = begin / group_;
    const float zero =
        zeros_.has_value() ? static_cast<float>(zeros_->elements().GetInt(zeros_->At(page, head, token) + group)) : 0;
    const float scale = scales_.has_value()
                            ? static_cast<float>(scales_->elements().GetFloat(scales_->At(page, head, token) + group))
                            : StaticScale(head);
    for (int64_t i = begin; i < begin + group_; ++i) row[i] = (row[i] - zero) * scale;
  }
}

const float* CachedRows::InPlace(int64_t page, int64_t head, int64_t token) const {
  if (codes_.elements().dtype() != DType::kF32) return nullptr;
  return codes_.elements().data<float>() + codes_.At(page, head, token);
}

Tensor ContentsOf(const StateType& state, const StateComponent& component, const Tensor& memory) {
  if (component.type.encoding == nullptr) return ComponentView(state, component, memory).Contents();
  const CachedRows rows(state, component, memory, nullptr);
  Tensor contents(DType::kF32, {rows.records(), rows.heads(), rows.page_size(), rows.head_dim()});
  float* to = contents.mutable_data<float>();
  for (int64_t page = 0; page < rows.records(); ++page) {
    for (int64_t head = 0; head < rows.heads(); ++head) {
      for (int64_t token = 0; token < rows.page_size(); ++token, to += rows.head_dim()) {
        rows.Read(page, head, token, to);
      }
    }
  }
  return contents;
}

}  // namespace llmc
