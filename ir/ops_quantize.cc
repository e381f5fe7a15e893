// Numbers of a step to codes: the scales that they need, and the codes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "ir/encoding.h"
#include "ir/ops_encoded.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using ops::Fail;
using ops::Str;
using ops::TypeOf;

bool TakesNumbers(const TensorType& type) { return IsFloat(type.dtype) && DTypeBits(type.dtype) >= 16; }

// The encoding of `as`, if rows can be quantized to it: its scales stand for runs along the last axis, or for all.
absl::StatusOr<const Encoding*> RowEncoding(absl::string_view op, const std::string& as, const TensorType& x,
                                            const Value* outer) {
  absl::StatusOr<const Encoding*> encoding = ParseEncoding(as);
  if (!encoding.ok()) return Fail(op, "_c1: ", encoding.status().message());
  const Encoding& e = **encoding;
  if (e.format->run() > 0 || e.zero.has_value() || !e.k_is_last || e.rows > 0 ||
      e.scale->per == Granularity::kChannel) {
    return Fail(op, "_c1: ", e.text,
                " is not made of rows: take per=token, group=N or per=tensor, without zero points");
  }
  if (!TakesNumbers(x)) return Fail(op, "_c2: does not take ", x.ToString());
  if (x.rank() < 1) return Fail(op, "_c2: ", x.ToString(), " has no rows");
  if ((outer != nullptr) != e.format->outer_scale) {
    return Fail(op, "_c3: ", e.text, e.format->outer_scale ? " has" : " has no", " scale of scales");
  }
  const bool is_number = outer == nullptr || (outer->type.dtype == DType::kF32 && ElementsOf(outer->type.shape).Is(1));
  if (!is_number) return Fail(op, "_c3: a scale of scales is an f32, not ", Str(outer));
  return encoding;
}

// Elements of a row that share a scale: all of them for tokens; 0 of a scale for all rows.
int64_t RunOf(const Encoding& e, int64_t columns) {
  switch (e.scale->per) {
    case Granularity::kGroup:
      return e.group;
    case Granularity::kToken:
      return std::max<int64_t>(columns, 1);
    default:
      return 0;
  }
}

// f(row, begin, end, the number of its scale), for each run.
template <class F>
void ForEachRun(const Tensor& x, const Encoding& e, F f) {
  const int64_t columns = x.shape().back(), rows = columns == 0 ? 0 : x.size() / columns;
  const int64_t run = RunOf(e, columns), step = run == 0 ? columns : run;
  const int64_t runs = columns == 0 ? 0 : (columns + step - 1) / step;
  const bool shares_bytes = columns % 2 != 0 && DTypeBits(e.format->codes) < 8;  // two rows a byte
  ops::ParallelFor(rows, shares_bytes ? 0 : static_cast<double>(x.size()), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t i = 0; i < runs; ++i) {
        f(row, i * step, std::min(columns, (i + 1) * step), run == 0 ? 0 : row * runs + i);
      }
    }
  });
}

// NaN if one of them is.
float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float magnitude = std::fabs(x[i]);
    if (!(magnitude <= largest)) largest = std::isnan(largest) ? largest : magnitude;
  }
  return largest;
}

constexpr float kMostE4M3 = 448, kMostE5M2 = 57344;

float MostOf(DType codes) { return codes == DType::kF8E5M2 ? kMostE5M2 : kMostE4M3; }

// The biased exponent of the power of two with limit / 2 <= amax / power < limit; 255, which stands for NaN, of what is
// not finite.
int64_t ExponentOf(float amax, float limit) {
  if (!std::isfinite(amax)) return 255;
  if (amax == 0) return 0;
  int exponent = 0, exponent_of_limit = 0;
  const float fraction = std::frexp(amax, &exponent), fraction_of_limit = std::frexp(limit, &exponent_of_limit);
  if (fraction >= fraction_of_limit) ++exponent;
  return std::clamp(exponent - exponent_of_limit + 127, 0, 254);
}

// The code of the nearest number; ties go to the even code.
int64_t CodeOf(const float* codebook, float x) {
  int64_t best = 0;
  for (int64_t code = 1; code < 16; ++code) {
    const float distance = std::fabs(codebook[code] - x), before = std::fabs(codebook[best] - x);
    const bool is_tie = distance == before && code % 2 == 0 && codebook[code] != codebook[best];
    if (distance < before || is_tie) best = code;
  }
  // -0 of the codebooks that have it.
  if (codebook[best] == 0 && std::signbit(x) && std::signbit(codebook[8])) return 8;
  return best;
}

struct IntegerRange {
  float low, high;
};
IntegerRange RangeOf(DType codes) {
  const int bits = DTypeBits(codes);
  if (codes == DType::kU8 || codes == DType::kU4) return {0, static_cast<float>((1 << bits) - 1)};
  return {-static_cast<float>(1 << (bits - 1)), static_cast<float>((1 << (bits - 1)) - 1)};
}

// x is a number divided by its scale; NaN becomes the code 0, and its scale is NaN too where it is dynamic.
void SetCode(const EncodingFormat& format, float x, int64_t i, Tensor* codes) {
  if (format.codebook != nullptr) {
    codes->SetInt(i, std::isnan(x) ? 0 : CodeOf(format.codebook, x));
  } else if (IsFloat(format.codes)) {
    const float most = MostOf(format.codes);
    codes->SetFloat(i, std::isnan(x) ? x : std::clamp(x, -most, most));
  } else {
    const auto [low, high] = RangeOf(format.codes);
    codes->SetInt(i, std::isnan(x) ? 0 : static_cast<int64_t>(std::nearbyint(std::clamp(x, low, high))));
  }
}

float WholeScale(const Encoding& e, float scale, float outer) {
  return e.format->scale_is_exponent ? std::ldexp(1.0f, static_cast<int>(scale) - 127) : scale * outer;
}

float OuterOf(const EvalArgs& args, size_t i) { return args.has(i) ? static_cast<float>(args[i].GetFloat(0)) : 1.0f; }

absl::StatusOr<Shape> ShapeOfScale(absl::string_view op, const Encoding& e, const Shape& x, const EvalArgs& args) {
  return ops::EvaluateDims(op, e.ComponentType(1, Dims(x.begin(), x.end())).shape, args);
}

}  // namespace

absl::StatusOr<Types> DynamicScale::Infer(SizeCollector&) const {
  ASSIGN_OR_RETURN(const Encoding* e, RowEncoding("dynamic_scale", as, TypeOf(x), outer));
  if (e->scale->per == Granularity::kTensor) return Fail("dynamic_scale_c4: ", as, " has one scale for all rows");
  if (!(limit > 0) || !std::isfinite(limit))
    return Fail("dynamic_scale_c5: limit is ", limit, ", which is not above 0");
  return Types{e->ComponentType(1, TypeOf(x).shape)};
}

absl::StatusOr<Tensors> DynamicScale::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(const Encoding* e, ParseEncoding(as));
  const ops::Elements<float> numbers(args[0]);
  ASSIGN_OR_RETURN(Shape shape, ShapeOfScale("dynamic_scale", *e, args[0].shape(), args));
  ASSIGN_OR_RETURN(Tensor scales, ops::NewTensor("dynamic_scale", e->scale->dtype, std::move(shape)));
  const float outer_scale = OuterOf(args, 1), most = static_cast<float>(limit);
  const int64_t columns = args[0].shape().back();
  ForEachRun(args[0], *e, [&](int64_t row, int64_t begin, int64_t end, int64_t i) {
    const float amax = LargestMagnitude(numbers.data() + row * columns + begin, end - begin);
    if (e->format->scale_is_exponent) return scales.SetInt(i, ExponentOf(amax, most));
    float scale = inverse ? 1.0f / (most * (1.0f / amax)) : amax / most;
    if (e->format->outer_scale) {
      scale = outer_scale == 0 ? 0 : scale / outer_scale;
      if (!std::isnan(scale)) scale = std::min(scale, kMostE4M3);
    }
    scales.SetFloat(i, scale);
  });
  return Tensors{std::move(scales)};
}

absl::StatusOr<Types> Quantize::Infer(SizeCollector& sizes) const {
  ASSIGN_OR_RETURN(const Encoding* e, RowEncoding("quantize", as, TypeOf(x), outer));
  const TensorType expected = e->ComponentType(1, TypeOf(x).shape), &actual = TypeOf(scale);
  const bool is_one = expected.shape.empty() && ElementsOf(actual.shape).Is(1);
  if (actual.dtype != expected.dtype || (!is_one && !sizes.Same(actual.shape, expected.shape))) {
    return Fail("quantize_c4: the scale of ", e->text, " must be ", expected.ToString(), ", not ", Str(scale));
  }
  return Types{{e->format->codes, TypeOf(x).shape}};
}

absl::StatusOr<Tensors> Quantize::Eval(const EvalArgs& args) const {
  ASSIGN_OR_RETURN(const Encoding* e, ParseEncoding(as));
  const ops::Elements<float> numbers(args[0]), scales(args[1]);
  ASSIGN_OR_RETURN(Tensor codes, ops::NewTensor("quantize", e->format->codes, args[0].shape()));
  const float outer_scale = OuterOf(args, 2);
  const int64_t columns = args[0].shape().back();
  ForEachRun(args[0], *e, [&](int64_t row, int64_t begin, int64_t end, int64_t i) {
    const float all = WholeScale(*e, scales[i], outer_scale), factor = 1.0f / all;
    for (int64_t c = row * columns + begin; c < row * columns + end; ++c) {
      SetCode(*e->format, all == 0 ? 0 : inverse ? numbers[c] * factor : numbers[c] / all, c, &codes);
    }
  });
  return Tensors{std::move(codes)};
}

}  // namespace llmc
