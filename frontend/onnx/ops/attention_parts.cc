#include "frontend/onnx/ops/attention_parts.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {

Value* SplitHeads(OnnxNode& n, Value* x, int64_t heads, absl::string_view attr) {
  if (!n.ok()) return nullptr;
  if (heads <= 0) {
    n.Invalid(absl::StrCat(attr, " must be positive for inputs of rank 3"));
    return nullptr;
  }
  const Dims& shape = x->type.shape;
  if (shape[2].is_constant() && shape[2].value() % heads != 0) {
    n.Invalid(absl::StrCat(attr, " = ", heads, " does not divide ", shape[2].ToString()));
    return nullptr;
  }
  Value* split = n.ReshapeTo(x, {shape[0], shape[1], Dim(heads), Dim::FloorDiv(shape[2], Dim(heads))});
  return n.TransposeBy(split, {0, 2, 1, 3});
}

Value* JoinHeads(OnnxNode& n, Value* x) {
  Value* rows = n.TransposeBy(x, {0, 2, 1, 3});
  if (!n.ok()) return nullptr;
  const Dims& shape = rows->type.shape;
  return n.ReshapeTo(rows, {shape[0], shape[1], shape[2] * shape[3]});
}

Value* WidenedMask(OnnxNode& n, Value* mask, const Value* keys) {
  if (mask == nullptr || !n.ok() || mask->type.rank() == 0) return mask;
  const Dim have = mask->type.shape.back(), want = keys->type.shape[2];
  const bool known = have.is_constant() && want.is_constant();
  if (have == want || (known && have.value() > want.value())) return mask;
  const double hidden = mask->type.dtype == DType::kBool ? 0 : -INFINITY;
  const int64_t last = mask->type.rank() - 1;
  if (known) {
    std::vector<int64_t> before(mask->type.shape.size(), 0), after = before;
    after.back() = want.value() - have.value();
    return n.Emit(Pad{.x = mask, .before = before, .after = after, .value = hidden});
  }
  Dims shape = mask->type.shape;
  shape.back() = want;
  Value* columns = n.Emit(Expand{.x = n.Scalar(mask->type.dtype, hidden), .shape = std::move(shape)});
  return n.SliceOf(n.Emit(Concat{.parts = {mask, columns}, .axis = last}), last, Dim(0), want);
}

Value* ForBatch(OnnxNode& n, Value* angles, const Value* x) {
  if (!n.ok()) return nullptr;
  Dims shape = angles->type.shape;
  if (shape[0] == x->type.shape[0]) return angles;
  shape[0] = x->type.shape[0];
  return n.Emit(Expand{.x = angles, .shape = std::move(shape)});
}

Value* RotatedAt(OnnxNode& n, Value* x, Value* cos, Value* sin, Value* positions, bool interleaved) {
  if (RankOf(cos) != 2 || RankOf(sin) != 2) n.Invalid("cos_cache and sin_cache must have rank 2");
  cos = n.CastTo(ForBatch(n, GatherAlong(n, cos, positions, 0), x), DTypeOf(x));
  sin = n.CastTo(ForBatch(n, GatherAlong(n, sin, positions, 0), x), DTypeOf(x));
  return n.Emit(RotaryEmbedding{.x = x, .cos = cos, .sin = sin, .interleaved = interleaved});
}

double ScaleOfHeads(OnnxNode& n, Value** q) {
  if (!n.ok()) return 1;
  const Dim width = (*q)->type.shape[3];
  if (!width.is_constant()) {
    Value* root = Map<Sqrt>(n, n.CastTo(SizeAsScalar(n, width), DType::kF32));
    *q = Map<Div>(n, *q, n.CastTo(root, DTypeOf(*q)));
    return 1;
  }
  if (width.value() > 0) return 1 / std::sqrt(static_cast<double>(width.value()));
  n.Invalid("the heads of queries are empty");
  return 1;
}

namespace {

// One more key and value, of zeros, whose score is the sink.
void AddSink(OnnxNode& n, OnnxAttention* a) {
  if (!n.ok()) return;
  const Dims &q = a->q->type.shape, &k = a->k->type.shape;
  Dims scores = {q[0], q[1], q[2], k[2]};
  if (a->causal) {
    Value* row = PositionsAlong(n, q[2], 2, 4);
    if (a->causal_from_end) row = Map<Add>(n, row, SizeAsScalar(n, k[2] - q[2]));
    Value* seen = Map<LessEqual>(n, PositionsAlong(n, k[2], 3, 4), row);
    a->mask = a->mask == nullptr ? seen : Select(n, seen, a->mask, n.Scalar(DTypeOf(a->mask), -INFINITY));
    a->causal = a->causal_from_end = false;
  }
  Value* mask = a->mask == nullptr ? n.Scalar(DType::kF32, 0) : a->mask;
  if (DTypeOf(mask) == DType::kBool) {
    mask = Select(n, mask, n.Scalar(DType::kF32, 0), n.Scalar(DType::kF32, -INFINITY));
  }
  mask = n.Emit(Expand{.x = n.CastTo(mask, DType::kF32), .shape = scores});
  Value* sink = n.CastTo(a->sink, DType::kF32);
  if (RankOf(sink) == 1) sink = Along(n, sink, 1, 4);
  scores[3] = Dim(1);
  sink = n.Emit(Expand{.x = sink, .shape = scores});
  a->mask = n.Emit(Concat{.parts = {mask, sink}, .axis = 3});
  a->k = n.Emit(Pad{.x = a->k, .before = {0, 0, 0, 0}, .after = {0, 0, 1, 0}});
  a->v = n.Emit(Pad{.x = a->v, .before = {0, 0, 0, 0}, .after = {0, 0, 1, 0}});
}

}  // namespace

Value* Attend(OnnxNode& n, OnnxAttention a) {
  if (a.sink != nullptr) AddSink(n, &a);
  return n.Emit(Attention{.q = a.q,
                          .k = a.k,
                          .v = a.v,
                          .mask = a.mask,
                          .scale = a.scale,
                          .causal = a.causal,
                          .causal_from_end = a.causal_from_end,
                          .softcap = a.softcap});
}

Value* PaddingMask(OnnxNode& n, Value* mask, double filter, const Value* q, const Value* k) {
  if (mask == nullptr || !n.ok()) return nullptr;
  const Dim batch = q->type.shape[0], keys = k->type.shape[2];
  const Dims shape = mask->type.shape;
  Value* seen = nullptr;
  if (shape.size() == 1) {
    const bool starts = shape[0] == Dim(2) * batch && batch != Dim(0);
    const bool exact = !starts && shape[0] != Dim(3) * batch + Dim(2);
    Value* at = PositionsAlong(n, keys, 3, 4);
    const auto bound = [&](const Dim& begin) {
      Value* part = exact ? mask : n.SliceOf(mask, 0, begin, begin + batch);
      return Along(n, n.CastTo(part, DType::kI64), 0, 4);
    };
    seen = Map<Less>(n, at, bound(Dim(0)));
    if (starts) seen = Map<And>(n, seen, Map<GreaterEqual>(n, at, bound(batch)));
  } else if (shape.size() == 2) {
    if (shape[1] == Dim(1) && keys != Dim(1)) return nullptr;  // a stand-in: nothing is masked
    seen = Map<Greater>(n, n.ReshapeTo(mask, {shape[0], Dim(1), Dim(1), shape[1]}), 0);
  } else if (shape.size() == 3) {
    seen = Map<Greater>(n, n.ReshapeTo(mask, {shape[0], Dim(1), shape[1], shape[2]}), 0);
  } else {
    n.Unsupported(absl::StrCat("a mask of rank ", shape.size(), " is not supported; give it as [batch, keys]"));
    return nullptr;
  }
  return Select(n, seen, n.Scalar(DType::kF32, 0), n.Scalar(DType::kF32, filter));
}

void LearnHeads(OnnxNode& n, const Value* past, const Value* added) {
  if (RankOf(past) != 4 || RankOf(added) != 4) return;
  for (const size_t axis : {1, 3}) n.Learn(past->type.shape[axis], added->type.shape[axis]);
}

Value* CachedAt(OnnxNode& n, Value* past, Value* added, Value* starts, Value* total, CacheGrowth growth) {
  if (!n.ok()) return nullptr;
  const Dims before = past->type.shape, shape = added->type.shape;
  if (before.size() != 4 || past->type.dtype != added->type.dtype) {
    n.Invalid(
        absl::StrCat("the past is ", past->type.ToString(), ", the new keys or values are ", added->type.ToString()));
    return nullptr;
  }
  LearnHeads(n, past, added);
  Value* buffer = past;
  if (growth != CacheGrowth::kNone) {
    Value* zeros = n.Scalar(DTypeOf(past), 0);
    if (growth == CacheGrowth::kNew) {
      zeros = n.Emit(Expand{.x = zeros, .shape = {before[0], before[1], shape[2], before[3]}});
    } else {
      Value* fits = Map<LessEqual>(n, total, SizeAsScalar(n, before[2]));
      Value* missing = Select(n, fits, n.Scalar(DType::kI64, 0), SizeAsScalar(n, shape[2]));
      Value* sizes = n.Emit(Concat{.parts = {SizesAsRow(n, {before[0], before[1]}), n.ReshapeTo(missing, {Dim(1)}),
                                             SizesAsRow(n, {before[3]})}});
      zeros = n.Emit(ExpandTo{.x = zeros, .shape = sizes});
    }
    buffer = n.Emit(Concat{.parts = {past, zeros}, .axis = 2});
  }
  Value* place = Map<Add>(n, PositionsAlong(n, shape[2], 2, 4), Along(n, starts, 0, 4));
  Value* tuple[] = {PositionsAlong(n, shape[0], 0, 4), PositionsAlong(n, shape[1], 1, 4), place};
  std::vector<Value*> columns;
  for (Value* x : tuple) {
    x = n.Emit(Expand{.x = x, .shape = {shape[0], shape[1], shape[2], Dim(1)}});
    columns.push_back(x);
  }
  Value* places = n.Emit(Concat{.parts = columns, .axis = 3});
  return n.Emit(ScatterNd{.x = buffer, .indices = places, .updates = added});
}

}  // namespace llmc
