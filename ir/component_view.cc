#include "ir/component_view.h"

#include <algorithm>
#include <cstring>

namespace llmc {
namespace {

int64_t ElementsIn(int64_t bytes, DType dtype) { return bytes * 8 / DTypeBits(dtype); }

}  // namespace

ComponentView::ComponentView(const StateType& state, const StateComponent& component, const Tensor& memory)
    : records_(memory.shape()[0]),
      page_size_(std::max<int64_t>(state.page_size, 1)),
      heads_(component.Heads()),
      head_dim_(component.HeadDim()),
      record_(ElementsIn(state.RecordBytes(), component.type.dtype)),
      offset_(ElementsIn(state.OffsetOf(component), component.type.dtype)),
      elements_(component.type.dtype, {records_ * record_}, memory.owner()) {}

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
