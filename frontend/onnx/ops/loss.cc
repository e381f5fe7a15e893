// Losses, which exporters leave in models that were trained.
#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// -log_prob[target] * weight[target] for log_prob[N, C, …] and target[N, …], reduced.
Value* NegativeLogLikelihood(OnnxNode& n, Value* log_prob, Value* target, Value* weight) {
  const std::string reduction = n.String("reduction", "mean");
  if (reduction != "none" && reduction != "mean" && reduction != "sum") {
    n.Invalid("reduction must be \"none\", \"mean\" or \"sum\"");
  }
  if (RankOf(log_prob) < 2 || RankOf(target) != RankOf(log_prob) - 1) {
    n.Invalid("the target must have the axes of the input but the second");
  }
  const bool ignores = n.HasAttr("ignore_index");
  const double ignored = static_cast<double>(n.Int("ignore_index", 0));
  target = n.CastTo(target, DType::kI64);
  const DType dtype = DTypeOf(log_prob);
  if (!n.ok()) return nullptr;
  Value* skip = nullptr;
  if (ignores) {
    skip = Map<Equal>(n, target, ignored);
    target = Select(n, skip, n.Scalar(DType::kI64, 0), target);
  }
  if (!n.ok()) return nullptr;
  const Dims shape = target->type.shape;
  Dims column = shape;
  column.insert(column.begin() + 1, Dim(1));
  Value* chosen = n.Emit(GatherElements{.x = log_prob, .indices = n.ReshapeTo(target, column), .axis = 1});
  Value* loss = Map<Neg>(n, n.ReshapeTo(chosen, shape));
  Value* weights = weight == nullptr ? nullptr : GatherAlong(n, weight, target, 0);
  if (skip != nullptr) {
    Value* one = weights == nullptr ? n.Scalar(dtype, 1) : weights;
    weights = Select(n, skip, n.Scalar(dtype, 0), one);
  }
  if (weights != nullptr) loss = Map<Mul>(n, loss, weights);
  const std::vector<int64_t> all = CountTo(RankOf(target));
  if (reduction == "none") return loss;
  if (reduction == "sum") return ReduceOver<ReduceSum>(n, loss, all, false);
  if (weights == nullptr) return ReduceOver<ReduceMean>(n, loss, all, false);
  return Map<Div>(n, ReduceOver<ReduceSum>(n, loss, all, false), ReduceOver<ReduceSum>(n, weights, all, false));
}

void ImportNegativeLogLikelihoodLoss(OnnxNode& n) { n.Set(0, NegativeLogLikelihood(n, n.in(0), n.in(1), n.in(2))); }

void ImportSoftmaxCrossEntropyLoss(OnnxNode& n) {
  if (RankOf(n.in(0)) < 2) return n.Invalid("the scores must have rank 2 or more");
  Value* log_prob = n.Emit(Softmax{.x = n.in(0), .axis = 1, .log = true});
  n.Set(0, NegativeLogLikelihood(n, log_prob, n.in(1), n.in(2)));
  if (n.wants(1)) n.Set(1, log_prob);
}

constexpr OnnxOp kLossOps[] = {
    {"NegativeLogLikelihoodLoss", 12, 2, 3, ImportNegativeLogLikelihoodLoss},
    {"SoftmaxCrossEntropyLoss", 12, 2, 3, ImportSoftmaxCrossEntropyLoss},
};

}  // namespace

absl::Span<const OnnxOp> OnnxLossOps() { return kLossOps; }

}  // namespace llmc
