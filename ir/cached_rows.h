// Rows of a component of a paged state: what a token keeps of a head, as it is written and read. How rows of an encoded
// component become codes, in f32:
//
//   signed codes      scale = max |x| / M, code = x / scale rounded
//   unsigned codes    scale = (high - low) / M with high = max(0, max x), low = min(0, min x);
//                     zero = -low / scale rounded, code = (x / scale rounded) + zero
//   static scale      code = x / scale rounded
//
// of the elements that share a scale, where M is the greatest code: 127, 255, 7, 15, 448 (f8e4m3), 57344 (f8e5m2). The
// scale is rounded to its type, at most its greatest number, before it divides; 0 makes codes 0. Roundings are to the
// nearest, halves to even; codes and zero points past the ends of their range are the ends. Where not all elements are
// finite, the scale is NaN, with a static scale (of f8) the codes of those elements are: attention over them is NaN, as
// it is without encoding. A number read is (code - zero) * scale.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/component_view.h"

namespace llmc {

class CachedRows {
 public:
  // `static_scale`: of a component that has none of its own, else nullptr. Tensors share their bytes.
  CachedRows(const StateType& state, const StateComponent& component, const Tensor& memory, const Tensor* static_scale);

  const ComponentView& layout() const { return codes_; }  // of the elements, or codes
  int64_t page_size() const { return codes_.page_size(); }
  int64_t records() const { return codes_.records(); }
  int64_t slots() const { return codes_.slots(); }
  int64_t heads() const { return codes_.heads(); }
  int64_t head_dim() const { return codes_.head_dim(); }
  int64_t row() const { return codes_.row(); }

  void Write(const float* row, int64_t slot, int64_t head);
  void Read(int64_t page, int64_t head, int64_t token, float* row) const;
  // Where a row lies in memory, if that is f32; else nullptr.
  const float* InPlace(int64_t page, int64_t head, int64_t token) const;

 private:
  // The elements of a row that share a scale.
  void WriteGroup(const float* x, int64_t n, int64_t slot, int64_t head, int64_t group);
  float StaticScale(int64_t head) const;

  const Encoding* encoding_;
  int64_t group_;  // elements
  ComponentView codes_;
  std::optional<ComponentView> scales_, zeros_;
  Tensor static_scale_;
};

// All of a component, decoded: [records, heads, page size, head dim] in f32, or in its own type if it is not encoded.
// With a static scale, the codes.
Tensor ContentsOf(const StateType& state, const StateComponent& component, const Tensor& memory);

}  // namespace llmc
