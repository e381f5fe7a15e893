// Mixtures of experts: MoE and QMoE, as the language's `route` and `expert_linear`, which compute the chosen experts
// only.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/contrib_quant.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

struct ExpertLayer {
  Value* weights = nullptr;  // [experts, out, in]
  Value* bias = nullptr;     // [experts, out]
};

struct Experts {
  ExpertLayer up, down, gate;  // FC1, FC2 and FC3
};

// What FC1 and FC3 give, and how it becomes what FC2 takes.
struct Activation {
  std::string type;
  bool is_gated = false;  // The first half of the rows goes through the activation and multiplies the second.
  double alpha = 1, beta = 0;
  std::optional<double> limit;
};

// Which experts each token goes to, and with what weights: i32[T, k], f32[T, k].
struct Routing {
  Value* experts = nullptr;
  Value* weights = nullptr;
};

void CheckLayer(OnnxNode& n, const ExpertLayer& layer) {
  if (!n.ok() || layer.weights == nullptr) return;
  if (RankOf(layer.weights) == 3 && (layer.bias == nullptr || RankOf(layer.bias) == 2)) return;
  n.Invalid("weights of experts must have rank 3, biases rank 2");
}

// x[T, in] or [T, k, in] through the layers of each token's experts.
Value* Through(OnnxNode& n, const ExpertLayer& layer, Value* x, Value* experts) {
  Value* bias = layer.bias == nullptr ? nullptr : n.CastTo(layer.bias, DTypeOf(x));
  return n.Emit(ExpertLinear{.x = x,
                             .weight = n.CastTo(layer.weights, DTypeOf(x)),
                             .experts = experts,
                             .bias = bias,
                             .transpose_weight = true});
}

// ---- gates: rows of both factors in one layer, those that go through the activation first -------------------------

Value* WithoutInterleaving(OnnxNode& n, Value* x) {
  if (x == nullptr || !n.ok()) return x;
  const Dims shape = x->type.shape;
  Dims pairs = shape;
  pairs[1] = Dim::FloorDiv(shape[1], Dim(2));
  pairs.insert(pairs.begin() + 2, Dim(2));
  std::vector<int64_t> perm = {0, 2, 1};
  if (pairs.size() == 4) perm.push_back(3);
  return n.ReshapeTo(n.TransposeBy(n.ReshapeTo(x, pairs), std::move(perm)), shape);
}

Value* BiasOrZeros(OnnxNode& n, const ExpertLayer& layer, DType dtype) {
  if (layer.bias != nullptr || !n.ok()) return n.CastTo(layer.bias, dtype);
  const Dims& shape = layer.weights->type.shape;
  return n.Emit(Expand{.x = n.Scalar(dtype, 0), .shape = {shape[0], shape[1]}});
}

ExpertLayer Joined(OnnxNode& n, const ExpertLayer& first, const ExpertLayer& second, DType dtype) {
  if (!n.ok()) return {};
  ExpertLayer both;
  both.weights = n.Emit(Concat{.parts = {n.CastTo(first.weights, dtype), n.CastTo(second.weights, dtype)}, .axis = 1});
  if (first.bias == nullptr && second.bias == nullptr) return both;
  both.bias = n.Emit(Concat{.parts = {BiasOrZeros(n, first, dtype), BiasOrZeros(n, second, dtype)}, .axis = 1});
  return both;
}

Activation ReadActivation(OnnxNode& n, bool has_gate, int64_t fusion) {
  Activation a{.type = n.String("activation_type", "relu"), .is_gated = has_gate || fusion != 0};
  a.alpha = n.Float("activation_alpha", 1);
  a.beta = n.Float("activation_beta", 0);
  if (fusion < 0 || fusion > 2) n.Invalid("swiglu_fusion must be 0, 1 or 2");
  if (n.HasAttr("swiglu_limit")) a.limit = n.Float("swiglu_limit", 0);
  if (a.type == "swiglu") {
    if (!a.is_gated) n.Invalid("swiglu with swiglu_fusion = 0 needs fc3_experts_weights");
    if (fusion != 0 && has_gate) n.Invalid("swiglu_fusion is given, and fc3_experts_weights as well");
    return a;
  }
  a.alpha = 1, a.beta = 0;  // They are of swiglu.
  if (fusion != 0 || a.limit.has_value()) n.Invalid("swiglu_fusion and swiglu_limit are of swiglu only");
  return a;
}

// FC1 and FC3 as one layer.
ExpertLayer FirstLayer(OnnxNode& n, const Experts& experts, int64_t fusion, DType dtype) {
  CheckLayer(n, experts.up);
  CheckLayer(n, experts.gate);
  if (!n.ok()) return {};
  if (experts.gate.weights != nullptr) return Joined(n, experts.up, experts.gate, dtype);
  const Dim& rows = experts.up.weights->type.shape[1];
  if (fusion != 0 && rows.is_constant() && rows.value() % 2 != 0) {
    n.Invalid(absl::StrCat("swiglu takes pairs of rows, and fc1_experts_weights has ", rows.value()));
  }
  if (fusion != 1) return experts.up;
  return {WithoutInterleaving(n, experts.up.weights), WithoutInterleaving(n, experts.up.bias)};
}

Value* Activated(OnnxNode& n, const Activation& a, Value* x) {
  if (a.type == "identity") return x;
  if (a.type == "relu") return Map<Relu>(n, x);
  if (a.type == "gelu") return Map<GeluTanh>(n, x);
  if (a.type == "silu" || (a.type == "swiglu" && a.alpha == 1)) return Map<Silu>(n, x);
  if (a.type == "swiglu") return Map<Mul>(n, x, Map<Sigmoid>(n, Map<Mul>(n, x, a.alpha)));
  n.Unsupported(absl::StrCat("activation_type \"", a.type, "\" is not supported"));
  return nullptr;
}

// activation(min(gate, limit)) * (clamp(linear) + beta) of [T, k, gate and linear].
Value* Gated(OnnxNode& n, const Activation& a, Value* both) {
  if (!n.ok()) return nullptr;
  const Dim rows = both->type.shape[2], half = Dim::FloorDiv(rows, Dim(2));
  Value* gate = n.SliceOf(both, 2, Dim(0), half);
  if (a.limit.has_value()) gate = Map<Min>(n, gate, *a.limit);
  gate = Activated(n, a, gate);
  Value* linear = n.SliceOf(both, 2, half, rows);
  if (a.limit.has_value()) linear = Map<Max>(n, Map<Min>(n, linear, *a.limit), -*a.limit);
  return Map<Mul>(n, gate, a.beta == 0 ? linear : Map<Add>(n, linear, a.beta));
}

Value* Normalized(OnnxNode& n, Value* weights) { return Map<Div>(n, weights, ReduceOver<ReduceSum>(n, weights, {1})); }

// The k experts of each token's scores[T, experts] and what the softmax gives them. `route` knows how many experts
// there are; where that is a symbol, the order of the scores tells the same.
Routing BestExperts(OnnxNode& n, Value* scores, int64_t k, bool normalize) {
  if (scores->type.shape[1].is_constant()) {
    Value* experts = n.Emit(Route{.logits = scores, .top_k = k, .normalize = normalize});
    return {experts, experts == nullptr ? nullptr : experts->def->results[1]};
  }
  Value* order = n.Emit(ArgSort{.x = scores, .axis = 1, .descending = true});
  Routing routing{.experts = n.CastTo(n.SliceOf(order, 1, Dim(0), Dim(k)), DType::kI32)};
  Value* probabilities = n.Emit(Softmax{.x = n.CastTo(scores, DType::kF32), .axis = 1});
  routing.weights = n.Emit(GatherElements{.x = probabilities, .indices = routing.experts, .axis = 1});
  if (normalize) routing.weights = Normalized(n, routing.weights);
  return routing;
}

// `mixing` gives the weights of the chosen, if not the softmax of the scores. `count`: of experts that have weights.
Routing ChooseExperts(OnnxNode& n, Value* scores, Value* mixing, const Dim& count) {
  const int64_t k = n.Int("k", 1);
  const bool normalize = n.Int("normalize_routing_weights", 0) != 0;
  if (n.Int("use_sparse_mixer", 0) != 0) n.Unsupported("use_sparse_mixer is not supported");
  if (RankOf(scores) != 2) n.Invalid("router_probs must have rank 2");
  if (mixing != nullptr && RankOf(mixing) != 2) n.Invalid("router_weights must have rank 2");
  if (!n.ok()) return {};
  const Dim experts = scores->type.shape[1].is_constant() ? scores->type.shape[1] : count;
  if (k < 1 || (experts.is_constant() && k > experts.value())) {
    n.Invalid(absl::StrCat("k = ", k, " of ", experts.ToString(), " experts"));
    return {};
  }
  if (count.is_constant() && experts != count) {
    n.Invalid(absl::StrCat("router_probs has ", experts.ToString(), " columns, for ", count.ToString(), " experts"));
    return {};
  }
  if (experts.is_constant()) scores = n.ReshapeTo(scores, {scores->type.shape[0], experts});
  Routing routing = BestExperts(n, scores, k, normalize && mixing == nullptr);
  if (mixing == nullptr || !n.ok()) return routing;
  routing.weights = n.CastTo(n.Emit(GatherElements{.x = mixing, .indices = routing.experts, .axis = 1}), DType::kF32);
  if (normalize) routing.weights = Normalized(n, routing.weights);
  return routing;
}

void Mix(OnnxNode& n, const Experts& experts, Value* scores, Value* mixing) {
  Value* x = n.in(0);
  if (RankOf(x) != 2 && RankOf(x) != 3) return n.Invalid("the input must have rank 2 or 3");
  CheckLayer(n, experts.down);
  const int64_t fusion = n.Int("swiglu_fusion", 0);
  const Activation activation = ReadActivation(n, experts.gate.weights != nullptr, fusion);
  const ExpertLayer first = FirstLayer(n, experts, fusion, DTypeOf(x));
  if (!n.ok()) return;
  const Routing routing = ChooseExperts(n, scores, mixing, first.weights->type.shape[0]);
  if (!n.ok()) return;
  const Dims shape = x->type.shape;
  Value* rows = n.ReshapeTo(x, {Product(Dims(shape.begin(), shape.end() - 1)), shape.back()});
  Value* inner = Through(n, first, rows, routing.experts);
  inner = activation.is_gated ? Gated(n, activation, inner) : Activated(n, activation, inner);
  Value* y = n.CastTo(Through(n, experts.down, inner, routing.experts), DType::kF32);
  if (!n.ok()) return;
  Dims column = routing.weights->type.shape;
  column.push_back(Dim(1));
  Value* sum = ReduceOver<ReduceSum>(n, Map<Mul>(n, y, n.ReshapeTo(routing.weights, column)), {1}, false);
  n.Set(0, n.ReshapeTo(n.CastTo(sum, DTypeOf(x)), shape));
}

void ImportMoe(OnnxNode& n) {
  if (!n.has(4)) return n.Invalid("fc2_experts_weights is missing");
  const Experts experts{.up = {n.in(2), n.in(3)}, .down = {n.in(4), n.in(5)}, .gate = {n.in(6), n.in(7)}};
  Mix(n, experts, n.in(1), nullptr);
}

// ---- quantized --------------------------------------------------------------------

// The weights of inputs `weights`, `scales` and `zero_points`: [experts, out, in].
Value* DequantizedExperts(OnnxNode& n, size_t weights, size_t scales, size_t zero_points, int64_t bits, int64_t block) {
  if (!n.has(weights)) return nullptr;
  if (!n.has(scales)) {
    n.Invalid(absl::StrCat("input ", weights, " needs its scales"));
    return nullptr;
  }
  if (DTypeOf(n.in(weights)) != DType::kU8 || RankOf(n.in(weights)) != 3 ||
      RankOf(n.in(scales)) != (block > 0 ? 3 : 2)) {
    n.Invalid("quantized weights must be uint8 of rank 3, their scales of rank 2, or 3 with block_size");
  }
  Value* q = UnpackedBits(n, weights, bits);
  Value* zero = n.has(zero_points) ? UnpackedBits(n, zero_points, bits) : nullptr;
  if (!n.ok()) return nullptr;
  const Dims shape = q->type.shape;  // [experts, out, in]
  const Dims scale_shape = n.in(scales)->type.shape;
  Dims column = scale_shape, apart = shape;
  column.push_back(Dim(1));
  if (block > 0) {
    if (shape[2].is_constant() && scale_shape[2].is_constant() && scale_shape[2].value() * block != shape[2].value()) {
      n.Invalid(absl::StrCat("scales ", n.in(scales)->type.ToString(), " do not fit ", shape[2].ToString(),
                             " inputs in blocks of ", block));
      return nullptr;
    }
    apart = {shape[0], shape[1], scale_shape[2], Dim(block)};
  }
  if (zero != nullptr) {  // Packed rows may be padded.
    zero = n.SliceOf(zero, RankOf(zero) - 1, Dim(0), scale_shape.back());
    zero = n.ReshapeTo(zero, column);
  }
  // Zero points are subtracted as integers: a cast of 4 bits to f32 takes eight times its operand's bytes, more than
  // may move into `prepare`, while i16 and then f32 do not.
  q = n.CastTo(n.ReshapeTo(q, apart), DType::kI16);
  const double middle = static_cast<double>(int64_t{1} << (bits - 1));
  q = zero == nullptr ? Map<Sub>(n, q, middle) : Map<Sub>(n, q, n.CastTo(zero, DType::kI16));
  return n.ReshapeTo(Dequantized(n, q, nullptr, 0, n.ReshapeTo(n.in(scales), column)), shape);
}

void ImportQMoe(OnnxNode& n) {
  if (const std::string type = n.String("quant_type", "int"); type != "int") {
    return n.Unsupported(absl::StrCat("quant_type \"", type, "\" is not supported; \"int\" is"));
  }
  const int64_t prepacked = n.Int("weights_prepacked", -1);
  if (prepacked != 0 && prepacked != -1) {
    return n.Unsupported("weights_prepacked is not supported: the layout is that of one GPU; export with 0");
  }
  // Left out, the device that runs the node decides: CPUs read it as 0, and GPUs, whose kernels take 16-bit types
  // alone, as 1.
  if (prepacked == -1 && DTypeOf(n.in(0)) != DType::kF32) {
    return n.Unsupported(
        "weights_prepacked = -1, the default, leaves open whether 16-bit models have weights packed for one GPU; "
        "give 0 if they are not");
  }
  n.Int("accuracy_level", 0);  // The least; this is more exact than any.
  for (size_t i = 15; i <= 20; ++i) {
    if (n.has(i)) return n.Unsupported(absl::StrCat("input ", i, ", of floating-point weights, is not supported"));
  }
  if (!n.has(2) || !n.has(5)) return n.Invalid("fc1_experts_weights or fc2_experts_weights is missing");
  const int64_t block = n.Int("block_size", 0), bits = n.Int("expert_weight_bits", 4);
  const int64_t widths[] = {n.Int("fc1_expert_weight_bits", bits), n.Int("fc2_expert_weight_bits", bits),
                            n.Int("fc3_expert_weight_bits", bits)};
  for (int64_t width : widths) {
    if (!CheckBlocks(n, width, block > 0 ? block : 16)) return;
  }
  const Experts experts{.up = {DequantizedExperts(n, 2, 3, 11, widths[0], block), n.in(4)},
                        .down = {DequantizedExperts(n, 5, 6, 12, widths[1], block), n.in(7)},
                        .gate = {DequantizedExperts(n, 8, 9, 13, widths[2], block), n.in(10)}};
  Mix(n, experts, n.in(1), n.in(14));
}

constexpr OnnxOp kContribMoeOps[] = {
    {"MoE", 1, 3, 8, ImportMoe, "no sparse mixer"},
    {"QMoE", 1, 3, 21, ImportQMoe,
     "integers of 2, 4 or 8 bits, which are decoded as a plan is loaded; weights_prepacked 0, or -1 in f32, which only "
     "CPUs take"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribMoeOps() { return kContribMoeOps; }

}  // namespace llmc
