// Mixtures of experts: their weights, of one tensor for all or of one for each, and the ops.
#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "frontend/huggingface/block_graph.h"
#include "ir/ops.h"

namespace llmc::hf {

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

// [experts, rows, columns], rows of gate and then of up in one.
LinearWeight BlockGraph::ExpertWeights(const ExpertsSpec& e, const std::string& prefix, int64_t hidden, bool is_down) {
  const std::string fused = absl::StrCat(e.module, ".", is_down ? e.fused_down : e.fused_gate_up);
  const int64_t rows = is_down ? hidden : 2 * e.size, columns = is_down ? e.size : hidden;
  const std::string name = prefix + (is_down ? "wdown" : "wgate_up");
  for (const std::string& tensor : {fused, fused + ".weight"}) {
    if (!weights_.Has(tensor)) continue;
    b_.set_loc(e.module);
    const Shape shape = e.fused_is_transposed ? Shape{e.experts, columns, rows} : Shape{e.experts, rows, columns};
    return {InRows(Weight(name, tensor, shape), rows, e.fused_is_transposed, !is_down && e.fused_is_interleaved)};
  }
  b_.set_loc(e.module);
  const bool is_interleaved = !is_down && e.fused_is_interleaved;
  const auto in_rows = [&](Value* x) { return InRows(x, rows, false, is_interleaved); };
  const LinearModule module = {.name = e.module, .out = rows, .in = columns};
  std::optional<Value*> stacked = quantized_.AddStacked(name, fused, e.experts, module, dtype_, in_rows);
  const LinearModule of_first = {
      .name = absl::StrCat(e.module, ".0.", is_down ? e.down : e.gate), .out = rows, .in = columns};
  std::optional<InputEncoding> input;
  if (!stacked.has_value()) {
    stacked = quantized_.AddRandomStacked(name, e.experts, of_first, dtype_);
    if (stacked.has_value()) input = quantized_.InputOfRandom(of_first);
  }
  if (stacked.has_value()) return {.value = *stacked, .input = input};
  absl::StatusOr<LinearWeight> all = ExpertMatrices(e, name, hidden, is_down);
  if (all.ok()) return *std::move(all);
  weights_.Complain(fused, std::string(all.status().message()));
  return {weights_.AddNothing(name, {dtype_, {Dim(e.experts), Dim(rows), Dim(columns)}})};
}

// Of the matrices of each expert.
absl::StatusOr<LinearWeight> BlockGraph::ExpertMatrices(const ExpertsSpec& e, const std::string& name, int64_t hidden,
                                                        bool is_down) {
  const int64_t rows = is_down ? hidden : 2 * e.size, columns = is_down ? e.size : hidden;
  std::vector<Value*> parts;
  std::vector<std::optional<InputEncoding>> inputs;
  for (int64_t i = 0; i < e.experts; ++i) {
    for (const std::string& part : is_down ? std::vector{e.down} : std::vector{e.gate, e.up}) {
      const LinearModule module = {.name = absl::StrCat(e.module, ".", i, ".", part),
                                   .out = is_down ? hidden : e.size,
                                   .in = columns,
                                   .is_expert = true};
      const std::string own = absl::StrCat(name, i, is_down || part == e.gate ? "" : "u");
      b_.set_loc(module.name);
      const std::optional<LinearWeight> weight = Quantized(own, module);
      if (weight.has_value() && weight->order != nullptr) {
        return absl::UnimplementedError(absl::StrCat(
            module.name, ": the columns of experts in an order of their own (g_idx, desc_act) are not supported"));
      }
      inputs.push_back(weight.has_value() ? weight->input : std::nullopt);
      parts.push_back(weight.has_value() ? weight->value
                                         : Weight(own, module.name + ".weight", {module.out, module.in}));
    }
  }
  b_.set_loc(e.module);
  LinearWeight all = {.input = inputs[0]};
  if (std::count(inputs.begin(), inputs.end(), inputs[0]) != static_cast<int64_t>(inputs.size())) {
    weights_.Note(absl::StrCat(e.module, is_down ? ": what is between" : ": inputs of",
                               " the products of its experts stays in floats: experts that share it have scales of "
                               "their own"));
    all.input.reset();
  }
  if (parts[0]->type.encoding != nullptr) {
    ASSIGN_OR_RETURN(all.value, quantized_.Stack(parts, e.experts, rows, columns, "%" + name.substr(1)));
    return all;
  }
  Value* rows_of_all = b_.Add(Concat{.parts = parts, .axis = 0});
  const Dims shape = {Dim(e.experts), Dim(rows), Dim(columns)};
  return LinearWeight{b_.Add(Reshape{.x = rows_of_all, .shape = shape}, "%" + name.substr(1))};
}

Value* BlockGraph::InputOfExperts(const std::optional<InputEncoding>& input, Value* x) {
  return input.has_value() ? b_.Add(Decode{.x = quantized_.inputs().Encoded(x, *input)}) : x;
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

namespace {

// Under the names that the checkpoint has.
ExpertsSpec Named(ExpertsSpec e, const HfWeights& weights) {
  e.router.is_router = true;
  if (e.shared_gate.has_value()) e.shared_gate->is_router = true;
  if (e.other_router.empty() || !weights.Has(e.other_router + ".weight")) return e;
  e.module = e.other_module;
  e.router.module = e.other_router;
  return e;
}

}  // namespace

Value* BlockGraph::Experts(const ExpertsSpec& spec, Value* x, int64_t hidden, const std::string& prefix,
                           const std::string& i) {
  if (x->type.shape.size() > 2) {
    const Dims shape = x->type.shape;
    Value* tokens = b_.Add(Reshape{.x = x, .shape = {Product(Dims(shape.begin(), shape.end() - 1)), shape.back()}});
    return b_.Add(Reshape{.x = Experts(spec, tokens, hidden, prefix, i), .shape = shape}, "%d" + i);
  }
  const ExpertsSpec e = Named(spec, weights_);
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
    const LinearWeight w = ExpertWeights(e, prefix, hidden, is_down);
    b_.set_loc(e.module);
    const int64_t rows = is_down ? hidden : 2 * e.size;
    Value* biases = nullptr;
    if (e.bias) {
      biases = vector(is_down ? "bdown" : "bgate_up", absl::StrCat(e.module, ".", bias), {e.experts, rows}, dtype_);
      biases = InRows(biases, rows, false, !is_down && e.fused_is_interleaved);
    }
    return b_.Add(ExpertLinear{.x = InputOfExperts(w.input, of),
                               .weight = w.value,
                               .experts = experts,
                               .bias = biases,
                               .transpose_weight = true},
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
