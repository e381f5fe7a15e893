// attention and rotary_embedding as ONNX defines them, and what they share with paged_attention.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "ir/ops_elementwise.h"
#include "ir/ops_internal.h"
#include "ir/ops_lm.h"

namespace llmc {

using ops::Elements;
using ops::Fail;
using ops::Result;
using ops::Str;
using ops::TypeOf;

namespace {

// exp(score - top) / sum; all 0 if `top`, the largest score, is -inf: a row that sees nothing.
// `sink`: what is in the sum beside them, before its exponential.
template <class X>
void SoftmaxScores(X top, absl::Span<X> scores, X sink = -std::numeric_limits<X>::infinity()) {
  if (top == -std::numeric_limits<X>::infinity()) {  // sees nothing
    std::fill(scores.begin(), scores.end(), X{0});
    return;
  }
  X sum = std::exp(sink - top);
  for (X& score : scores) {
    score = std::exp(score - top);
    sum += score;
  }
  const X inverse = 1 / sum;
  for (X& score : scores) score *= inverse;
}

}  // namespace

void ops::AttentionWeights(const ScoreForm& form, absl::Span<float> scores) {
  float top = form.sink;
  for (size_t i = 0; i < scores.size(); ++i) {
    float& score = scores[i];
    if (form.softcap != 0) score = form.softcap * std::tanh(score / form.softcap);
    if (form.slope != 0) score += form.slope * (static_cast<float>(i) - static_cast<float>(scores.size() - 1));
    top = std::max(top, score);
  }
  SoftmaxScores(top, scores, form.sink);
}

absl::StatusOr<Types> Attention::Infer(SizeCollector& sizes) const {
  const TensorType &a = TypeOf(q), &b = TypeOf(k), &c = TypeOf(v);
  const bool floats = IsFloat(a.dtype) && a.dtype == b.dtype && a.dtype == c.dtype;
  if (!floats || a.rank() != 4 || b.rank() != 4 || c.rank() != 4) {
    return Fail("attention_c1: does not take ", Str(q), ", ", Str(k), " and ", Str(v));
  }
  const auto same = [&](const TensorType& x, const TensorType& y, int axis) {
    return sizes.Same(x.shape[axis], y.shape[axis]);
  };
  if (!same(a, b, 0) || !same(a, b, 3) || !same(b, c, 1) || !same(b, c, 2) || !same(a, c, 0)) {
    return Fail("attention_c2: q ", Str(q), ", k ", Str(k), " and v ", Str(v), " do not fit each other");
  }
  const Dim &heads = a.shape[1], &kv_heads = b.shape[1];
  if (heads.is_constant() && kv_heads.is_constant() &&
      (kv_heads.value() == 0 || heads.value() % kv_heads.value() != 0)) {
    return Fail("attention_c3: ", heads.ToString(), " heads of q are no multiple of ", kv_heads.ToString(), " of k");
  }
  if (mask != nullptr) {
    const TensorType& m = TypeOf(mask);
    const Dims scores = {a.shape[0], heads, a.shape[2], b.shape[2]};
    absl::StatusOr<Dims> all = BroadcastDims(m.shape, scores);
    bool fits = all.ok() && m.rank() <= 4 && (m.dtype == DType::kBool || IsFloat(m.dtype));
    for (size_t i = 0; fits && i < 4; ++i) fits = ops::MayBeEqual((*all)[i], scores[i]);
    if (!fits) return Fail("attention_c4: mask ", Str(mask), " does not broadcast to [", DimsToString(scores), "]");
    sizes.Broadcast({m.shape, scores}, scores);
  }
  if (!(softcap >= 0)) return Fail("attention_c5: softcap ", softcap, " is negative");
  return Types{{a.dtype, {a.shape[0], heads, a.shape[2], c.shape[3]}}};
}

namespace {

// Twice the pairs of a query and a key that positions leave: without `causal`, all.
Size TwicePairs(const Attention& op, const Size& queries, const Size& keys) {
  if (!op.causal) return 2 * queries * keys;
  // A triangle, of queries each of which sees one key more than the one before, is below or beside a rectangle: of
  // queries that see all keys, or of keys that all of its queries see.
  const Size side = ops::Smaller(queries, keys);
  return side * (side + 1) + 2 * (op.causal_from_end ? side * (keys - side) : (queries - side) * keys);
}

}  // namespace

// What a mask hides is among it.
OpCost Attention::Cost() const {
  const Dims &a = TypeOf(q).shape, &b = TypeOf(k).shape, &c = TypeOf(v).shape;
  OpCost cost;
  cost.flops = Size(a[0]) * a[1] * (Size(a[3]) + c[3]) * TwicePairs(*this, a[2], b[2]);
  if (causal && !causal_from_end) {  // the last query sees no key after its own position
    const Size rows = Size(b[0]) * b[1] * ops::Smaller(a[2], b[2]) * (DTypeBits(TypeOf(k).dtype) / 8);
    cost.operand_bytes = {std::nullopt, rows * b[3], rows * c[3]};
  }
  return cost;
}

namespace {

absl::Status CheckAttention(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Shape &a = q.shape(), &b = k.shape(), &c = v.shape();
  const bool fits = a[0] == b[0] && a[0] == c[0] && b[1] == c[1] && b[2] == c[2] && a[3] == b[3] &&
                    (a[1] == 0 || (b[1] > 0 && a[1] % b[1] == 0));
  return fits ? absl::OkStatus() : Fail("attention: q ", Str(q), ", k ", Str(k), " and v ", Str(v), " do not fit");
}

// In X; `mask_strides`: of the mask under the scores.
template <class X>
Tensor Attend(const Attention& op, const EvalArgs& args, const Shape& mask_strides, Tensor out) {
  const Shape &shape = args[0].shape(), &values_shape = args[2].shape();
  const int64_t heads = shape[1], kv_heads = values_shape[1], queries = shape[2], keys = values_shape[2];
  const int64_t dim = shape[3], value_dim = values_shape[3];
  const bool masked = args.has(3), boolean = masked && args[3].dtype() == DType::kBool;
  const Elements<X> q_rows(args[0]), k_rows(args[1]), v_rows(args[2]);
  const Elements<X> bias(boolean || !masked ? Tensor(ops::kNativeType<X>, {0}) : args[3]);
  const uint8_t* visible = boolean ? args[3].data<uint8_t>() : nullptr;
  Result<X> result(std::move(out));
  X* to = result.data();
  constexpr X kHidden = -std::numeric_limits<X>::infinity();

  const double work = 4.0 * static_cast<double>(shape[0]) * heads * queries * keys * (dim + value_dim);
  ops::ParallelFor(shape[0] * heads, work, [&](int64_t begin, int64_t end) {
    std::vector<X> scores(keys);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t b = task / heads, h = task % heads, kv_head = b * kv_heads + h / (heads / kv_heads);
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t last = op.causal ? i + (op.causal_from_end ? keys - queries : 0) : keys - 1;
        X top = kHidden;
        for (int64_t j = 0; j < keys; ++j) {
          const int64_t at =
              masked ? b * mask_strides[0] + h * mask_strides[1] + i * mask_strides[2] + j * mask_strides[3] : 0;
          if (j > last || (boolean && !visible[at])) {
            scores[j] = kHidden;
            continue;
          }
          X score =
              ops::Dot(q_rows.data() + (task * queries + i) * dim, k_rows.data() + (kv_head * keys + j) * dim, dim) *
              static_cast<X>(op.scale);
          if (op.softcap != 0) score = static_cast<X>(op.softcap) * std::tanh(score / static_cast<X>(op.softcap));
          scores[j] = masked && !boolean ? score + bias[at] : score;
          top = std::max(top, scores[j]);
        }
        SoftmaxScores(top, absl::MakeSpan(scores));
        X* row = to + (task * queries + i) * value_dim;
        for (int64_t j = 0; j < keys; ++j) {
          if (scores[j] != 0)
            ops::AddScaled(scores[j], v_rows.data() + (kv_head * keys + j) * value_dim, value_dim, row);
        }
      }
    }
  });
  return result.Finish();
}

}  // namespace

absl::StatusOr<Tensors> Attention::Eval(const EvalArgs& args) const {
  RETURN_IF_ERROR(CheckAttention(args[0], args[1], args[2]));
  const Shape& shape = args[0].shape();
  Shape mask_strides;
  if (args.has(3)) {
    const Shape scores = {shape[0], shape[1], shape[2], args[2].shape()[2]};
    ASSIGN_OR_RETURN(Shape all, ops::BroadcastShapes("attention", args[3].shape(), scores));
    if (all != scores) return Fail("attention: mask ", Str(args[3]), " is larger than ", ShapeToString(scores));
    mask_strides = ops::BroadcastStrides(args[3].shape(), scores);
  }
  ASSIGN_OR_RETURN(Tensor out,
                   ops::NewTensor("attention", args[0].dtype(), {shape[0], shape[1], shape[2], args[2].shape()[3]}));
  return Tensors{args[0].dtype() == DType::kF64 ? Attend<double>(*this, args, mask_strides, std::move(out))
                                                : Attend<float>(*this, args, mask_strides, std::move(out))};
}

absl::StatusOr<Types> PackedAttention::Infer(SizeCollector& sizes) const {
  const TensorType &a = TypeOf(q), &b = TypeOf(k), &c = TypeOf(v), &bounds = TypeOf(starts);
  const auto is_rows = [&](const TensorType& x) {
    return x.dtype == a.dtype && x.rank() == 2 && x.shape[1].is_constant() && sizes.Same(x.shape[0], a.shape[0]);
  };
  if (!IsFloat(a.dtype) || a.rank() != 2 || !is_rows(a) || !is_rows(b) || !is_rows(c)) {
    return Fail("packed_attention_c1: does not take ", Str(q), ", ", Str(k), " and ", Str(v));
  }
  const auto heads_of = [&](const TensorType& x) {
    return head_dim > 0 && x.shape[1].value() % head_dim == 0 ? x.shape[1].value() / head_dim : 0;
  };
  const int64_t heads = heads_of(a), kv_heads = heads_of(b);
  if (heads == 0 || kv_heads == 0 || heads % kv_heads != 0 || c.shape[1].value() % kv_heads != 0) {
    return Fail("packed_attention_c2: q ", Str(q), ", k ", Str(k), " and v ", Str(v), " have no heads of ", head_dim,
                " that fit each other");
  }
  if (bounds.dtype != DType::kI32 || bounds.rank() != 1) {
    return Fail("packed_attention_c3: starts ", Str(starts), " are not i32[texts + 1]");
  }
  if (window < 0 || !(softcap >= 0)) {
    return Fail("packed_attention_c4: window ", window, " or softcap ", softcap, " is negative");
  }
  return Types{{a.dtype, {a.shape[0], Dim(heads * (c.shape[1].value() / kv_heads))}}};
}

// At the least: each token sees itself; how long texts are, only `starts` say.
OpCost PackedAttention::Cost() const {
  const int64_t width = TypeOf(q).shape[1].value(), kv_heads = TypeOf(k).shape[1].value() / head_dim;
  const int64_t out = width / head_dim * (TypeOf(v).shape[1].value() / kv_heads);
  return {.flops = 2 * (width + out) * Size(TypeOf(q).shape[0])};
}

namespace {

absl::Status CheckStarts(const std::vector<int64_t>& starts, int64_t tokens) {
  if (starts.empty() || starts.front() != 0 || starts.back() != tokens ||
      !std::is_sorted(starts.begin(), starts.end())) {
    return Fail("packed_attention: starts are not in order from 0 to ", tokens);
  }
  return absl::OkStatus();
}

template <class X>
Tensor AttendPacked(const PackedAttention& op, const EvalArgs& args, const std::vector<int64_t>& starts, Tensor out) {
  const int64_t width = args[0].shape()[1], key_width = args[1].shape()[1], value_width = args[2].shape()[1];
  const int64_t heads = width / op.head_dim, kv_heads = key_width / op.head_dim, value_dim = value_width / kv_heads;
  const Elements<X> q_rows(args[0]), k_rows(args[1]), v_rows(args[2]);
  Result<X> result(std::move(out));
  X* to = result.data();
  const int64_t texts = static_cast<int64_t>(starts.size()) - 1;
  double work = 0;
  for (int64_t s = 0; s < texts; ++s) {
    work += 4.0 * static_cast<double>(starts[s + 1] - starts[s]) * (starts[s + 1] - starts[s]) * width;
  }
  ops::ParallelFor(texts * heads, work, [&](int64_t begin, int64_t end) {
    std::vector<X> scores;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t text = task / heads, h = task % heads, kv_head = h / (heads / kv_heads);
      for (int64_t t = starts[text]; t < starts[text + 1]; ++t) {
        const int64_t first = op.window == 0 ? starts[text] : std::max(starts[text], t - op.window);
        const int64_t past = op.window == 0 ? starts[text + 1] : std::min(starts[text + 1], t + op.window + 1);
        const int64_t last = op.causal ? t : past - 1;
        scores.resize(last + 1 - first);
        for (int64_t j = first; j <= last; ++j) {
          X score = ops::Dot(q_rows.data() + t * width + h * op.head_dim,
                             k_rows.data() + j * key_width + kv_head * op.head_dim, op.head_dim) *
                    static_cast<X>(op.scale);
          if (op.softcap != 0) score = static_cast<X>(op.softcap) * std::tanh(score / static_cast<X>(op.softcap));
          scores[j - first] = score;
        }
        SoftmaxScores(*std::max_element(scores.begin(), scores.end()), absl::MakeSpan(scores));
        for (int64_t j = first; j <= last; ++j) {
          ops::AddScaled(scores[j - first], v_rows.data() + j * value_width + kv_head * value_dim, value_dim,
                         to + (t * heads + h) * value_dim);
        }
      }
    }
  });
  return result.Finish();
}

}  // namespace

absl::StatusOr<Tensors> PackedAttention::Eval(const EvalArgs& args) const {
  const int64_t tokens = args[0].shape()[0], heads = args[0].shape()[1] / head_dim;
  const int64_t value_dim = args[2].shape()[1] / (args[1].shape()[1] / head_dim);
  if (args[1].shape()[0] != tokens || args[2].shape()[0] != tokens) {
    return Fail("packed_attention: q ", Str(args[0]), ", k ", Str(args[1]), " and v ", Str(args[2]), " do not fit");
  }
  const std::vector<int64_t> bounds = args[3].ToInts();
  RETURN_IF_ERROR(CheckStarts(bounds, tokens));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("packed_attention", args[0].dtype(), {tokens, heads * value_dim}));
  return Tensors{args[0].dtype() == DType::kF64 ? AttendPacked<double>(*this, args, bounds, std::move(out))
                                                : AttendPacked<float>(*this, args, bounds, std::move(out))};
}

absl::StatusOr<Types> RotaryEmbedding::Infer(SizeCollector& sizes) const {
  const TensorType &type = TypeOf(x), &c = TypeOf(cos), &s = TypeOf(sin);
  if (!IsFloat(type.dtype) || type.rank() != 4)
    return Fail("rotary_embedding_c1: x ", Str(x), " is not [B, heads, L, D]");
  const bool fits =
      c.dtype == type.dtype && s.dtype == type.dtype && c.rank() == 3 && sizes.Same(s.shape, c.shape) &&
      sizes.Same(c.shape[0], type.shape[0]) && sizes.Same(c.shape[1], type.shape[2]) &&
      !(c.shape[2].is_constant() && type.shape[3].is_constant() && c.shape[2].value() > type.shape[3].value() / 2);
  if (!fits) {
    return Fail("rotary_embedding_c2: cos ", Str(cos), " and sin ", Str(sin), " are not [B, L, r / 2] for x ", Str(x));
  }
  const Size twice = Size(2) * Size(c.shape[2]), dim = type.shape[3];
  if (!twice.is_number() || !dim.is_number()) sizes.Within(0, twice, dim, twice);
  return Types{type};
}

namespace {

template <class X>
Tensor Rotate(const RotaryEmbedding& op, const EvalArgs& args, Tensor out) {
  const Shape &shape = args[0].shape(), &table = args[1].shape();
  const int64_t heads = shape[1], length = shape[2], dim = shape[3], half = table[2];
  const Elements<X> from(args[0]), cosines(args[1]), sines(args[2]);
  Result<X> result(std::move(out));
  X* to = result.data();
  const int64_t stride = op.interleaved ? 2 : 1, distance = op.interleaved ? 1 : half;
  for (int64_t row = 0; row < shape[0] * heads * length; ++row) {
    const int64_t angle = (row / (heads * length) * length + row % length) * half;
    const X* in = from.data() + row * dim;
    X* rotated = to + row * dim;
    for (int64_t i = 0; i < half; ++i) {
      const X a = in[i * stride], b = in[i * stride + distance];
      rotated[i * stride] = a * cosines[angle + i] - b * sines[angle + i];
      rotated[i * stride + distance] = a * sines[angle + i] + b * cosines[angle + i];
    }
    for (int64_t i = 2 * half; i < dim; ++i) rotated[i] = in[i];
  }
  return result.Finish();
}

}  // namespace

absl::StatusOr<Tensors> RotaryEmbedding::Eval(const EvalArgs& args) const {
  const Shape &shape = args[0].shape(), &table = args[1].shape();
  const int64_t length = shape[2], dim = shape[3], half = table[2];
  if (table != args[2].shape() || table[0] != shape[0] || table[1] != length || half > dim / 2) {
    return Fail("rotary_embedding: cos ", Str(args[1]), " and sin ", Str(args[2]), " do not fit x ", Str(args[0]));
  }
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("rotary_embedding", args[0].dtype(), shape));
  return Tensors{args[0].dtype() == DType::kF64 ? Rotate<double>(*this, args, std::move(out))
                                                : Rotate<float>(*this, args, std::move(out))};
}

}  // namespace llmc
