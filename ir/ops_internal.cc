#include "ir/ops_internal.h"

#include "base/status_macros.h"
#include "ir/text.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <bit>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>

namespace llmc::ops {
namespace {

constexpr int64_t kMaxResultBytes = int64_t{16} << 30;
constexpr double kWorkPerThread = 2e6;  // what makes up for starting a thread
constexpr int64_t kMaxThreads = 16;

void LoadBFloat16(const uint16_t* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
  }
}

void StoreHalf(const float* in, int64_t n, uint16_t* out) {
  int64_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#endif
  for (; i < n; ++i) out[i] = FloatToHalf(in[i]);
}

// FloatToBFloat16 in a form that vectorizes.
void StoreBFloat16(const float* in, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
  }
}

template <class From, class To>
void ConvertEach(const From* in, int64_t n, To* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<To>(in[i]);
}

}  // namespace

std::string Str(const Value* value) { return TypeText(*value); }

std::string Str(const Tensor& tensor) { return absl::StrCat(DTypeName(tensor.dtype()), ShapeToString(tensor.shape())); }

absl::StatusOr<Tensor> NewTensor(absl::string_view op, DType dtype, Shape shape) {
  absl::StatusOr<int64_t> elements = CheckedElements(dtype, shape);
  if (!elements.ok())
    return Fail(op, ": the result ", DTypeName(dtype), ShapeToString(shape), ": ", elements.status().message());
  if (*elements > kMaxResultBytes / DTypeBits(dtype) * 8) {
    return absl::ResourceExhaustedError(
        absl::StrCat(op, ": the result ", DTypeName(dtype), ShapeToString(shape), " is larger than 16 GiB"));
  }
  return Tensor(dtype, std::move(shape));
}

absl::StatusOr<Shape> EvaluateDims(absl::string_view op, const Dims& dims, const EvalArgs& args) {
  static const DimEnv kNone;
  Shape shape;
  for (const Dim& dim : dims) {
    absl::StatusOr<int64_t> size = dim.Evaluate(args.dims == nullptr ? kNone : *args.dims);
    if (!size.ok()) return Fail(op, ": ", size.status().message());
    shape.push_back(*size);
  }
  return shape;
}

Shape StridesOf(absl::Span<const int64_t> shape) {
  Shape strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

int64_t SizeOf(absl::Span<const int64_t> shape) {
  int64_t size = 1;
  for (int64_t dim : shape) size *= dim;
  return size;
}

absl::Status CheckAxis(absl::string_view label, int64_t axis, int rank) {
  if (axis >= 0 && axis < rank) return absl::OkStatus();
  return Fail(label, ": axis ", axis, " is not one of the ", rank, " axes");
}

bool ProvablyNonNegative(const Dim& dim) {
  if (dim.is_unknown()) return false;
  return dim.is_constant() ? dim.value() >= 0 : dim.ToString().find('-') == std::string::npos;
}

bool ProvablyAtMost(const Dim& a, const Dim& b) { return ProvablyNonNegative(b - a); }

bool MayBeEqual(const Dim& a, const Dim& b) { return DecideEqual(a, b) != false; }

std::optional<bool> DecideEqual(const Dim& a, const Dim& b) {
  const Dim difference = a - b;
  if (difference.is_unknown()) return std::nullopt;
  if (difference.is_constant()) return difference.value() == 0;
  // A size never equals a negative number, and size + 1 never 0.
  if (ProvablyNonNegative(difference - Dim(1)) || ProvablyNonNegative(b - a - Dim(1))) return false;
  return std::nullopt;
}

std::optional<std::vector<int64_t>> ConstantContents(const Value* value) {
  if (value == nullptr || !value->contents.has_value()) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Dim& dim : *value->contents) {
    if (!dim.is_constant()) return std::nullopt;
    numbers.push_back(dim.value());
  }
  return numbers;
}

std::optional<Dims> MakeContents(const TensorType& type, Dims contents) {
  if (type.rank() > 1 || contents.size() > kMaxContents || IsFloat(type.dtype)) return std::nullopt;
  const int bits = DTypeBits(type.dtype);
  const bool is_unsigned = type.dtype == DType::kU8 || type.dtype == DType::kU4;
  for (const Dim& dim : contents) {
    if (dim.is_unknown()) return std::nullopt;
    if (bits == 64) continue;
    if (!dim.is_constant()) {
      if (bits < 32) return std::nullopt;
      continue;
    }
    const int64_t low = type.dtype == DType::kBool || is_unsigned ? 0 : -(int64_t{1} << (bits - 1));
    const int64_t high = type.dtype == DType::kBool ? 1 : (int64_t{1} << (is_unsigned ? bits : bits - 1)) - 1;
    if (dim.value() < low || dim.value() > high) return std::nullopt;
  }
  return contents;
}

std::optional<Dims> Spread(const Value* value, size_t n) {
  if (!value->contents.has_value()) return std::nullopt;
  if (value->contents->size() == n) return value->contents;
  if (value->contents->size() == 1) return Dims(n, (*value->contents)[0]);
  return std::nullopt;
}

size_t SpreadSize(std::initializer_list<const Value*> values) {
  size_t n = 1;
  for (const Value* value : values) {
    if (value->contents.has_value() && value->contents->size() != 1) n = value->contents->size();
  }
  return n;
}

int MaxRank(std::initializer_list<const Value*> values) {
  int rank = 0;
  for (const Value* value : values) rank = std::max(rank, TypeOf(value).rank());
  return rank;
}

template <class T>
void Load(const Tensor& tensor, int64_t begin, int64_t n, T* out) {
  if (n == 0) return;
  if constexpr (std::is_same_v<T, float>) {
    if (tensor.dtype() == DType::kF16) return HalvesToFloats(tensor.raw() + 2 * begin, n, out);
    if (tensor.dtype() == DType::kBF16) return LoadBFloat16(tensor.data<uint16_t>() + begin, n, out);
  }
  switch (tensor.dtype()) {
    case DType::kF32:
      if constexpr (!std::is_integral_v<T>) return ConvertEach(tensor.data<float>() + begin, n, out);
      break;
    case DType::kF64:
      if constexpr (!std::is_integral_v<T>) return ConvertEach(tensor.data<double>() + begin, n, out);
      break;
    case DType::kI64:
      return ConvertEach(tensor.data<int64_t>() + begin, n, out);
    case DType::kI32:
      return ConvertEach(tensor.data<int32_t>() + begin, n, out);
    case DType::kU8:
    case DType::kBool:
      return ConvertEach(tensor.data<uint8_t>() + begin, n, out);
    default:
      break;
  }
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_integral_v<T>) {
      out[i] = tensor.GetInt(begin + i);
    } else {
      out[i] = static_cast<T>(tensor.GetFloat(begin + i));
    }
  }
}

template <class T>
void Store(const T* in, int64_t begin, int64_t n, Tensor* tensor) {
  if (n == 0) return;
  if (tensor->dtype() == kNativeType<T>) {
    std::copy_n(in, n, tensor->mutable_data<T>() + begin);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    uint16_t* out = tensor->mutable_data<uint16_t>() + begin;
    if (tensor->dtype() == DType::kF16) return StoreHalf(in, n, out);
    if (tensor->dtype() == DType::kBF16) return StoreBFloat16(in, n, out);
  }
  if constexpr (std::is_integral_v<T>) {
    if (tensor->dtype() == DType::kBool) {
      uint8_t* out = tensor->mutable_data<uint8_t>() + begin;
      for (int64_t i = 0; i < n; ++i) out[i] = in[i] != 0;
      return;
    }
    for (int64_t i = 0; i < n; ++i) tensor->SetInt(begin + i, in[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) tensor->SetFloat(begin + i, in[i]);
  }
}

template void Load<float>(const Tensor&, int64_t, int64_t, float*);
template void Load<double>(const Tensor&, int64_t, int64_t, double*);
template void Load<int64_t>(const Tensor&, int64_t, int64_t, int64_t*);
template void Store<float>(const float*, int64_t, int64_t, Tensor*);
template void Store<double>(const double*, int64_t, int64_t, Tensor*);
template void Store<int64_t>(const int64_t*, int64_t, int64_t, Tensor*);

absl::StatusOr<Shape> BroadcastShapes(absl::string_view op, absl::Span<const int64_t> a, absl::Span<const int64_t> b) {
  Shape out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {  // from the last axis
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) {
      return Fail(op, ": shapes ", ShapeToString(a), " and ", ShapeToString(b), " do not broadcast");
    }
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

Shape BroadcastStrides(absl::Span<const int64_t> from, absl::Span<const int64_t> to) {
  const Shape own = StridesOf(from);
  Shape strides(to.size(), 0);
  const size_t lead = to.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) strides[lead + i] = from[i] == 1 ? 0 : own[i];
  return strides;
}

absl::StatusOr<Tensor> CopyStrided(absl::string_view op, const Tensor& x, const Shape& shape, const Shape& strides,
                                   int64_t offset) {
  ASSIGN_OR_RETURN(Tensor out, ops::NewTensor(op, x.dtype(), shape));
  const ops::StridedLoop<1> loop(shape, {strides});
  const auto copy = [&]<class T>(T) {
    const T* from = x.data<T>() + offset;
    T* to = out.mutable_data<T>();
    loop.Run([&](const std::array<int64_t, 1>& at, int64_t n, const std::array<int64_t, 1>& step) {
      if (step[0] == 1) {
        std::memcpy(to, from + at[0], n * sizeof(T));
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] = from[at[0] + i * step[0]];
      }
      to += n;
    });
  };
  switch (DTypeBits(x.dtype())) {
    case 64:
      copy(uint64_t{});
      break;
    case 32:
      copy(uint32_t{});
      break;
    case 16:
      copy(uint16_t{});
      break;
    case 8:
      copy(uint8_t{});
      break;
    default: {
      int64_t to = 0;
      loop.Run([&](const std::array<int64_t, 1>& at, int64_t n, const std::array<int64_t, 1>& step) {
        for (int64_t i = 0; i < n; ++i) out.SetInt(to++, x.GetInt(offset + at[0] + i * step[0]));
      });
    }
  }
  return out;
}

void CopyElements(const Tensor& from, int64_t from_begin, int64_t n, Tensor* to, int64_t to_begin) {
  const int bits = DTypeBits(from.dtype());
  if (bits >= 8) {
    const int64_t bytes = bits / 8;
    if (n > 0) std::memcpy(to->mutable_raw() + to_begin * bytes, from.raw() + from_begin * bytes, n * bytes);
    return;
  }
  for (int64_t i = 0; i < n; ++i) to->SetInt(to_begin + i, from.GetInt(from_begin + i));
}

void ParallelFor(int64_t n, double work, const std::function<void(int64_t, int64_t)>& f) {
  const int64_t cores = std::min<int64_t>(kMaxThreads, std::thread::hardware_concurrency());
  const int64_t threads = std::min({n, cores, static_cast<int64_t>(work / kWorkPerThread)});
  if (threads <= 1) {
    if (n > 0) f(0, n);
    return;
  }
  // What a part throws (out of memory) is thrown here, after every part is done.
  std::vector<std::exception_ptr> errors(threads);
  const auto part = [&](int64_t t) {
    try {
      f(n * t / threads, n * (t + 1) / threads);
    } catch (...) {
      errors[t] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(threads);
  int64_t started = 1;
  try {
    for (; started < threads; ++started) others.emplace_back(part, started);
  } catch (const std::system_error&) {
    // No more threads: the rest runs here.
  }
  part(0);
  for (int64_t t = started; t < threads; ++t) part(t);
  for (std::thread& thread : others) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

// ---- costs -------------------------------------------------------------------------
Size Smaller(const Size& a, const Size& b) {
  if (a.has_dim() && b.has_dim()) {
    if (ProvablyAtMost(a.dim(), b.dim())) return a;
    if (ProvablyAtMost(b.dim(), a.dim())) return b;
  }
  return Size::Call("min", {a, b});
}

OpCost SumsOfProducts(const TensorType& sums, const Size& terms) {
  return {.flops = 2 * ElementsOf(sums.shape) * terms};
}

OpCost Picking(const Value* x, const TensorType& picked) {
  return {.operand_bytes = {Smaller(picked.Bytes(), TypeOf(x).Bytes())}};
}

}  // namespace llmc::ops
