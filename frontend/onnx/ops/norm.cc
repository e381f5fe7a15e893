// Normalizations.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// The arithmetic is in f32 whatever the type, which is what stash_type 1 asks for.
void CheckStashType(OnnxNode& n) {
  const int64_t stash = n.Int("stash_type", 1);
  if (stash == onnx::TensorProto::FLOAT) return;
  if (stash == onnx::TensorProto::DOUBLE && DTypeOf(n.in(0)) == DType::kF64) return;
  n.Unsupported(absl::StrCat("stash_type ", stash, " is not supported"));
}

// A scale or bias as one of `shape`, the axes that are normalized. It may have leading axes of size 1, or be broadcast.
Value* ExpandTrailing(OnnxNode& n, Value* x, const Dims& shape) {
  if (x == nullptr || x->type.shape == shape) return x;
  Dims dims = x->type.shape;
  while (dims.size() > shape.size() && dims[0] == Dim(1)) dims.erase(dims.begin());
  if (dims.size() > shape.size()) {
    n.Unsupported(absl::StrCat("a scale or bias ", x->type.ToString(), " that differs along other axes than those",
                               " normalized, [", DimsToString(shape), "], is not supported"));
    return nullptr;
  }
  x = n.ReshapeTo(x, dims);
  return dims == shape ? x : n.Emit(Expand{.x = x, .shape = shape});
}

std::vector<int64_t> AllBut(int64_t axis, int rank) {
  std::vector<int64_t> axes = CountTo(rank);
  axes.erase(axes.begin() + axis);
  return axes;
}

Value* VarianceOver(OnnxNode& n, Value* x, Value* mean, const std::vector<int64_t>& axes, bool keep_dims = true) {
  Value* centered = Map<Sub>(n, x, mean);
  return ReduceOver<ReduceMean>(n, Map<Mul>(n, centered, centered), axes, keep_dims);
}

void ImportLayerNormalization(OnnxNode& n) {
  CheckStashType(n);
  Value* x = n.in(0);
  const int64_t axis = n.Axis("axis", -1, RankOf(x));
  const double eps = n.Float("epsilon", 1e-5f);
  const Dims shape = DimsOfValue(x);
  if (!n.ok()) return;
  const Dims normalized(shape.begin() + axis, shape.end());
  Value* weight = ExpandTrailing(n, n.in(1), normalized);
  Value* bias = ExpandTrailing(n, n.in(2), normalized);
  n.Set(0, n.Emit(LayerNorm{.x = x, .weight = weight, .bias = bias, .axis = axis, .eps = eps}));
  if (!n.wants(1) && !n.wants(2)) return;
  std::vector<int64_t> axes = CountTo(RankOf(x));
  axes.erase(axes.begin(), axes.begin() + axis);
  Value* wide = n.CastTo(x, DTypeOf(x) == DType::kF64 ? DType::kF64 : DType::kF32);
  Value* mean = ReduceOver<ReduceMean>(n, wide, axes);
  n.Set(1, mean);
  if (n.wants(2)) n.Set(2, Map<Rsqrt>(n, Map<Add>(n, VarianceOver(n, wide, mean, axes), eps)));
}

Value* RmsNormOver(OnnxNode& n, Value* x, Value* weight, int64_t axis, double eps) {
  if (!n.ok()) return nullptr;
  const Dims shape = x->type.shape;
  const Dims normalized(shape.begin() + axis, shape.end());
  weight = ExpandTrailing(n, weight, normalized);
  if (axis == RankOf(x) - 1) return n.Emit(RmsNorm{.x = x, .weight = weight, .eps = eps});
  Value* flat = n.ReshapeTo(weight, {Product(normalized)});
  return n.ReshapeTo(n.Emit(RmsNorm{.x = AsMatrix(n, x, axis), .weight = flat, .eps = eps}), shape);
}

void ImportRmsNormalization(OnnxNode& n) {
  CheckStashType(n);
  const int64_t axis = n.Axis("axis", -1, RankOf(n.in(0)));
  n.Set(0, RmsNormOver(n, n.in(0), n.in(1), axis, n.Float("epsilon", 1e-5f)));
}

}  // namespace

// The scale's type is the result's.
void ImportSimplifiedLayerNormalization(OnnxNode& n) {
  CheckStashType(n);
  Value *x = n.in(0), *weight = n.in(1);
  const DType dtype = DTypeOf(weight);
  if (!IsFloat(dtype)) return n.Invalid("the scale must be floating point");
  const int64_t axis = n.Axis("axis", -1, RankOf(x));
  const double eps = n.Float("epsilon", 1e-5f);
  if (DTypeOf(x) != dtype) x = n.CastTo(x, DType::kF32), weight = n.CastTo(weight, DType::kF32);
  n.Set(0, n.CastTo(RmsNormOver(n, x, weight, axis, eps), dtype));
  if (!n.wants(1) || !n.ok()) return;
  Value* wide = n.CastTo(x, DTypeOf(x) == DType::kF64 ? DType::kF64 : DType::kF32);
  std::vector<int64_t> axes = CountTo(RankOf(x));
  axes.erase(axes.begin(), axes.begin() + axis);
  Value* square = ReduceOver<ReduceMean>(n, Map<Mul>(n, wide, wide), axes);
  n.Set(1, Map<Rsqrt>(n, Map<Add>(n, square, eps)));
}

namespace {

// x[N, C, …]: a vector over the channels, shaped to broadcast.
Value* PerChannel(OnnxNode& n, Value* vector, const Value* x) { return Along(n, vector, 1, RankOf(x)); }

// In training mode the statistics are those of the batch, and the running ones are updated.
void ImportBatchNormalization(OnnxNode& n) {
  Value* x = n.in(0);
  const DType dtype = DTypeOf(x);
  const double eps = n.Float("epsilon", 1e-5f), momentum = n.Float("momentum", 0.9f);
  const bool training = n.Int("training_mode", 0) != 0;
  if (n.opset() < 9 && n.Int("spatial", 1) != 1) return n.Unsupported("spatial = 0 is not supported");
  if (n.opset() < 14 && n.num_outputs() > 1) return n.Unsupported("training is not supported before opset 14");
  if (RankOf(x) < 2) return n.Invalid("the input must have rank 2 or more");
  Value *mean = n.CastTo(n.in(3), dtype), *variance = n.CastTo(n.in(4), dtype);
  if (training) {
    const std::vector<int64_t> axes = AllBut(1, RankOf(x));
    Value* kept = ReduceOver<ReduceMean>(n, x, axes);
    mean = ReduceOver<ReduceMean>(n, x, axes, false);
    variance = VarianceOver(n, x, kept, axes, false);
    const auto running = [&](Value* before, Value* now) {
      Value* sum = Map<Add>(n, Map<Mul>(n, n.CastTo(before, dtype), momentum), Map<Mul>(n, now, 1 - momentum));
      return n.CastTo(sum, DTypeOf(before));
    };
    if (n.wants(1)) n.Set(1, running(n.in(3), mean));
    if (n.wants(2)) n.Set(2, running(n.in(4), variance));
  }
  Value* deviation = Map<Sqrt>(n, Map<Add>(n, PerChannel(n, variance, x), eps));
  Value* y = Map<Div>(n, Map<Sub>(n, x, PerChannel(n, mean, x)), deviation);
  y = Map<Mul>(n, y, PerChannel(n, n.CastTo(n.in(1), dtype), x));
  n.Set(0, Map<Add>(n, y, PerChannel(n, n.CastTo(n.in(2), dtype), x)));
}

// (x - mean) / sqrt(variance + eps) over axes.
Value* Normalized(OnnxNode& n, Value* x, const std::vector<int64_t>& axes, double eps) {
  Value* mean = ReduceOver<ReduceMean>(n, x, axes);
  Value* variance = VarianceOver(n, x, mean, axes);
  return Map<Div>(n, Map<Sub>(n, x, mean), Map<Sqrt>(n, Map<Add>(n, variance, eps)));
}

void ImportInstanceNormalization(OnnxNode& n) {
  Value* x = n.in(0);
  if (RankOf(x) < 3) return n.Invalid("the input must have rank 3 or more");
  std::vector<int64_t> axes = CountTo(RankOf(x));
  axes.erase(axes.begin(), axes.begin() + 2);
  Value* y = Normalized(n, x, axes, n.Float("epsilon", 1e-5f));
  y = Map<Mul>(n, y, PerChannel(n, n.in(1), x));
  n.Set(0, Map<Add>(n, y, PerChannel(n, n.in(2), x)));
}

}  // namespace

Value* NormalizedGroups(OnnxNode& n, Value* x, int64_t groups, double eps) {
  if (!n.ok()) return nullptr;
  const Dims& shape = x->type.shape;
  const Dims spatial(shape.begin() + 2, shape.end());
  Value* grouped = n.ReshapeTo(x, {shape[0], Dim(groups), Dim::FloorDiv(shape[1], Dim(groups)), Product(spatial)});
  return Normalized(n, grouped, {2, 3}, eps);
}

namespace {

// Scale and bias are per group before opset 21, per channel since.
void ImportGroupNormalization(OnnxNode& n) {
  CheckStashType(n);
  Value* x = n.in(0);
  const int64_t groups = n.Int("num_groups", 0);
  if (RankOf(x) < 3 || groups < 1) return n.Invalid("the input or the attribute num_groups is out of range");
  Value* y = NormalizedGroups(n, x, groups, n.Float("epsilon", 1e-5f));
  if (!n.ok()) return;
  const Dims shape = x->type.shape;
  const bool per_group = n.opset() < 21;
  if (!per_group) y = n.ReshapeTo(y, shape);
  y = Map<Mul>(n, y, PerChannel(n, n.in(1), y));
  y = Map<Add>(n, y, PerChannel(n, n.in(2), y));
  n.Set(0, n.ReshapeTo(y, shape));
}

constexpr OnnxOp kNormOps[] = {
    {"LayerNormalization", 17, 2, 3, ImportLayerNormalization, "arithmetic in f32, or f64 for f64"},
    {"RMSNormalization", 23, 2, 2, ImportRmsNormalization, "arithmetic in f32, or f64 for f64"},
    {"SimplifiedLayerNormalization", 1, 2, 2, ImportSimplifiedLayerNormalization, "ONNX Runtime's name"},
    {"BatchNormalization", 7, 5, 5, ImportBatchNormalization, "training since opset 14"},
    {"InstanceNormalization", 6, 3, 3, ImportInstanceNormalization},
    {"GroupNormalization", 18, 3, 3, ImportGroupNormalization},
};

}  // namespace

absl::Span<const OnnxOp> OnnxNormOps() { return kNormOps; }

}  // namespace llmc
