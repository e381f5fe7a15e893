// Encoded tensors, and products with them.
#include "ir/ops_encoded.h"

#include <algorithm>
#include <vector>

#include "base/status_macros.h"
#include "ir/encoding.h"
#include "ir/ops_internal.h"
#include "ir/ops_nn.h"
#include "ir/ops_shape.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::Str;
using ops::TypeOf;

bool IsLogicalType(DType dtype) { return IsFloat(dtype) && DTypeBits(dtype) >= 16; }

// The shape of what codes of this type stand for; whole superblocks, or bytes of packed codes.
absl::StatusOr<Dims> ShapeOfCodes(const Encoding& encoding, const TensorType& codes) {
  const EncodingFormat& format = *encoding.format;
  Dims shape = codes.shape;
  if (format.run() == 0) return shape;
  if (shape.empty() || !shape.back().is_constant() || shape.back().value() % format.run_bytes() != 0) {
    return Fail("encode_c2: ", codes.ToString(), " holds no rows of ",
                format.superblock > 0 ? "superblocks of " : "eight codes in ", format.run_bytes(), " bytes");
  }
  shape.back() = Dim(shape.back().value() / format.run_bytes() * format.run());
  return shape;
}

// One number may have an axis.
bool IsOne(const Dims& shape) { return shape.size() == 1 && ops::IsNumber(shape[0], 1); }

// ---- products of integers
// ---------------------------------------------------------------------------------------------

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

// Columns [begin, begin + count) of a matrix of integers, less their zero points, one after the other.
template <class Code, class D, class ZeroOf>
void LoadColumns(const Code* matrix, const ops::ProductPlan& plan, int64_t begin, int64_t count, ZeroOf zero_of,
                 D* out) {
  const int64_t step = plan.transposed ? 1 : plan.n, column_step = plan.transposed ? plan.k : 1;
  for (int64_t c = 0; c < count; ++c) {
    const Code* from = matrix + (begin + c) * column_step;
    const int64_t zero = zero_of(begin + c);
    for (int64_t i = 0; i < plan.k; ++i) out[c * plan.k + i] = static_cast<D>(from[i * step] - zero);
  }
}

// A tensor that is encoded as integers, with one scale and zero point or one for each row or column.
class IntegerFactor {
 public:
  explicit IntegerFactor(const Tensor& tensor) : codes_(CodesOf(tensor)), scale_(ComponentOf(tensor, 1)) {
    const Encoding& encoding = *tensor.encoding();
    if (encoding.zero.has_value()) zero_ = ComponentOf(tensor, 2);
  }
  // Codes of 4 bits become bytes.
  const Tensor& codes() {
    if (DTypeBits(codes_.dtype()) >= 8) return codes_;
    Tensor wide(DType::kI8, codes_.shape());
    for (int64_t i = 0; i < codes_.size(); ++i) wide.SetInt(i, codes_.GetInt(i));
    return codes_ = std::move(wide);
  }
  double ScaleOf(int64_t i) const { return scale_.GetFloat(scale_.size() == 1 ? 0 : i); }
  int64_t ZeroOf(int64_t i) const { return zero_.size() == 0 ? 0 : zero_.GetInt(zero_.size() == 1 ? 0 : i); }
  // A difference of a code and a zero point fits 16 bits.
  bool is_narrow() const { return zero_.size() == 0 || DTypeBits(zero_.dtype()) <= 8; }

 private:
  Tensor codes_, scale_, zero_;
};

// In X. Differences from zero points are held as D: those of bytes fit 16 bits.
template <class D, class X>
void MultiplyIntegers(IntegerFactor& lhs, IntegerFactor& rhs, const ops::ProductPlan& plan, X* out) {
  constexpr int64_t kColumns = 16;  // so that rows of a cache line are read at once
  const int64_t m = plan.m, n = plan.n, k = plan.k;
  const Tensor &lhs_codes = lhs.codes(), &rhs_codes = rhs.codes();
  std::vector<D> a(static_cast<size_t>(lhs_codes.size()));
  for (int64_t i = 0; i < lhs_codes.size(); ++i) a[i] = static_cast<D>(lhs_codes.GetInt(i) - lhs.ZeroOf(i / k));
  const auto zero_of = [&](int64_t c) { return rhs.ZeroOf(c); };
  const int64_t batches = static_cast<int64_t>(plan.lhs_matrix.size()), blocks = (n + kColumns - 1) / kColumns;
  const double work = static_cast<double>(batches) * static_cast<double>(m) * static_cast<double>(n * k);
  ops::ParallelFor(batches * blocks, work, [&](int64_t first, int64_t last) {
    std::vector<D> columns(static_cast<size_t>(kColumns * k));
    for (int64_t task = first; task < last; ++task) {
      const int64_t batch = task / blocks, begin = task % blocks * kColumns, count = std::min(kColumns, n - begin);
      const char* matrix = rhs_codes.raw() + plan.rhs_matrix[batch] * n * k;
      if (rhs_codes.dtype() == DType::kI8) {
        LoadColumns(reinterpret_cast<const int8_t*>(matrix), plan, begin, count, zero_of, columns.data());
      } else {
        LoadColumns(reinterpret_cast<const uint8_t*>(matrix), plan, begin, count, zero_of, columns.data());
      }
      const int64_t first_row = plan.lhs_matrix[batch] * m;
      for (int64_t r = 0; r < m; ++r) {
        const X lhs_scale = static_cast<X>(lhs.ScaleOf(first_row + r));
        for (int64_t c = 0; c < count; ++c) {
          const X factor = lhs_scale * static_cast<X>(rhs.ScaleOf(begin + c));
          const int64_t sum = Dot(a.data() + (first_row + r) * k, columns.data() + c * k, k);
          out[(batch * m + r) * n + begin + c] = static_cast<X>(sum) * factor;
        }
      }
    }
  });
}

absl::StatusOr<Tensor> OfIntegers(const Tensor& a, const Tensor& b, const ops::ProductPlan& plan) {
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor("linear", a.dtype(), plan.shape));
  IntegerFactor lhs(a), rhs(b);
  const auto multiply = [&]<class X>(X) {
    ops::Result<X> result(std::move(out));
    if (lhs.is_narrow() && rhs.is_narrow()) {
      MultiplyIntegers<int16_t>(lhs, rhs, plan, result.data());
    } else {
      MultiplyIntegers<int64_t>(lhs, rhs, plan, result.data());
    }
    return result.Finish();
  };
  return a.dtype() == DType::kF64 ? multiply(double{}) : multiply(float{});
}

// Rounded to the element type.
absl::StatusOr<Tensor> RoundedTo(absl::string_view op, DType dtype, const Tensor& numbers) {
  if (numbers.dtype() == dtype) return numbers;
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor(op, dtype, numbers.shape()));
  ops::Store<float>(numbers.data<float>(), 0, numbers.size(), &out);
  return out;
}

DType ArithmeticType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

}  // namespace

absl::StatusOr<Types> Encode::Infer(SizeCollector& sizes) const {
  absl::StatusOr<const Encoding*> encoding = ParseEncoding(as);
  if (!encoding.ok()) return Fail("encode_c1: ", encoding.status().message());
  if (!IsLogicalType(to)) return Fail("encode_c1: ", DTypeName(to), " is not f32, f16, bf16 or f64");
  if (components.size() != (*encoding)->components()) {
    return Fail("encode_c1: ", (*encoding)->text, " has ", (*encoding)->components(), " components, not ",
                components.size());
  }
  ASSIGN_OR_RETURN(Dims shape, ShapeOfCodes(**encoding, TypeOf(components[0])));
  if (absl::Status status = CheckEncoding(**encoding, shape); !status.ok())
    return Fail("encode_c2: ", status.message());
  for (size_t i = 0; i < components.size(); ++i) {
    const TensorType expected = (*encoding)->ComponentType(i, shape), &actual = TypeOf(components[i]);
    const bool fits = actual.dtype == expected.dtype &&
                      ((expected.shape.empty() && IsOne(actual.shape)) || sizes.Same(actual.shape, expected.shape));
    if (fits) continue;
    return Fail("encode_c3: the ", (*encoding)->ComponentName(i), " of ", (*encoding)->text, " must be ",
                expected.ToString(), ", not ", actual.ToString());
  }
  return Types{{to, std::move(shape), *encoding}};
}

absl::StatusOr<Tensors> Encode::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(const Encoding* encoding, ParseEncoding(as));
  Shape shape = args[0].shape();
  if (const EncodingFormat& format = *encoding->format; format.run() > 0) {
    shape.back() = shape.back() / format.run_bytes() * format.run();
  }
  const Dims dims(shape.begin(), shape.end());
  for (size_t i = 0; i < args.size(); ++i) {
    const TensorType expected = encoding->ComponentType(i, dims);
    if (!(ElementsOf(expected.shape) == Size(args[i].size()))) {
      return Fail("encode: the ", encoding->ComponentName(i), " must be ", expected.ToString(), ", not ", Str(args[i]));
    }
  }
  return Tensors{Bundle(encoding, to, std::move(shape), args.in)};
}

absl::StatusOr<Types> Decode::Infer() const {
  if (TypeOf(x).encoding == nullptr) return Fail("decode_c1: ", Str(x), " is not encoded");
  return Types{{TypeOf(x).dtype, TypeOf(x).shape}};
}

absl::StatusOr<Tensors> Decode::Eval(const EvalArgs& args) const {
  const DType dtype = args[0].dtype();
  ASSIGN_OR_RETURN(Tensor out, RoundedTo("decode", dtype, Decoded(args[0], ArithmeticType(dtype))));
  return Tensors{std::move(out)};
}

bool SumsIntegers(const TensorType& lhs, const TensorType& rhs, bool transpose_rhs) {
  const Encoding *a = lhs.encoding, *b = rhs.encoding;
  if (a == nullptr || b == nullptr) return false;
  const auto is_integer = [](const Encoding& e) {
    return e.format->is_integer() && (!e.zero.has_value() || IsInteger(e.zero->dtype));
  };
  const auto is_of_rows = [](const std::optional<Encoding::Part>& part) {
    return !part.has_value() || part->per == Granularity::kTensor || part->per == Granularity::kToken;
  };
  const auto is_of_channels = [](const std::optional<Encoding::Part>& part) {
    return part.has_value() && part->per == Granularity::kChannel;
  };
  const bool has_channels = is_of_channels(b->scale) || is_of_channels(b->zero);
  return is_integer(*a) && is_integer(*b) && is_of_rows(a->scale) && is_of_rows(a->zero) && b->IsConstantAlongK() &&
         (!has_channels || b->k_is_last == transpose_rhs);
}

bool IsProduct(const Node* node) { return Is<MatMul>(node) || Is<Linear>(node); }

Linear ProductOf(const Node& node) {
  if (Is<Linear>(&node)) return View<Linear>(node);
  const auto op = View<MatMul>(node);
  return {.lhs = op.lhs, .rhs = op.rhs, .transpose_rhs = op.transpose_rhs};
}

bool HasEncodedFactor(const Node& product) {
  const Linear op = ProductOf(product);
  return op.lhs->type.encoding != nullptr || op.rhs->type.encoding != nullptr;
}

absl::StatusOr<Types> Linear::Infer(SizeCollector& sizes) const {
  const TensorType &a = TypeOf(lhs), &b = TypeOf(rhs);
  if (a.dtype != b.dtype || !IsFloat(a.dtype) || a.rank() < 2 || b.rank() < 2) {
    return Fail("linear_c1: does not take ", a.ToString(), " and ", b.ToString());
  }
  ASSIGN_OR_RETURN(Dims shape, ops::InferProduct("linear", a, b, transpose_rhs, sizes));
  return Types{{a.dtype, std::move(shape)}};
}

OpCost Linear::Cost(const Types& results) const { return ops::SumsOfProducts(results[0], TypeOf(lhs).shape.back()); }

absl::StatusOr<Tensors> Linear::Eval(const EvalArgs& args) const {
  const Tensor &a = args[0], &b = args[1];
  if (SumsIntegers(TypeOf(lhs), TypeOf(rhs), transpose_rhs)) {
    ASSIGN_OR_RETURN(const ops::ProductPlan plan, ops::PlanProduct("linear", a, b, transpose_rhs));
    ASSIGN_OR_RETURN(Tensor out, OfIntegers(a, b, plan));
    return Tensors{std::move(out)};
  }
  // What is decoded is f32 here, beside a factor in 16 bits, which the product widens.
  const DType arithmetic = ArithmeticType(a.dtype());
  const Tensor x = a.encoding() == nullptr ? a : Decoded(a, arithmetic);
  const Tensor weight = b.encoding() == nullptr ? b : Decoded(b, arithmetic);
  const Tensor* const factors[] = {&x, &weight};
  ASSIGN_OR_RETURN(Tensors out, MatMul{.transpose_rhs = transpose_rhs}.Eval({.in = factors}));
  ASSIGN_OR_RETURN(out[0], RoundedTo("linear", a.dtype(), out[0]));
  return out;
}

// ---- concat

// Rows of the last two axes are joined where the runs of elements with one scale stay whole: along the channels, not
// along k. What is one for a whole part becomes one for each of its channels, but for a scale of all scales that is the
// same value in all parts.
absl::Status ops::JoinEncodings(absl::Span<Value* const> parts, int64_t axis, TensorType* joined) {
  for (const Value* part : parts) {
    if (TypeOf(part).encoding == TypeOf(parts[0]).encoding) continue;
    return Fail("concat_c3: ", Str(part), " and ", Str(parts[0]), " are not encoded alike");
  }
  const Encoding* e = joined->encoding;
  if (e == nullptr || parts.size() == 1) return absl::OkStatus();
  const auto outer_of = [](const Value* part) { return Is<Encode>(part->def) ? part->def->operands.back() : nullptr; };
  const auto has_outer = [&](const Value* part) {
    return outer_of(part) != nullptr && outer_of(part) == outer_of(parts[0]);
  };
  const bool shares_outer = e->outer == OuterScale::kOfTensor && std::all_of(parts.begin(), parts.end(), has_outer);
  const bool joins_outer = shares_outer || (e->outer != OuterScale::kOfMatrices && e->k_is_last);
  if (joined->rank() != 2 || axis != (e->k_is_last ? 0 : 1) || (e->format->outer_scale && !joins_outer)) {
    return Fail("concat_c4: what is encoded as ", e->text, " does not join along axis ", axis);
  }
  Encoding wide = *e;
  if (e->format->outer_scale && !shares_outer) wide.outer = OuterScale::kOfRows;
  for (std::optional<Encoding::Part>* part : {&wide.scale, &wide.zero}) {
    if (!part->has_value()) continue;
    if ((*part)->per == Granularity::kTensor) (*part)->per = Granularity::kChannel;
    if ((*part)->per == Granularity::kToken) return Fail("concat_c4: tokens of ", e->text, " do not join");
  }
  for (size_t i = 0; e->rows > 0 && i + 1 < parts.size(); ++i) {
    const Dim& rows = TypeOf(parts[i]).shape[0];
    if (rows.is_constant() && rows.value() % e->rows == 0) continue;
    return Fail("concat_c4: ", Str(parts[i]), " does not end with a whole block");
  }
  ASSIGN_OR_RETURN(joined->encoding, InternEncoding(wide));
  return absl::OkStatus();
}

absl::StatusOr<Tensors> ops::ConcatEncoded(const EvalArgs& args, int64_t axis, const Encoding* joined) {
  Tensors components;
  for (size_t i = 0; i < joined->components(); ++i) {
    const bool is_outer = joined->format->outer_scale && i + 1 == joined->components();
    if (is_outer && joined->outer == OuterScale::kOfTensor) {  // that of all parts
      components.push_back(ComponentOf(args[0], i));
      break;
    }
    Tensors parts;
    for (size_t p = 0; p < args.size(); ++p) {
      Tensor part = ComponentOf(args[p], i);
      if (args.size() > 1 && part.rank() == 0) {  // one number for all channels
        Tensor wide(part.dtype(), {args[p].shape()[axis]});
        for (int64_t c = 0; c < wide.size(); ++c) CopyElements(part, 0, 1, &wide, c);
        part = std::move(wide);
      }
      parts.push_back(std::move(part));
    }
    std::vector<const Tensor*> in;
    for (const Tensor& part : parts) in.push_back(&part);
    const Concat concat{.axis = parts[0].rank() < 2 ? 0 : axis};
    ASSIGN_OR_RETURN(Tensors out, parts[0].rank() == 0 ? std::move(parts) : concat.Eval({.in = in}));
    components.push_back(std::move(out[0]));
  }
  Shape shape = args[0].shape();
  for (size_t p = 1; p < args.size(); ++p) shape[axis] += args[p].shape()[axis];
  std::vector<const Tensor*> in;
  for (const Tensor& component : components) in.push_back(&component);
  return Tensors{Bundle(joined, args[0].dtype(), std::move(shape), in)};
}

// ---- gather

// A row keeps its own scales.
absl::StatusOr<const Encoding*> ops::EncodingOfRows(const Value* matrix, int64_t axis) {
  const TensorType& type = TypeOf(matrix);
  const Encoding* e = type.encoding;
  if (e == nullptr) return e;
  if (type.rank() != 2 || axis != 0 || !e->k_is_last || e->rows > 0) {
    return Fail("gather_c3: slices of ", Str(matrix), " along axis ", axis, " have no scales of their own");
  }
  Encoding rows = *e;
  for (std::optional<Encoding::Part>* part : {&rows.scale, &rows.zero}) {
    if (part->has_value() && (*part)->per == Granularity::kChannel) (*part)->per = Granularity::kToken;
  }
  return InternEncoding(rows);
}

absl::StatusOr<Tensors> ops::GatherEncoded(const EvalArgs& args, const Encoding* of_rows) {
  Tensors components;
  for (size_t i = 0; i < of_rows->components(); ++i) {
    components.push_back(ComponentOf(args[0], i));
    if (components[i].rank() == 0) continue;  // one number for all rows
    const Tensor* const in[] = {&components[i], &args[1]};
    ASSIGN_OR_RETURN(Tensors out, Gather{}.Eval({.in = in}));
    components[i] = std::move(out[0]);
  }
  Shape shape = args[1].shape();
  shape.push_back(args[0].shape()[1]);
  std::vector<const Tensor*> in;
  for (const Tensor& component : components) in.push_back(&component);
  return Tensors{Bundle(of_rows, args[0].dtype(), std::move(shape), in)};
}

}  // namespace llmc
