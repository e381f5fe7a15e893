// Attention of ONNX Runtime's optimizer: Attention, MultiHeadAttention and RotaryEmbedding.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/attention_parts.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// ---- rotary embedding -------------------------------------------------------------

void ImportContribRotaryEmbedding(OnnxNode& n) {
  Value *x = n.in(0), *positions = n.AsI64(1), *cos = n.in(2), *sin = n.in(3);
  int64_t heads = n.Int("num_heads", 0);
  const int64_t rotated = n.Int("rotary_embedding_dim", 0);
  const bool interleaved = n.Int("interleaved", 0) != 0;
  if (const double scale = n.Float("scale", 1); scale != 1) {
    return n.Unsupported("scale is not supported; scale cos_cache and sin_cache");
  }
  if (n.Int("is_packed_batching", 0) != 0) return n.Unsupported("is_packed_batching is not supported");
  const int rank = RankOf(x);
  if (rank != 3 && rank != 4) return n.Invalid("the input must have rank 3 or 4");
  if (RankOf(cos) != 2 || RankOf(sin) != 2) return n.Invalid("cos_cache and sin_cache must have rank 2");
  if (!n.ok()) return;
  const Dim half = cos->type.shape[1];
  if (rotated > 0 && half.is_constant() && half.value() * 2 != rotated) {
    return n.Invalid(absl::StrCat("cos_cache has width ", half.ToString(), ", not half of ", rotated));
  }
  Value* split = x;
  if (rank == 3 && rotated == 0) {  // A head is as wide as what is rotated.
    const Dims& shape = x->type.shape;
    const Dim width = Dim(2) * half;
    if (!half.is_constant() || half.value() <= 0 || !shape[2].is_constant() || shape[2].value() % width.value() != 0) {
      return n.Unsupported(
          "without rotary_embedding_dim, widths must be known, and the input's a multiple of a head's");
    }
    heads = shape[2].value() / width.value();
  }
  if (rank == 3) split = SplitHeads(n, x, heads, "num_heads");
  if (!n.ok()) return;
  const Dim length = split->type.shape[2];
  if (RankOf(positions) == 1) {  // The position of the first.
    positions = Map<Add>(n, n.ReshapeTo(Positions(n, length), {Dim(1), length}), positions);
  } else if (RankOf(positions) != 2) {
    return n.Invalid("position_ids must have rank 1 or 2");
  }
  Value* y = RotatedAt(n, split, cos, sin, positions, interleaved);
  n.Set(0, rank == 3 ? JoinHeads(n, y) : y);
}

// ---- what the two attentions share --------------------------------------------------

// Adds to the scores: what the padding costs, and a bias.
Value* MaskOf(OnnxNode& n, size_t padding, size_t bias, const Value* q, const Value* k) {
  const double filter = n.Float("mask_filter_value", -10000);
  if (n.has(padding) && !IsInteger(DTypeOf(n.in(padding)))) n.Invalid("the mask must be integers");
  Value* mask = PaddingMask(n, n.in(padding), filter, q, k);
  if (!n.has(bias) || !n.ok()) return mask;
  if (RankOf(n.in(bias)) != 4) n.Invalid("attention_bias must have rank 4");
  return mask == nullptr ? n.in(bias) : Map<Add>(n, mask, n.CastTo(n.in(bias), DType::kF32));
}

// A part of a merged bias [width of q + width of k + width of v], added to x[B, L, width].
Value* WithBias(OnnxNode& n, Value* x, Value* bias, const Dim& begin) {
  if (bias == nullptr || !n.ok()) return x;
  return Map<Add>(n, x, n.SliceOf(bias, 0, begin, begin + x->type.shape[2]));
}

// 0 stands for the default.
double ScaleOrDefault(OnnxNode& n, Value** q) {
  const double scale = n.Float("scale", 0);
  return scale == 0 ? ScaleOfHeads(n, q) : scale;
}

// Query i of L follows all of the past and i new keys.
void MakeCausal(OnnxNode& n, const Value* past, const Value* added, OnnxAttention* attention) {
  if (n.Int("unidirectional", 0) == 0 || !n.ok()) return;
  const Dim queries = attention->q->type.shape[2], keys = added->type.shape[2];
  if (queries == keys) {
    attention->causal = true;
    attention->causal_from_end = past != nullptr;
    return;
  }
  if (queries.is_constant() && keys.is_constant()) {
    return n.Unsupported(absl::StrCat("unidirectional with ", queries.value(), " queries for ", keys.value(),
                                      " new keys is not supported"));
  }
  Value* last = PositionsAlong(n, queries, 2, 4);
  if (past != nullptr) last = Map<Add>(n, last, SizeAsScalar(n, past->type.shape[2]));
  Value* seen = Map<LessEqual>(n, PositionsAlong(n, attention->k->type.shape[2], 3, 4), last);
  Value* hidden = n.Scalar(DType::kF32, -INFINITY);
  attention->mask = attention->mask == nullptr ? seen : Select(n, seen, n.CastTo(attention->mask, DType::kF32), hidden);
}

// ---- MultiHeadAttention ---------------------------------------------------------------

// One of `count` parts of x[B, L, heads, count, D] as [B, L, heads * D].
Value* Unpacked(OnnxNode& n, Value* x, int64_t part, int64_t count) {
  if (!n.ok()) return nullptr;
  const Dims s = x->type.shape;
  if (s.size() != 5 || (s[3].is_constant() && s[3].value() != count)) {
    n.Invalid(absl::StrCat("packed projections must be [batch, length, heads, ", count, ", width]"));
    return nullptr;
  }
  return n.ReshapeTo(n.SliceOf(x, 3, Dim(part), Dim(part + 1)), {s[0], s[1], s[2] * s[4]});
}

// With past_sequence_length: past and present are one buffer, which holds that many tokens of each sequence.
void AttendInBuffer(OnnxNode& n, Value* k, Value* v, OnnxAttention* attention) {
  if (!n.has(6)) n.Invalid("past_sequence_length needs past_key and past_value");
  Value* before = n.ReshapeTo(n.AsI64(8), {});
  if (!n.ok()) return;
  Value* starts = n.Emit(Expand{.x = before, .shape = {k->type.shape[0]}});
  attention->k = CachedAt(n, n.in(6), k, starts, nullptr, CacheGrowth::kNone);
  attention->v = CachedAt(n, n.in(7), v, starts, nullptr, CacheGrowth::kNone);
  Value* mask = MaskOf(n, 4, 5, attention->q, attention->k);
  if (!n.ok()) return;
  // The last key that a query sees.
  Value* last = n.Int("unidirectional", 0) != 0 ? PositionsAlong(n, attention->q->type.shape[2], 2, 4)
                                                : Map<Sub>(n, SizeAsScalar(n, k->type.shape[2]), 1);
  Value* seen = Map<LessEqual>(n, PositionsAlong(n, attention->k->type.shape[2], 3, 4), Map<Add>(n, last, before));
  attention->mask = seen;
  if (mask == nullptr) return;
  mask = n.CastTo(WidenedMask(n, mask, attention->k), DType::kF32);
  attention->mask = Select(n, seen, mask, n.Scalar(DType::kF32, -INFINITY));
}

void ImportMultiHeadAttention(OnnxNode& n) {
  const int64_t heads = n.Int("num_heads", 0);
  if (n.has(9)) return n.Unsupported("cache_indirection (beam search) is not supported");
  if (n.has(6) != n.has(7)) return n.Invalid("past_key and past_value must come together");
  Value *q = n.in(0), *k = n.in(1), *v = n.in(2), *bias = n.in(3);
  if (bias != nullptr && RankOf(bias) != 1) return n.Invalid("the bias must be a vector");
  if (RankOf(q) == 5) {
    if (k != nullptr || v != nullptr) return n.Invalid("with a packed query, key and value must be absent");
    k = Unpacked(n, q, 1, 3), v = Unpacked(n, q, 2, 3), q = Unpacked(n, q, 0, 3);
  } else if (RankOf(k) == 5) {
    if (v != nullptr) return n.Invalid("with a packed key, the value must be absent");
    v = Unpacked(n, k, 1, 2), k = Unpacked(n, k, 0, 2);
  }
  if (!n.ok()) return;
  if (RankOf(q) != 3 || k == nullptr || v == nullptr || RankOf(k) != RankOf(v) || (RankOf(k) != 3 && RankOf(k) != 4)) {
    return n.Invalid("the query must have rank 3, key and value both rank 3 or both rank 4");
  }
  const Dim width = q->type.shape[2];
  q = SplitHeads(n, WithBias(n, q, bias, Dim(0)), heads, "num_heads");
  if (RankOf(k) == 3) {  // Keys and values of rank 4 are those of a cache, which have theirs.
    const Dim behind = width + k->type.shape[2];
    k = SplitHeads(n, WithBias(n, k, bias, width), heads, "num_heads");
    v = SplitHeads(n, WithBias(n, v, bias, behind), heads, "num_heads");
  }
  OnnxAttention attention{.q = q, .k = k, .v = v};
  if (n.has(8)) {
    AttendInBuffer(n, k, v, &attention);
  } else {
    if (n.has(6)) {
      LearnHeads(n, n.in(6), k);
      LearnHeads(n, n.in(7), v);
      attention.k = n.Emit(Concat{.parts = {n.in(6), k}, .axis = 2});
      attention.v = n.Emit(Concat{.parts = {n.in(7), v}, .axis = 2});
    }
    attention.mask = MaskOf(n, 4, 5, q, attention.k);
    MakeCausal(n, n.in(6), k, &attention);
  }
  n.Set(1, attention.k);
  n.Set(2, attention.v);
  attention.scale = ScaleOrDefault(n, &attention.q);
  n.Set(0, JoinHeads(n, Attend(n, attention)));
}

// ---- Attention ----------------------------------------------------------------------------

// Keys or values of past[2, B, heads, P, D].
Value* PartOfPast(OnnxNode& n, Value* past, int64_t part) {
  if (!n.ok()) return nullptr;
  const Dims s = past->type.shape;
  if (s.size() != 5) {
    n.Invalid("the past must have rank 5");
    return nullptr;
  }
  return n.ReshapeTo(n.SliceOf(past, 0, Dim(part), Dim(part + 1)), {s[1], s[2], s[3], s[4]});
}

// Widths of q, k and v in the merged projection.
std::vector<Dim> ProjectionWidths(OnnxNode& n, const Dim& merged) {
  const std::vector<int64_t> sizes = n.Ints("qkv_hidden_sizes");
  if (sizes.empty()) {
    if (merged.is_constant() && merged.value() % 3 != 0) n.Invalid("the weights' width is not a multiple of 3");
    return std::vector<Dim>(3, Dim::FloorDiv(merged, Dim(3)));
  }
  if (sizes.size() != 3 || sizes[0] <= 0 || sizes[0] != sizes[1] || sizes[2] <= 0) {
    n.Invalid("qkv_hidden_sizes must be three positive sizes, the first two of them equal");
  } else if (merged.is_constant() && Dim(sizes[0]) + Dim(sizes[1]) + Dim(sizes[2]) != merged) {
    n.Invalid("qkv_hidden_sizes do not add up to the weights' width");
  }
  return {sizes.begin(), sizes.end()};
}

}  // namespace

void AttendMerged(OnnxNode& n, Value* merged, size_t past_input, size_t padding, size_t bias) {
  const int64_t heads = n.Int("num_heads", 0);
  n.Int("rotary_embedding_dim", 0);  // of do_rotary
  if (n.Int("do_rotary", 0) != 0) {
    return n.Unsupported("do_rotary is not supported; export with MultiHeadAttention and RotaryEmbedding");
  }
  if (n.Int("past_present_share_buffer", 0) != 0) {
    return n.Unsupported("a past in a shared buffer is not supported; export without past_present_share_buffer");
  }
  if (!n.ok()) return;
  const std::vector<Dim> widths = ProjectionWidths(n, merged->type.shape[2]);
  if (!n.ok()) return;
  Dim begin(0);
  Value* qkv[3];
  for (size_t i = 0; i < 3; ++i) {
    qkv[i] = SplitHeads(n, n.SliceOf(merged, 2, begin, begin + widths[i]), heads, "num_heads");
    begin = begin + widths[i];
  }
  OnnxAttention attention{.q = qkv[0], .k = qkv[1], .v = qkv[2]};
  Value* past = n.in(past_input);
  Value* past_keys = past == nullptr ? nullptr : PartOfPast(n, past, 0);
  if (past != nullptr) {
    attention.k = n.Emit(Concat{.parts = {past_keys, qkv[1]}, .axis = 2});
    attention.v = n.Emit(Concat{.parts = {PartOfPast(n, past, 1), qkv[2]}, .axis = 2});
  }
  if (n.wants(1) && n.ok()) {
    std::vector<Value*> halves;
    for (Value* half : {attention.k, attention.v}) {
      Dims shape = half->type.shape;
      shape.insert(shape.begin(), Dim(1));
      halves.push_back(n.ReshapeTo(half, std::move(shape)));
    }
    n.Set(1, n.Emit(Concat{.parts = halves, .axis = 0}));
  }
  attention.mask = MaskOf(n, padding, bias, attention.q, attention.k);
  MakeCausal(n, past_keys, qkv[1], &attention);
  attention.scale = ScaleOrDefault(n, &attention.q);
  n.Set(0, JoinHeads(n, Attend(n, attention)));
}

namespace {

void ImportContribAttention(OnnxNode& n) {
  if (n.has(6)) {
    return n.Unsupported("a past in a shared buffer is not supported; export without past_present_share_buffer");
  }
  Value *x = n.in(0), *weights = n.in(1);
  if (RankOf(x) != 3 || RankOf(weights) != 2) return n.Invalid("the input must have rank 3, the weights rank 2");
  if (n.has(2) && RankOf(n.in(2)) != 1) return n.Invalid("the bias must be a vector");
  Value* merged = n.Emit(MatMul{.lhs = x, .rhs = weights});
  if (n.has(2)) merged = Map<Add>(n, merged, n.in(2));
  AttendMerged(n, merged, 4, 3, 5);
}

constexpr OnnxOp kContribAttentionOps[] = {
    {"Attention", 1, 2, 7, ImportContribAttention,
     "masks of rank 1 to 3; no rotary embedding inside, no past in a shared buffer"},
    {"MultiHeadAttention", 1, 1, 10, ImportMultiHeadAttention, "no beams, no output of scores"},
    {"RotaryEmbedding", 1, 4, 4, ImportContribRotaryEmbedding, "scale 1, no packed batches"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribAttentionOps() { return kContribAttentionOps; }

}  // namespace llmc
