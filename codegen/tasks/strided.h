// How tensors lie under the axes of a result: the iteration space of elementwise kernels, copies and reductions.
#pragma once

#include <string>
#include <vector>

#include "codegen/tasks/kernel_call.h"
#include "ir/size.h"

namespace llmc {

SizeList ContiguousStrides(const SizeList& sizes);

// A tensor in memory: its elements at `offset` and the strides of the axes of an iteration space from there.
struct Place {
  SizeList strides;
  Size offset = 0;
};
Place ContiguousPlace(const Dims& shape);
// A tensor of `shape` under a larger one: a stride of 0 where it is broadcast.
Place BroadcastPlace(const Dims& shape, const Dims& under);

// An iteration space and the tensors in it.
struct Space {
  SizeList sizes;
  std::vector<Place> places;
};
// Without axes of size 1, and with those made one along which all tensors move alike. At least one axis is left.
Space Collapse(const Space& space);

// The most elements, at most `most`, that can be read along the last axis in one piece: 1 if none.
int64_t WholeVector(const Space& space, int64_t most);

// "llmc::Axes<2>{{d0, 64}}"
std::string AxesText(const SizeList& sizes, KernelCall* call);
// "llmc::Strided<const float, 2>{x + d1, {64, 1}}"
std::string StridedText(const std::string& type, const std::string& name, const Place& place, KernelCall* call);

}  // namespace llmc
