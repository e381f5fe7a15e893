// The windows of convolutions and poolings: attributes that all of them have.
#pragma once

#include <string>
#include <vector>

#include "frontend/onnx/node.h"

namespace llmc {

struct OnnxWindow {
  std::vector<int64_t> kernel, strides, dilations;  // one for each spatial axis
  std::vector<int64_t> pads;                        // before each axis, then after each
  bool ceil = false;
  bool same = false;  // auto_pad asks for size / stride outputs

  size_t spatial() const { return kernel.size(); }
  int64_t before(size_t i) const { return pads[i]; }
  int64_t after(size_t i) const { return pads[spatial() + i]; }
  int64_t reach(size_t i) const { return (kernel[i] - 1) * dilations[i] + 1; }
};

// A list attribute with one number for each spatial axis (or two, for pads): all `fallback` if absent, and no less.
std::vector<int64_t> SpatialAttr(OnnxNode& n, absl::string_view name, size_t count, int64_t fallback);

// Reads the attributes for windows of size `kernel` over x[N, C, spatial…]; auto_pad is resolved to pads.
OnnxWindow ReadWindow(OnnxNode& n, const Value* x, std::vector<int64_t> kernel);

// How many windows fit in spatial axis `i` of size `size`; an error if only a run tells.
Dim WindowCount(OnnxNode& n, const OnnxWindow& window, size_t i, const Dim& size);

// Where the windows of axis `i` read, in the padded axis: i64[windows, kernel].
Value* WindowPositions(OnnxNode& n, const OnnxWindow& window, size_t i, const Dim& size);

// The convolution that the attributes of the node describe.
Value* ConvByAttributes(OnnxNode& n, Value* x, Value* weight, Value* bias);

// x [N, spatial…, C] as [N, C, spatial…], and the other way around.
Value* ChannelsFirst(OnnxNode& n, Value* x);
Value* ChannelsLast(OnnxNode& n, Value* x);

}  // namespace llmc
