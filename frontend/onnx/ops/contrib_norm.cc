// Normalizations of sums, as ONNX Runtime's optimizer writes them.
#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/window.h"

namespace llmc {
namespace {

constexpr double kDefaultEpsilon = 1e-12f;

// Whether an input is a vector over the last axis of x.
void CheckVector(OnnxNode& n, size_t i, absl::string_view what, const Value* x) {
  if (!n.has(i) || !n.ok()) return;
  if (RankOf(x) == 0) return n.Invalid("the input is a scalar");
  const Dims& shape = n.in(i)->type.shape;
  const Dim& width = x->type.shape.back();
  const bool fits = shape.size() == 1 && (!shape[0].is_constant() || !width.is_constant() || shape[0] == width);
  if (!fits) {
    n.Invalid(absl::StrCat(what, " is ", n.in(i)->type.ToString(), ", not a vector of ", width.ToString(), " numbers"));
  }
}

// input + skip [+ bias]; also the last output. The skip may lack the batch, or have one of 1.
Value* SkipSum(OnnxNode& n, size_t bias) {
  Value *x = n.in(0), *skip = n.in(1);
  if (RankOf(x) != 2 && RankOf(x) != 3) n.Invalid("the input must have rank 2 or 3");
  if (RankOf(skip) > RankOf(x)) n.Invalid("the skip has a higher rank than the input");
  CheckVector(n, bias, "the bias", x);
  Value* sum = Map<Add>(n, x, skip);
  if (n.has(bias)) sum = Map<Add>(n, sum, n.in(bias));
  n.Set(3, sum);
  return sum;
}

void ImportSkipSimplifiedLayerNormalization(OnnxNode& n) {
  CheckVector(n, 2, "gamma", n.in(0));
  const double eps = n.Float("epsilon", kDefaultEpsilon);
  n.Set(0, n.Emit(RmsNorm{.x = SkipSum(n, 3), .weight = n.in(2), .eps = eps}));
}

void ImportSkipLayerNormalization(OnnxNode& n) {
  CheckVector(n, 2, "gamma", n.in(0));
  CheckVector(n, 3, "beta", n.in(0));
  const double eps = n.Float("epsilon", kDefaultEpsilon);
  Value* sum = SkipSum(n, 4);
  n.Set(0, n.Emit(LayerNorm{.x = sum, .weight = n.in(2), .bias = n.in(3), .axis = RankOf(sum) - 1, .eps = eps}));
}

// Inputs: ids of words and segments, the tables of words, positions and segments, gamma, beta, mask, ids of positions.
void ImportEmbedLayerNormalization(OnnxNode& n) {
  const int64_t mask_index_type =
      n.Int("mask_index_type", n.has(7) ? 1 : 0);  // what the second output is declared to be
  if (mask_index_type != 0 && mask_index_type != 1) return n.Invalid("mask_index_type must be 0 or 1");
  if (n.has(1) != n.has(4)) return n.Invalid("segment_ids and segment_embedding must come together");
  const double eps = n.Float("epsilon", kDefaultEpsilon);
  Value* ids = n.in(0);
  if (ids == nullptr || n.in(2) == nullptr || n.in(3) == nullptr || n.in(5) == nullptr || n.in(6) == nullptr) {
    return n.Invalid("input_ids, word_embedding, position_embedding, gamma and beta must be there");
  }
  if (RankOf(ids) != 2 || RankOf(n.in(2)) != 2 || RankOf(n.in(3)) != 2) {
    return n.Invalid("input_ids and the tables must have rank 2");
  }
  Value* sum = GatherAlong(n, n.in(2), ids, 0);
  Value* positions =
      n.has(8) ? GatherAlong(n, n.in(3), n.in(8), 0) : GatherAlong(n, n.in(3), Positions(n, DimsOfValue(ids)[1]), 0);
  sum = Map<Add>(n, sum, positions);
  if (n.has(1)) sum = Map<Add>(n, sum, GatherAlong(n, n.in(4), n.in(1), 0));
  CheckVector(n, 5, "gamma", sum);
  CheckVector(n, 6, "beta", sum);
  n.Set(0, n.Emit(LayerNorm{.x = sum, .weight = n.in(5), .bias = n.in(6), .axis = 2, .eps = eps}));
  n.Set(2, sum);
  if (!n.wants(1) || !n.ok()) return;
  if (!n.has(7)) return n.Set(1, n.Emit(Expand{.x = n.Scalar(DType::kI32, 0), .shape = {ids->type.shape[0]}}));
  // The number of words that are not masked.
  Value* seen = n.CastTo(Map<Equal>(n, n.in(7), 1), DType::kI32);
  n.Set(1, ReduceOver<ReduceSum>(n, seen, {1}, false));
}

// Arithmetic in f32. The channels are the last axis, or with channels_last = 0 the second.
void SetGroupNorm(OnnxNode& n, Value* x, bool channels_last) {
  const int64_t groups = n.Int("groups", 0), activation = n.Int("activation", 0);
  const double eps = n.Float("epsilon", 1e-5f);
  if (activation != 0 && activation != 1) return n.Invalid("activation must be 0 (none) or 1 (SiLU)");
  if (!n.ok()) return;
  const Dim& channels = x->type.shape[channels_last ? 3 : 1];
  if (groups < 1 || (channels.is_constant() && channels.value() % groups != 0)) {
    return n.Invalid(absl::StrCat("groups is ", groups, ", of ", channels.ToString(), " channels"));
  }
  for (const size_t i : {0, 1, 2}) {
    if (!IsFloat(DTypeOf(n.in(i)))) return n.Invalid("the input, gamma and beta must be floating-point");
    if (i > 0 && RankOf(n.in(i)) != 1) return n.Invalid("gamma and beta must be vectors");
  }
  Value* wide = n.CastTo(channels_last ? ChannelsFirst(n, x) : x, DType::kF32);
  Value* y = NormalizedGroups(n, wide, groups, eps);
  if (!n.ok()) return;
  y = n.ReshapeTo(y, wide->type.shape);
  y = Map<Mul>(n, y, Along(n, n.CastTo(n.in(1), DType::kF32), 1, 4));
  y = Map<Add>(n, y, Along(n, n.CastTo(n.in(2), DType::kF32), 1, 4));
  if (activation == 1) y = Map<Silu>(n, y);
  n.Set(0, n.CastTo(channels_last ? ChannelsLast(n, y) : y, DTypeOf(x)));
}

void ImportGroupNorm(OnnxNode& n) {
  const bool channels_last = n.Int("channels_last", 1) != 0;
  if (RankOf(n.in(0)) != 4) return n.Invalid("the input must have rank 4");
  SetGroupNorm(n, n.in(0), channels_last);
}

// Inputs: X, gamma, beta, skip, bias. A skip may lack height and width, or have 1 of each.
void ImportSkipGroupNorm(OnnxNode& n) {
  const bool channels_last = n.Int("channels_last", 1) != 0;
  Value *x = n.in(0), *skip = n.in(3);
  if (RankOf(x) != 4 || (RankOf(skip) != 4 && RankOf(skip) != 2)) {
    return n.Invalid("the input must have rank 4, the skip 4 or 2");
  }
  if (n.has(4) && RankOf(n.in(4)) != 1) return n.Invalid("the bias must be a vector");
  if (!n.ok()) return;
  if (RankOf(skip) == 2) {
    const Dims& shape = skip->type.shape;
    skip = n.ReshapeTo(
        skip, channels_last ? Dims{shape[0], Dim(1), Dim(1), shape[1]} : Dims{shape[0], shape[1], Dim(1), Dim(1)});
  }
  Value* sum = Map<Add>(n, x, skip);
  if (n.has(4)) sum = Map<Add>(n, sum, Along(n, n.in(4), channels_last ? 3 : 1, 4));
  if (n.wants(1)) n.Set(1, sum);
  SetGroupNorm(n, sum, channels_last);
}

constexpr OnnxOp kContribNormOps[] = {
    {"GroupNorm", 1, 3, 3, ImportGroupNorm},
    {"SkipGroupNorm", 1, 4, 5, ImportSkipGroupNorm},
    {"SimplifiedLayerNormalization", 1, 2, 2, ImportSimplifiedLayerNormalization},
    {"SkipSimplifiedLayerNormalization", 1, 3, 4, ImportSkipSimplifiedLayerNormalization,
     "without mean and inv_std_var"},
    {"SkipLayerNormalization", 1, 3, 5, ImportSkipLayerNormalization, "without mean and inv_std_var"},
    {"EmbedLayerNormalization", 1, 1, 9, ImportEmbedLayerNormalization},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribNormOps() { return kContribNormOps; }

}  // namespace llmc
