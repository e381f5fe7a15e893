#include "frontend/huggingface/block_graph.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"

namespace llmc::hf {
namespace {

// The number that normally distributed ones are below with this probability, which is neither 0 nor 1.
double NormalQuantile(double probability) {
  double low = -40, high = 40;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::numbers::sqrt2) / 2 < probability ? low : high) = middle;
  }
  return high;
}

}  // namespace

Value* BlockGraph::Stored(const std::string& name, const std::string& tensor, const Shape& shape, double mean) {
  Value*& weight = stored_[tensor];
  if (weight == nullptr) weight = weights_.Add(name, tensor, shape, mean);
  return weight;
}

Value* BlockGraph::Weight(const std::string& name, const std::string& tensor, const Shape& shape) {
  Value* weight = Stored(name, tensor, shape);
  if (weight->type.encoding != nullptr) {
    weight = b_.Add(Decode{.x = weight}, absl::StrCat("%", weight->name.substr(1), ".decoded"));
  }
  if (weight == nullptr || weight->type.dtype == dtype_) return weight;
  return b_.Add(Cast{.x = weight, .to = dtype_}, absl::StrCat("%", weight->name.substr(1), ".cast"));
}

Value* BlockGraph::Factor(const std::string& name, const std::string& tensor, const Shape& shape) {
  Value* weight = Stored(name, tensor, shape);
  return weight->type.encoding != nullptr && weight->type.dtype == dtype_ ? weight : Weight(name, tensor, shape);
}

Value* BlockGraph::Embedding(const std::string& name, const std::string& module, int64_t rows, int64_t width,
                             DType dtype) {
  b_.set_loc(module);
  const LinearModule as_linear = {.name = module, .out = rows, .in = width, .is_embedding = true};
  if (quantized_.HasCodes(as_linear)) {
    const std::optional<LinearWeight> weight = quantized_.Add(name, as_linear, dtype);
    const bool is_plain = weight.has_value() && weight->order == nullptr && weight->multiplier == nullptr;
    if (is_plain) return weight->value;
    if (weight.has_value()) {
      weights_.Complain(module, module + ": an embedding with g_idx or pre_quant_scale is not supported");
    }
  }
  return Stored(name, module + ".weight", {rows, width});
}

Value* BlockGraph::Rows(Value* table, Value* indices, const std::string& name) {
  if (table->type.encoding == nullptr) return b_.Add(Gather{.x = table, .indices = indices}, name);
  Value* rows = b_.Add(Gather{.x = table, .indices = indices}, name + ".encoded");
  return rows == nullptr ? nullptr : b_.Add(Decode{.x = rows}, name);
}

Value* BlockGraph::Linear(const LinearSpec& linear, Value* x, int64_t in, int64_t out, const std::string& prefix,
                          const std::string& weight, const std::string& name) {
  const LinearModule module = {.name = linear.module, .out = out, .in = in, .is_router = linear.is_router};
  Value* product = LinearOf(module, x, absl::StrCat(prefix, "w", weight),
                            linear.bias && !name.empty() ? name + ".mm" : name, linear.is_transposed);
  if (!linear.bias) return product;
  Value* bias = Weight(absl::StrCat(prefix, "b", weight), linear.module + ".bias", {out});
  return b_.Add(Add{.lhs = product, .rhs = bias}, name);
}

std::optional<LinearWeight> BlockGraph::Quantized(const std::string& name, const LinearModule& module) {
  const auto [at, is_new] = linear_.try_emplace(module.name);
  if (is_new) at->second = quantized_.Add(name, module, dtype_);
  return at->second;
}

Value* BlockGraph::Ordered(Value* x, Value* order) {
  if (order == nullptr) return x;
  Value*& ordered = ordered_[{x, order}];
  if (ordered == nullptr) ordered = b_.Add(Gather{.x = x, .indices = order, .axis = x->type.rank() - 1});
  return ordered;
}

Value* BlockGraph::Multiplied(Value* x, Value* multiplier) {
  if (multiplier == nullptr || x == nullptr) return x;
  Value*& product = multiplied_[{x, multiplier}];
  if (product == nullptr) {
    const DType dtype = x->type.dtype;
    Value* factor = multiplier->type.dtype == dtype ? multiplier : b_.Add(Cast{.x = multiplier, .to = dtype});
    product = b_.Add(Mul{.lhs = x, .rhs = factor});
  }
  return product;
}

Value* BlockGraph::InputOf(const LinearWeight& weight, Value* x) {
  x = Ordered(Multiplied(x, weight.multiplier), weight.order);
  return weight.input.has_value() && x != nullptr ? quantized_.inputs().Encoded(x, *weight.input) : x;
}

Value* BlockGraph::LinearOf(const LinearModule& module, Value* x, const std::string& weight, const std::string& name,
                            bool is_transposed) {
  b_.set_loc(module.name);
  // What is quantized lies [out, in] in any case.
  if (const std::optional<LinearWeight> w = Quantized(weight, module)) {
    return b_.Add(llmc::Linear{.lhs = InputOf(*w, x), .rhs = w->value, .transpose_rhs = true}, name);
  }
  const Shape shape = is_transposed ? Shape{module.in, module.out} : Shape{module.out, module.in};
  Value* w = Factor(weight, module.name + ".weight", shape);
  return b_.Add(llmc::Linear{.lhs = x, .rhs = w, .transpose_rhs = !is_transposed}, name);
}

Value* BlockGraph::PlainWeight(const std::string& name, const LinearModule& module) {
  const std::optional<LinearWeight> w = Quantized(name, module);
  if (!w.has_value()) return Weight(name, module.name + ".weight", {module.out, module.in});
  if (w->input.has_value()) {
    weights_.Note(absl::StrCat(module.name, ": its input stays in floats: its weight is joined with another"));
  }
  Value* numbers = b_.Add(Decode{.x = w->value});
  if (w->order != nullptr) {
    // Back in the order of x: the sorted places of the order are those of its columns.
    numbers = b_.Add(Gather{.x = numbers, .indices = b_.Add(ArgSort{.x = w->order}), .axis = 1});
  }
  return Multiplied(numbers, w->multiplier);
}

// In f32, and converted: where a model is computed in another type than that of its weights, the number is not rounded
// to the latter first.
Value* BlockGraph::Number(double number, const Value* like) {
  const DType dtype = like->type.dtype;
  const bool is_narrow = IsFloat(dtype) && DTypeBits(dtype) == 16;
  const Tensor value = Tensor::FromValues(is_narrow ? DType::kF32 : dtype, {}, std::vector<double>{number});
  Value* constant = b_.Add(Constant{.value = value});
  return is_narrow ? b_.Add(Cast{.x = constant, .to = dtype}) : constant;
}

Value* BlockGraph::Normalized(const NormSpec& norm, Value* x, Value* weight, Value* bias, const std::string& name) {
  if (norm.kind == NormKind::kRms) return b_.Add(RmsNorm{.x = x, .weight = weight, .eps = norm.eps}, name);
  const int64_t axis = x->type.rank() - 1;
  return b_.Add(LayerNorm{.x = x, .weight = weight, .bias = bias, .axis = axis, .eps = norm.eps}, name);
}

Value* BlockGraph::Norm(const NormSpec& norm, Value* x, int64_t size, const std::string& weight,
                        const std::string& name) {
  b_.set_loc(norm.module);
  Value* w = nullptr;
  if (!norm.has_weight) {
    w = b_.Add(Constant{.value = Tensor::FromValues(dtype_, {size}, std::vector<double>(size, 1.0))});
  } else if (norm.plus_one) {
    // In f32, as transformers adds it.
    w = Stored(weight, norm.module + ".weight", {size});
    if (w->type.dtype != DType::kF32) w = b_.Add(Cast{.x = w, .to = DType::kF32});
    w = b_.Add(Add{.lhs = w, .rhs = Number(1, w)});
  } else {
    w = Stored(weight, norm.module + ".weight", {size}, /*mean=*/1);
    if (w->type.dtype != dtype_) {
      w = b_.Add(Cast{.x = w, .to = dtype_}, absl::StrCat("%", w->name.substr(1), ".cast"));
    }
  }
  Value* bias = norm.bias ? Weight(weight + ".bias", norm.module + ".bias", {size}) : nullptr;
  return Normalized(norm, x, w, bias, name);
}

Value* BlockGraph::Act(Activation activation, Value* x, const std::string& name) {
  switch (activation) {
    case Activation::kSilu:
      return b_.Add(Silu{.x = x}, name);
    case Activation::kGelu:
      return b_.Add(Gelu{.x = x}, name);
    case Activation::kGeluTanh:
      return b_.Add(GeluTanh{.x = x}, name);
    case Activation::kQuickGelu:
      return b_.Add(Mul{.lhs = x, .rhs = b_.Add(Sigmoid{.x = b_.Add(Mul{.lhs = x, .rhs = Number(1.702, x)})})}, name);
    case Activation::kRelu:
      return b_.Add(Relu{.x = x}, name);
    case Activation::kRelu2: {
      Value* relu = b_.Add(Relu{.x = x});
      return b_.Add(Mul{.lhs = relu, .rhs = relu}, name);
    }
    case Activation::kTanh:
      return b_.Add(Tanh{.x = x}, name);
  }
  return nullptr;
}

Value* BlockGraph::Part(Value* x, int64_t begin, int64_t end, const std::string& name) {
  const int64_t axis = x->type.rank() - 1;
  return b_.Add(Slice{.x = x, .axis = axis, .start = {Dim(begin)}, .end = {Dim(end)}}, name);
}

Value* BlockGraph::Mlp(const MlpSpec& mlp, Value* x, int64_t hidden, const std::string& prefix,
                       const std::string& index) {
  const int64_t size = mlp.size;
  const std::string module = mlp.down.module.substr(0, mlp.down.module.rfind('.'));
  Value* out = nullptr;
  if (mlp.is_fused) {
    Value* both = Linear(mlp.up, x, hidden, 2 * size, prefix, "gate_up", "%gu" + index);
    b_.set_loc(module);
    if (mlp.activation == Activation::kSilu) {
      out = b_.Add(SiluMul{.gate_up = both}, "%m" + index);
    } else {
      Value* act = Act(mlp.activation, Part(both, 0, size, "%g" + index), "%s" + index);
      out = b_.Add(Mul{.lhs = act, .rhs = Part(both, size, 2 * size, "%u" + index)}, "%m" + index);
    }
  } else if (mlp.gate.has_value()) {
    Value* gate = Linear(*mlp.gate, x, hidden, size, prefix, "gate", "%g" + index);
    Value* up = Linear(mlp.up, x, hidden, size, prefix, "up", "%u" + index);
    b_.set_loc(module);
    Value* act = Act(mlp.activation, Sparse(mlp.sparsity, gate, "%gs" + index), "%s" + index);
    out = b_.Add(Mul{.lhs = act, .rhs = up}, "%m" + index);
  } else {
    Value* up = Linear(mlp.up, x, hidden, size, prefix, "up", "%u" + index);
    b_.set_loc(module);
    out = Act(mlp.activation, up, "%m" + index);
  }
  return Linear(mlp.down, out, size, hidden, prefix, "down", "%d" + index);
}

Value* BlockGraph::Sparse(double sparsity, Value* gate, const std::string& name) {
  if (sparsity == 0) return gate;
  const std::vector<int64_t> axes = {gate->type.rank() - 1};
  Value* x = gate->type.dtype == DType::kF32 ? gate : b_.Add(Cast{.x = gate, .to = DType::kF32});
  Value* rest = b_.Add(Sub{.lhs = x, .rhs = b_.Add(ReduceMean{.x = x, .axes = axes, .keep_dims = true})});
  Value* variance = b_.Add(ReduceMean{.x = b_.Add(Mul{.lhs = rest, .rhs = rest}), .axes = axes, .keep_dims = true});
  Value* cut = b_.Add(Mul{.lhs = b_.Add(Sqrt{.x = variance}), .rhs = Number(NormalQuantile(sparsity), variance)});
  rest = b_.Add(Sub{.lhs = rest, .rhs = cut});
  if (rest->type.dtype == gate->type.dtype) return b_.Add(Relu{.x = rest}, name);
  return b_.Add(Cast{.x = b_.Add(Relu{.x = rest}), .to = gate->type.dtype}, name);
}

Value* BlockGraph::Scaled(Value* x, double factor, const std::string& name) {
  if (factor == 1) return x;
  const DType dtype = x->type.dtype;
  if (dtype == DType::kF32) return b_.Add(Mul{.lhs = x, .rhs = Number(factor, x)}, name);
  Value* wide = b_.Add(Cast{.x = x, .to = DType::kF32});
  return b_.Add(Cast{.x = b_.Add(Mul{.lhs = wide, .rhs = Number(factor, wide)}), .to = dtype}, name);
}

Value* BlockGraph::Softcapped(Value* x, double softcap, const std::string& name) {
  if (softcap == 0) return x;
  Value* bounded = b_.Add(Tanh{.x = b_.Add(Div{.lhs = x, .rhs = Number(softcap, x)})});
  return b_.Add(Mul{.lhs = bounded, .rhs = Number(softcap, bounded)}, name);
}

// ---- queries, keys and values -------------------------------------------------------------------------------------
Value* BlockGraph::HeadsNormed(const std::optional<NormSpec>& norm, Value* x, int64_t heads, const AttentionSpec& a,
                               const std::string& weight, const std::string& name) {
  if (!norm.has_value()) return x;
  b_.set_loc(norm->module);
  const int64_t width = heads * a.head_dim;
  if (a.head_norm == HeadNorm::kWidth) return Norm(*norm, x, width, weight, name);
  Dims split_shape = x->type.shape;
  split_shape.back() = Dim(heads);
  split_shape.push_back(Dim(a.head_dim));
  Value* split = b_.Add(Reshape{.x = x, .shape = split_shape}, name + ".split");
  Value* normed = nullptr;
  if (a.head_norm == HeadNorm::kHead) {
    normed = Norm(*norm, split, a.head_dim, weight, name + ".norm");
  } else {
    const NormSpec plain = {.module = norm->module, .kind = norm->kind, .eps = norm->eps, .has_weight = false};
    Value* unit = Norm(plain, split, a.head_dim, weight, name + ".unit");
    normed = b_.Add(Mul{.lhs = unit, .rhs = WeightsOfHeads(*norm, heads, a.head_dim, weight)}, name + ".norm");
  }
  return b_.Add(Reshape{.x = normed, .shape = x->type.shape}, name);
}

// [heads, head_dim]: one tensor, or one for each head, MODULE.norms.N.weight.
Value* BlockGraph::WeightsOfHeads(const NormSpec& norm, int64_t heads, int64_t head_dim, const std::string& weight) {
  if (weights_.Has(norm.module + ".weight") || !weights_.has_checkpoint()) {
    return Weight(weight, norm.module + ".weight", {heads, head_dim});
  }
  std::vector<Value*> parts;
  for (int64_t h = 0; h < heads; ++h) {
    Value* part = Weight(absl::StrCat(weight, h), absl::StrCat(norm.module, ".norms.", h, ".weight"), {head_dim});
    parts.push_back(b_.Add(Reshape{.x = part, .shape = {Dim(1), Dim(head_dim)}}));
  }
  return b_.Add(Concat{.parts = parts, .axis = 0});
}

Value* BlockGraph::Clipped(Value* x, double clip, const std::string& name) {
  if (x == nullptr) return nullptr;
  return b_.Add(Min{.lhs = b_.Add(Max{.lhs = x, .rhs = Number(-clip, x)}), .rhs = Number(clip, x)}, name);
}

void BlockGraph::Clip(double clip, const std::string& i, Qkv* p) {
  if (clip == 0) return;
  *p = {Clipped(p->q, clip, "%qc" + i), Clipped(p->k, clip, "%kc" + i), Clipped(p->v, clip, "%vc" + i)};
}

BlockGraph::Qkv BlockGraph::Project(const AttentionSpec& a, Value* x, int64_t in, const std::string& prefix,
                                    const std::string& i) {
  Qkv p = Projected(a, x, in, prefix, i);
  if (!a.clip_after_norm) Clip(a.clip, i, &p);
  p.q = HeadsNormed(a.q_norm, p.q, a.heads, a, prefix + "q_norm", "%qn" + i);
  if (p.k == nullptr) return p;
  p.k = HeadsNormed(a.k_norm, p.k, a.kv_heads, a, prefix + "k_norm", "%kn" + i);
  p.v = HeadsNormed(a.v_norm, p.v, a.kv_heads, a, prefix + "v_norm", "%vn" + i);
  if (a.clip_after_norm) Clip(a.clip, i, &p);
  return p;
}

BlockGraph::Qkv BlockGraph::Projected(const AttentionSpec& a, Value* x, int64_t in, const std::string& prefix,
                                      const std::string& i) {
  const int64_t q_size = a.heads * a.head_dim, kv_size = a.kv_heads * a.head_dim;
  if (a.kv_layer.has_value()) return {.q = Linear(a.q, x, in, q_size, prefix, "q", "%q" + i)};
  if (a.layout == QkvLayout::kApart) {
    return {Linear(a.q, x, in, q_size, prefix, "q", "%q" + i), Linear(a.k, x, in, kv_size, prefix, "k", "%k" + i),
            Linear(a.v, x, in, kv_size, prefix, "v", "%v" + i)};
  }
  const int64_t size = q_size + 2 * kv_size;
  Value* qkv = a.layout == QkvLayout::kInTurn ? Linear(a.q, x, in, size, prefix, "qkv", "%qkv" + i)
                                              : LinearOfGroups(a, x, in, size, prefix, "%qkv" + i);
  return {Part(qkv, 0, q_size, "%q" + i), Part(qkv, q_size, q_size + kv_size, "%k" + i),
          Part(qkv, q_size + kv_size, size, "%v" + i)};
}

namespace {

// Which rows of a weight for groups of heads are those of all queries, all keys and all values.
std::vector<int64_t> RowsInTurn(const AttentionSpec& a) {
  const int64_t group = a.heads / a.kv_heads;
  std::vector<int64_t> rows;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, group}, {group, group + 1}, {group + 1, group + 2}}) {
    for (int64_t g = 0; g < a.kv_heads; ++g) {
      const int64_t first = (g * (group + 2) + begin) * a.head_dim, past = (g * (group + 2) + end) * a.head_dim;
      for (int64_t row = first; row < past; ++row) rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

// The rows of the weight are put in turn: [groups, heads of one + 2, head_dim, …] -> all queries, keys, values.
Value* BlockGraph::LinearOfGroups(const AttentionSpec& a, Value* x, int64_t in, int64_t size, const std::string& prefix,
                                  const std::string& name) {
  b_.set_loc(a.q.module);
  const auto in_turn = [&](Value* rows, const std::vector<Dim>& rest) {
    const int64_t group = a.heads / a.kv_heads;
    const auto join = [&rest](std::vector<Dim> shape) {
      shape.insert(shape.end(), rest.begin(), rest.end());
      return Dims(shape.begin(), shape.end());
    };
    Value* split = b_.Add(Reshape{.x = rows, .shape = join({Dim(a.kv_heads), Dim(group + 2), Dim(a.head_dim)})});
    std::vector<Value*> parts;
    for (const auto& [begin, end] :
         {std::pair<int64_t, int64_t>{0, group}, {group, group + 1}, {group + 1, group + 2}}) {
      Value* part = b_.Add(Slice{.x = split, .axis = 1, .start = {Dim(begin)}, .end = {Dim(end)}});
      parts.push_back(b_.Add(Reshape{.x = part, .shape = join({Dim(a.kv_heads * (end - begin) * a.head_dim)})}));
    }
    return b_.Add(Concat{.parts = parts, .axis = 0});
  };
  Value* weight = nullptr;
  if (const std::optional<LinearWeight> w = Quantized(prefix + "wqkv", {.name = a.q.module, .out = size, .in = in})) {
    const absl::StatusOr<Value*> rows =
        quantized_.WithRows(w->value, RowsInTurn(a), "%" + prefix.substr(1) + "wqkv.rows");
    if (!rows.ok()) weights_.Complain(a.q.module + ".weight", std::string(rows.status().message()));
    weight = rows.ok() ? *rows : w->value;
    x = InputOf(*w, x);
  } else {
    weight = in_turn(Weight(prefix + "wqkv", a.q.module + ".weight", {size, in}), {Dim(in)});
  }
  Value* product = b_.Add(llmc::Linear{.lhs = x, .rhs = weight, .transpose_rhs = true}, a.q.bias ? name + ".mm" : name);
  if (!a.q.bias) return product;
  Value* bias = in_turn(Weight(prefix + "bqkv", a.q.module + ".bias", {size}), {});
  return b_.Add(Add{.lhs = product, .rhs = bias}, name);
}

// ---- layers -------------------------------------------------------------------------------------------------------
Value* BlockGraph::Normed(const std::optional<NormSpec>& norm, Value* x, int64_t size, const std::string& weight,
                          const std::string& name) {
  return norm.has_value() ? Norm(*norm, x, size, weight, name) : x;
}

Value* BlockGraph::Weighted(Value* x, const std::string& tensor, int64_t hidden, const std::string& weight) {
  return tensor.empty() ? x : b_.Add(Mul{.lhs = x, .rhs = Weight(weight, tensor, {hidden})});
}

Value* BlockGraph::FeedForward(const LayerSpec& layer, Value* x, int64_t hidden, const std::string& prefix,
                               const std::string& i) {
  if (const auto* mlp = std::get_if<MlpSpec>(&layer.mlp)) return Mlp(*mlp, x, hidden, prefix, i);
  return Experts(std::get<ExpertsSpec>(layer.mlp), x, hidden, prefix, i);
}

Value* BlockGraph::Layer(const LayerSpec& layer, int64_t index, Value* x, int64_t hidden, const Attend& attend) {
  const std::string i = absl::StrCat(index), p = absl::StrCat("@", scope_, "l", index, "."),
                    out = absl::StrCat("%x", index + 1);
  Value* in = Normed(layer.attention_norm, x, hidden, p + "norm1", absl::StrCat("%n", index, "a"));
  Value* a = attend(in, p);
  a = Weighted(a, layer.attention_factor, hidden, p + "scale1");
  a = Normed(layer.attention_out_norm, a, hidden, p + "norm1.out", absl::StrCat("%n", index, "ao"));
  if (layer.is_parallel) {
    Value* read = layer.mlp_norm.has_value()
                      ? Normed(layer.mlp_norm, x, hidden, p + "norm2", absl::StrCat("%n", index, "b"))
                      : in;
    Value* m = FeedForward(layer, read, hidden, p, i);
    b_.set_loc(layer.module);
    return b_.Add(Add{.lhs = x, .rhs = b_.Add(Add{.lhs = a, .rhs = m}, "%am" + i)}, out);
  }
  b_.set_loc(layer.module);
  const bool is_normed = layer.attention_sum_norm.has_value();
  Value* h = b_.Add(Add{.lhs = layer.adds_to_normed ? in : x, .rhs = Scaled(a, layer.residual_scale, "%as" + i)},
                    is_normed ? "%hs" + i : "%h" + i);
  h = Normed(layer.attention_sum_norm, h, hidden, p + "norm1.sum", "%h" + i);
  Value* read = Normed(layer.mlp_norm, h, hidden, p + "norm2", absl::StrCat("%n", index, "b"));
  Value* m = FeedForward(layer, read, hidden, p, i);
  m = Weighted(m, layer.mlp_factor, hidden, p + "scale2");
  m = Normed(layer.mlp_out_norm, m, hidden, p + "norm2.out", absl::StrCat("%n", index, "bo"));
  b_.set_loc(layer.module);
  x = b_.Add(Add{.lhs = layer.adds_to_normed ? read : h, .rhs = Scaled(m, layer.residual_scale, "%ms" + i)},
             layer.mlp_sum_norm.has_value() ? out + ".sum" : out);
  return Normed(layer.mlp_sum_norm, x, hidden, p + "norm2.sum", out);
}

}  // namespace llmc::hf
