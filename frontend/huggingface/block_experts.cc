// Mixtures of experts: their weights, of one tensor for all or of one for each, and the ops.
#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "frontend/huggingface/block_graph.h"
#include "ir/ops.h"

namespace llmc::hf {

// The tensor with a matrix of each expert for `part`, of what is not quantized or is in superblocks.
std::string BlockGraph::StackedExperts(const ExpertsSpec& e, const std::string& part) {
  return absl::StrCat(e.module, ".", kStackedExperts, ".", part, ".weight");
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

// [experts, rows, columns], rows of gate and then of up in one; or gates and ups apart, if they are stored differently.
std::vector<LinearWeight> BlockGraph::ExpertWeights(const ExpertsSpec& e, const std::string& prefix, int64_t hidden,
                                                    bool is_down) {
  const std::string fused = absl::StrCat(e.module, ".", is_down ? e.fused_down : e.fused_gate_up);
  const int64_t rows = is_down ? hidden : 2 * e.size, columns = is_down ? e.size : hidden;
  const std::string name = prefix + (is_down ? "wdown" : "wgate_up");
  b_.set_loc(e.module);
  const bool is_interleaved = !is_down && e.fused_is_interleaved;
  const auto in_rows = [&](Value* x) { return InRows(x, rows, false, is_interleaved); };
  const LinearModule module = {.name = e.module, .out = rows, .in = columns};
  std::optional<LinearWeight> weight = quantized_.AddStacked(name, fused, e.experts, module, dtype_, in_rows);
  if (weight.has_value()) return {*weight};
  for (const std::string& tensor : {fused, fused + ".weight"}) {
    if (!weights_.Has(tensor)) continue;
    const Shape shape = e.fused_is_transposed ? Shape{e.experts, columns, rows} : Shape{e.experts, rows, columns};
    return {{InRows(Weight(name, tensor, shape), rows, e.fused_is_transposed, is_interleaved)}};
  }
  if (std::vector<LinearWeight> stacks = StackedWeights(e, name, hidden, is_down); !stacks.empty()) return stacks;
  const LinearModule of_first = {
      .name = absl::StrCat(e.module, ".0.", is_down ? e.down : e.gate), .out = rows, .in = columns};
  const std::optional<Value*> random = quantized_.AddRandomStacked(name, e.experts, of_first, dtype_);
  if (random.has_value()) return {{.value = *random, .input = quantized_.InputOfRandom(of_first)}};
  absl::StatusOr<std::vector<LinearWeight>> all = ExpertMatrices(e, name, hidden, is_down);
  if (all.ok()) return *std::move(all);
  // What is wrong of one expert makes it another one than the others.
  if (!weights_.HasComplaintOf(e.module)) {
    weights_.Complain(fused, absl::StrCat(e.module, ": ", all.status().message()));
  }
  return {{weights_.AddNothing(name, {dtype_, {Dim(e.experts), Dim(rows), Dim(columns)}})}};
}

// Of tensors that hold a matrix of each expert; none if there are none.
std::vector<LinearWeight> BlockGraph::StackedWeights(const ExpertsSpec& e, const std::string& name, int64_t hidden,
                                                     bool is_down) {
  const auto stack = [&](const std::string& part, const std::string& common_name, const std::string& own) -> Value* {
    const int64_t rows = is_down ? hidden : e.size, columns = is_down ? e.size : hidden;
    const std::string tensor = StackedExperts(e, part);
    if (weights_.Has(tensor)) return Factor(own, tensor, {e.experts, rows, columns});
    const std::string module = quantized_.StacksOf(e.module);
    if (module.empty()) return nullptr;
    const LinearModule all = {.name = absl::StrCat(module, ".", common_name),
                              .out = rows,
                              .in = columns,
                              .is_expert = true,
                              .experts = e.experts};
    const std::optional<LinearWeight> weight =
        quantized_.HasCodes(all) ? quantized_.Add(own, all, dtype_) : std::nullopt;
    return weight.has_value() ? weight->value : nullptr;
  };
  Value* first = is_down ? stack(e.down, "down_proj", name) : stack(e.gate, "gate_proj", name + ".gate");
  if (first == nullptr) return {};
  if (is_down) return {{first}};
  Value* up = stack(e.up, "up_proj", name + ".up");
  if (up == nullptr) {
    weights_.Complain(e.module, absl::StrCat(e.module, ": there are gates of all experts, but no ups"));
    return {{first}, {first}};
  }
  Value* joined = JoinedStacks(first, up, "%" + name.substr(1));
  return joined == nullptr ? std::vector<LinearWeight>{{first}, {up}} : std::vector<LinearWeight>{{joined}};
}

// The rows of both in one weight; nullptr if they are stored differently.
Value* BlockGraph::JoinedStacks(Value* gate, Value* up, const std::string& name) {
  if (gate->type != up->type || !QuantizedWeights::AreOneWeight(gate, up)) return nullptr;
  const Encoding* encoding = gate->type.encoding;
  if (encoding == nullptr) return b_.Add(Concat{.parts = {gate, up}, .axis = 1}, name);
  if (!Is<Encode>(gate->def) || !Is<Encode>(up->def)) return nullptr;
  std::vector<Value*> components;
  for (size_t i = 0; i < encoding->components(); ++i) {
    if (encoding->ComponentType(i, gate->type.shape).rank() != 3) return nullptr;
    components.push_back(b_.Add(Concat{.parts = {gate->def->operands[i], up->def->operands[i]}, .axis = 1}));
  }
  return b_.Add(Encode{.components = components, .as = encoding->text, .to = gate->type.dtype}, name);
}

std::vector<BlockGraph::ExpertPart> BlockGraph::PartsOf(const ExpertsSpec& e, bool is_down) {
  for (const auto& [gate_up, down] : e.lists) {
    const ExpertPart part = {.name = is_down ? down : gate_up, .is_in_list = true};
    const std::string first = part.ModuleOf(e, 0);
    if (weights_.Has(first + ".weight") || quantized_.HasCodes({.name = first, .is_expert = true})) return {part};
  }
  return is_down ? std::vector<ExpertPart>{{e.down}} : std::vector<ExpertPart>{{e.gate}, {e.up}};
}

namespace {

// The order of rows which alternate between two halves, half by half.
std::vector<int64_t> HalfByHalf(int64_t rows) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < rows; ++i) order.push_back(2 * i % rows + 2 * i / rows);
  return order;
}

}  // namespace

// What each expert has of one kind, such as its gate; rows that are interleaved half by half.
BlockGraph::MatricesOfExperts BlockGraph::MatricesOf(const ExpertsSpec& e, const ExpertPart& part,
                                                     const std::string& name, int64_t rows, int64_t columns,
                                                     bool is_interleaved) {
  MatricesOfExperts all = {.part = part};
  for (int64_t i = 0; i < e.experts; ++i) {
    const LinearModule module = {.name = part.ModuleOf(e, i), .out = rows, .in = columns, .is_expert = true};
    const std::string own = absl::StrCat(name, i, part.name == e.up ? "u" : "");
    b_.set_loc(module.name);
    const std::optional<LinearWeight> weight = Quantized(own, module);
    Value* matrix = weight.has_value() ? weight->value : Weight(own, module.name + ".weight", {module.out, module.in});
    if (is_interleaved && weight.has_value()) {
      const absl::StatusOr<Value*> in_halves = quantized_.WithRows(matrix, HalfByHalf(rows), "%" + own.substr(1));
      if (in_halves.ok()) matrix = *in_halves;
      if (!in_halves.ok()) weights_.Complain(module.name, std::string(in_halves.status().message()));
    } else if (is_interleaved) {
      const Dims one = {Dim(1), Dim(rows), Dim(columns)};
      matrix = InRows(b_.Add(Reshape{.x = matrix, .shape = one}), rows, false, true);
      matrix = b_.Add(Reshape{.x = matrix, .shape = {Dim(rows), Dim(columns)}});
    }
    all.matrices.push_back(matrix);
    if (weight.has_value() && weight->multiplier != nullptr) {
      weights_.Complain(module.name, module.name + ": pre_quant_scale of an expert is not supported");
    }
    all.inputs.push_back(weight.has_value() ? weight->input : std::nullopt);
    all.orders.push_back(weight.has_value() ? weight->order : nullptr);
  }
  b_.set_loc(e.module);
  return all;
}

// The order of the columns of each expert's matrix, [experts, columns]; nullptr where all lie as x does.
Value* BlockGraph::OrderOfExperts(const std::vector<Value*>& orders, int64_t columns) {
  if (std::count(orders.begin(), orders.end(), nullptr) == static_cast<int64_t>(orders.size())) return nullptr;
  Value* as_x = nullptr;
  std::vector<Value*> all;
  for (Value* order : orders) {
    if (order == nullptr && as_x == nullptr) {
      std::vector<int64_t> places(static_cast<size_t>(columns));
      std::iota(places.begin(), places.end(), 0);
      as_x = b_.Add(Constant{.value = Tensor::FromValues(DType::kI64, {columns}, places)});
    }
    all.push_back(order == nullptr ? as_x : order);
  }
  const Dims shape = {Dim(static_cast<int64_t>(orders.size())), Dim(columns)};
  return b_.Add(Reshape{.x = b_.Add(Concat{.parts = all, .axis = 0}), .shape = shape});
}

// That all experts have what becomes one weight in one form. Else there is a complaint of the first that differs.
absl::Status BlockGraph::CheckAlike(const ExpertsSpec& e, const MatricesOfExperts& kind) {
  const TensorType& first = kind.matrices[0]->type;
  const auto form = [](const TensorType& type) {
    return type.encoding == nullptr ? std::string(DTypeName(type.dtype)) : type.encoding->text;
  };
  for (size_t i = 1; i < kind.matrices.size(); ++i) {
    const TensorType& type = kind.matrices[i]->type;
    if (type.encoding == first.encoding && type.dtype == first.dtype) continue;
    const std::string module = kind.part.ModuleOf(e, static_cast<int64_t>(i));
    const std::string message = absl::StrCat(
        weights_.FileOf(module), ": ", module, " is stored as ", form(type), ", and ", kind.part.ModuleOf(e, 0), " as ",
        form(first),
        "; all experts of a layer must be stored alike: quantize the model again with one form for all of them");
    if (!weights_.HasComplaintOf(e.module)) weights_.Complain(module, message);
    return absl::UnimplementedError(message);
  }
  return absl::OkStatus();
}

// One weight of the matrices of each expert, of one kind or of two, which then alternate.
absl::StatusOr<LinearWeight> BlockGraph::JoinedExperts(const ExpertsSpec& e,
                                                       const std::vector<MatricesOfExperts>& kinds,
                                                       const std::string& name) {
  for (const MatricesOfExperts& kind : kinds) RETURN_IF_ERROR(CheckAlike(e, kind));
  std::vector<Value*> parts;
  std::vector<std::optional<InputEncoding>> inputs;
  for (size_t i = 0; i < static_cast<size_t>(e.experts); ++i) {
    for (const MatricesOfExperts& kind : kinds) {
      parts.push_back(kind.matrices[i]);
      inputs.push_back(kind.inputs[i]);
    }
  }
  const Dims& shape = parts[0]->type.shape;
  const int64_t rows = shape[0].value() * static_cast<int64_t>(kinds.size()), columns = shape[1].value();
  LinearWeight all = {.order = OrderOfExperts(kinds[0].orders, columns), .input = inputs[0]};
  if (std::count(inputs.begin(), inputs.end(), inputs[0]) != static_cast<int64_t>(inputs.size())) {
    weights_.Note(absl::StrCat(
        e.module, ": inputs of ", name.substr(1),
        ", the products of its experts, stay in floats: experts that share them have scales of their own"));
    all.input.reset();
  }
  const auto is_encoded = [](const Value* part) { return part->type.encoding != nullptr; };
  if (std::any_of(parts.begin(), parts.end(), is_encoded)) {
    ASSIGN_OR_RETURN(all.value, quantized_.Stack(parts, e.experts, rows, columns, "%" + name.substr(1)));
    return all;
  }
  Value* rows_of_all = b_.Add(Concat{.parts = parts, .axis = 0});
  const Dims stacked = {Dim(e.experts), Dim(rows), Dim(columns)};
  all.value = b_.Add(Reshape{.x = rows_of_all, .shape = stacked}, "%" + name.substr(1));
  return all;
}

// Of the matrices of each expert: gates and ups in one, where they are stored alike.
absl::StatusOr<std::vector<LinearWeight>> BlockGraph::ExpertMatrices(const ExpertsSpec& e, const std::string& name,
                                                                     int64_t hidden, bool is_down) {
  std::vector<MatricesOfExperts> kinds;
  const std::vector<ExpertPart> parts = PartsOf(e, is_down);
  const bool is_one = parts.size() == 1;
  const int64_t rows = is_down ? hidden : is_one ? 2 * e.size : e.size;
  for (const ExpertPart& part : parts) {
    const bool is_interleaved = is_one && !is_down && e.fused_is_interleaved;
    kinds.push_back(MatricesOf(e, part, name, rows, is_down ? e.size : hidden, is_interleaved));
  }
  const auto can_join = [&] {
    if (kinds[0].orders != kinds[1].orders) return false;
    for (size_t i = 0; i < kinds[0].matrices.size(); ++i) {
      if (!QuantizedWeights::AreOneWeight(kinds[0].matrices[i], kinds[1].matrices[i])) return false;
    }
    return true;
  };
  std::vector<LinearWeight> weights(is_one || can_join() ? 1 : 2);
  if (weights.size() == 1) {
    ASSIGN_OR_RETURN(weights[0], JoinedExperts(e, kinds, name));
    return weights;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    ASSIGN_OR_RETURN(weights[i], JoinedExperts(e, {kinds[i]}, name + (i == 0 ? ".gate" : ".up")));
  }
  return weights;
}

// x of each pair of a token and an expert, with its columns in the order of the expert's.
Value* BlockGraph::OrderedForExperts(Value* x, Value* order, Value* experts) {
  const Dims& chosen = experts->type.shape;
  const Dim columns = x->type.shape.back();
  const Dims shape = {chosen[0], chosen[1], columns};
  if (x->type.rank() == 2) x = b_.Add(Reshape{.x = x, .shape = {chosen[0], Dim(1), columns}});
  if (x->type.shape != shape) x = b_.Add(Expand{.x = x, .shape = shape});
  Value* places = b_.Add(Gather{.x = order, .indices = experts});
  return b_.Add(GatherElements{.x = x, .indices = places, .axis = 2});
}

Value* BlockGraph::InputOfExperts(const std::optional<InputEncoding>& input, Value* x) {
  return input.has_value() ? b_.Add(Decode{.x = quantized_.inputs().Encoded(x, *input)}) : x;
}

Value* BlockGraph::ExpertGate(const ExpertsSpec& e, const std::vector<Value*>& products, const std::string& i) {
  const bool is_one = products.size() == 1;
  const bool is_silu = e.limit == 0 && e.activation == Activation::kSilu;
  if (is_one && is_silu) return b_.Add(SiluMul{.gate_up = products[0]}, "%m" + i);
  Value* gate = is_one ? Part(products[0], 0, e.size, "%g" + i) : products[0];
  Value* up = is_one ? Part(products[0], e.size, 2 * e.size, "%u" + i) : products[1];
  if (e.limit == 0) return b_.Add(Mul{.lhs = Act(e.activation, gate, "%s" + i), .rhs = up}, "%m" + i);
  gate = b_.Add(Min{.lhs = gate, .rhs = Number(e.limit, gate)});
  up = b_.Add(Max{.lhs = b_.Add(Min{.lhs = up, .rhs = Number(e.limit, up)}), .rhs = Number(-e.limit, up)});
  Value* sigmoid = b_.Add(Sigmoid{.x = b_.Add(Mul{.lhs = gate, .rhs = Number(e.alpha, gate)})});
  Value* glu = b_.Add(Mul{.lhs = gate, .rhs = sigmoid}, "%s" + i);
  return b_.Add(Mul{.lhs = b_.Add(Add{.lhs = up, .rhs = Number(1, up)}), .rhs = glu}, "%m" + i);
}

Value* BlockGraph::Converted(const std::string& name, const std::string& tensor, const Shape& shape, DType dtype) {
  Value* stored = Stored(name, tensor, shape);
  return stored->type.dtype == dtype ? stored : b_.Add(Cast{.x = stored, .to = dtype});
}

// [experts, rows], as the rows of the weights lie.
Value* BlockGraph::ExpertBiases(const ExpertsSpec& e, const std::string& prefix, int64_t rows, bool is_down) {
  const std::string name = prefix + (is_down ? "bdown" : "bgate_up");
  const std::vector<ExpertPart> parts = PartsOf(e, is_down);
  const bool is_interleaved = !is_down && e.fused_is_interleaved;
  const std::string tensor = absl::StrCat(e.module, ".", is_down ? e.fused_down : e.fused_gate_up, "_bias");
  const auto has = [&](int64_t i) { return weights_.Has(parts[0].ModuleOf(e, i) + ".bias"); };
  if (!has(0) && !has(1)) {
    return InRows(Converted(name, tensor, {e.experts, rows}, dtype_), rows, false, is_interleaved);
  }
  std::vector<Value*> all;
  for (int64_t i = 0; i < e.experts; ++i) {
    for (const ExpertPart& part : parts) {
      const std::string own = absl::StrCat(name, i, part.name == e.up ? "u" : "");
      const int64_t of_part = rows / static_cast<int64_t>(parts.size());
      all.push_back(Converted(own, part.ModuleOf(e, i) + ".bias", {of_part}, dtype_));
    }
  }
  const Dims shape = {Dim(e.experts), Dim(rows)};
  Value* biases = b_.Add(Reshape{.x = b_.Add(Concat{.parts = all, .axis = 0}), .shape = shape});
  return InRows(biases, rows, false, parts.size() == 1 && is_interleaved);
}

// The products of x with the chosen experts' weights: one, or those of gates and of ups.
std::vector<Value*> BlockGraph::ExpertProducts(const ExpertsSpec& e, Value* x, Value* experts, int64_t hidden,
                                               const std::string& prefix, bool is_down, const std::string& name) {
  const std::vector<LinearWeight> weights = ExpertWeights(e, prefix, hidden, is_down);
  b_.set_loc(e.module);
  const int64_t rows = is_down ? hidden : 2 * e.size;
  Value* biases = e.bias ? ExpertBiases(e, prefix, rows, is_down) : nullptr;
  std::vector<Value*> out;
  for (size_t w = 0; w < weights.size(); ++w) {
    const LinearWeight& weight = weights[w];
    const int64_t of_one = rows / static_cast<int64_t>(weights.size()), first = static_cast<int64_t>(w) * of_one;
    const bool has_part = biases != nullptr && weights.size() > 1;
    Value* in = weight.order == nullptr ? x : OrderedForExperts(x, weight.order, experts);
    out.push_back(b_.Add(ExpertLinear{.x = InputOfExperts(weight.input, in),
                                      .weight = weight.value,
                                      .experts = experts,
                                      .bias = has_part ? Part(biases, first, first + of_one, "") : biases,
                                      .transpose_weight = true},
                         w == 0 ? name : name + "u"));
  }
  return out;
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
  Value* correction =
      e.correction.empty() ? nullptr : Converted(prefix + "correction", e.correction, {e.experts}, DType::kF32);
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
  const std::vector<Value*> gate_up = ExpertProducts(e, in, experts, hidden, prefix, false, "%gu" + i);
  Value* down = ExpertProducts(e, ExpertGate(e, gate_up, i), experts, hidden, prefix, true, "%ed" + i)[0];
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
