// The ops of language models: rope, the paged KV cache and attention over it, silu_mul.
#include "ir/ops_lm.h"

#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "ir/kv_components.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::CheckStaticScales;
using ops::Elements;
using ops::Fail;
using ops::FindKv;
using ops::KvComponents;
using ops::KvMemory;
using ops::Result;
using ops::Str;
using ops::TypeOf;

bool IsI32Vector(const Value* value) { return TypeOf(value).dtype == DType::kI32 && TypeOf(value).rank() == 1; }

bool IsMatrix(const Value* value) { return IsFloat(TypeOf(value).dtype) && TypeOf(value).rank() == 2; }

// The cos and sin of the angles of each token.
class Rotation {
 public:
  Rotation(const Tensor& inv_freq, double scale, bool interleaved)
      : inv_freq_(inv_freq),
        half_(inv_freq.size()),
        scale_(static_cast<float>(scale)),
        interleaved_(interleaved),
        cos_(half_),
        sin_(half_) {}

  void SetPosition(int64_t position) {
    for (int64_t i = 0; i < half_; ++i) {
      const float angle = static_cast<float>(position) * inv_freq_[i];
      cos_[i] = std::cos(angle) * scale_;
      sin_[i] = std::sin(angle) * scale_;
    }
  }

  // Rotates one head; in and out may be the same.
  void Apply(const float* in, int64_t head_dim, float* out) const {
    const int64_t stride = interleaved_ ? 2 : 1, distance = interleaved_ ? 1 : half_;
    for (int64_t i = 0; i < half_; ++i) {
      const float x = in[i * stride], y = in[i * stride + distance];
      out[i * stride] = x * cos_[i] - y * sin_[i];
      out[i * stride + distance] = y * cos_[i] + x * sin_[i];
    }
    for (int64_t i = 2 * half_; i < head_dim; ++i) out[i] = in[i];
  }

 private:
  const Elements<float> inv_freq_;
  const int64_t half_;
  const float scale_;
  const bool interleaved_;
  std::vector<float> cos_, sin_;
};

absl::Status CheckRotation(absl::string_view label, const Value* pos, const Value* inv_freq, const Dim& tokens,
                           const Dim& head_dim, SizeCollector& sizes) {
  if (!IsI32Vector(pos) || !sizes.Same(TypeOf(pos).shape[0], tokens)) {
    return Fail(label, ": pos ", Str(pos), " is not i32[", tokens.ToString(), "]");
  }
  const TensorType& freq = TypeOf(inv_freq);
  const bool fits = freq.dtype == DType::kF32 && freq.rank() == 1 && freq.shape[0].is_constant() &&
                    head_dim.is_constant() && freq.shape[0].value() <= head_dim.value() / 2;
  if (!fits) {
    return Fail(label, ": inv_freq ", freq.ToString(), " is not f32[r / 2] with r at most head_dim ",
                head_dim.ToString());
  }
  return absl::OkStatus();
}

}  // namespace

// ---- rope ------------------------------------------------------------------------------
absl::StatusOr<Types> Rope::Infer(SizeCollector& sizes) const {
  const TensorType& type = TypeOf(x);
  const bool fits = IsMatrix(x) && type.shape[1].is_constant() && head_dim > 0 && type.shape[1].value() % head_dim == 0;
  if (!fits) return Fail("rope_c1: x ", Str(x), " is not [T, heads * ", head_dim, "]");
  if (absl::Status s = CheckRotation("rope_c2", pos, inv_freq, type.shape[0], Dim(head_dim), sizes); !s.ok()) return s;
  return Types{type};
}

absl::StatusOr<Tensors> Rope::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const int64_t tokens = in.shape()[0], width = in.shape()[1];
  const std::vector<int64_t> at = args[1].ToInts();
  if (args[1].size() != tokens) return Fail("rope: pos ", Str(args[1]), " for x ", Str(in));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("rope", in.dtype(), in.shape()));
  const Elements<float> from(in);
  Result<float> to(std::move(out));
  Rotation rotation(args[2], scale, interleaved);
  for (int64_t t = 0; t < tokens; ++t) {
    rotation.SetPosition(at[t]);
    for (int64_t i = 0; i < width; i += head_dim) {
      rotation.Apply(from.data() + t * width + i, head_dim, to.data() + t * width + i);
    }
  }
  return Tensors{to.Finish()};
}

// ---- the KV cache --------------------------------------------------------------------------
namespace {

// Keys and values that go to their slots. The names of the checks begin with the op's.
absl::StatusOr<KvComponents> CheckWrite(absl::string_view op, const KvWrite& write, SizeCollector& sizes) {
  ASSIGN_OR_RETURN(const KvComponents kv, FindKv(absl::StrCat(op, "_c1"), write.kv, write.keys, write.values));
  const Dim& tokens = IsMatrix(write.k) ? TypeOf(write.k).shape[0] : Dim();
  for (const auto& [value, component] : {std::pair(write.k, kv.keys), {write.v, kv.values}}) {
    const Dim width(component->Elements());
    const bool fits = IsMatrix(value) && TypeOf(value).dtype == kv.dtype() &&
                      sizes.Same(TypeOf(value).shape[1], width) && sizes.Same(TypeOf(value).shape[0], tokens);
    if (fits) continue;
    return Fail(op, "_c2: ", Str(value), " is not [T, ", width.ToString(), "] in the type of kv ", Str(write.kv));
  }
  if (!IsI32Vector(write.slots) || !sizes.Same(TypeOf(write.slots).shape[0], tokens)) {
    return Fail(op, "_c3: slots ", Str(write.slots), " are not i32[", tokens.ToString(), "]");
  }
  RETURN_IF_ERROR(CheckStaticScales(absl::StrCat(op, "_c4"), kv, write.k_scale, write.v_scale));
  return kv;
}

// The same in a run. `at` are the slots.
absl::Status CheckWritten(absl::string_view op, const EvalArgs& args, const std::vector<int64_t>& at,
                          const KvMemory& memory) {
  const int64_t tokens = static_cast<int64_t>(at.size());
  for (const auto& [i, row] : {std::pair<size_t, int64_t>(1, memory.keys.row()), {2, memory.values.row()}}) {
    if (args[i].shape() != Shape{tokens, row}) {
      return Fail(op, ": ", Str(args[i]), " is not [", tokens, ", ", row, "]");
    }
  }
  return memory.CheckSlots(op, at);
}

OpCost CostOfWrite(const Value* kv, absl::string_view keys, absl::string_view values, const Value* slots) {
  const KvComponents components = {kv->state->Find(keys), kv->state->Find(values)};
  return {.state_bytes = components.TokenBytes() * TypeOf(slots).shape[0], .operand_bytes = {0}};
}

}  // namespace

absl::StatusOr<Types> KvWrite::Infer(SizeCollector& sizes) const {
  RETURN_IF_ERROR(CheckWrite("kv_write", *this, sizes).status());
  return Types{};
}

OpCost KvWrite::Cost() const { return CostOfWrite(kv, keys, values, slots); }

absl::StatusOr<Tensors> KvWrite::Eval(const EvalArgs& args) const {
  KvMemory memory(kv, keys, values, *args.state, args.has(4) ? args.in[4] : nullptr,
                  args.has(5) ? args.in[5] : nullptr);
  const std::vector<int64_t> at = args[3].ToInts();
  RETURN_IF_ERROR(CheckWritten("kv_write", args, at, memory));
  const Elements<float> from_keys(args[1]), from_values(args[2]);
  for (size_t t = 0; t < at.size(); ++t) {
    KvMemory::Write(from_keys.data() + t * memory.keys.row(), at[t], &memory.keys);
    KvMemory::Write(from_values.data() + t * memory.values.row(), at[t], &memory.values);
  }
  return Tensors{};
}

// ---- paged_attention ---------------------------------------------------------------------------
absl::StatusOr<Types> PagedAttention::Infer(SizeCollector& sizes) const {
  ASSIGN_OR_RETURN(const KvComponents of, FindKv("paged_attention_c1", kv, keys, values));
  const TensorType& type = TypeOf(q);
  const bool fits = IsMatrix(q) && type.dtype == of.dtype() && type.shape[1].is_constant() &&
                    type.shape[1].value() > 0 && type.shape[1].value() % of.keys->Elements() == 0;
  if (!fits) {
    return Fail("paged_attention_c2: q ", Str(q), " is not [T, heads * ", of.head_dim(), "] with heads a multiple of ",
                of.heads(), ", in the type of kv ", Str(kv));
  }
  const TensorType& table = TypeOf(pages);
  if (table.dtype != DType::kI32 || table.rank() != 2)
    return Fail("paged_attention_c3: pages ", Str(pages), " are not i32[S, P]");
  if (!IsI32Vector(lens) || !sizes.Same(TypeOf(lens).shape[0], table.shape[0])) {
    return Fail("paged_attention_c4: lens ", Str(lens), " are not i32[", table.shape[0].ToString(), "]");
  }
  if (!IsI32Vector(starts) || !sizes.Same(TypeOf(starts).shape[0], table.shape[0] + Dim(1))) {
    return Fail("paged_attention_c5: starts ", Str(starts), " are not i32[", (table.shape[0] + Dim(1)).ToString(), "]");
  }
  if (window < 0 || chunk < 0 || !(softcap >= 0)) {
    return Fail("paged_attention_c6: window ", window, ", chunk ", chunk, " or softcap ", softcap, " is negative");
  }
  if (window > 0 && chunk > 0)
    return Fail("paged_attention_c8: window ", window, " and chunk ", chunk, " are both set");
  const int64_t query_heads = type.shape[1].value() / of.head_dim();
  for (const Value* of_heads : {sinks, slopes}) {
    if (of_heads == nullptr || TypeOf(of_heads) == TensorType{DType::kF32, {Dim(query_heads)}}) continue;
    return Fail("paged_attention_c7: ", of_heads == sinks ? "sinks " : "slopes ", Str(of_heads), " are not f32[",
                query_heads, "]");
  }
  RETURN_IF_ERROR(CheckStaticScales("paged_attention_c9", of, k_scale, v_scale));
  return Types{{type.dtype, {type.shape[0], Dim(type.shape[1].value() / of.head_dim() * of.value_dim())}}};
}

// Products of queries and keys, and of weights and values. The page table is mostly not read.
OpCost PagedAttention::Cost() const {
  const KvComponents of = {kv->state->Find(keys), kv->state->Find(values)};
  const Dim seen = Dim::Symbol(AttendedSize(kAttendedKeys, Range()));
  const Dim pairs = Dim::Symbol(AttendedSize(kAttendedPairs, Range()));
  const int64_t heads = TypeOf(q).shape[1].value() / of.head_dim();
  return {.flops = 2 * heads * (of.head_dim() + of.value_dim()) * Size(pairs),
          .state_bytes = of.TokenBytes() * seen,
          .operand_bytes = {std::nullopt, 0, 0}};
}

namespace {

// One sequence of a step: its tokens are [begin, end), at positions [length - (end - begin), length).
struct Sequence {
  int64_t begin = 0, end = 0, length = 0;
  int64_t first = 0;  // the first position that any of its tokens sees
  const int64_t* pages = nullptr;
};

absl::StatusOr<std::vector<Sequence>> Sequences(const EvalArgs& args, const std::vector<int64_t>& table,
                                                const CachedRows& layout, const AttendedRange& range) {
  const std::vector<int64_t> lens = args[3].ToInts(), starts = args[4].ToInts();
  const int64_t count = args[2].shape()[0], columns = args[2].shape()[1], tokens = args[0].shape()[0];
  if (args[3].size() != count || args[4].size() != count + 1) {
    return Fail("paged_attention: pages ", Str(args[2]), ", lens ", Str(args[3]), " and starts ", Str(args[4]),
                " do not fit");
  }
  if (starts.front() != 0 || starts.back() != tokens) {
    return Fail("paged_attention: starts are from ", starts.front(), " to ", starts.back(), ", not from 0 to ", tokens);
  }
  std::vector<Sequence> sequences;
  for (int64_t s = 0; s < count; ++s) {
    Sequence sequence{starts[s], starts[s + 1], lens[s], 0, table.data() + s * columns};
    const int64_t added = sequence.end - sequence.begin;
    if (added < 0) return Fail("paged_attention: starts ", starts[s], " and ", starts[s + 1], " are not in order");
    if (added == 0) continue;
    if (lens[s] < added || (lens[s] - 1) / layout.page_size() >= columns) {
      return Fail("paged_attention: len ", lens[s], " of sequence ", s, " with ", added, " tokens and ", columns,
                  " pages of ", layout.page_size());
    }
    sequence.first = range.First(lens[s] - added);
    for (int64_t p = sequence.first / layout.page_size(); p <= (lens[s] - 1) / layout.page_size(); ++p) {
      if (sequence.pages[p] < 0 || sequence.pages[p] >= layout.records()) {
        return Fail("paged_attention: page ", sequence.pages[p], " of sequence ", s, " is not one of ",
                    layout.records());
      }
    }
    sequences.push_back(sequence);
  }
  return sequences;
}

// Rows of keys or values of one head by position, as f32: in place, or converted or decoded.
class KvRows {
 public:
  KvRows(const CachedRows& kv, const Sequence& sequence, int64_t head)
      : first_(sequence.first), rows_(sequence.length - sequence.first) {
    const bool in_place = kv.InPlace(0, 0, 0) != nullptr;
    if (!in_place) buffer_.resize(rows_.size() * kv.head_dim());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const int64_t position = first_ + static_cast<int64_t>(i);
      const int64_t page = sequence.pages[position / kv.page_size()], token = position % kv.page_size();
      float* const row = buffer_.data() + i * kv.head_dim();
      if (!in_place) kv.Read(page, head, token, row);
      rows_[i] = in_place ? kv.InPlace(page, head, token) : row;
    }
  }
  // Those of the positions [begin, end).
  absl::Span<const float* const> Range(int64_t begin, int64_t end) const {
    return absl::MakeConstSpan(rows_).subspan(begin - first_, end - begin);
  }

 private:
  int64_t first_;
  std::vector<const float*> rows_;
  std::vector<float> buffer_;
};

constexpr float kNoSink = -std::numeric_limits<float>::infinity();

}  // namespace

absl::StatusOr<Tensors> PagedAttention::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  const KvMemory memory(kv, keys, values, args[1], args.has(7) ? args.in[7] : nullptr,
                        args.has(8) ? args.in[8] : nullptr);
  const int64_t head_dim = memory.keys.head_dim(), value_dim = memory.values.head_dim(), kv_heads = memory.keys.heads();
  const int64_t width = in.shape()[1], group = width / memory.keys.row(), out_width = group * memory.values.row();
  const std::vector<int64_t> table = args[2].ToInts();
  ASSIGN_OR_RETURN(std::vector<Sequence> sequences, Sequences(args, table, memory.keys, Range()));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("paged_attention", in.dtype(), {in.shape()[0], out_width}));
  const Elements<float> queries(in);
  const float* const of_sinks = args.has(5) ? args[5].data<float>() : nullptr;
  const float* const of_slopes = args.has(6) ? args[6].data<float>() : nullptr;
  Result<float> result(std::move(out));
  float* to = result.data();

  double work = 0;
  for (const Sequence& s : sequences) {
    work += 4.0 * static_cast<double>(s.end - s.begin) * static_cast<double>(s.length - s.first) * width;
  }
  // One task is one sequence and one KV head. A token's sums are over its positions in order, whatever else is in the
  // step.
  const int64_t tasks = static_cast<int64_t>(sequences.size()) * kv_heads;
  ops::ParallelFor(tasks, work, [&](int64_t begin, int64_t end) {
    std::vector<float> scores;
    for (int64_t task = begin; task < end; ++task) {
      const Sequence& sequence = sequences[task / kv_heads];
      const int64_t kv_head = task % kv_heads;
      const KvRows k(memory.keys, sequence, kv_head), v(memory.values, sequence, kv_head);
      for (int64_t t = sequence.begin; t < sequence.end; ++t) {
        const int64_t position = sequence.length - (sequence.end - t);
        const int64_t first = Range().First(position);
        scores.resize(position + 1 - first);
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const float* query = queries.data() + t * width + h * head_dim;
          ops::DotRows(query, k.Range(first, position + 1), head_dim, scores.data());
          for (float& score : scores) score *= static_cast<float>(scale);
          ops::AttentionWeights({.softcap = static_cast<float>(softcap),
                                 .slope = of_slopes == nullptr ? 0 : of_slopes[h],
                                 .sink = of_sinks == nullptr ? kNoSink : of_sinks[h]},
                                absl::MakeSpan(scores));
          ops::SumScaled(scores.data(), v.Range(first, position + 1), value_dim, to + t * out_width + h * value_dim);
        }
      }
    }
  });
  return Tensors{result.Finish()};
}

// ---- silu_mul --------------------------------------------------------------------------------------
absl::StatusOr<Types> SiluMul::Infer() const {
  TensorType out = TypeOf(gate_up);
  const bool fits =
      IsFloat(out.dtype) && out.rank() > 0 && out.shape.back().is_constant() && out.shape.back().value() % 2 == 0;
  if (!fits) return Fail("silu_mul_c1: ", Str(gate_up), " does not end in an even axis of floats");
  out.shape.back() = Dim(out.shape.back().value() / 2);
  return Types{out};
}

absl::StatusOr<Tensors> SiluMul::Eval(const EvalArgs& args) const {
  const Tensor& in = args[0];
  Shape shape = in.shape();
  const int64_t n = shape.back() /= 2;
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("silu_mul", in.dtype(), shape));
  const Elements<float> from(in);
  Result<float> result(std::move(out));
  float* to = result.data();
  const int64_t rows = ops::SizeOf(absl::MakeConstSpan(shape).first(shape.size() - 1));
  ops::ParallelFor(rows, 32.0 * static_cast<double>(rows) * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = from.data() + r * 2 * n;
      for (int64_t i = 0; i < n; ++i) to[r * n + i] = gate[i] / (1.0f + std::exp(-gate[i])) * gate[n + i];
    }
  });
  return Tensors{result.Finish()};
}

}  // namespace llmc
