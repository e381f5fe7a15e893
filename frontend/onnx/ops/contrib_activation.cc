// Activations with a bias, and matrix products with transposes, as ONNX Runtime's optimizer writes them.
#include <numeric>

#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// The second input is a bias of the last axis.
Value* Biased(OnnxNode& n) {
  if (!n.has(1)) return n.in(0);
  if (RankOf(n.in(1)) != 1) n.Invalid("the bias must be a vector");
  if (RankOf(n.in(0)) == 0) n.Invalid("the input must not be a scalar");
  return Map<Add>(n, n.in(0), n.in(1));
}

void ImportErfGelu(OnnxNode& n) { n.Set(0, Map<Gelu>(n, Biased(n))); }
void ImportFastGelu(OnnxNode& n) { n.Set(0, Map<GeluTanh>(n, Biased(n))); }

// x * sigmoid(alpha * x)
void ImportQuickGelu(OnnxNode& n) {
  Value* x = n.in(0);
  const double alpha = n.Float("alpha", 1.702f);
  if (alpha == 1) return n.Set(0, Map<Silu>(n, x));
  n.Set(0, Map<Mul>(n, x, Map<Sigmoid>(n, Map<Mul>(n, x, alpha))));
}

// A factor of FusedMatMul as the product takes it. trans_batch moves axis 0, the rows, behind the axes of the batch.
Value* Factor(OnnxNode& n, Value* x, bool trans, bool trans_batch) {
  const int rank = RankOf(x);
  if (rank < 2) return x;  // A vector has nothing to transpose.
  std::vector<int64_t> perm = CountTo(rank);
  if (trans_batch) {
    if (rank < 3) n.Invalid("transBatchA and transBatchB need a rank of 3 or more");
    perm.erase(perm.begin());
    perm.insert(perm.end() - 1, 0);
  }
  if (trans) std::swap(perm[perm.size() - 2], perm[perm.size() - 1]);
  return n.TransposeBy(x, perm);
}

void ImportFusedMatMul(OnnxNode& n) {
  Value* lhs = Factor(n, n.in(0), n.Int("transA", 0) != 0, n.Int("transBatchA", 0) != 0);
  Value* rhs = Factor(n, n.in(1), n.Int("transB", 0) != 0, n.Int("transBatchB", 0) != 0);
  const double alpha = n.Float("alpha", 1);
  Value* y = OnnxMatMul(n, lhs, rhs);
  n.Set(0, alpha == 1 ? y : Map<Mul>(n, y, alpha));
}

constexpr OnnxOp kContribActivationOps[] = {
    {"Gelu", 1, 1, 1, ImportErfGelu},
    {"BiasGelu", 1, 2, 2, ImportErfGelu},
    {"FastGelu", 1, 1, 2, ImportFastGelu},
    {"QuickGelu", 1, 1, 1, ImportQuickGelu},
    {"FusedMatMul", 1, 2, 2, ImportFusedMatMul},
    {"TransposeMatMul", 1, 2, 2, ImportFusedMatMul, "the older name of FusedMatMul"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribActivationOps() { return kContribActivationOps; }

}  // namespace llmc
