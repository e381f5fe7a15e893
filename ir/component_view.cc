#include "ir/component_view.h"

#include <algorithm>
#include <cstring>

namespace llmc {
namespace {

int64_t ElementsIn(int64_t bytes, DType dtype) { return bytes * 8 / DTypeBits(dtype); }

}  // namespace

ComponentView::ComponentView(const StateType& state, const StateComponent& component, const Tensor& memory, size_t part)
    : records_(memory.shape()[0]), page_size_(std::max<int64_t>(state.page_size, 1)), heads_(component.Heads()) {
  const TensorType type = component.PartType(part);
  head_dim_ = type.shape.back().value();
  record_ = ElementsIn(state.RecordBytes(), type.dtype);
  offset_ = ElementsIn(state.OffsetOf(component, part), type.dtype);
  elements_ = Tensor(type.dtype, {records_ * record_}, memory.owner());
}

Tensor ComponentView::Contents() const {
  const DType dtype = elements_.dtype();
  Tensor contents(dtype, {records_, heads_, page_size_, head_dim_});
  const int64_t each = row() * page_size_, bits = DTypeBits(dtype);
  for (int64_t i = 0; i < records_; ++i) {
    if (each * bits % 8 == 0) {
      std::memcpy(contents.mutable_raw() + i * each * bits / 8, elements_.raw() + At(i, 0, 0) * bits / 8,
                  static_cast<size_t>(each * bits / 8));
    } else {  // elements of a record that begin within a byte
      for (int64_t j = 0; j < each; ++j) contents.SetInt(i * each + j, elements_.GetInt(At(i, 0, 0) + j));
    }
  }
  return contents;
}

}  // namespace llmc
