// What the ops share: errors, new tensors, typed views of elements, broadcasting loops, dims that can be proven.
// Internal to ir/ops_*.cc.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "ir/op.h"

namespace llmc::ops {

template <class... Parts>
absl::Status Fail(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

inline const TensorType& TypeOf(const Value* value) { return value->type; }
std::string Str(const Value* value);    // its type
std::string Str(const Tensor& tensor);  // "f32[2, 3]"

// Zero-filled. An error (ResourceExhausted above 16 GiB) names the op.
absl::StatusOr<Tensor> NewTensor(absl::string_view op, DType dtype, Shape shape);

// The sizes of dims in this run; an error names the op.
absl::StatusOr<Shape> EvaluateDims(absl::string_view op, const Dims& dims, const EvalArgs& args);

// Row-major, in elements.
Shape StridesOf(absl::Span<const int64_t> shape);
int64_t SizeOf(absl::Span<const int64_t> shape);

inline bool IsIndexType(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

// Whether an axis attribute is one of `rank` axes.
absl::Status CheckAxis(absl::string_view label, int64_t axis, int rank);

// ---- dims that can be proven ------------------------------------------------
inline constexpr size_t kMaxContents = 64;

inline bool IsNumber(const Dim& dim, int64_t n) { return dim.is_constant() && dim.value() == n; }
// True only if no run can make it negative: a sum of positive multiples of sizes.
bool ProvablyNonNegative(const Dim& dim);
// True only if no run can make a > b.
bool ProvablyAtMost(const Dim& a, const Dim& b);
// Whether two dims can be the same size in some run: only two different numbers cannot. What Infer takes to be the same
// is for SizeCollector::Same.
bool MayBeEqual(const Dim& a, const Dim& b);
// True if known equal in every run, false if known different in every run, nullopt otherwise.
std::optional<bool> DecideEqual(const Dim& a, const Dim& b);
// The contents, if all are constants.
std::optional<std::vector<int64_t>> ConstantContents(const Value* value);
// `contents` if it may be a value's: few enough, none unknown, numbers within the type's range.
std::optional<Dims> MakeContents(const TensorType& type, Dims contents);

// The contents of `value` under a broadcast to n elements, all of rank 1 or 0.
std::optional<Dims> Spread(const Value* value, size_t n);
// The number of elements of a broadcast of values with contents.
size_t SpreadSize(std::initializer_list<const Value*> values);
int MaxRank(std::initializer_list<const Value*> values);

// ---- elements in the type that arithmetic uses --------------------------------
// Bulk conversions between any element type and float, double or int64_t; `begin` is a flat index.
template <class T>
void Load(const Tensor& tensor, int64_t begin, int64_t n, T* out);
template <class T>
void Store(const T* in, int64_t begin, int64_t n, Tensor* tensor);

template <class T>
inline constexpr DType kNativeType = std::is_same_v<T, float>    ? DType::kF32
                                     : std::is_same_v<T, double> ? DType::kF64
                                                                 : DType::kI64;

// All elements as T: in place when they are stored so, else converted.
template <class T>
class Elements {
 public:
  explicit Elements(const Tensor& tensor) {
    if (tensor.dtype() == kNativeType<T>) {
      data_ = tensor.data<T>();
    } else {
      buffer_.resize(tensor.size());
      Load<T>(tensor, 0, tensor.size(), buffer_.data());
      data_ = buffer_.data();
    }
  }
  Elements(const Elements&) = delete;
  const T* data() const { return data_; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  std::vector<T> buffer_;
  const T* data_ = nullptr;
};

// A result that is computed as T and rounded to its element type by Finish().
template <class T>
class Result {
 public:
  explicit Result(Tensor tensor) : tensor_(std::move(tensor)) {
    if (tensor_.dtype() != kNativeType<T>) buffer_.resize(tensor_.size());
  }
  T* data() { return tensor_.dtype() == kNativeType<T> ? tensor_.mutable_data<T>() : buffer_.data(); }
  T& operator[](int64_t i) { return data()[i]; }
  Tensor Finish() {
    if (tensor_.dtype() != kNativeType<T>) Store<T>(buffer_.data(), 0, tensor_.size(), &tensor_);
    return std::move(tensor_);
  }

 private:
  Tensor tensor_;
  std::vector<T> buffer_;
};

// Calls f with a value of the type that arithmetic on `dtype` uses: float, double or int64_t.
template <class F>
auto WithArithmetic(DType dtype, F f) {
  if (dtype == DType::kF64) return f(double{});
  if (IsFloat(dtype)) return f(float{});
  return f(int64_t{});
}

// ---- broadcasting -------------------------------------------------------------
absl::StatusOr<Shape> BroadcastShapes(absl::string_view op, absl::Span<const int64_t> a, absl::Span<const int64_t> b);

// Visits an iteration space of `shape` in order; operand i moves by strides[i] (0 where it is broadcast). Adjacent axes
// are merged, so the inner runs are long. f(offsets, n, inner strides) for each run; runs never are empty.
template <size_t N>
class StridedLoop {
 public:
  StridedLoop(absl::Span<const int64_t> shape, const std::array<Shape, N>& strides) {
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 1) continue;
      std::array<int64_t, N> step;
      for (size_t k = 0; k < N; ++k) step[k] = strides[k][i];
      bool merge = !sizes_.empty();
      for (size_t k = 0; merge && k < N; ++k) merge = steps_.back()[k] == step[k] * shape[i];
      if (merge) {
        sizes_.back() *= shape[i];
        steps_.back() = step;
      } else {
        sizes_.push_back(shape[i]);
        steps_.push_back(step);
      }
    }
    if (sizes_.empty()) {
      sizes_.push_back(1);
      steps_.push_back({});
    }
  }

  template <class F>
  void Run(F f) const {
    for (int64_t size : sizes_) {
      if (size == 0) return;
    }
    const size_t last = sizes_.size() - 1;
    std::vector<int64_t> index(sizes_.size(), 0);
    std::array<int64_t, N> offsets{};
    while (true) {
      f(offsets, sizes_[last], steps_[last]);
      size_t axis = last;
      while (true) {
        if (axis == 0) return;
        --axis;
        for (size_t k = 0; k < N; ++k) offsets[k] += steps_[axis][k];
        if (++index[axis] < sizes_[axis]) break;
        for (size_t k = 0; k < N; ++k) offsets[k] -= steps_[axis][k] * sizes_[axis];
        index[axis] = 0;
      }
    }
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<std::array<int64_t, N>> steps_;
};

// Strides of an operand of shape `from` read under the broadcast shape `to`.
Shape BroadcastStrides(absl::Span<const int64_t> from, absl::Span<const int64_t> to);

// A new tensor of `shape`: x read by the given strides (in elements, may be negative or 0) from an offset. Every
// element read must be in x.
absl::StatusOr<Tensor> CopyStrided(absl::string_view op, const Tensor& x, const Shape& shape, const Shape& strides,
                                   int64_t offset = 0);
// Copies n consecutive elements of the same type. Both ranges must be in bounds.
void CopyElements(const Tensor& from, int64_t from_begin, int64_t n, Tensor* to, int64_t to_begin);

// Runs f(begin, end) over parts of [0, n), on several threads when `work` (multiply-adds, roughly) is worth it. What f
// writes for an index must not depend on the part it is in.
void ParallelFor(int64_t n, double work, const std::function<void(int64_t, int64_t)>& f);

// ---- products, in ops_matmul.cc --------------------------------------------------
// The sizes of one product of matrices, and where the operands of batch i begin (in matrices).
struct ProductPlan {
  int64_t m = 0, n = 0, k = 0;
  bool transposed = false;
  Shape shape;  // of the result
  std::vector<int64_t> lhs_matrix, rhs_matrix;
};
// Errors name the op.
absl::StatusOr<ProductPlan> PlanProduct(absl::string_view op, const Tensor& lhs, const Tensor& rhs, bool transposed);
// The dims of a product. The labels of its constraints are "OP_c2" and "OP_c3".
absl::StatusOr<Dims> InferProduct(absl::string_view op, const TensorType& a, const TensorType& b, bool transposed,
                                  SizeCollector& sizes);

// One sum over k in a fixed order: the same as MatMul with transpose_rhs gives for these two rows.
float Dot(const float* a, const float* b, int64_t k);
double Dot(const double* a, const double* b, int64_t k);
// out[i] = Dot(a, rows[i], k)
void DotRows(const float* a, absl::Span<const float* const> rows, int64_t k, float* out);
// sum[i] += factor * x[i]
void AddScaled(float factor, const float* x, int64_t n, float* sum);
void AddScaled(double factor, const double* x, int64_t n, double* sum);
// out[c] = the sum of weights[i] * rows[i][c] in the order of i, for c < n: the same as by AddScaled from 0.
void SumScaled(const float* weights, absl::Span<const float* const> rows, int64_t n, float* out);
// out[m, n] = a[m, k] b[n, k]^T
void MultiplyTransposed(const float* a, int64_t m, const float* b, int64_t n, int64_t k, float* out);
void MultiplyTransposed(const double* a, int64_t m, const double* b, int64_t n, int64_t k, double* out);

// ---- encoded tensors, in ops_encoded.cc --------------------------------------------
// The encoding of what joins `parts`, whose type is all but that; an error where they do not join.
absl::Status JoinEncodings(absl::Span<Value* const> parts, int64_t axis, TensorType* joined);
absl::StatusOr<Tensors> ConcatEncoded(const EvalArgs& args, int64_t axis, const Encoding* joined);
// That of rows of a matrix; an error where rows share scales.
absl::StatusOr<const Encoding*> EncodingOfRows(const Value* matrix, int64_t axis);
absl::StatusOr<Tensors> GatherEncoded(const EvalArgs& args, const Encoding* of_rows);

// ---- costs -------------------------------------------------------------------------
// Without a function where it can be proven which one it is.
Size Smaller(const Size& a, const Size& b);
// Of as many sums as `sums` has elements, each of `terms` products.
OpCost SumsOfProducts(const TensorType& sums, const Size& terms);
// Of an op that reads the elements of its first operand, x, that it gives. Of those that it gives twice, at most all.
OpCost Picking(const Value* x, const TensorType& picked);

// ---- norms, in ops_nn.cc -----------------------------------------------------------
// Of the rows of x along its last axis.
absl::StatusOr<Tensor> RmsNormTensor(absl::string_view op, const Tensor& x, const Tensor& weight, double eps);

// ---- attention, in ops_attention.cc; X is float or double ------------------------
struct ScoreForm {
  float softcap = 0;  // 0: none
  float slope = 0;    // times the distance from the last score, which is added
  float sink = 0;     // one more score, whose weight is dropped; -inf: none
};
// Scores (already scaled) of keys up to the query's own to their weights, by a softmax in order.
void AttentionWeights(const ScoreForm& form, absl::Span<float> scores);

}  // namespace llmc::ops
