// Attention and rotary embedding as ONNX has them since opset 23.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/attention_parts.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// present = past + new; also output `index`.
Value* WithPast(OnnxNode& n, Value* past, Value* added, int index) {
  LearnHeads(n, past, added);
  Value* all = past == nullptr ? added : n.Emit(Concat{.parts = {past, added}, .axis = 2});
  n.Set(index, all);
  return all;
}

// The mask that hides keys from lens[b] on too.
Value* WithoutPadding(OnnxNode& n, Value* mask, Value* lens, const Value* q, const Value* k) {
  if (!n.ok()) return nullptr;
  Value* real = Map<Less>(n, PositionsAlong(n, k->type.shape[2], 3, 4), Along(n, lens, 0, 4));
  if (mask == nullptr) {
    const Dims& shape = q->type.shape;
    return n.Emit(Expand{.x = real, .shape = {shape[0], Dim(1), shape[2], k->type.shape[2]}});
  }
  if (DTypeOf(mask) == DType::kBool) return Map<And>(n, mask, real);
  return Select(n, real, mask, n.Scalar(DTypeOf(mask), -INFINITY));
}

struct Scores {
  Value* mask = nullptr;
  double scale = 1;
  double softcap = 0;
  bool causal = false;
};

// What a fourth output shows of the scores: as the product gives them, capped, masked, or as weights.
Value* ScoresUpTo(OnnxNode& n, int64_t mode, Value* q, Value* k, const Scores& scores, const Dim& past) {
  if (!n.ok()) return nullptr;
  const Dims &rows = q->type.shape, &keys = k->type.shape;
  const DType dtype = DTypeOf(q);
  // Queries in groups that share a head of keys.
  Value* grouped = n.ReshapeTo(q, {rows[0], keys[1], Dim::FloorDiv(rows[1], keys[1]), rows[2], rows[3]});
  Value* shared = n.ReshapeTo(k, {keys[0], keys[1], Dim(1), keys[2], keys[3]});
  Value* x = n.Emit(MatMul{.lhs = grouped, .rhs = shared, .transpose_rhs = true});
  x = Map<Mul>(n, n.ReshapeTo(x, {rows[0], rows[1], rows[2], keys[2]}), scores.scale);
  if (mode >= 1 && scores.softcap != 0) {
    x = Map<Mul>(n, Map<Tanh>(n, Map<Div>(n, x, scores.softcap)), scores.softcap);
  }
  if (mode < 2) return x;
  Value* hidden = n.Scalar(dtype, -INFINITY);
  if (scores.mask != nullptr) {
    x = DTypeOf(scores.mask) == DType::kBool ? Select(n, scores.mask, x, hidden)
                                             : Map<Add>(n, x, n.CastTo(scores.mask, dtype));
  }
  if (scores.causal) {
    Value* row = Map<Add>(n, PositionsAlong(n, rows[2], 2, 4), SizeAsScalar(n, past));
    x = Select(n, Map<LessEqual>(n, PositionsAlong(n, keys[2], 3, 4), row), x, hidden);
  }
  return mode == 2 ? x : n.Emit(Softmax{.x = x, .axis = 3});
}

void ImportAttention(OnnxNode& n) {
  const int64_t mode = n.Int("qk_matmul_output_mode", 0);
  if (mode < 0 || mode > 3) return n.Invalid("qk_matmul_output_mode must be from 0 to 3");
  if (const int64_t type = n.Int("softmax_precision", onnx::TensorProto::FLOAT);
      type != onnx::TensorProto::FLOAT && type != onnx::TensorProto::FLOAT16 && type != onnx::TensorProto::BFLOAT16) {
    return n.Unsupported(absl::StrCat("softmax_precision ", OnnxTypeName(type), " is not supported"));
  }
  if (n.has(4) != n.has(5)) return n.Invalid("past_key and past_value must come together");
  Value *q = n.in(0), *k = n.in(1), *v = n.in(2);
  const int rank = RankOf(q);
  if ((rank != 3 && rank != 4) || RankOf(k) != rank || RankOf(v) != rank) {
    return n.Invalid("Q, K and V must have the same rank, 3 or 4");
  }
  const int64_t heads = n.Int("q_num_heads", 0), kv_heads = n.Int("kv_num_heads", 0);
  if (rank == 3) {
    q = SplitHeads(n, q, heads, "q_num_heads");
    k = SplitHeads(n, k, kv_heads, "kv_num_heads");
    v = SplitHeads(n, v, kv_heads, "kv_num_heads");
  }
  if (!n.ok()) return;
  const bool causal = n.Int("is_causal", 0) != 0;
  if (causal && n.HasSince(6, 24)) return n.Unsupported("is_causal with nonpad_kv_seqlen is not supported");
  if (causal && n.has(4) && k->type.shape[2] != q->type.shape[2]) {
    return n.Unsupported("is_causal with a past needs as many new keys as queries");
  }
  k = WithPast(n, n.in(4), k, 1);
  v = WithPast(n, n.in(5), v, 2);
  if (!n.ok()) return;
  const double given = n.Float("scale", 0), scale = n.HasAttr("scale") ? given : ScaleOfHeads(n, &q);
  if (!n.ok()) return;
  Value* mask = WidenedMask(n, n.in(3), k);
  if (n.HasSince(6, 24)) mask = WithoutPadding(n, mask, n.AsI64(6), q, k);
  if (n.wants(3)) {
    const Dim offset = n.has(4) ? n.in(4)->type.shape[2] : Dim(0);
    const Scores scores{.mask = mask, .scale = scale, .softcap = n.Float("softcap", 0), .causal = causal};
    n.Set(3, ScoresUpTo(n, mode, q, k, scores, offset));
  }
  Value* y = n.Emit(Attention{.q = q,
                              .k = k,
                              .v = v,
                              .mask = mask,
                              .scale = scale,
                              .causal = causal,
                              .causal_from_end = causal && n.has(4),
                              .softcap = n.Float("softcap", 0)});
  n.Set(0, rank == 3 ? JoinHeads(n, y) : y);
}

void ImportRotaryEmbedding(OnnxNode& n) {
  Value *x = n.in(0), *cos = n.in(1), *sin = n.in(2);
  const int rank = RankOf(x);
  if (rank != 3 && rank != 4) return n.Invalid("the input must have rank 3 or 4");
  const int64_t heads = n.Int("num_heads", 0);
  if (rank == 3) x = SplitHeads(n, x, heads, "num_heads");
  if (!n.ok()) return;
  const int cache_rank = n.has(3) ? 2 : 3;
  if (RankOf(cos) != cache_rank || RankOf(sin) != cache_rank) {
    return n.Invalid(absl::StrCat("cos_cache and sin_cache must have rank ", cache_rank));
  }
  const Dim& half = cos->type.shape.back();
  const int64_t rotated = n.Int("rotary_embedding_dim", 0);
  const Dim width = rotated == 0 ? x->type.shape[3] : Dim(rotated);
  if (half.is_constant() && width.is_constant() && half.value() * 2 != width.value()) {
    return n.Invalid(
        absl::StrCat("cos_cache has width ", half.ToString(), ", which is not half of ", width.ToString()));
  }
  if (n.has(3)) {
    if (RankOf(n.in(3)) != 2) return n.Invalid("position_ids must have rank 2");
    cos = n.Emit(Gather{.x = cos, .indices = n.in(3), .axis = 0});
    sin = n.Emit(Gather{.x = sin, .indices = n.in(3), .axis = 0});
  }
  cos = ForBatch(n, cos, x);
  sin = ForBatch(n, sin, x);
  Value* y = n.Emit(RotaryEmbedding{.x = x, .cos = cos, .sin = sin, .interleaved = n.Int("interleaved", 0) != 0});
  n.Set(0, rank == 3 ? JoinHeads(n, y) : y);
}

constexpr OnnxOp kAttentionOps[] = {
    {"Attention", 23, 3, 7, ImportAttention, "softmax_precision up to f32; is_causal without nonpad_kv_seqlen"},
    {"RotaryEmbedding", 23, 3, 4, ImportRotaryEmbedding},
};

}  // namespace

absl::Span<const OnnxOp> OnnxAttentionOps() { return kAttentionOps; }

}  // namespace llmc
