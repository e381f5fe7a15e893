// Weights of interpolation between the elements of an axis.
#pragma once

#include "frontend/onnx/node.h"

namespace llmc {

// The weight of an element at a distance: 1 - |distance| above 0, or Keys' cubic kernel with its coefficient `a`
// (doi:10.1109/TASSP.1981.1163711).
Value* InterpolationWeight(OnnxNode& n, bool cubic, double a, Value* distance);

}  // namespace llmc
