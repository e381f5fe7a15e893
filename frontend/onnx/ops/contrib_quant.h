// Numbers of few bits in bytes, and blocks that share a scale, for operators of com.microsoft.
#pragma once

#include "frontend/onnx/node.h"

namespace llmc {

// Input i, whose last axis packs numbers of 2, 4 or 8 bits into uint8, as one number an element.
Value* UnpackedBits(OnnxNode& n, size_t i, int64_t bits);
// Each element along an axis `block` times, up to `size`.
Value* WidenedBlocks(OnnxNode& n, Value* x, int64_t axis, int64_t block, const Dim& size);
// (x - zero_point) * scale in f32; without zero points they are all `otherwise`.
Value* Dequantized(OnnxNode& n, Value* x, Value* zero_point, double otherwise, Value* scale);
// Whether bits are 2, 4 or 8 and a block is a power of 2 from 16 on; reports what is not.
bool CheckBlocks(OnnxNode& n, int64_t bits, int64_t block);

}  // namespace llmc
