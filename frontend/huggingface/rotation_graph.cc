#include "frontend/huggingface/rotation_graph.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"

namespace llmc::hf {

RotationGraph::RotationGraph(const std::vector<RopeSpec>& ropes, const std::map<StepRole, Value*>& inputs,
                             BlockGraph* blocks)
    : ropes_(ropes), inputs_(inputs), blocks_(*blocks), b_(blocks->builder()) {
  b_.set_loc("model.rotary_emb");
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const RopeTable table = MakeRopeTable(ropes_[i].parameters, ropes_[i].dims);
    const std::string name = i == 0 ? "%inv_freq" : absl::StrCat("%inv_freq", i);
    Rotation rotation{.scale = table.scale};
    if (ropes_[i].parameters.type == HfRopeType::kDynamic) {
      MakeDynamic(ropes_[i], &rotation);
    } else {
      rotation.inv_freq = Frequencies(table.inv_freq, name);
      if (!table.long_inv_freq.empty()) rotation.long_inv_freq = Frequencies(table.long_inv_freq, name + ".long");
    }
    rotations_.push_back(rotation);
  }
}

Value* RotationGraph::Frequencies(const std::vector<float>& values, const std::string& name) {
  const Shape shape = {static_cast<int64_t>(values.size())};
  return b_.Add(Constant{.value = Tensor::FromValues(DType::kF32, shape, values)}, name);
}

Value* RotationGraph::Rotate(Value* x, const std::optional<size_t>& rope, int64_t head_dim, const std::string& name) {
  if (!rope.has_value()) return x;
  const RopeSpec& spec = ropes_[*rope];
  const Rotation& rotation = rotations_[*rope];
  const auto rotate = [&](Value* inv_freq, const std::string& out) {
    return b_.Add(Rope{.x = x,
                       .pos = Input(StepRole::kPositions),
                       .inv_freq = inv_freq,
                       .head_dim = head_dim,
                       .interleaved = spec.interleaved,
                       .scale = rotation.scale},
                  out);
  };
  if (rotation.cos != nullptr) return RotateBy(rotation, spec.interleaved, x, head_dim, name);
  if (rotation.long_inv_freq == nullptr) return rotate(rotation.inv_freq, name);
  Value* is_long = IsLong(spec.parameters.original_max_positions);
  Value* by_long = rotate(rotation.long_inv_freq, name + ".long");
  return b_.Add(Where{.condition = is_long, .x = by_long, .y = rotate(rotation.inv_freq, name + ".short")}, name);
}

Value* RotationGraph::Tempered(Value* q, double temperature, int64_t length, const std::string& name) {
  if (temperature == 0) return q;
  Value*& factor = temperatures_[{temperature, length}];
  if (factor == nullptr) {
    Value* count = b_.Add(Cast{.x = Input(StepRole::kPositions), .to = DType::kF32});
    count = b_.Add(Add{.lhs = count, .rhs = blocks_.Number(1, count)});
    Value* times =
        b_.Add(Floor{.x = b_.Add(Div{.lhs = count, .rhs = blocks_.Number(static_cast<double>(length), count)})});
    Value* log = b_.Add(Log{.x = b_.Add(Add{.lhs = times, .rhs = blocks_.Number(1, times)})});
    log = b_.Add(Mul{.lhs = log, .rhs = blocks_.Number(temperature, log)});
    factor = b_.Add(Add{.lhs = log, .rhs = blocks_.Number(1, log)});
    factor = b_.Add(Reshape{.x = factor, .shape = {Dim::Symbol("T"), Dim(1)}}, "%temperature");
  }
  if (q->type.dtype == DType::kF32) return b_.Add(Mul{.lhs = q, .rhs = factor}, name);
  Value* wide = b_.Add(Cast{.x = q, .to = DType::kF32});
  return b_.Add(Cast{.x = b_.Add(Mul{.lhs = wide, .rhs = factor}), .to = q->type.dtype}, name);
}

// i32[T]: tokens that the token's sequence has after this step.
Value* RotationGraph::LengthOfToken() {
  if (length_of_token_ != nullptr) return length_of_token_;
  // The sequence of token t is the number of those that have ended by t.
  Value* ends = b_.Add(
      Slice{.x = Input(StepRole::kStarts), .axis = 0, .start = {Dim(1)}, .end = {Dim::Symbol("S") + Dim(1)}}, "%ends");
  Value* tokens = b_.Add(DimsOf{.values = {Dim::Symbol("T")}, .scalar = true});
  Value* t = b_.Add(Range{.start = Whole(0), .limit = tokens, .delta = Whole(1)});
  t = b_.Add(Reshape{.x = b_.Add(Cast{.x = t, .to = DType::kI32}), .shape = {Dim::Symbol("T"), Dim(1)}}, "%t");
  Value* has_ended = b_.Add(Cast{.x = b_.Add(LessEqual{.lhs = ends, .rhs = t}), .to = DType::kI32});
  Value* sequence = b_.Add(ReduceSum{.x = has_ended, .axes = {1}}, "%sequence");
  length_of_token_ = b_.Add(Gather{.x = Input(StepRole::kLengths), .indices = sequence}, "%length");
  return length_of_token_;
}

// bool[T, 1]: whether the token's sequence is longer than `length`.
Value* RotationGraph::IsLong(int64_t length) {
  Value*& is_long = is_long_[length];
  if (is_long != nullptr) return is_long;
  Value* own = LengthOfToken();
  Value* longer = b_.Add(Less{.lhs = blocks_.Number(static_cast<double>(length), own), .rhs = own});
  is_long = b_.Add(Reshape{.x = longer, .shape = {Dim::Symbol("T"), Dim(1)}}, "%is_long");
  return is_long;
}

// Frequencies for the length of each token's sequence: the base grows with it past the length before
// scaling (transformers' "dynamic", after NTK-aware interpolation).
void RotationGraph::MakeDynamic(const RopeSpec& spec, Rotation* rotation) {
  const double r = static_cast<double>(spec.dims), f = spec.parameters.factor;
  const double m = static_cast<double>(spec.parameters.original_max_positions);
  Value* length = b_.Add(Cast{.x = LengthOfToken(), .to = DType::kF32});
  length = b_.Add(Max{.lhs = length, .rhs = blocks_.Number(m, length)});
  Value* stretch = b_.Add(Mul{.lhs = length, .rhs = blocks_.Number(f / m, length)});
  stretch = b_.Add(Log{.x = b_.Add(Sub{.lhs = stretch, .rhs = blocks_.Number(f - 1, stretch)})});
  Value* base = b_.Add(Mul{.lhs = stretch, .rhs = blocks_.Number(r / (r - 2), stretch)});
  base = b_.Add(Add{.lhs = base, .rhs = blocks_.Number(std::log(spec.parameters.theta), base)});
  std::vector<float> exponents;
  for (int64_t i = 0; i < spec.dims / 2; ++i) exponents.push_back(static_cast<float>(-2 * static_cast<double>(i) / r));
  const Dim t = Dim::Symbol("T");
  base = b_.Add(Reshape{.x = base, .shape = {t, Dim(1)}});
  Value* inv_freq = b_.Add(Exp{.x = b_.Add(Mul{.lhs = base, .rhs = Frequencies(exponents, "%exponents")})});
  Value* at = b_.Add(Cast{.x = Input(StepRole::kPositions), .to = DType::kF32});
  Value* angle = b_.Add(Mul{.lhs = b_.Add(Reshape{.x = at, .shape = {t, Dim(1)}}), .rhs = inv_freq});
  const auto table = [&](Value* x, const std::string& name) {
    x = b_.Add(Reshape{.x = x, .shape = {Dim(1), t, Dim(spec.dims / 2)}});
    return blocks_.dtype() == DType::kF32 ? x : b_.Add(Cast{.x = x, .to = blocks_.dtype()}, name);
  };
  rotation->cos = table(b_.Add(Cos{.x = angle}), "%cos");
  rotation->sin = table(b_.Add(Sin{.x = angle}), "%sin");
}

// By tables of each token.
Value* RotationGraph::RotateBy(const Rotation& rotation, bool interleaved, Value* x, int64_t head_dim,
                               const std::string& name) {
  const Dim t = Dim::Symbol("T"), heads(x->type.shape[1].value() / head_dim);
  Value* split = b_.Add(Reshape{.x = x, .shape = {Dim(1), t, heads, Dim(head_dim)}});
  split = b_.Add(Transpose{.x = split, .perm = {0, 2, 1, 3}});
  split = b_.Add(RotaryEmbedding{.x = split, .cos = rotation.cos, .sin = rotation.sin, .interleaved = interleaved});
  split = b_.Add(Transpose{.x = split, .perm = {0, 2, 1, 3}});
  return b_.Add(Reshape{.x = split, .shape = x->type.shape}, name);
}

Value* RotationGraph::Whole(int64_t number) {
  return b_.Add(Constant{.value = Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{number})});
}

}  // namespace llmc::hf
