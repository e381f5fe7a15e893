// Products and softmax.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {

Value* OnnxMatMul(OnnxNode& n, Value* lhs, Value* rhs) {
  if (!n.ok()) return nullptr;
  const bool row = RankOf(lhs) == 1, column = RankOf(rhs) == 1;
  if (RankOf(lhs) == 0 || RankOf(rhs) == 0) {
    n.Invalid("an input is a scalar");
    return nullptr;
  }
  if (row) lhs = n.ReshapeTo(lhs, {Dim(1), lhs->type.shape[0]});
  if (column) rhs = n.ReshapeTo(rhs, {rhs->type.shape[0], Dim(1)});
  Value* y = n.Emit(MatMul{.lhs = lhs, .rhs = rhs});
  Dims shape = DimsOfValue(y);
  if (!n.ok()) return nullptr;
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  return n.ReshapeTo(y, std::move(shape));
}

namespace {

void ImportMatMul(OnnxNode& n) { n.Set(0, OnnxMatMul(n, n.in(0), n.in(1))); }

Value* Scaled(OnnxNode& n, Value* x, double factor) {
  return factor == 1 ? x : n.Emit(Mul{.lhs = x, .rhs = n.Scalar(DTypeOf(x), factor)});
}

}  // namespace

Value* GemmByAttributes(OnnxNode& n) {
  if (RankOf(n.in(0)) != 2 || RankOf(n.in(1)) != 2) n.Invalid("the factors must be matrices");
  if (!n.ok()) return nullptr;
  Value* a = n.Int("transA", 0) != 0 ? n.TransposeBy(n.in(0), {1, 0}) : n.in(0);
  Value* y = n.Emit(MatMul{.lhs = a, .rhs = n.in(1), .transpose_rhs = n.Int("transB", 0) != 0});
  y = Scaled(n, y, n.Float("alpha", 1));
  const double beta = n.Float("beta", 1);
  if (!n.has(2) || beta == 0) return y;
  Value* sum = n.Emit(Add{.lhs = y, .rhs = Scaled(n, n.in(2), beta)});
  if (n.ok() && sum->type.shape != y->type.shape) {
    const std::string why = absl::StrCat("C ", n.in(2)->type.ToString(), " does not broadcast to ", y->type.ToString());
    Product(sum->type.shape).is_constant() ? n.Invalid(why) : n.Unsupported(why);
  }
  return sum;
}

Value* JoinedSoftmax(OnnxNode& n, Value* x, int64_t axis, bool log) {
  if (axis == RankOf(x) - 1) return n.Emit(Softmax{.x = x, .axis = axis, .log = log});
  Value* y = n.Emit(Softmax{.x = AsMatrix(n, x, axis), .axis = 1, .log = log});
  return n.ReshapeTo(y, DimsOfValue(x));
}

namespace {

void ImportGemm(OnnxNode& n) { n.Set(0, GemmByAttributes(n)); }

// ---- softmax and normalizations ------------------------------------------------

// Before opset 13 the axes from `axis` on were one.
template <bool log>
void ImportSoftmax(OnnxNode& n) {
  Value* x = n.in(0);
  const int rank = RankOf(x);
  const bool joined = n.opset() < 13;
  const int64_t axis = n.Axis("axis", joined ? 1 : -1, rank, joined);
  if (!n.ok()) return;
  n.Set(0, joined ? JoinedSoftmax(n, x, axis, log) : n.Emit(Softmax{.x = x, .axis = axis, .log = log}));
}

constexpr OnnxOp kNnOps[] = {
    {"MatMul", 1, 2, 2, ImportMatMul},
    {"Gemm", 7, 2, 3, ImportGemm},
    {"Softmax", 1, 1, 1, ImportSoftmax<false>},
    {"LogSoftmax", 1, 1, 1, ImportSoftmax<true>},
};

}  // namespace

absl::Span<const OnnxOp> OnnxNnOps() { return kNnOps; }

}  // namespace llmc
