// Products, convolution, reductions and normalizations.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "frontend/onnx_ops.h"

namespace llmc {
namespace {

// A vector takes part as a row (left) or a column (right) whose axis then goes away, as in numpy.
void ImportMatMul(OnnxNode& n) {
  Value *lhs = n.in(0), *rhs = n.in(1);
  const bool row = RankOf(lhs) == 1, column = RankOf(rhs) == 1;
  if (RankOf(lhs) == 0 || RankOf(rhs) == 0) return n.Invalid("an input is a scalar");
  if (row) lhs = n.ReshapeTo(lhs, {Dim(1), lhs->type.shape[0]});
  if (column) rhs = n.ReshapeTo(rhs, {rhs->type.shape[0], Dim(1)});
  Value* y = n.Emit(MatMul{.lhs = lhs, .rhs = rhs});
  Dims shape = DimsOfValue(y);
  if (!n.ok()) return;
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  n.Set(0, n.ReshapeTo(y, std::move(shape)));
}

Value* Scaled(OnnxNode& n, Value* x, double factor) {
  return factor == 1 ? x : n.Emit(Mul{.lhs = x, .rhs = n.Scalar(DTypeOf(x), factor)});
}

void ImportGemm(OnnxNode& n) {
  if (RankOf(n.in(0)) != 2 || RankOf(n.in(1)) != 2) return n.Invalid("the factors must be matrices");
  Value* a = n.Int("transA", 0) != 0 ? n.TransposeBy(n.in(0), {1, 0}) : n.in(0);
  Value* y = n.Emit(MatMul{.lhs = a, .rhs = n.in(1), .transpose_rhs = n.Int("transB", 0) != 0});
  y = Scaled(n, y, n.Float("alpha", 1));
  const double beta = n.Float("beta", 1);
  if (!n.has(2) || beta == 0) return n.Set(0, y);
  Value* sum = n.Emit(Add{.lhs = y, .rhs = Scaled(n, n.in(2), beta)});
  if (n.ok() && sum->type.shape != y->type.shape) {
    const std::string why = absl::StrCat("C ", n.in(2)->type.ToString(), " does not broadcast to ", y->type.ToString());
    return Product(sum->type.shape).is_constant() ? n.Invalid(why) : n.Unsupported(why);
  }
  n.Set(0, sum);
}

// ---- convolution --------------------------------------------------------------

// SAME_UPPER and SAME_LOWER: as many outputs as strides fit in the input.
std::vector<int64_t> SamePads(OnnxNode& n, const Dims& x, const Dims& weight, const std::vector<int64_t>& strides,
                              const std::vector<int64_t>& dilations, bool upper) {
  const size_t spatial = strides.size();
  std::vector<int64_t> pads(2 * spatial, 0);
  for (size_t i = 0; i < spatial; ++i) {
    if (!x[i + 2].is_constant() || !weight[i + 2].is_constant()) {
      n.Unsupported("auto_pad needs known sizes; give pads");
      return pads;
    }
    const int64_t size = x[i + 2].value();
    const int64_t reach = (weight[i + 2].value() - 1) * dilations[i] + 1;
    const int64_t outputs = (size + strides[i] - 1) / strides[i];
    const int64_t total = std::max<int64_t>(0, (outputs - 1) * strides[i] + reach - size);
    pads[i] = upper ? total / 2 : total - total / 2;
    pads[i + spatial] = total - pads[i];
  }
  return pads;
}

std::vector<int64_t> SpatialAttr(OnnxNode& n, absl::string_view name, size_t count, int64_t fallback) {
  std::vector<int64_t> values = n.Ints(name);
  if (values.empty()) values.assign(count, fallback);
  constexpr int64_t kMax = 1 << 20;
  const bool in_range =
      std::all_of(values.begin(), values.end(), [&](int64_t v) { return v >= fallback && v <= kMax; });
  if (values.size() != count || !in_range) n.Invalid(absl::StrCat(name, " is out of range"));
  return values;
}

void ImportConv(OnnxNode& n) {
  const Dims x = DimsOfValue(n.in(0)), weight = DimsOfValue(n.in(1));
  if (x.size() < 3 || weight.size() != x.size())
    return n.Invalid("input and weight must have equal ranks of 3 or more");
  const size_t spatial = x.size() - 2;
  const std::vector<int64_t> strides = SpatialAttr(n, "strides", spatial, 1);
  const std::vector<int64_t> dilations = SpatialAttr(n, "dilations", spatial, 1);
  std::vector<int64_t> pads = SpatialAttr(n, "pads", 2 * spatial, 0);
  const std::vector<int64_t> kernel = n.Ints("kernel_shape");
  for (size_t i = 0; i < kernel.size(); ++i) {
    if (kernel.size() == spatial && !weight[i + 2].is_constant()) {
      return n.Unsupported("kernel_shape needs a weight of known size");
    }
    if (kernel.size() != spatial || weight[i + 2] != Dim(kernel[i])) {
      return n.Invalid("kernel_shape is not the weight's");
    }
  }
  const std::string auto_pad = n.String("auto_pad", "NOTSET");
  if (!n.ok()) return;
  if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
    pads = SamePads(n, x, weight, strides, dilations, auto_pad == "SAME_UPPER");
  } else if (auto_pad == "VALID") {
    pads.assign(2 * spatial, 0);
  } else if (auto_pad != "NOTSET") {
    return n.Invalid(absl::StrCat("auto_pad \"", auto_pad, "\" is unknown"));
  }
  n.Set(0, n.Emit(Conv{.x = n.in(0),
                       .weight = n.in(1),
                       .bias = n.in(2),
                       .strides = strides,
                       .dilations = dilations,
                       .pads = pads,
                       .groups = n.Int("group", 1)}));
}

// ---- reductions ---------------------------------------------------------------

std::vector<int64_t> AllAxes(int rank) {
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

// Axes are an attribute first, an input since `input_since`. Nullopt: the result is the input.
std::optional<std::vector<int64_t>> ReduceAxes(OnnxNode& n, int input_since) {
  const int rank = RankOf(n.in(0));
  std::vector<int64_t> axes = n.HasSince(1, input_since) ? n.StaticInts(1, "axes") : std::vector<int64_t>{};
  if (n.opset() < input_since) axes = n.Ints("axes");
  const bool keep = n.opset() >= input_since && n.Int("noop_with_empty_axes", 0) != 0;
  axes = n.NormalizeAxes(std::move(axes), rank);
  if (!axes.empty() || !n.ok()) return axes;
  if (keep) return std::nullopt;
  return AllAxes(rank);
}

template <class Op>
Value* ReduceBy(OnnxNode& n, Value* x, int input_since) {
  const bool keep_dims = n.Int("keepdims", 1) != 0;
  auto axes = ReduceAxes(n, input_since);
  if (!axes.has_value() || axes->empty()) return x;
  return n.Emit(Op{.x = x, .axes = *std::move(axes), .keep_dims = keep_dims});
}

template <class Op, int input_since = 18>
void ImportReduce(OnnxNode& n) {
  n.Set(0, ReduceBy<Op>(n, n.in(0), input_since));
}

void ImportReduceSumSquare(OnnxNode& n) {
  n.Set(0, ReduceBy<ReduceSum>(n, n.Emit(Mul{.lhs = n.in(0), .rhs = n.in(0)}), 18));
}

void ImportReduceL1(OnnxNode& n) { n.Set(0, ReduceBy<ReduceSum>(n, n.Emit(Abs{.x = n.in(0)}), 18)); }

void ImportReduceL2(OnnxNode& n) {
  if (!IsFloat(DTypeOf(n.in(0)))) return n.Unsupported("integers are not supported");
  Value* squares = n.Emit(Mul{.lhs = n.in(0), .rhs = n.in(0)});
  n.Set(0, n.Emit(Sqrt{.x = ReduceBy<ReduceSum>(n, squares, 18)}));
}

void ImportGlobalAveragePool(OnnxNode& n) {
  std::vector<int64_t> axes = AllAxes(RankOf(n.in(0)));
  if (axes.size() < 3) return n.Invalid("the input must have rank 3 or more");
  axes.erase(axes.begin(), axes.begin() + 2);
  n.Set(0, n.Emit(ReduceMean{.x = n.in(0), .axes = std::move(axes), .keep_dims = true}));
}

// ---- softmax and normalizations ------------------------------------------------

// x with its axes joined to [before axis, from axis on].
Value* AsMatrix(OnnxNode& n, Value* x, int64_t axis) {
  const Dims shape = DimsOfValue(x);
  return n.ReshapeTo(
      x, {Product(Dims(shape.begin(), shape.begin() + axis)), Product(Dims(shape.begin() + axis, shape.end()))});
}

// Before opset 13 the axes from `axis` on were one.
template <bool log>
void ImportSoftmax(OnnxNode& n) {
  Value* x = n.in(0);
  const int rank = RankOf(x);
  const bool joined = n.opset() < 13;
  const int64_t axis = n.Axis("axis", joined ? 1 : -1, rank, joined);
  if (!n.ok()) return;
  if (!joined || axis == rank - 1) return n.Set(0, n.Emit(Softmax{.x = x, .axis = axis, .log = log}));
  Value* y = n.Emit(Softmax{.x = AsMatrix(n, x, axis), .axis = 1, .log = log});
  n.Set(0, n.ReshapeTo(y, DimsOfValue(x)));
}

// The arithmetic is in f32 whatever the type, which is what stash_type 1 asks for.
void CheckStashType(OnnxNode& n) {
  const int64_t stash = n.Int("stash_type", 1);
  if (stash == onnx::TensorProto::FLOAT) return;
  if (stash == onnx::TensorProto::DOUBLE && DTypeOf(n.in(0)) == DType::kF64) return;
  n.Unsupported(absl::StrCat("stash_type ", stash, " is not supported"));
}

// A scale or bias as one of `shape`, the axes that are normalized. It may have leading axes of size 1, or be broadcast.
Value* ExpandTrailing(OnnxNode& n, Value* x, const Dims& shape) {
  if (x == nullptr || x->type.shape == shape) return x;
  Dims dims = x->type.shape;
  while (dims.size() > shape.size() && dims[0] == Dim(1)) dims.erase(dims.begin());
  if (dims.size() > shape.size()) {
    n.Unsupported(absl::StrCat("a scale or bias ", x->type.ToString(), " that differs along other axes than those",
                               " normalized, [", DimsToString(shape), "], is not supported"));
    return nullptr;
  }
  x = n.ReshapeTo(x, dims);
  return dims == shape ? x : n.Emit(Expand{.x = x, .shape = shape});
}

void ImportLayerNormalization(OnnxNode& n) {
  CheckStashType(n);
  if (n.wants(1) || n.wants(2)) return n.Unsupported("the outputs Mean and InvStdDev are not supported");
  Value* x = n.in(0);
  const int64_t axis = n.Axis("axis", -1, RankOf(x));
  const Dims shape = DimsOfValue(x);
  if (!n.ok()) return;
  const Dims normalized(shape.begin() + axis, shape.end());
  Value* weight = ExpandTrailing(n, n.in(1), normalized);
  Value* bias = ExpandTrailing(n, n.in(2), normalized);
  n.Set(0, n.Emit(LayerNorm{.x = x, .weight = weight, .bias = bias, .axis = axis, .eps = n.Float("epsilon", 1e-5f)}));
}

void ImportRmsNormalization(OnnxNode& n) {
  CheckStashType(n);
  Value *x = n.in(0), *weight = n.in(1);
  const int rank = RankOf(x);
  const int64_t axis = n.Axis("axis", -1, rank);
  const double eps = n.Float("epsilon", 1e-5f);
  if (!n.ok()) return;
  const Dims shape = x->type.shape;
  const Dims normalized(shape.begin() + axis, shape.end());
  weight = ExpandTrailing(n, weight, normalized);
  if (axis == rank - 1) return n.Set(0, n.Emit(RmsNorm{.x = x, .weight = weight, .eps = eps}));
  Value* flat = n.ReshapeTo(weight, {Product(normalized)});
  Value* y = n.Emit(RmsNorm{.x = AsMatrix(n, x, axis), .weight = flat, .eps = eps});
  n.Set(0, n.ReshapeTo(y, shape));
}

constexpr OnnxOp kOps[] = {
    {"MatMul", 1, 2, 2, ImportMatMul},
    {"Gemm", 7, 2, 3, ImportGemm},
    {"Conv", 1, 2, 3, ImportConv},
    {"ReduceSum", 1, 1, 2, ImportReduce<ReduceSum, 13>},
    {"ReduceMean", 1, 1, 2, ImportReduce<ReduceMean>},
    {"ReduceMax", 1, 1, 2, ImportReduce<ReduceMax>},
    {"ReduceMin", 1, 1, 2, ImportReduce<ReduceMin>},
    {"ReduceProd", 1, 1, 2, ImportReduce<ReduceProd>},
    {"ReduceSumSquare", 1, 1, 2, ImportReduceSumSquare},
    {"ReduceL1", 1, 1, 2, ImportReduceL1},
    {"ReduceL2", 1, 1, 2, ImportReduceL2},
    {"GlobalAveragePool", 1, 1, 1, ImportGlobalAveragePool},
    {"Softmax", 1, 1, 1, ImportSoftmax<false>},
    {"LogSoftmax", 1, 1, 1, ImportSoftmax<true>},
    {"LayerNormalization", 17, 2, 3, ImportLayerNormalization},
    {"RMSNormalization", 23, 2, 2, ImportRmsNormalization},
};

}  // namespace

absl::Span<const OnnxOp> OnnxNnOps() { return kOps; }

}  // namespace llmc
