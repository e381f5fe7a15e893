// Matrix products. Each element of the result is one sum over k whose order depends on k alone, so a row's result does
// not depend on the other rows, nor on the number of threads.
#include <cstring>

#include "base/status_macros.h"
#include "ir/ops_elementwise.h"
#include "ir/ops_internal.h"
#include "ir/ops_nn.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::Str;
using ops::TypeOf;

constexpr int64_t kLanes = 8;
constexpr int64_t kColumnBlock = 64;  // columns of rhs that are converted at a time
constexpr int64_t kWideBlock = 1024;  // the same for products of at most kFewRows rows
constexpr int64_t kFewRows = 4;
constexpr int64_t kRowBlock = 96;  // rows of lhs that stay in the cache meanwhile
using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

Lanes LoadLanes(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

Lanes LoadSome(const float* p, int64_t n) {
  Lanes v = {};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}

// A fixed order.
float SumLanes(Lanes v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

// R rows of a against C rows of b: sums in kLanes lanes.
template <int R, int C>
void DotTile(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k, float* out, int64_t ldo) {
  Lanes sums[R][C] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Lanes y[C];
    for (int c = 0; c < C; ++c) y[c] = LoadLanes(b + c * ldb + i);
    for (int r = 0; r < R; ++r) {
      const Lanes x = LoadLanes(a + r * lda + i);
      for (int c = 0; c < C; ++c) sums[r][c] += x * y[c];
    }
  }
  if (i < k) {
    for (int r = 0; r < R; ++r) {
      const Lanes x = LoadSome(a + r * lda + i, k - i);
      for (int c = 0; c < C; ++c) sums[r][c] += x * LoadSome(b + c * ldb + i, k - i);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) out[r * ldo + c] = SumLanes(sums[r][c]);
  }
}

// R rows of a against C * kLanes columns of b[k, …]: each lane sums one column, in the order of k.
template <int R, int C>
void OuterTile(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t k, float* out, int64_t ldo) {
  Lanes sums[R][C] = {};
  for (int64_t i = 0; i < k; ++i) {
    Lanes y[C];
    for (int c = 0; c < C; ++c) y[c] = LoadLanes(b + i * ldb + c * kLanes);
    for (int r = 0; r < R; ++r) {
      const Lanes x = Lanes{} + a[r * lda + i];
      for (int c = 0; c < C; ++c) sums[r][c] += x * y[c];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) std::memcpy(out + r * ldo + c * kLanes, &sums[r][c], sizeof(Lanes));
  }
}

using Tile = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t);

// out[m, n] = a[m, k] b[n, k]^T. Columns in the outer loop: a few rows of b stay in the first-level cache.
void DotBlock(const float* a, int64_t m, const float* b, int64_t ldb, int64_t n, int64_t k, float* out, int64_t ldo) {
  static constexpr Tile kTiles[3][4] = {{DotTile<1, 1>, DotTile<1, 2>, DotTile<1, 3>, DotTile<1, 4>},
                                        {DotTile<2, 1>, DotTile<2, 2>, DotTile<2, 3>, DotTile<2, 4>},
                                        {DotTile<3, 1>, DotTile<3, 2>, DotTile<3, 3>, DotTile<3, 4>}};
  for (int64_t c = 0; c < n; c += 4) {
    const int64_t width = std::min<int64_t>(4, n - c);
    for (int64_t r = 0; r < m; r += 3) {
      kTiles[std::min<int64_t>(3, m - r) - 1][width - 1](a + r * k, k, b + c * ldb, ldb, k, out + r * ldo + c, ldo);
    }
  }
}

// out[m, n] = a[m, k] b[k, n]; the columns past the last whole lanes are copied to a padded panel.
void OuterBlock(const float* a, int64_t m, const float* b, int64_t ldb, int64_t n, int64_t k, float* out, int64_t ldo) {
  static constexpr Tile kWide[4] = {OuterTile<1, 2>, OuterTile<2, 2>, OuterTile<3, 2>, OuterTile<4, 2>};
  static constexpr Tile kNarrow[4] = {OuterTile<1, 1>, OuterTile<2, 1>, OuterTile<3, 1>, OuterTile<4, 1>};
  int64_t c = 0;
  while (c + kLanes <= n) {
    const bool wide = c + 2 * kLanes <= n;
    const Tile* tiles = wide ? kWide : kNarrow;
    for (int64_t r = 0; r < m; r += 4) {
      tiles[std::min<int64_t>(4, m - r) - 1](a + r * k, k, b + c, ldb, k, out + r * ldo + c, ldo);
    }
    c += wide ? 2 * kLanes : kLanes;
  }
  if (c == n) return;
  const int64_t rest = n - c;
  std::vector<float> panel(k * kLanes, 0.0f);
  for (int64_t i = 0; i < k; ++i) std::memcpy(&panel[i * kLanes], b + i * ldb + c, rest * sizeof(float));
  for (int64_t r = 0; r < m; r += 4) {
    const int64_t rows = std::min<int64_t>(4, m - r);
    float tile[4 * kLanes];
    kNarrow[rows - 1](a + r * k, k, panel.data(), kLanes, k, tile, kLanes);
    for (int64_t i = 0; i < rows; ++i) std::memcpy(out + (r + i) * ldo + c, tile + i * kLanes, rest * sizeof(float));
  }
}

// The sums of C * kLanes columns over rows that lie apart, each in the order of the rows.
template <int C>
void SumTile(const float* weights, absl::Span<const float* const> rows, int64_t column, float* out) {
  Lanes sums[C] = {};
  for (size_t i = 0; i < rows.size(); ++i) {
    const Lanes weight = Lanes{} + weights[i];
    for (int c = 0; c < C; ++c) sums[c] += weight * LoadLanes(rows[i] + column + c * kLanes);
  }
  std::memcpy(out + column, sums, sizeof(sums));
}

template <class T>
void AddScaledRow(T factor, const T* x, int64_t n, T* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += factor * x[i];
}

using Plan = ops::ProductPlan;

// Columns [begin, begin + n) of one matrix of rhs as f32: in place if they are one run of memory, or copied to
// `buffer`.
struct Panel {
  const float* data = nullptr;
  int64_t stride = 0;
};
Panel LoadPanel(const Tensor& rhs, const Plan& plan, int64_t matrix, int64_t begin, int64_t n,
                std::vector<float>* buffer) {
  const int64_t base = matrix * plan.k * plan.n;
  if (plan.transposed && rhs.dtype() == DType::kF32) return {rhs.data<float>() + base + begin * plan.k, plan.k};
  buffer->resize(n * plan.k);
  if (plan.transposed) {
    ops::Load<float>(rhs, base + begin * plan.k, n * plan.k, buffer->data());
    return {buffer->data(), plan.k};
  }
  for (int64_t i = 0; i < plan.k; ++i) ops::Load<float>(rhs, base + i * plan.n + begin, n, buffer->data() + i * n);
  return {buffer->data(), n};
}

// The same sums as OuterBlock's for a few rows of lhs: reads rhs along its rows, keeps the sums in `out`.
void FewRows(const float* a, int64_t m, const Tensor& rhs, const Plan& plan, int64_t at, int64_t n, float* out,
             std::vector<float>* buffer) {
  constexpr int64_t kStep = 4;
  const bool in_place = rhs.dtype() == DType::kF32;
  if (!in_place) buffer->resize(kStep * n);
  for (int64_t r = 0; r < m; ++r) std::fill_n(out + r * plan.n, n, 0.0f);
  for (int64_t i = 0; i < plan.k; i += kStep) {
    const int64_t steps = std::min(kStep, plan.k - i);
    const float* row[kStep] = {};
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t begin = at + (i + s) * plan.n;
      if (!in_place) ops::Load<float>(rhs, begin, n, buffer->data() + s * n);
      row[s] = in_place ? rhs.data<float>() + begin : buffer->data() + s * n;
    }
    for (int64_t r = 0; r < m; ++r) {
      const float* x = a + r * plan.k + i;
      float* sum = out + r * plan.n;
      if (steps == kStep) {
        for (int64_t c = 0; c < n; ++c) {
          sum[c] = x[3] * row[3][c] + (x[2] * row[2][c] + (x[1] * row[1][c] + (x[0] * row[0][c] + sum[c])));
        }
      } else {
        for (int64_t s = 0; s < steps; ++s) {
          for (int64_t c = 0; c < n; ++c) sum[c] = x[s] * row[s][c] + sum[c];
        }
      }
    }
  }
}

void MultiplyFloats(const float* lhs, const Tensor& rhs, const Plan& plan, float* out) {
  const bool few = !plan.transposed && plan.m <= kFewRows;
  const int64_t width = few ? kWideBlock : kColumnBlock;
  const int64_t blocks = (plan.n + width - 1) / width;
  const int64_t batches = static_cast<int64_t>(plan.lhs_matrix.size());
  const double work = static_cast<double>(batches) * plan.m * plan.n * plan.k;
  ops::ParallelFor(batches * blocks, work, [&](int64_t first, int64_t last) {
    std::vector<float> buffer;
    for (int64_t task = first; task < last; ++task) {
      const int64_t batch = task / blocks, begin = task % blocks * width;
      const int64_t n = std::min(width, plan.n - begin);
      const float* a = lhs + plan.lhs_matrix[batch] * plan.m * plan.k;
      float* to = out + batch * plan.m * plan.n + begin;
      if (few) {
        FewRows(a, plan.m, rhs, plan, plan.rhs_matrix[batch] * plan.k * plan.n + begin, n, to, &buffer);
        continue;
      }
      const Panel panel = LoadPanel(rhs, plan, plan.rhs_matrix[batch], begin, n, &buffer);
      for (int64_t r = 0; r < plan.m; r += kRowBlock) {
        (plan.transposed ? DotBlock : OuterBlock)(a + r * plan.k, std::min(kRowBlock, plan.m - r), panel.data,
                                                  panel.stride, n, plan.k, to + r * plan.n, plan.n);
      }
    }
  });
}

// f64 and integers: one plain sum for each element.
template <class T>
void MultiplyPlain(const Tensor& lhs, const Tensor& rhs, const Plan& plan, T* out) {
  using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  const ops::Elements<T> a(lhs), b(rhs);
  const int64_t row_step = plan.transposed ? 1 : plan.n, column_step = plan.transposed ? plan.k : 1;
  for (size_t batch = 0; batch < plan.lhs_matrix.size(); ++batch) {
    const T* x = a.data() + plan.lhs_matrix[batch] * plan.m * plan.k;
    const T* y = b.data() + plan.rhs_matrix[batch] * plan.n * plan.k;
    for (int64_t r = 0; r < plan.m; ++r) {
      for (int64_t c = 0; c < plan.n; ++c) {
        Sum sum = 0;
        for (int64_t i = 0; i < plan.k; ++i) {
          sum += static_cast<Sum>(x[r * plan.k + i]) * static_cast<Sum>(y[i * row_step + c * column_step]);
        }
        *out++ = static_cast<T>(sum);
      }
    }
  }
}

}  // namespace

absl::StatusOr<Plan> ops::PlanProduct(absl::string_view op, const Tensor& lhs, const Tensor& rhs, bool transposed) {
  // A vector on either side stands for a matrix of one row or column.
  Shape a = lhs.shape(), b = rhs.shape();
  const bool row = a.size() == 1, column = b.size() == 1;
  if (row) a.insert(a.begin(), 1);
  if (column) b.insert(transposed ? b.begin() : b.end(), 1);
  Plan plan{.transposed = transposed};
  plan.m = a[a.size() - 2];
  plan.k = a.back();
  plan.n = transposed ? b[b.size() - 2] : b.back();
  if (plan.k != (transposed ? b.back() : b[b.size() - 2])) {
    return Fail(op, ": the inner axes of ", Str(lhs), " and ", Str(rhs), " differ");
  }
  const Shape lead_a(a.begin(), a.end() - 2), lead_b(b.begin(), b.end() - 2);
  ASSIGN_OR_RETURN(Shape lead, ops::BroadcastShapes(op, lead_a, lead_b));
  const ops::StridedLoop<2> loop(lead, {ops::BroadcastStrides(lead_a, lead), ops::BroadcastStrides(lead_b, lead)});
  if (ops::SizeOf(lead_b) == 1 && plan.m > 0) {  // One rhs for all: the rows of all batches are rows of one product.
    plan.m *= ops::SizeOf(lead);
    plan.lhs_matrix = plan.rhs_matrix = {0};
  } else {
    loop.Run([&](const auto& at, int64_t n, const auto& step) {
      for (int64_t i = 0; i < n; ++i) {
        plan.lhs_matrix.push_back(at[0] + i * step[0]);
        plan.rhs_matrix.push_back(at[1] + i * step[1]);
      }
    });
  }
  plan.shape = lead;
  if (!row) plan.shape.push_back(a[a.size() - 2]);
  if (!column) plan.shape.push_back(plan.n);
  return plan;
}

float ops::Dot(const float* a, const float* b, int64_t k) {
  float out = 0;
  DotTile<1, 1>(a, 0, b, 0, k, &out, 0);
  return out;
}

void ops::DotRows(const float* a, absl::Span<const float* const> rows, int64_t k, float* out) {
  constexpr int kRows = 4;
  size_t first = 0;
  for (; first + kRows <= rows.size(); first += kRows) {
    Lanes sums[kRows] = {};
    int64_t i = 0;
    for (; i + kLanes <= k; i += kLanes) {
      const Lanes x = LoadLanes(a + i);
      for (int r = 0; r < kRows; ++r) sums[r] += x * LoadLanes(rows[first + r] + i);
    }
    if (i < k) {
      const Lanes x = LoadSome(a + i, k - i);
      for (int r = 0; r < kRows; ++r) sums[r] += x * LoadSome(rows[first + r] + i, k - i);
    }
    for (int r = 0; r < kRows; ++r) out[first + r] = SumLanes(sums[r]);
  }
  for (; first < rows.size(); ++first) out[first] = Dot(a, rows[first], k);
}

void ops::AddScaled(float factor, const float* x, int64_t n, float* sum) { AddScaledRow(factor, x, n, sum); }
void ops::AddScaled(double factor, const double* x, int64_t n, double* sum) { AddScaledRow(factor, x, n, sum); }

void ops::SumScaled(const float* weights, absl::Span<const float* const> rows, int64_t n, float* out) {
  constexpr int kWide = 8;
  int64_t column = 0;
  for (; column + kWide * kLanes <= n; column += kWide * kLanes) SumTile<kWide>(weights, rows, column, out);
  for (; column + kLanes <= n; column += kLanes) SumTile<1>(weights, rows, column, out);
  if (column == n) return;
  std::fill(out + column, out + n, 0.0f);
  for (size_t i = 0; i < rows.size(); ++i) AddScaledRow(weights[i], rows[i] + column, n - column, out + column);
}

void ops::MultiplyTransposed(const float* a, int64_t m, const float* b, int64_t n, int64_t k, float* out) {
  const double work = static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  ParallelFor((n + kColumnBlock - 1) / kColumnBlock, work, [&](int64_t first, int64_t last) {
    for (int64_t c = first * kColumnBlock; c < std::min(n, last * kColumnBlock); c += kColumnBlock) {
      DotBlock(a, m, b + c * k, k, std::min(kColumnBlock, n - c), k, out + c, n);
    }
  });
}

double ops::Dot(const double* a, const double* b, int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += a[i] * b[i];
  return sum;
}

void ops::MultiplyTransposed(const double* a, int64_t m, const double* b, int64_t n, int64_t k, double* out) {
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) *out++ = Dot(a + r * k, b + c * k, k);
  }
}

absl::StatusOr<Dims> ops::InferProduct(absl::string_view op, const TensorType& a, const TensorType& b, bool transposed,
                                       SizeCollector& sizes) {
  const bool column = b.rank() == 1;
  const size_t inner = column || transposed ? b.shape.size() - 1 : b.shape.size() - 2;
  if (!sizes.Same(a.shape.back(), b.shape[inner])) {
    return Fail(op, "_c2: the inner axes of ", a.ToString(), " and ", b.ToString(), transposed ? " (transposed)" : "",
                " differ: ", a.shape.back().ToString(), " and ", b.shape[inner].ToString());
  }
  const auto lead_of = [](const Dims& dims) {
    return Dims(dims.begin(), dims.end() - std::min<size_t>(2, dims.size()));
  };
  absl::StatusOr<Dims> shape = BroadcastDims(lead_of(a.shape), lead_of(b.shape));
  if (!shape.ok()) return Fail(op, "_c3: ", shape.status().message());
  sizes.BroadcastToResult({lead_of(a.shape), lead_of(b.shape)});
  if (a.rank() > 1) shape->push_back(a.shape[a.rank() - 2]);
  if (!column) shape->push_back(b.shape[transposed ? b.rank() - 2 : b.rank() - 1]);
  return shape;
}

absl::StatusOr<Types> MatMul::Infer(SizeCollector& sizes) const {
  const TensorType& a = TypeOf(lhs);
  const TensorType& b = TypeOf(rhs);
  if (a.dtype != b.dtype || a.dtype == DType::kBool || a.rank() == 0 || b.rank() == 0) {
    return Fail("matmul_c1: does not take ", a.ToString(), " and ", b.ToString());
  }
  ASSIGN_OR_RETURN(Dims shape, ops::InferProduct("matmul", a, b, transpose_rhs, sizes));
  return Types{{a.dtype, std::move(shape)}};
}

OpCost MatMul::Cost(const Types& results) const { return ops::SumsOfProducts(results[0], TypeOf(lhs).shape.back()); }

absl::StatusOr<Tensors> MatMul::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(Plan plan, ops::PlanProduct("matmul", args[0], args[1], transpose_rhs));
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("matmul", args[0].dtype(), plan.shape));
  return ops::WithArithmetic(args[0].dtype(), [&]<class T>(T) -> absl::StatusOr<Tensors> {
    ops::Result<T> result(std::move(out));
    if constexpr (std::is_same_v<T, float>) {
      const ops::Elements<float> a(args[0]);
      MultiplyFloats(a.data(), args[1], plan, result.data());
    } else {
      MultiplyPlain<T>(args[0], args[1], plan, result.data());
    }
    return Tensors{result.Finish()};
  });
}

}  // namespace llmc
