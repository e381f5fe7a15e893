// Products, reductions and normalizations.
#pragma once

#include "ir/op.h"

namespace llmc {

struct MatMul {
  static constexpr OpInfo kInfo{"matmul", "lhs[…, m, k] x rhs[…, k, n], leading axes broadcast; f32 accumulation"};
  Value* lhs = nullptr;
  Value* rhs = nullptr;
  bool transpose_rhs = false;  // rhs is [n, k], as checkpoints store linear layers
  static constexpr auto Fields() {
    return std::tuple(In("lhs", &MatMul::lhs), In("rhs", &MatMul::rhs), At("transpose_rhs", &MatMul::transpose_rhs));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

// Convolution of x[N, C, spatial…] with weight[M, C / groups, kernel…], 1 to 3 spatial axes.
struct Conv {
  static constexpr OpInfo kInfo{"conv", "convolution (cross-correlation), channels first"};
  Value* x = nullptr;
  Value* weight = nullptr;
  Value* bias = nullptr;
  std::vector<int64_t> strides;    // empty: 1
  std::vector<int64_t> dilations;  // empty: 1
  std::vector<int64_t> pads;       // begin of each axis, then end of each; empty: 0
  int64_t groups = 1;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Conv::x), In("weight", &Conv::weight), OptionalIn("bias", &Conv::bias),
                      At("strides", &Conv::strides), At("dilations", &Conv::dilations), At("pads", &Conv::pads),
                      At("groups", &Conv::groups));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  OpCost Cost(const Types& results) const;
};

// Reductions over a sorted list of axes.
template <class F>
struct Reduce {
  static constexpr OpInfo kInfo = F::kInfo;
  Value* x = nullptr;
  std::vector<int64_t> axes;
  bool keep_dims = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &Reduce::x), At("axes", &Reduce::axes), At("keep_dims", &Reduce::keep_dims));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
  std::optional<Dims> Contents() const;
};
struct ReduceSumFn {
  static constexpr OpInfo kInfo{
      .name = "reduce_sum", .summary = "sum over axes", .flags = kNeedsWholeNumbers, .mixes = Mixes::kAxes};
};
struct ReduceMeanFn {
  static constexpr OpInfo kInfo{
      .name = "reduce_mean", .summary = "mean over axes", .flags = kIsOftenPart, .mixes = Mixes::kAxes};
};
struct ReduceMaxFn {
  static constexpr OpInfo kInfo{.name = "reduce_max", .summary = "largest over axes", .mixes = Mixes::kAxes};
};
struct ReduceMinFn {
  static constexpr OpInfo kInfo{.name = "reduce_min", .summary = "smallest over axes", .mixes = Mixes::kAxes};
};
struct ReduceProdFn {
  static constexpr OpInfo kInfo{.name = "reduce_prod", .summary = "product over axes", .mixes = Mixes::kAxes};
};
using ReduceSum = Reduce<ReduceSumFn>;
using ReduceMean = Reduce<ReduceMeanFn>;
using ReduceMax = Reduce<ReduceMaxFn>;
using ReduceMin = Reduce<ReduceMinFn>;
using ReduceProd = Reduce<ReduceProdFn>;

struct ArgMax {
  static constexpr OpInfo kInfo{"argmax", "i64 index of the largest along an axis; the first of equal ones"};
  Value* x = nullptr;
  int64_t axis = 0;
  bool keep_dims = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &ArgMax::x), At("axis", &ArgMax::axis), At("keep_dims", &ArgMax::keep_dims));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct ArgSort {
  static constexpr OpInfo kInfo{
      .name = "argsort",
      .summary = "i64 indices that sort an axis; equal elements keep their order, NaN is largest",
      .mixes = Mixes::kAxis};
  Value* x = nullptr;
  int64_t axis = 0;
  bool descending = false;
  static constexpr auto Fields() {
    return std::tuple(In("x", &ArgSort::x), At("axis", &ArgSort::axis), At("descending", &ArgSort::descending));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct Softmax {
  static constexpr OpInfo kInfo{.name = "softmax",
                                .summary = "exp(x - max) / sum(exp(x - max)) along an axis",
                                .flags = kIsOftenPart,
                                .mixes = Mixes::kAxis};
  Value* x = nullptr;
  int64_t axis = 0;
  bool log = false;  // the logarithm of it
  static constexpr auto Fields() {
    return std::tuple(In("x", &Softmax::x), At("axis", &Softmax::axis), At("log", &Softmax::log));
  }
  absl::StatusOr<Types> Infer() const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct LayerNorm {
  static constexpr OpInfo kInfo{.name = "layer_norm",
                                .summary = "(x - mean) / sqrt(variance + eps) * weight + bias, over axes >= axis",
                                .mixes = Mixes::kAxisToLast,
                                .pattern = "norm"};
  Value* x = nullptr;
  Value* weight = nullptr;
  Value* bias = nullptr;
  int64_t axis = 0;
  double eps = 1e-5;
  static constexpr auto Fields() {
    return std::tuple(In("x", &LayerNorm::x), In("weight", &LayerNorm::weight, Use::kParameter),
                      OptionalIn("bias", &LayerNorm::bias, Use::kParameter), At("axis", &LayerNorm::axis),
                      At("eps", &LayerNorm::eps));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

struct RmsNorm {
  static constexpr OpInfo kInfo{.name = "rms_norm",
                                .summary = "x / sqrt(mean(x^2) + eps) * weight, over the last axis (arXiv:1910.07467)",
                                .mixes = Mixes::kLastAxis,
                                .pattern = "norm"};
  Value* x = nullptr;
  Value* weight = nullptr;
  double eps = 1e-5;
  static constexpr auto Fields() {
    return std::tuple(In("x", &RmsNorm::x), In("weight", &RmsNorm::weight, Use::kParameter), At("eps", &RmsNorm::eps));
  }
  absl::StatusOr<Types> Infer(SizeCollector& sizes) const;
  absl::StatusOr<Tensors> Eval(const EvalArgs& args) const;
};

}  // namespace llmc
