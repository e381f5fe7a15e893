// Numbers of 8 and 16 bits that stand for others, (q - zero point) * scale, for the operators of both domains.
#pragma once

#include "frontend/onnx/node.h"

namespace llmc {

// round(x) + zero point (may be null), saturated to the type, or to uint16 in i32; without `saturate` cast as it is.
struct QuantizedType {
  DType dtype = DType::kU8;
  bool is_u16 = false;  // the language has no such type: dtype is i32
};
Value* Rounded(OnnxNode& n, Value* x, Value* zero_point, QuantizedType to, bool saturate = true);

// x - zero point in i32. A vector of zero points is for the rows of a left factor.
Value* Centered(OnnxNode& n, Value* x, Value* zero_point, bool rows);

// Inputs of QLinearConv from number 0 on, but `x` for the first: the result in the layout of x, [N, C, spatial…].
Value* QLinearConvOf(OnnxNode& n, Value* x);

// x in uint8 with a range that holds all of it, and zero.
struct DynamicNumbers {
  Value *numbers, *scale, *zero_point;
};
DynamicNumbers QuantizedDynamically(OnnxNode& n, Value* x);

bool IsOneNumber(const Value* p);

void ImportQuantizeLinear(OnnxNode& n);
void ImportDequantizeLinear(OnnxNode& n);

}  // namespace llmc
