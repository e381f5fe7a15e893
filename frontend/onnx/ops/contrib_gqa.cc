// GroupQueryAttention: attention with its key-value cache, whose sequences may have different lengths.
//
// Token t of a sequence is at place t of the cache. seqlens_k[b] + 1 tokens of sequence b are there after this step, so
// its new ones go behind seqlens_k[b] + 1 - L; in a first prompt (as many tokens in all as new ones) they begin at 0,
// whatever their padding on the right. What lies behind a sequence in the cache, and what comes out for padding, means
// nothing.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/attention_parts.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kPastKey,
  kPastValue,
  kLens,
  kTotal,
  kCos,
  kSin,
  kPositions,
  kBias,
  kSink,
  kKeyScale,
  kValueScale,
  kQueryNorm,
  kKeyNorm
};

struct Heads {
  Value *q, *k, *v;  // [B, heads, L, D]
};

void CheckWhatIsAbsent(OnnxNode& n) {
  for (const char* name : {"k_quant_type", "v_quant_type"}) {
    if (const std::string type = n.String(name, "NONE"); type != "NONE" && !type.empty()) {
      return n.Unsupported(absl::StrCat(name, " \"", type, "\" (a quantized cache) is not supported"));
    }
  }
  if (n.Int("kv_cache_bit_width", 0) != 0 || n.has(kKeyScale) || n.has(kValueScale)) {
    return n.Unsupported("a quantized cache is not supported");
  }
  if (n.Int("qk_output", 0) != 0) return n.Unsupported("qk_output is not supported");
}

Heads SplitProjections(OnnxNode& n, int64_t heads, int64_t kv_heads) {
  Value *q = n.in(kQuery), *k = n.in(kKey), *v = n.in(kValue);
  if ((k == nullptr) != (v == nullptr)) n.Invalid("key and value must come together, or both be packed in the query");
  if (!n.has(kLens) || !n.has(kTotal)) n.Invalid("seqlens_k and total_sequence_length must be there");
  if (heads <= 0 || kv_heads <= 0 || heads % kv_heads != 0) {
    n.Invalid("num_heads must be a multiple of kv_num_heads, both positive");
  }
  for (const Value* x : {q, k, v}) {
    if (x != nullptr && RankOf(x) != 3) n.Invalid("query, key and value must have rank 3");
  }
  if (!n.ok()) return {};
  if (k == nullptr) {
    const Dim merged = q->type.shape[2];
    const int64_t all = heads + 2 * kv_heads;
    if (merged.is_constant() && merged.value() % all != 0) {
      n.Invalid(absl::StrCat("the packed query has width ", merged.value(), ", no multiple of ", all, " heads"));
      return {};
    }
    const Dim width = Dim::FloorDiv(merged, Dim(all)), q_end = width * Dim(heads),
              k_end = q_end + width * Dim(kv_heads);
    Value* packed = q;
    q = n.SliceOf(packed, 2, Dim(0), q_end);
    k = n.SliceOf(packed, 2, q_end, k_end);
    v = n.SliceOf(packed, 2, k_end, width * Dim(all));
  }
  return {SplitHeads(n, q, heads, "num_heads"), SplitHeads(n, k, kv_heads, "kv_num_heads"),
          SplitHeads(n, v, kv_heads, "kv_num_heads")};
}

void NormalizeHeads(OnnxNode& n, Heads* heads) {
  const double eps = n.Float("qk_norm_epsilon", 1e-6f);
  if (n.has(kQueryNorm) != n.has(kKeyNorm)) n.Invalid("q_norm_weight and k_norm_weight must come together");
  if (!n.has(kQueryNorm)) return;
  heads->q = n.Emit(RmsNorm{.x = heads->q, .weight = n.in(kQueryNorm), .eps = eps});
  heads->k = n.Emit(RmsNorm{.x = heads->k, .weight = n.in(kKeyNorm), .eps = eps});
}

// The place of each sequence's first new token, i64[B].
Value* StartsOf(OnnxNode& n, Value* lens, Value* total, const Dim& length) {
  Value* behind = Map<Sub>(n, Map<Add>(n, lens, 1), SizeAsScalar(n, length));
  return Select(n, Map<Equal>(n, total, SizeAsScalar(n, length)), n.Scalar(DType::kI64, 0), behind);
}

void Rotate(OnnxNode& n, Heads* heads, Value* places, Value* total) {
  const bool interleaved = n.Int("rotary_interleaved", 0) != 0;
  if (n.Int("do_rotary", 0) == 0 || !n.ok()) return;
  if (!n.has(kCos) || !n.has(kSin)) return n.Invalid("do_rotary needs cos_cache and sin_cache");
  if (n.has(kPositions)) {
    Value* given = n.AsI64(kPositions);
    if (RankOf(given) != 2) return n.Invalid("position_ids must have rank 2");
    if (!n.ok()) return;
    // Of a first prompt ONNX Runtime reads one position, from which those of all sequences count on.
    const Dim length = heads->q->type.shape[2];
    Value* first = n.SliceOf(n.SliceOf(given, 0, Dim(0), Dim(1)), 1, Dim(0), Dim(1));
    Value* counted = Map<Add>(n, n.ReshapeTo(Positions(n, length), {Dim(1), length}), first);
    places = Select(n, Map<Equal>(n, total, SizeAsScalar(n, length)), counted, given);
  }
  heads->q = RotatedAt(n, heads->q, n.in(kCos), n.in(kSin), places, interleaved);
  heads->k = RotatedAt(n, heads->k, n.in(kCos), n.in(kSin), places, interleaved);
}

// Which keys the queries at `places` see, bool[B or 1, 1, L or 1, K]; nullptr if `causal` of the language's op says it.
// `keys` are the positions of the keys, i64[B, K], if they are not 0, 1, …
Value* VisibleKeys(OnnxNode& n, Value* places, Value* keys, Value* lens, const OnnxAttention& a) {
  const int64_t window = n.Int("local_window_size", -1);
  const int64_t causal = n.Int("causal", 1);
  if (causal != 0 && causal != 1) n.Invalid("causal must be 0 or 1");
  if (window == 0 || window < -1) n.Invalid("local_window_size must be positive, or -1 for none");
  if (window > 0 && causal == 0) n.Invalid("local_window_size needs causal = 1");
  if (!n.ok() || a.causal) return nullptr;
  Value* key = PositionsAlong(n, a.k->type.shape[2], 3, 4);
  if (keys != nullptr) key = n.ReshapeTo(keys, {keys->type.shape[0], Dim(1), Dim(1), keys->type.shape[1]});
  if (causal == 0) return Map<LessEqual>(n, key, Along(n, lens, 0, 4));
  const Dims& shape = places->type.shape;
  Value* query = n.ReshapeTo(places, {shape[0], Dim(1), shape[1], Dim(1)});
  Value* seen = Map<LessEqual>(n, key, query);
  if (window > 0) {
    seen = Map<And>(n, seen, Map<Greater>(n, key, Map<Sub>(n, query, static_cast<double>(window))));
  }
  return seen;
}

// The bias of the scores has a column for each token; the cache may be longer.
Value* MaskOf(OnnxNode& n, Value* seen, const Value* k) {
  if (!n.has(kBias) || !n.ok()) return seen;
  if (RankOf(n.in(kBias)) != 4) n.Invalid("attention_bias must have rank 4");
  Value* bias = WidenedMask(n, n.in(kBias), k);
  if (seen == nullptr) return bias;
  return Select(n, seen, bias, n.Scalar(DTypeOf(bias), -INFINITY));
}

// ---- a cache that holds a window ------------------------------------------------------
//
// With sliding_window_cache past and present have C rows, C >= W = local_window_size, and hold the last tokens of each
// sequence in their order from row 0 on. Of t tokens the first `Dropped(t)` are gone, a multiple of C - W + 1: room is
// made for as many tokens at once, and the last W stay. What lies behind the tokens of a sequence means nothing.

constexpr double kNowhere = static_cast<double>(int64_t{1} << 40);

struct WindowPlaces {
  Value* keys = nullptr;  // positions of the tokens in past and behind it, i64[B, C + L]; kNowhere where there is none
  Value* kept = nullptr;  // which of those the present has, i64[B, C]
};

Value* Dropped(OnnxNode& n, Value* tokens, Value* capacity, Value* step) {
  Value* over = Map<Sub>(n, Map<Add>(n, Map<Sub>(n, tokens, capacity), step), 1);
  Value* dropped = Map<Mul>(n, Map<Div>(n, over, step), step);
  return Select(n, Map<LessEqual>(n, tokens, capacity), n.Scalar(DType::kI64, 0), dropped);
}

// Of the tokens from starts[B] on to behind lens[B].
WindowPlaces PlacesInWindow(OnnxNode& n, Value* starts, Value* lens, const Dim& length) {
  const int64_t window = n.Int("local_window_size", -1);
  if (window <= 0) n.Invalid("sliding_window_cache needs a local_window_size");
  if (n.has(kBias)) n.Unsupported("attention_bias with sliding_window_cache is not supported");
  if (RankOf(n.in(kPastKey)) != 4) n.Invalid("past_key must have rank 4");
  if (!n.ok()) return {};
  const Dim rows = n.in(kPastKey)->type.shape[2];
  if (rows.is_constant() && rows.value() < window) n.Invalid("the cache has fewer rows than local_window_size");
  Value* capacity = SizeAsScalar(n, rows);
  Value* step = Map<Max>(n, Map<Sub>(n, capacity, static_cast<double>(window - 1)), 1);
  const auto column = [&](Value* x) { return Along(n, x, 0, 2); };
  Value *begin = column(starts), *first = column(Dropped(n, starts, capacity, step));
  Value *row = PositionsAlong(n, rows, 1, 2), *nowhere = n.Scalar(DType::kI64, kNowhere);
  Value* before = Map<Add>(n, row, first);
  before = Select(n, Map<Less>(n, before, begin), before, nowhere);
  Value* added = Map<Add>(n, PositionsAlong(n, length, 1, 2), begin);
  WindowPlaces places{.keys = n.Emit(Concat{.parts = {before, added}, .axis = 1})};
  Value* kept = Map<Add>(n, row, column(Dropped(n, Map<Add>(n, lens, 1), capacity, step)));
  kept =
      Select(n, Map<Less>(n, kept, begin), Map<Sub>(n, kept, first), Map<Add>(n, Map<Sub>(n, kept, begin), capacity));
  Value* last = SizeAsScalar(n, rows + length - Dim(1));
  kept = Select(n, Map<LessEqual>(n, kept, last), kept, last);
  // Fewer rows than the window would give other numbers: then no row is found, which ends the run.
  Value* too_few = Map<Less>(n, capacity, static_cast<double>(window));
  places.kept = Select(n, too_few, nowhere, kept);
  return places;
}

// The keys or values [B, heads, C + L, D] of past and new tokens; the present becomes output `index`.
Value* WindowCached(OnnxNode& n, Value* past, Value* added, const WindowPlaces& places, int index) {
  if (!n.ok()) return nullptr;
  if (RankOf(past) != 4 || DTypeOf(past) != DTypeOf(added)) {
    n.Invalid(
        absl::StrCat("the past is ", past->type.ToString(), ", the new keys or values are ", added->type.ToString()));
    return nullptr;
  }
  LearnHeads(n, past, added);
  Value* all = n.Emit(Concat{.parts = {past, added}, .axis = 2});
  const Dims& shape = past->type.shape;
  Value* row = n.ReshapeTo(places.kept, {shape[0], Dim(1), shape[2], Dim(1)});
  Value* tuple[] = {PositionsAlong(n, shape[0], 0, 4), PositionsAlong(n, shape[1], 1, 4), row};
  std::vector<Value*> columns;
  for (Value* x : tuple) columns.push_back(n.Emit(Expand{.x = x, .shape = {shape[0], shape[1], shape[2], Dim(1)}}));
  n.Set(index, n.Emit(GatherNd{.x = all, .indices = n.Emit(Concat{.parts = columns, .axis = 3})}));
  return all;
}

// Known from the numbers of tokens, or from what the graph declares of its presents: those of generators that share one
// buffer for past and present are as long as their pasts.
CacheGrowth GrowthOf(OnnxNode& n, const Dim& length) {
  if (RankOf(n.in(kPastKey)) != 4) return CacheGrowth::kByTotal;  // an error of its own
  const Dim past = n.in(kPastKey)->type.shape[2];
  if (const auto& total = n.in(kTotal)->contents; total.has_value() && total->size() == 1) {
    const Dim& tokens = (*total)[0];
    if (tokens == past + length) return CacheGrowth::kNew;
    if (tokens.is_constant() && past.is_constant() && tokens.value() <= past.value()) return CacheGrowth::kNone;
  }
  for (const int output : {1, 2}) {
    const std::optional<Dims> declared = n.Declared(output);
    if (!declared.has_value() || declared->size() != 4 || (*declared)[2].is_unknown()) continue;
    const Dim& present = (*declared)[2];
    if (present == past) return CacheGrowth::kNone;
    if (!present.is_constant() || present == past + length) return CacheGrowth::kNew;
  }
  return CacheGrowth::kByTotal;
}

void ImportGroupQueryAttention(OnnxNode& n) {
  CheckWhatIsAbsent(n);
  Heads heads = SplitProjections(n, n.Int("num_heads", 0), n.Int("kv_num_heads", 0));
  if (n.has(kPastKey) != n.has(kPastValue)) n.Invalid("past_key and past_value must come together");
  if (!n.ok()) return;
  NormalizeHeads(n, &heads);
  const Dim batch = heads.q->type.shape[0], length = heads.q->type.shape[2];
  Value* lens = n.ReshapeTo(n.AsI64(kLens), {batch});
  Value* total = n.ReshapeTo(n.AsI64(kTotal), {});
  Value *starts = nullptr, *places = n.ReshapeTo(Positions(n, length), {Dim(1), length});
  if (n.has(kPastKey)) {
    starts = StartsOf(n, lens, total, length);
    places = Map<Add>(n, places, n.ReshapeTo(starts, {batch, Dim(1)}));
  }
  Rotate(n, &heads, places, total);
  OnnxAttention attention{.q = heads.q, .k = heads.k, .v = heads.v, .softcap = n.Float("softcap", 0)};
  WindowPlaces window;
  const bool has_window = n.Int("sliding_window_cache", 0) != 0;
  if (has_window && !n.has(kPastKey)) return n.Unsupported("sliding_window_cache without a past is not supported");
  if (has_window) {
    window = PlacesInWindow(n, starts, lens, length);
    attention.k = WindowCached(n, n.in(kPastKey), heads.k, window, 1);
    attention.v = WindowCached(n, n.in(kPastValue), heads.v, window, 2);
  } else if (n.has(kPastKey)) {
    const CacheGrowth growth = GrowthOf(n, length);
    attention.k = CachedAt(n, n.in(kPastKey), heads.k, starts, total, growth);
    attention.v = CachedAt(n, n.in(kPastValue), heads.v, starts, total, growth);
  }
  if (!has_window) {
    n.Set(1, attention.k);
    n.Set(2, attention.v);
  }
  attention.causal = !n.has(kPastKey) && n.Int("causal", 1) == 1 && n.Int("local_window_size", -1) == -1;
  attention.mask = MaskOf(n, VisibleKeys(n, places, window.keys, lens, attention), attention.k);
  if (n.Int("smooth_softmax", 0) == 1) attention.sink = n.Scalar(DType::kF32, 0);
  if (n.has(kSink)) {
    if (RankOf(n.in(kSink)) != 1) n.Invalid("head_sink must be a vector");
    attention.sink = n.in(kSink);
  }
  const double scale = n.Float("scale", 0);
  attention.scale = scale == 0 ? ScaleOfHeads(n, &attention.q) : scale;
  n.Set(0, JoinHeads(n, Attend(n, attention)));
}

constexpr OnnxOp kContribCacheOps[] = {
    {"GroupQueryAttention", 1, 1, 16, ImportGroupQueryAttention, "no quantized cache, no output of scores"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribCacheOps() { return kContribCacheOps; }

}  // namespace llmc
