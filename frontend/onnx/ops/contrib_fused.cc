// What ONNX Runtime's optimizer merges: products and convolutions with what is done to their results, sums with a
// softmax, the buckets of T5's relative positions.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "frontend/onnx/ops/window.h"

namespace llmc {
namespace {

// An activation by its name, with its attributes in their order, or `fallback` where they are not given.
struct FusedActivation {
  std::string name;
  std::vector<double> given;
  double Param(size_t i, double fallback) const { return i < given.size() ? given[i] : fallback; }
};

Value* Exponential(OnnxNode& n, Value* x, double alpha) {
  Value* low = Map<Mul>(n, Map<Expm1>(n, Map<Min>(n, x, 0)), alpha);
  return Select(n, Map<Less>(n, x, 0), low, x);
}

Value* Activated(OnnxNode& n, Value* x, const FusedActivation& a) {
  if (!n.ok() || a.name.empty()) return x;
  if (a.name == "Relu") return Map<Relu>(n, x);
  if (a.name == "Tanh") return Map<Tanh>(n, x);
  if (a.name == "Sigmoid") return Map<Sigmoid>(n, x);
  if (a.name == "Softplus") return Map<Softplus>(n, x);
  if (a.name == "Softsign") return Map<Div>(n, x, Map<Add>(n, Map<Abs>(n, x), 1));
  if (a.name == "LeakyRelu") return Select(n, Map<Less>(n, x, 0), Map<Mul>(n, x, a.Param(0, 0.01f)), x);
  if (a.name == "Elu") return Exponential(n, x, a.Param(0, 1));
  if (a.name == "Selu") {
    return Map<Mul>(n, Exponential(n, x, a.Param(0, 1.67326319217681884765625f)),
                    a.Param(1, 1.05070102214813232421875f));
  }
  if (a.name == "HardSigmoid") {
    Value* line = Map<Add>(n, Map<Mul>(n, x, a.Param(0, 0.2f)), a.Param(1, 0.5f));
    return Map<Max>(n, Map<Min>(n, line, 1), 0);
  }
  if (a.name == "ThresholdedRelu") {
    return Select(n, Map<Greater>(n, x, a.Param(0, 1)), x, n.Scalar(DTypeOf(x), 0));
  }
  if (a.name == "Clip") {
    return Map<Min>(n, Map<Max>(n, x, a.Param(0, LowestOf(DTypeOf(x)))), a.Param(1, -LowestOf(DTypeOf(x))));
  }
  n.Unsupported(absl::StrCat("activation \"", a.name, "\" is not supported"));
  return nullptr;
}

void ImportFusedGemm(OnnxNode& n) {
  FusedActivation activation{.name = n.String("activation", "")};
  for (const char* name : {"activation_alpha", "activation_beta", "activation_gamma"}) {
    if (!n.HasAttr(name)) break;
    activation.given.push_back(n.Float(name, 0));
  }
  // Selu has alpha and gamma.
  if (activation.name == "Selu" && n.HasAttr("activation_gamma") && n.HasAttr("activation_alpha")) {
    activation.given = {n.Float("activation_alpha", 0), n.Float("activation_gamma", 0)};
  }
  n.Set(0, Activated(n, GemmByAttributes(n), activation));
}

// Inputs: x, weights, bias, and what is added before the activation.
template <bool channels_last>
void ImportFusedConv(OnnxNode& n) {
  Value* x = channels_last ? ChannelsFirst(n, n.in(0)) : n.in(0);
  Value* y = ConvByAttributes(n, x, n.in(1), n.in(2));
  if (channels_last) y = ChannelsLast(n, y);
  if (n.has(3)) y = Map<Add>(n, y, n.in(3));
  n.Set(0, Activated(n, y, {n.String("activation", ""), n.Floats("activation_params")}));
}

// Over all axes from `axis` on. The bias broadcasts as in Add, in which ways the attribute is_inner_broadcast tells.
void ImportBiasSoftmax(OnnxNode& n) {
  n.Int("is_inner_broadcast", 0);
  Value* x = Map<Add>(n, n.in(0), n.in(1));
  const int64_t axis = n.Axis("axis", 1, RankOf(n.in(0)));
  if (n.ok()) n.Set(0, JoinedSoftmax(n, x, axis, false));
}

void ImportBiasSplitGelu(OnnxNode& n) {
  Value* x = Map<Add>(n, n.in(0), n.in(1));
  if (!n.ok()) return;
  const int64_t axis = RankOf(x) - 1;
  const Dim width = x->type.shape.back(), half = Dim::FloorDiv(width, Dim(2));
  n.Set(0, Map<Mul>(n, n.SliceOf(x, axis, Dim(0), half), Map<Gelu>(n, n.SliceOf(x, axis, half, width))));
}

void ImportBiasAdd(OnnxNode& n) { n.Set(0, Map<Add>(n, Map<Add>(n, n.in(0), n.in(1)), n.in(2))); }

void ImportGemmFastGelu(OnnxNode& n) {
  Value* y = OnnxMatMul(n, n.in(0), n.in(1));
  n.Set(0, Map<GeluTanh>(n, n.has(2) ? Map<Add>(n, y, n.in(2)) : y));
}

// 0, 1, … below a number that may be known.
Value* PositionsOf(OnnxNode& n, size_t i) {
  Value* size = n.ReshapeTo(n.AsI64(i), {});
  if (!n.ok()) return nullptr;
  return size->contents.has_value() ? Positions(n, (*size->contents)[0]) : PositionsBelow(n, size);
}

// Half of the buckets, or all where only the past is seen, hold one distance each up to a half of them; the others are
// for distances up to max_distance, ever wider.
Value* Buckets(OnnxNode& n, Value* distance, int64_t buckets, int64_t max_distance) {
  const int64_t exact = buckets / 2;
  Value* far = Map<Div>(n, n.CastTo(Map<Max>(n, distance, 1), DType::kF32), static_cast<double>(exact));
  const double octaves = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  far = Map<Mul>(n, Map<Div>(n, Map<Log>(n, far), octaves), static_cast<double>(buckets - exact));
  far = Map<Add>(n, n.CastTo(far, DType::kI64), static_cast<double>(exact));
  far = Map<Min>(n, far, static_cast<double>(buckets - 1));
  return Select(n, Map<Less>(n, distance, static_cast<double>(exact)), distance, far);
}

// Inputs: a table declared as [buckets, heads] that is laid out as [heads, buckets], the numbers of queries and keys.
void ImportRelativePositionBias(OnnxNode& n) {
  const int64_t max_distance = n.Int("max_distance", 128);
  const bool both = n.Int("is_bidirectional", 0) != 0;
  if (RankOf(n.in(0)) != 2) return n.Invalid("the table must have rank 2");
  const Dim rows = n.in(0)->type.shape[0], heads = n.in(0)->type.shape[1];
  if (!rows.is_constant()) return n.Unsupported("the number of buckets must be known");
  const int64_t buckets = both ? rows.value() / 2 : rows.value();
  if (buckets < 2 || max_distance <= buckets / 2) return n.Invalid("max_distance or the table is too small");
  Value *query = PositionsOf(n, 1), *key = PositionsOf(n, 2);
  if (!n.ok()) return;
  query = n.ReshapeTo(query, {query->type.shape[0], Dim(1)});
  Value* ahead = Map<Sub>(n, n.ReshapeTo(key, {Dim(1), key->type.shape[0]}), query);
  Value* behind = Map<Neg>(n, ahead);
  Value* bucket = Buckets(n, both ? Map<Max>(n, ahead, behind) : Map<Max>(n, behind, 0), buckets, max_distance);
  if (both) {
    Value* upper = Map<Mul>(n, n.CastTo(Map<Greater>(n, ahead, 0), DType::kI64), static_cast<double>(buckets));
    bucket = Map<Add>(n, bucket, upper);
  }
  Value* bias = GatherAlong(n, n.ReshapeTo(n.in(0), {heads, rows}), bucket, 1);
  if (!n.ok()) return;
  Dims shape = bias->type.shape;
  shape.insert(shape.begin(), Dim(1));
  n.Set(0, n.ReshapeTo(bias, std::move(shape)));
}

constexpr absl::string_view kActivations =
    "activations Relu, Tanh, Sigmoid, Softplus, Softsign, LeakyRelu, Elu, Selu, HardSigmoid, ThresholdedRelu, Clip";

constexpr OnnxOp kContribFusedOps[] = {
    {"FusedGemm", 1, 2, 3, ImportFusedGemm, kActivations},
    {"FusedConv", 1, 2, 4, ImportFusedConv<false>, kActivations},
    {"NhwcFusedConv", 1, 2, 4, ImportFusedConv<true>, kActivations},
    {"BiasSoftmax", 1, 2, 2, ImportBiasSoftmax},
    {"BiasSplitGelu", 1, 2, 2, ImportBiasSplitGelu},
    {"BiasAdd", 1, 3, 3, ImportBiasAdd},
    {"GemmFastGelu", 1, 2, 3, ImportGemmFastGelu},
    {"RelativePositionBias", 1, 3, 3, ImportRelativePositionBias, "a known number of buckets"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribFusedOps() { return kContribFusedOps; }

}  // namespace llmc
