// Rotary embedding of tokens by given cosines and sines, in primitive ops.
#pragma once

#include "ir/op.h"

namespace llmc {

// x[T, heads, D] rotated by cos and sin [T, r / 2] of the same type, r <= D, as rotary_embedding does it: pairs are
// (x[i], x[i + r / 2]), or (x[2i], x[2i + 1]) if interleaved. All sizes but T are numbers. nullptr if the builder
// fails.
Value* RotateTokens(Builder* builder, Value* x, Value* cos, Value* sin, bool interleaved);

}  // namespace llmc
