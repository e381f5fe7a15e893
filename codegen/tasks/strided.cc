#include "codegen/tasks/strided.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc {

SizeList ContiguousStrides(const SizeList& sizes) {
  SizeList strides(sizes.size(), Size(1));
  for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * sizes[i];
  return strides;
}

Place ContiguousPlace(const Dims& shape) { return {.strides = ContiguousStrides(ToSizes(shape))}; }

Place BroadcastPlace(const Dims& shape, const Dims& under) {
  const SizeList own = ContiguousStrides(ToSizes(shape));
  Place place{.strides = SizeList(under.size(), Size(0))};
  const size_t lead = under.size() - shape.size();
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == under[lead + i]) {
      place.strides[lead + i] = own[i];
    } else if (!(shape[i] == Dim(1))) {  // 1 in some runs, the whole size in others
      place.strides[lead + i] = Size::Call("step", {Size(shape[i])}) * own[i];
    }
  }
  return place;
}

Space Collapse(const Space& space) {
  Space out;
  out.places.resize(space.places.size());
  for (size_t i = 0; i < space.places.size(); ++i) out.places[i].offset = space.places[i].offset;
  for (size_t axis = 0; axis < space.sizes.size(); ++axis) {
    const Size& size = space.sizes[axis];
    if (size.Is(1)) continue;
    bool merge = !out.sizes.empty();
    for (size_t i = 0; merge && i < space.places.size(); ++i) {
      merge = out.places[i].strides.back() == space.places[i].strides[axis] * size;
    }
    if (merge) {
      out.sizes.back() = out.sizes.back() * size;
      for (size_t i = 0; i < space.places.size(); ++i) out.places[i].strides.back() = space.places[i].strides[axis];
    } else {
      out.sizes.push_back(size);
      for (size_t i = 0; i < space.places.size(); ++i) out.places[i].strides.push_back(space.places[i].strides[axis]);
    }
  }
  if (out.sizes.empty()) {
    out.sizes.push_back(Size(1));
    for (Place& place : out.places) place.strides.push_back(Size(1));
  }
  return out;
}

int64_t WholeVector(const Space& space, int64_t most) {
  const size_t last = space.sizes.size() - 1;
  const auto fits = [&](int64_t n) {
    if (last > 0 && !space.sizes[last].IsMultipleOf(n)) return false;
    return absl::c_all_of(space.places, [&](const Place& place) {
      if (place.strides[last].Is(0)) return true;
      if (!place.strides[last].Is(1) || !place.offset.IsMultipleOf(n)) return false;
      return std::all_of(place.strides.begin(), place.strides.end() - 1,
                         [n](const Size& stride) { return stride.IsMultipleOf(n); });
    });
  };
  while (most > 1 && !fits(most)) most /= 2;
  return most;
}

std::string KernelCall::SizeText(const Size& size) {
  if (size.is_number()) return absl::StrCat(size.number());
  const std::string text = size.ToString();
  const auto known = absl::c_find(sizes, text);
  std::string name = absl::StrCat("d", known - sizes.begin());
  if (known == sizes.end()) {
    sizes.push_back(text);
    params.push_back({"llmc::i64", name, KernelArg::OfSize(text)});
  }
  return name;
}

std::string KernelCall::SizesText(const SizeList& list) {
  return absl::StrJoin(list, ", ", [&](std::string* out, const Size& size) { out->append(SizeText(size)); });
}

std::string AxesText(const SizeList& sizes, KernelCall* call) {
  return absl::StrCat("llmc::Axes<", sizes.size(), ">{{", call->SizesText(sizes), "}}");
}

std::string StridedText(const std::string& type, const std::string& name, const Place& place, KernelCall* call) {
  const std::string offset = place.offset.Is(0) ? "" : absl::StrCat(" + ", call->SizeText(place.offset));
  return absl::StrCat("llmc::Strided<", type, ", ", place.strides.size(), ">{", name, offset, ", {",
                      call->SizesText(place.strides), "}}");
}

}  // namespace llmc
