// Mixtures of experts: MoE and QMoE. Every expert sees every token, and what the router did not choose counts as 0; so
// the program has fixed shapes, and takes experts / k times the arithmetic that is needed.
#include <cmath>

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

// x[1 or experts, T, in] through each expert's layer.
Value* Through(OnnxNode& n, const ExpertLayer& layer, Value* x) {
  if (!n.ok()) return nullptr;
  if (RankOf(layer.weights) != 3 || (layer.bias != nullptr && RankOf(layer.bias) != 2)) {
    n.Invalid("weights of experts must have rank 3, biases rank 2");
    return nullptr;
  }
  Value* y = n.Emit(MatMul{.lhs = x, .rhs = n.CastTo(layer.weights, DTypeOf(x)), .transpose_rhs = true});
  if (layer.bias == nullptr || !n.ok()) return y;
  const Dims& shape = layer.bias->type.shape;
  return Map<Add>(n, y, n.ReshapeTo(layer.bias, {shape[0], Dim(1), shape[1]}));
}

// clamp(gate) * sigmoid(alpha * clamp(gate)) * (clamp(linear) + beta)
Value* SwiGlu(OnnxNode& n, Value* gate, Value* linear) {
  const double alpha = n.Float("activation_alpha", 1), beta = n.Float("activation_beta", 0);
  if (n.HasAttr("swiglu_limit")) {
    const double limit = n.Float("swiglu_limit", 0);
    gate = Map<Min>(n, gate, limit);
    linear = Map<Max>(n, Map<Min>(n, linear, limit), -limit);
  }
  Value* swish = alpha == 1 ? Map<Silu>(n, gate) : Map<Mul>(n, gate, Map<Sigmoid>(n, Map<Mul>(n, gate, alpha)));
  return Map<Mul>(n, swish, beta == 0 ? linear : Map<Add>(n, linear, beta));
}

// What the last layer takes, of x[1, T, hidden].
Value* Activated(OnnxNode& n, const Experts& experts, Value* x) {
  const std::string type = n.String("activation_type", "relu");
  const int64_t fusion = n.Int("swiglu_fusion", 0);
  if (fusion < 0 || fusion > 2) n.Invalid("swiglu_fusion must be 0, 1 or 2");
  Value* up = Through(n, experts.up, x);
  Value* gate = experts.gate.weights == nullptr ? nullptr : Through(n, experts.gate, x);
  if (!n.ok()) return nullptr;
  if (type == "swiglu") {
    if (fusion == 0) {
      if (gate == nullptr) n.Invalid("swiglu with swiglu_fusion = 0 needs fc3_experts_weights");
      return SwiGlu(n, up, gate);
    }
    if (gate != nullptr) n.Invalid("swiglu_fusion is given, and fc3_experts_weights as well");
    if (!n.ok()) return nullptr;
    const Dims s = up->type.shape;
    const Dim half = Dim::FloorDiv(s[2], Dim(2));
    if (fusion == 2) return SwiGlu(n, n.SliceOf(up, 2, Dim(0), half), n.SliceOf(up, 2, half, Dim(2) * half));
    Value* pairs = n.ReshapeTo(up, {s[0], s[1], half, Dim(2)});
    const auto one = [&](int64_t i) {
      return n.ReshapeTo(n.SliceOf(pairs, 3, Dim(i), Dim(i + 1)), {s[0], s[1], half});
    };
    return SwiGlu(n, one(0), one(1));
  }
  n.Float("activation_alpha", 1), n.Float("activation_beta", 0);  // of swiglu
  if (fusion != 0 || n.HasAttr("swiglu_limit")) n.Invalid("swiglu_fusion and swiglu_limit are of swiglu only");
  if (type == "relu") {
    up = Map<Relu>(n, up);
  } else if (type == "gelu") {
    up = Map<GeluTanh>(n, up);
  } else if (type == "silu") {
    up = Map<Silu>(n, up);
  } else if (type != "identity") {
    n.Unsupported(absl::StrCat("activation_type \"", type, "\" is not supported"));
  }
  return gate == nullptr ? up : Map<Mul>(n, up, gate);
}

struct Routing {
  Value* chosen = nullptr;  // bool[T, experts]
  Value* weights = nullptr;
};

// The k largest of each token's scores; `mixing` gives their weights, if not the softmax of the scores.
Routing Route(OnnxNode& n, Value* scores, Value* mixing) {
  const int64_t k = n.Int("k", 1);
  const bool normalize = n.Int("normalize_routing_weights", 0) != 0;
  if (n.Int("use_sparse_mixer", 0) != 0) n.Unsupported("use_sparse_mixer is not supported");
  if (RankOf(scores) != 2) n.Invalid("router_probs must have rank 2");
  if (!n.ok()) return {};
  const Dim experts = scores->type.shape[1];
  if (k < 1 || (experts.is_constant() && k > experts.value())) {
    n.Invalid(absl::StrCat("k = ", k, " of ", experts.ToString(), " experts"));
    return {};
  }
  Value* probabilities = n.Emit(Softmax{.x = n.CastTo(scores, DType::kF32), .axis = 1});
  Value* order = n.Emit(ArgSort{.x = n.CastTo(scores, DType::kF32), .axis = 1, .descending = true});
  Value* rank = n.Emit(ArgSort{.x = order, .axis = 1});
  Routing routing{.chosen = Map<Less>(n, rank, static_cast<double>(k))};
  Value* weights = mixing == nullptr ? probabilities : n.CastTo(mixing, DType::kF32);
  weights = Select(n, routing.chosen, weights, n.Scalar(DType::kF32, 0));
  routing.weights = normalize ? Map<Div>(n, weights, ReduceOver<ReduceSum>(n, weights, {1})) : weights;
  return routing;
}

void Mix(OnnxNode& n, const Experts& experts, const Routing& routing) {
  Value* x = n.in(0);
  if (RankOf(x) != 2 && RankOf(x) != 3) return n.Invalid("the input must have rank 2 or 3");
  if (!n.ok()) return;
  const Dims shape = x->type.shape;
  const Dim tokens = Product(Dims(shape.begin(), shape.end() - 1));
  Value* y = Through(n, experts.down, Activated(n, experts, n.ReshapeTo(x, {Dim(1), tokens, shape.back()})));
  const auto by_expert = [&](Value* value) {  // [T, experts] as [experts, T, 1]
    if (!n.ok()) return value;
    value = n.TransposeBy(value, {1, 0});
    Dims column = DimsOfValue(value);
    column.push_back(Dim(1));
    return n.ReshapeTo(value, column);
  };
  Value* weighed = Map<Mul>(n, n.CastTo(y, DType::kF32), by_expert(routing.weights));
  // What an expert makes of tokens that are not its own may be infinite.
  weighed = Select(n, by_expert(routing.chosen), weighed, n.Scalar(DType::kF32, 0));
  Value* sum = ReduceOver<ReduceSum>(n, weighed, {0}, false);
  n.Set(0, n.ReshapeTo(n.CastTo(sum, DTypeOf(x)), shape));
}

void ImportMoe(OnnxNode& n) {
  if (!n.has(4)) return n.Invalid("fc2_experts_weights is missing");
  const Experts experts{.up = {n.in(2), n.in(3)}, .down = {n.in(4), n.in(5)}, .gate = {n.in(6), n.in(7)}};
  Mix(n, experts, Route(n, n.in(1), nullptr));
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
  const double middle = static_cast<double>(int64_t{1} << (bits - 1));
  return n.ReshapeTo(Dequantized(n, n.ReshapeTo(q, apart), zero, middle, n.ReshapeTo(n.in(scales), column)), shape);
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
  Mix(n, experts, Route(n, n.in(1), n.in(14)));
}

constexpr OnnxOp kContribMoeOps[] = {
    {"MoE", 1, 3, 8, ImportMoe, "no sparse mixer; every expert is computed for every token"},
    {"QMoE", 1, 3, 21, ImportQMoe,
     "integers of 2, 4 or 8 bits; weights_prepacked 0, or -1 in f32, which only CPUs take"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribMoeOps() { return kContribMoeOps; }

}  // namespace llmc
