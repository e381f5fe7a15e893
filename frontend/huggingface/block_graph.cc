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

Value* BlockGraph::Rows(Value* table, Value* indices, const std::string& name) {
  if (table->type.encoding == nullptr) return b_.Add(Gather{.x = table, .indices = indices}, name);
  Value* rows = b_.Add(Gather{.x = table, .indices = indices}, name + ".encoded");
  return rows == nullptr ? nullptr : b_.Add(Decode{.x = rows}, name);
}

Value* BlockGraph::Linear(const LinearSpec& linear, Value* x, int64_t in, int64_t out, const std::string& prefix,
                          const std::string& weight, const std::string& name) {
  b_.set_loc(linear.module);
  const Shape shape = linear.is_transposed ? Shape{in, out} : Shape{out, in};
  Value* w = Factor(absl::StrCat(prefix, "w", weight), linear.module + ".weight", shape);
  Value* bias = linear.bias ? Weight(absl::StrCat(prefix, "b", weight), linear.module + ".bias", {out}) : nullptr;
  Value* product = b_.Add(llmc::Linear{.lhs = x, .rhs = w, .transpose_rhs = !linear.is_transposed},
                          bias == nullptr || name.empty() ? name : name + ".mm");
  return bias == nullptr ? product : b_.Add(Add{.lhs = product, .rhs = bias}, name);
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
  Value* weight = in_turn(Weight(prefix + "wqkv", a.q.module + ".weight", {size, in}), {Dim(in)});
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

// [experts, rows, ...] of what lies [experts, ..., rows] if transposed, and whose rows alternate between two halves if
// interleaved.
Value* BlockGraph::InRows(Value* x, int64_t rows, bool is_transposed, bool is_interleaved) {
  if (!is_transposed && !is_interleaved) return x;
  Dims shape = x->type.shape;
  const size_t axis = is_transposed ? shape.size() - 1 : 1;
  std::vector<int64_t> perm = {0};
  if (is_interleaved) {
    Dims pairs = shape;
    pairs[axis] = Dim(rows / 2);
    pairs.insert(pairs.begin() + static_cast<ptrdiff_t>(axis) + 1, Dim(2));
    x = b_.Add(Reshape{.x = x, .shape = pairs});
    perm.push_back(static_cast<int64_t>(axis) + 1);
  }
  perm.push_back(static_cast<int64_t>(axis));
  for (size_t i = 1; i < shape.size(); ++i) {
    if (i != axis) perm.push_back(static_cast<int64_t>(is_interleaved && i > axis ? i + 1 : i));
  }
  x = b_.Add(Transpose{.x = x, .perm = perm});
  if (!is_interleaved) return x;
  std::rotate(shape.begin() + 1, shape.begin() + static_cast<ptrdiff_t>(axis),
              shape.begin() + static_cast<ptrdiff_t>(axis) + 1);
  return b_.Add(Reshape{.x = x, .shape = shape});
}

// ---- experts ------------------------------------------------------------------------------------------------------
// [experts, rows, columns], rows of gate and then of up in one.
Value* BlockGraph::ExpertWeights(const ExpertsSpec& e, const std::string& prefix, int64_t hidden, bool is_down) {
  const std::string fused = absl::StrCat(e.module, ".", is_down ? e.fused_down : e.fused_gate_up);
  const int64_t rows = is_down ? hidden : 2 * e.size, columns = is_down ? e.size : hidden;
  const std::string name = prefix + (is_down ? "wdown" : "wgate_up");
  for (const std::string& tensor : {fused, fused + ".weight"}) {
    if (!weights_.Has(tensor)) continue;
    b_.set_loc(e.module);
    const Shape shape = e.fused_is_transposed ? Shape{e.experts, columns, rows} : Shape{e.experts, rows, columns};
    return InRows(Weight(name, tensor, shape), rows, e.fused_is_transposed, !is_down && e.fused_is_interleaved);
  }
  std::vector<Value*> parts;
  for (int64_t i = 0; i < e.experts; ++i) {
    for (const std::string& part : is_down ? std::vector{e.down} : std::vector{e.gate, e.up}) {
      const std::string module = absl::StrCat(e.module, ".", i, ".", part);
      b_.set_loc(module);
      parts.push_back(Weight(absl::StrCat(name, i, is_down || part == e.gate ? "" : "u"), module + ".weight",
                             {is_down ? hidden : e.size, columns}));
    }
  }
  b_.set_loc(e.module);
  Value* all = b_.Add(Concat{.parts = parts, .axis = 0});
  return b_.Add(Reshape{.x = all, .shape = {Dim(e.experts), Dim(rows), Dim(columns)}}, "%" + name.substr(1));
}

Value* BlockGraph::ExpertGate(const ExpertsSpec& e, Value* gate_up, const std::string& i) {
  if (e.limit == 0 && e.activation == Activation::kSilu) return b_.Add(SiluMul{.gate_up = gate_up}, "%m" + i);
  Value* gate = Part(gate_up, 0, e.size, "%g" + i);
  Value* up = Part(gate_up, e.size, 2 * e.size, "%u" + i);
  if (e.limit == 0) return b_.Add(Mul{.lhs = Act(e.activation, gate, "%s" + i), .rhs = up}, "%m" + i);
  gate = b_.Add(Min{.lhs = gate, .rhs = Number(e.limit, gate)});
  up = b_.Add(Max{.lhs = b_.Add(Min{.lhs = up, .rhs = Number(e.limit, up)}), .rhs = Number(-e.limit, up)});
  Value* sigmoid = b_.Add(Sigmoid{.x = b_.Add(Mul{.lhs = gate, .rhs = Number(e.alpha, gate)})});
  Value* glu = b_.Add(Mul{.lhs = gate, .rhs = sigmoid}, "%s" + i);
  return b_.Add(Mul{.lhs = b_.Add(Add{.lhs = up, .rhs = Number(1, up)}), .rhs = glu}, "%m" + i);
}

Value* BlockGraph::Experts(const ExpertsSpec& spec, Value* x, int64_t hidden, const std::string& prefix,
                           const std::string& i) {
  if (x->type.shape.size() > 2) {
    const Dims shape = x->type.shape;
    Value* tokens = b_.Add(Reshape{.x = x, .shape = {Product(Dims(shape.begin(), shape.end() - 1)), shape.back()}});
    return b_.Add(Reshape{.x = Experts(spec, tokens, hidden, prefix, i), .shape = shape}, "%d" + i);
  }
  ExpertsSpec e = spec;
  if (!e.other_router.empty() && weights_.Has(e.other_router + ".weight")) {
    e.module = e.other_module;
    e.router.module = e.other_router;
  }
  Value* logits = Linear(e.router, x, hidden, e.experts, prefix, "router", "%router" + i);
  const auto vector = [&](const std::string& name, const std::string& tensor, const Shape& shape, DType dtype) {
    Value* stored = Stored(prefix + name, tensor, shape);
    return stored->type.dtype == dtype ? stored : b_.Add(Cast{.x = stored, .to = dtype});
  };
  Value* correction = e.correction.empty() ? nullptr : vector("correction", e.correction, {e.experts}, DType::kF32);
  b_.set_loc(e.router.module);
  const Node* route = b_.AddNode(Route{.logits = logits,
                                       .bias = correction,
                                       .top_k = e.top_k,
                                       .score = e.score,
                                       .groups = e.groups,
                                       .top_groups = e.top_groups,
                                       .group_best = e.group_best,
                                       .normalize = e.normalize,
                                       .scale = e.scale},
                                 {"%experts" + i, "%shares" + i});
  if (route == nullptr) return nullptr;
  Value *experts = route->results[0], *shares = route->results[1];
  const Dim t = x->type.shape[0];
  shares = b_.Add(Reshape{.x = shares, .shape = {t, Dim(e.top_k), Dim(1)}});
  if (shares->type.dtype != dtype_) shares = b_.Add(Cast{.x = shares, .to = dtype_});
  Value* in = x;
  if (e.scale_input) in = b_.Add(Mul{.lhs = b_.Add(Reshape{.x = x, .shape = {t, Dim(1), Dim(hidden)}}), .rhs = shares});
  const auto product = [&](Value* of, bool is_down, const std::string& bias, const std::string& name) {
    Value* w = ExpertWeights(e, prefix, hidden, is_down);
    b_.set_loc(e.module);
    const int64_t rows = is_down ? hidden : 2 * e.size;
    Value* biases = nullptr;
    if (e.bias) {
      biases = vector(is_down ? "bdown" : "bgate_up", absl::StrCat(e.module, ".", bias), {e.experts, rows}, dtype_);
      biases = InRows(biases, rows, false, !is_down && e.fused_is_interleaved);
    }
    return b_.Add(ExpertLinear{.x = of, .weight = w, .experts = experts, .bias = biases, .transpose_weight = true},
                  name);
  };
  Value* gate_up = product(in, false, e.fused_gate_up + "_bias", "%gu" + i);
  Value* down = product(ExpertGate(e, gate_up, i), true, e.fused_down + "_bias", "%ed" + i);
  if (!e.scale_input) down = b_.Add(Mul{.lhs = down, .rhs = shares});
  Value* out = b_.Add(ReduceSum{.x = down, .axes = {1}}, e.shared.has_value() ? "%routed" + i : "%d" + i);
  if (!e.shared.has_value()) return out;
  Value* shared = Mlp(*e.shared, x, hidden, prefix + "shared.", absl::StrCat(i, "s"));
  if (e.shared_gate.has_value()) {
    Value* gate = Linear(*e.shared_gate, x, hidden, 1, prefix, "shared_gate", "%sg" + i);
    shared = b_.Add(Mul{.lhs = b_.Add(Sigmoid{.x = gate}), .rhs = shared});
  }
  return b_.Add(Add{.lhs = out, .rhs = shared}, "%d" + i);
}

}  // namespace llmc::hf
