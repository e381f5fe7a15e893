// Products of quantized factors.
#include "ir/ops_quant.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "ir/ops_internal.h"
#include "ir/ops_nn.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::Str;
using ops::TypeOf;

constexpr absl::string_view kName = "quantized_matmul";

bool IsByte(DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; }
bool IsQuantized(DType dtype) { return IsByte(dtype) || dtype == DType::kI4 || dtype == DType::kU4; }
bool IsZeroPoint(DType dtype) { return IsQuantized(dtype) || dtype == DType::kI16 || dtype == DType::kI32; }

bool IsOne(const TensorType& type) { return type.rank() == 0 || (type.rank() == 1 && ops::IsNumber(type.shape[0], 1)); }

Dim BlocksOf(const Dim& k, int64_t block) { return Dim::FloorDiv(k + Dim(block - 1), Dim(block)); }

// Whether a scale or zero point of rhs has one of its shapes.
bool Fits(const TensorType& type, const TensorType& rhs, bool transposed, int64_t block, SizeCollector& sizes) {
  const Dim &k = rhs.shape[rhs.rank() - (transposed ? 1 : 2)], &n = rhs.shape[rhs.rank() - (transposed ? 2 : 1)];
  if (type.rank() == 2 && block > 0) {
    const Dim blocks = BlocksOf(k, block);
    return sizes.Same(type.shape, transposed ? Dims{n, blocks} : Dims{blocks, n});
  }
  return IsOne(type) || sizes.Same(type.shape, {n});
}

// A scale or zero point of rhs as it lies in memory: that of number i of column c is at i / block * by_block +
// c * by_column.
struct Steps {
  int64_t block = 1, by_block = 0, by_column = 0;
  int64_t At(int64_t i, int64_t c) const { return i / block * by_block + c * by_column; }
};

absl::StatusOr<Steps> StepsOf(const Tensor& part, const ops::ProductPlan& plan, int64_t block) {
  if (part.rank() == 2 && block > 0) {
    const int64_t blocks = (plan.k + block - 1) / block;
    const Shape shape = plan.transposed ? Shape{plan.n, blocks} : Shape{blocks, plan.n};
    if (part.shape() != shape) return Fail(kName, ": ", Str(part), " is not of the blocks ", ShapeToString(shape));
    return Steps{block, plan.transposed ? 1 : plan.n, plan.transposed ? blocks : 1};
  }
  if (part.size() == 1) return Steps{};
  if (part.shape() != Shape{plan.n}) return Fail(kName, ": ", Str(part), " is not for ", plan.n, " columns");
  return Steps{1, 0, 1};
}

// ---- lhs of integers ------------------------------------------------------------------------------------------------

// Sums of 16-bit products in 32 bits: so many cannot overflow. Bytes less a zero point of the other sign are from -383
// to 383.
constexpr int64_t kSafe = (int64_t{1} << 31) / (383 * 383);

int64_t Dot(const int16_t* a, const int16_t* b, int64_t k) {
  int64_t all = 0;
  for (int64_t begin = 0; begin < k; begin += kSafe) {
    const int64_t end = std::min(k, begin + kSafe);
    int32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += a[i] * b[i];
    all += sum;
  }
  return all;
}

int64_t Dot(const int64_t* a, const int64_t* b, int64_t k) {
  int64_t sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += a[i] * b[i];
  return sum;
}

// Columns [begin, begin + count) of a matrix of bytes, less their zero points, one after the other. Byte: i8 or u8.
template <class Byte, class D, class ZeroOf>
void LoadColumns(const Byte* matrix, const ops::ProductPlan& plan, int64_t begin, int64_t count, ZeroOf zero_of,
                 D* out) {
  const int64_t step = plan.transposed ? 1 : plan.n, column_step = plan.transposed ? plan.k : 1;
  for (int64_t c = 0; c < count; ++c) {
    const Byte* from = matrix + (begin + c) * column_step;
    const int64_t zero = zero_of(begin + c);
    for (int64_t i = 0; i < plan.k; ++i) out[c * plan.k + i] = static_cast<D>(from[i * step] - zero);
  }
}

// In X. Differences from zero points are held as D: those of bytes fit 16 bits.
template <class D, class X>
void MultiplyIntegers(const EvalArgs& args, const ops::ProductPlan& plan, const Steps& scale, const Steps& zero,
                      X* out) {
  constexpr int64_t kColumns = 16;  // so that rows of a cache line are read at once
  const int64_t m = plan.m, n = plan.n, k = plan.k;
  const int64_t lhs_zero = args.has(5) ? args[5].GetInt(0) : 0;
  const X lhs_scale = static_cast<X>(args[4].GetFloat(0));
  std::vector<D> a(static_cast<size_t>(args[0].size()));
  for (int64_t i = 0; i < args[0].size(); ++i) a[i] = static_cast<D>(args[0].GetInt(i) - lhs_zero);
  const auto zero_of = [&](int64_t c) { return args.has(3) ? args[3].GetInt(zero.At(0, c)) : 0; };
  const int64_t batches = static_cast<int64_t>(plan.lhs_matrix.size()), blocks = (n + kColumns - 1) / kColumns;
  const double work = static_cast<double>(batches) * static_cast<double>(m) * static_cast<double>(n * k);
  ops::ParallelFor(batches * blocks, work, [&](int64_t first, int64_t last) {
    std::vector<D> columns(static_cast<size_t>(kColumns * k));
    for (int64_t task = first; task < last; ++task) {
      const int64_t batch = task / blocks, begin = task % blocks * kColumns, count = std::min(kColumns, n - begin);
      const char* matrix = args[1].raw() + plan.rhs_matrix[batch] * n * k;
      if (args[1].dtype() == DType::kI8) {
        LoadColumns(reinterpret_cast<const int8_t*>(matrix), plan, begin, count, zero_of, columns.data());
      } else {
        LoadColumns(reinterpret_cast<const uint8_t*>(matrix), plan, begin, count, zero_of, columns.data());
      }
      const D* rows = a.data() + plan.lhs_matrix[batch] * m * k;
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t c = 0; c < count; ++c) {
          const X factor = lhs_scale * static_cast<X>(args[2].GetFloat(scale.At(0, begin + c)));
          const int64_t sum = Dot(rows + r * k, columns.data() + c * k, k);
          out[(batch * m + r) * n + begin + c] = static_cast<X>(sum) * factor;
        }
      }
    }
  });
}

bool IsByteOrAbsent(const EvalArgs& args, size_t i) { return !args.has(i) || IsByte(args[i].dtype()); }

absl::StatusOr<Tensor> OfIntegers(const EvalArgs& args, const ops::ProductPlan& plan, const Steps& scale,
                                  const Steps& zero) {
  const DType to = args[2].dtype();
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor(kName, to, plan.shape));
  const bool narrow = IsByteOrAbsent(args, 3) && IsByteOrAbsent(args, 5);
  const auto multiply = [&]<class X>(X) {
    ops::Result<X> result(std::move(out));
    if (narrow) {
      MultiplyIntegers<int16_t>(args, plan, scale, zero, result.data());
    } else {
      MultiplyIntegers<int64_t>(args, plan, scale, zero, result.data());
    }
    return result.Finish();
  };
  return to == DType::kF64 ? multiply(double{}) : multiply(float{});
}

// ---- lhs of floats --------------------------------------------------------------------------------------------------

template <class X>
absl::StatusOr<Tensor> Dequantized(const EvalArgs& args, const ops::ProductPlan& plan, const Steps& scale,
                                   const Steps& zero) {
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor(kName, ops::kNativeType<X>, args[1].shape()));
  const Tensor no_zero(ops::kNativeType<X>, {1});
  const ops::Elements<X> q(args[1]), scales(args[2]), zeros(args.has(3) ? args[3] : no_zero);
  X* to = out.template mutable_data<X>();
  const int64_t rows = plan.transposed ? plan.n : plan.k, columns = plan.transposed ? plan.k : plan.n;
  const Steps none;
  const Steps& zero_steps = args.has(3) ? zero : none;
  ops::ParallelFor(columns == 0 ? 0 : args[1].size() / columns, static_cast<double>(args[1].size()),
                   [&](int64_t first, int64_t last) {
                     for (int64_t row = first; row < last; ++row) {
                       for (int64_t j = 0; j < columns; ++j) {
                         const int64_t i = plan.transposed ? j : row % rows, c = plan.transposed ? row % rows : j;
                         const int64_t at = row * columns + j;
                         to[at] = (q[at] - zeros[zero_steps.At(i, c)]) * scales[scale.At(i, c)];
                       }
                     }
                   });
  return out;
}

}  // namespace

absl::StatusOr<Types> QuantizedMatMul::Infer(SizeCollector& sizes) const {
  const TensorType &a = TypeOf(lhs), &b = TypeOf(rhs), &s = TypeOf(rhs_scale);
  const bool integers = IsByte(a.dtype);
  const bool factors = integers ? IsByte(b.dtype) && lhs_scale != nullptr
                                : IsFloat(a.dtype) && IsQuantized(b.dtype) && !lhs_scale && !lhs_zero;
  if (!factors || a.rank() < 2 || b.rank() < 2) {
    return Fail("quantized_matmul_c1: does not take ", Str(lhs), lhs_scale == nullptr ? "" : " with a scale", " and ",
                Str(rhs));
  }
  ASSIGN_OR_RETURN(Dims shape, ops::InferProduct(kName, a, b, transpose_rhs, sizes));
  if (block < 0 || block > int64_t{1} << 31 || (block > 0 && (integers || b.rank() != 2))) {
    return Fail("quantized_matmul_c4: block ", block, " is not for a product of ", Str(lhs), " and ", Str(rhs));
  }
  if (!IsFloat(s.dtype) || !Fits(s, b, transpose_rhs, block, sizes)) {
    return Fail("quantized_matmul_c5: rhs_scale ", Str(rhs_scale), " is no scale of ", Str(rhs));
  }
  if (rhs_zero != nullptr) {
    const TensorType& z = TypeOf(rhs_zero);
    const bool takes = IsZeroPoint(z.dtype) || (!integers && IsFloat(z.dtype));
    if (!takes || !Fits(z, b, transpose_rhs, block, sizes)) {
      return Fail("quantized_matmul_c6: rhs_zero ", Str(rhs_zero), " is no zero point of ", Str(rhs));
    }
  }
  if (lhs_scale != nullptr && (TypeOf(lhs_scale).dtype != s.dtype || !IsOne(TypeOf(lhs_scale)))) {
    return Fail("quantized_matmul_c7: lhs_scale ", Str(lhs_scale), " is not one number of the type of ",
                Str(rhs_scale));
  }
  if (lhs_zero != nullptr && (!IsZeroPoint(TypeOf(lhs_zero).dtype) || !IsOne(TypeOf(lhs_zero)))) {
    return Fail("quantized_matmul_c8: lhs_zero ", Str(lhs_zero), " is not one integer of at most 32 bits");
  }
  return Types{{integers ? s.dtype : a.dtype, std::move(shape)}};
}

OpCost QuantizedMatMul::Cost(const Types& results) const {
  return ops::SumsOfProducts(results[0], TypeOf(lhs).shape.back());
}

absl::StatusOr<Tensors> QuantizedMatMul::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(ops::ProductPlan plan, ops::PlanProduct(kName, args[0], args[1], transpose_rhs));
  ASSIGN_OR_RETURN(Steps scale, StepsOf(args[2], plan, block));
  ASSIGN_OR_RETURN(Steps zero, args.has(3) ? StepsOf(args[3], plan, block) : Steps{});
  if (!IsFloat(args[0].dtype())) {
    ASSIGN_OR_RETURN(Tensor out, OfIntegers(args, plan, scale, zero));
    return Tensors{std::move(out)};
  }
  ASSIGN_OR_RETURN(Tensor weight, args[0].dtype() == DType::kF64 ? Dequantized<double>(args, plan, scale, zero)
                                                                 : Dequantized<float>(args, plan, scale, zero));
  const Tensor* const factors[] = {&args[0], &weight};
  return MatMul{.transpose_rhs = transpose_rhs}.Eval({.in = factors});
}

}  // namespace llmc
