// Every op of the language: the only registry.
#pragma once

#include "ir/ops_elementwise.h"
#include "ir/ops_encoded.h"
#include "ir/ops_lm.h"
#include "ir/ops_nn.h"
#include "ir/ops_recurrent.h"
#include "ir/ops_shape.h"

namespace llmc {

template <class... Ops>
struct OpList {
  static constexpr size_t kSize = sizeof...(Ops);
};

using AllOps = OpList<
#define UNARY(NAME, ...) NAME,
#define BINARY(NAME, ...) NAME,
#include "ir/elementwise.def"
    Where, Choose, Cast, Constant, ShapeOf, DimsOf, Reshape, ReshapeTo, Transpose, Expand, ExpandTo, Concat, Slice,
    SliceBy, Gather, GatherElements, GatherNd, ScatterNd, Range, CumSum, Triangle, Pad, MatMul, Conv, ReduceSum,
    ReduceMean, ReduceMax, ReduceMin, ReduceProd, ArgMax, ArgSort, Softmax, LayerNorm, RmsNorm, Rope, KvWrite,
    PagedAttention, Route, ExpertLinear, SiluMul, Attention, PackedAttention, RotaryEmbedding, Encode, Unpack, Decode,
    DynamicScale, Quantize, Linear, Recurrence>;

}  // namespace llmc
