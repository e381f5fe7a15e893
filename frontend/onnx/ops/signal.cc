// Fourier transforms, as products with tables of cosines and sines, and the windows and filters around them. Lengths
// may be known to the run alone: the tables are computed in the graph, in f64.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"

namespace llmc {
namespace {

// An integer input of one element, as i64[].
Value* IntegerAt(OnnxNode& n, size_t i, absl::string_view what) {
  if (n.has(i) && (!IsInteger(DTypeOf(n.in(i))) || Product(n.in(i)->type.shape) != Dim(1))) {
    n.Invalid(absl::StrCat(what, " must be one integer, not ", n.in(i)->type.ToString()));
  }
  return n.ok() ? n.ReshapeTo(n.AsI64(i), {}) : nullptr;
}

DType OutputType(OnnxNode& n) {
  auto dtype = DTypeOfOnnx(n.Int("output_datatype", onnx::TensorProto::FLOAT));
  if (!dtype.ok()) n.Fail(dtype.status());
  return dtype.value_or(DType::kF32);
}

// ---- the transform ------------------------------------------------------------------

// A signal's two parts, without the axis that holds them; `imaginary` is null for a real one.
struct Complex {
  Value* real = nullptr;
  Value* imaginary = nullptr;
};

Complex PartsOf(OnnxNode& n, Value* x) {
  if (!n.ok()) return {};
  const int64_t last = RankOf(x) - 1;
  const Dim parts = x->type.shape.back();
  Dims shape = x->type.shape;
  shape.pop_back();
  const auto part = [&](int64_t i) -> Value* {
    if (parts.is_constant()) return n.ReshapeTo(n.SliceOf(x, last, Dim(i), Dim(i + 1)), shape);
    Value* hit = Map<Equal>(n, PositionsAlong(n, parts, last, static_cast<int>(last) + 1), static_cast<double>(i));
    return ReduceOver<ReduceSum>(n, Select(n, hit, x, n.Scalar(DTypeOf(x), 0)), {last}, false);
  };
  if (parts.is_constant() && parts != Dim(1) && parts != Dim(2)) {
    n.Invalid(absl::StrCat("the last dim must be 1 or 2, not ", parts.ToString()));
    return {};
  }
  return {.real = part(0), .imaginary = parts == Dim(1) ? nullptr : part(1)};
}

struct Transform {
  int64_t axis = 0;
  Value* length = nullptr;  // i64[]: of the full spectrum or signal
  bool inverse = false, onesided = false;
};

// Cosines and sines: [result, input] of the axis.
struct Tables {
  Value* cosines = nullptr;
  Value* sines = nullptr;
};

Tables TablesOf(OnnxNode& n, const Transform& t, const Dim& size, DType dtype) {
  const bool half_result = t.onesided && !t.inverse, half_input = t.onesided && t.inverse;
  const auto half = [&] { return Map<Add>(n, Map<Div>(n, t.length, 2), 1); };
  Value* rows = Along(n, PositionsBelow(n, half_result ? half() : t.length), 0, 2);
  Value* columns = PositionsAlong(n, size, 1, 2);
  // Whole turns are taken off as integers, so that long signals lose nothing.
  Value* turns = n.CastTo(Map<Mod>(n, Map<Mul>(n, rows, columns), t.length), DType::kF64);
  Value* length = n.CastTo(t.length, DType::kF64);
  Value* angles = Map<Mul>(n, Map<Div>(n, turns, length), 2 * M_PI);
  // An input that is longer than the transform is cut, a shorter one ends in zeros.
  Value* weights = n.CastTo(Map<Less>(n, columns, half_input ? half() : t.length), DType::kF64);
  if (half_input) {  // Frequencies between the first and the middle one stand for two.
    Value* twice = Map<Mul>(n, columns, 2);
    Value* one = Map<Or>(n, Map<Equal>(n, columns, 0), Map<Equal>(n, twice, t.length));
    weights = Map<Mul>(n, weights, Select(n, one, n.Scalar(DType::kF64, 1), n.Scalar(DType::kF64, 2)));
  }
  if (t.inverse) weights = Map<Div>(n, weights, length);
  return {.cosines = n.CastTo(Map<Mul>(n, Map<Cos>(n, angles), weights), dtype),
          .sines = n.CastTo(Map<Mul>(n, Map<Sin>(n, angles), weights), dtype)};
}

// x[..., parts] transformed along an axis: [..., 2], or [..., 1] for the inverse of half a spectrum.
Value* Transformed(OnnxNode& n, Value* x, const Transform& t) {
  if (!n.ok()) return nullptr;
  const DType dtype = DTypeOf(x);
  const DType inner = dtype == DType::kF64 ? dtype : DType::kF32;
  const Complex in = PartsOf(n, n.CastTo(x, inner));
  const Tables tables = TablesOf(n, t, x->type.shape[static_cast<size_t>(t.axis)], inner);
  const auto with = [&](Value* table, Value* part) { return ProductAlong(n, table, part, t.axis); };
  // (real + i imaginary) (cos -+ i sin)
  Value* real = with(tables.cosines, in.real);
  if (in.imaginary != nullptr) {
    Value* other = with(tables.sines, in.imaginary);
    real = t.inverse ? Map<Sub>(n, real, other) : Map<Add>(n, real, other);
  }
  const auto column = [&](Value* part) {
    if (!n.ok()) return part;
    Dims shape = part->type.shape;
    shape.push_back(Dim(1));
    return n.CastTo(n.ReshapeTo(part, std::move(shape)), dtype);
  };
  if (t.inverse && t.onesided) return column(real);
  Value* imaginary = with(tables.sines, in.real);
  if (!t.inverse) imaginary = Map<Neg>(n, imaginary);
  if (in.imaginary != nullptr) imaginary = Map<Add>(n, imaginary, with(tables.cosines, in.imaginary));
  return n.Emit(Concat{.parts = {column(real), column(imaginary)}, .axis = RankOf(x) - 1});
}

bool CheckSignal(OnnxNode& n, int64_t axis) {
  const Value* x = n.in(0);
  if (!IsFloat(DTypeOf(x))) n.Invalid(absl::StrCat("the signal must be floating-point, not ", x->type.ToString()));
  if (RankOf(x) < 2 || axis + 1 >= RankOf(x)) n.Invalid("the axis must be one before the last, which holds the parts");
  return n.ok();
}

void ImportDft(OnnxNode& n) {
  Value* x = n.in(0);
  Transform t{.inverse = n.Int("inverse", 0) != 0, .onesided = n.Int("onesided", 0) != 0};
  int64_t axis = n.Int("axis", 1);
  if (n.HasSince(2, 20)) {
    axis = n.StaticInt(2, "axis");
  } else if (n.opset() >= 20) {
    axis = -2;
  }
  t.axis = n.NormalizeAxis(axis, RankOf(x));
  if (!n.ok() || !CheckSignal(n, t.axis)) return;
  if (n.has(1)) {
    t.length = IntegerAt(n, 1, "dft_length");
    const std::optional<Dims> known = t.length == nullptr ? std::nullopt : t.length->contents;
    if (known.has_value() && (*known)[0].is_constant() && (*known)[0].value() < 1) {
      return n.Invalid(absl::StrCat("dft_length is ", (*known)[0].value()));
    }
  } else {
    const Dim size = x->type.shape[static_cast<size_t>(t.axis)];
    if (size == Dim(0)) return n.Invalid("the signal is empty");
    t.length = SizeAsScalar(n, t.inverse && t.onesided ? Dim(2) * (size - Dim(1)) : size);
  }
  n.Set(0, Transformed(n, x, t));
}

// The windows of signal[B, size, parts] that begin every frame_step elements, each transformed: [B, windows, size, 2].
void ImportStft(OnnxNode& n) {
  Value* x = n.in(0);
  if (RankOf(x) == 2) x = n.ReshapeTo(x, {x->type.shape[0], x->type.shape[1], Dim(1)});
  if (n.ok() && RankOf(x) != 3) return n.Invalid("the signal must have rank 3");
  if (!CheckSignal(n, 0)) return;
  const Dim size = x->type.shape[1];
  Value* step = IntegerAt(n, 1, "frame_step");
  Value* length = n.has(3)   ? IntegerAt(n, 3, "frame_length")
                  : n.has(2) ? SizeAsScalar(n, Product(n.in(2)->type.shape))
                             : SizeAsScalar(n, size);
  Value* count = Map<Add>(n, Map<Div>(n, Map<Sub>(n, SizeAsScalar(n, size), length), step), 1);
  Value* starts = Map<Mul>(n, PositionsBelow(n, count), step);
  Value* frames = GatherAlong(n, x, Map<Add>(n, Along(n, starts, 0, 2), Along(n, PositionsBelow(n, length), 1, 2)), 1);
  if (n.has(2)) frames = Map<Mul>(n, frames, n.CastTo(Along(n, n.in(2), 2, 4), DTypeOf(x)));
  n.Set(0, Transformed(n, frames, {.axis = 2, .length = length, .onesided = n.Int("onesided", 1) != 0}));
}

// ---- windows ------------------------------------------------------------------------

// c0 - c1 cos(2 pi i / size) + c2 cos(4 pi i / size); a symmetric window ends where a periodic one would begin anew.
void ImportWindow(OnnxNode& n, double c0, double c1, double c2) {
  const DType dtype = OutputType(n);
  Value* size = IntegerAt(n, 0, "size");
  Value* i = n.CastTo(PositionsBelow(n, size), DType::kF64);
  Value* period = n.Int("periodic", 1) != 0 ? size : Map<Sub>(n, size, 1);
  Value* angle = Map<Mul>(n, Map<Div>(n, i, n.CastTo(period, DType::kF64)), 2 * M_PI);
  Value* y = Map<Sub>(n, c0, Map<Mul>(n, Map<Cos>(n, angle), c1));
  if (c2 != 0) y = Map<Add>(n, y, Map<Mul>(n, Map<Cos>(n, Map<Mul>(n, angle, 2)), c2));
  n.Set(0, n.CastTo(y, dtype));
}

void ImportHann(OnnxNode& n) { ImportWindow(n, 0.5, 0.5, 0); }
void ImportHamming(OnnxNode& n) { ImportWindow(n, 25.0 / 46, 21.0 / 46, 0); }
void ImportBlackman(OnnxNode& n) { ImportWindow(n, 0.42, 0.5, 0.08); }

// ---- mel --------------------------------------------------------------------------

// Triangles over the bins of a spectrum, at equal distances on the mel scale: [dft_length / 2 + 1, num_mel_bins].
void ImportMelWeightMatrix(OnnxNode& n) {
  const DType dtype = OutputType(n);
  Value* count = IntegerAt(n, 0, "num_mel_bins");
  Value* length = IntegerAt(n, 1, "dft_length");
  Value* rate = n.CastTo(IntegerAt(n, 2, "sample_rate"), DType::kF64);
  constexpr double kMels = 2595 / M_LN10;
  const auto mel = [&](size_t input) {
    Value* hertz = n.CastTo(n.ReshapeTo(n.in(input), {}), DType::kF64);
    return Map<Mul>(n, Map<Log>(n, Map<Add>(n, Map<Div>(n, hertz, 700), 1)), kMels);
  };
  Value* low = mel(3);
  Value* corners = Map<Add>(n, count, 2);
  Value* step = Map<Div>(n, Map<Sub>(n, mel(4), low), n.CastTo(corners, DType::kF64));
  Value* mels = Map<Add>(n, Map<Mul>(n, n.CastTo(PositionsBelow(n, corners), DType::kF64), step), low);
  Value* hertz = Map<Mul>(n, Map<Sub>(n, Map<Exp>(n, Map<Div>(n, mels, kMels)), 1), 700);
  Value* bins = n.CastTo(Map<Add>(n, length, 1), DType::kF64);
  bins = Map<Floor>(n, Map<Div>(n, Map<Mul>(n, hertz, bins), rate));
  const auto corner = [&](double i) {  // of each triangle
    Value* at = Map<Add>(n, PositionsBelow(n, count), i);
    return Along(n, GatherAlong(n, bins, at, 0), 1, 2);
  };
  Value *left = corner(0), *top = corner(1), *right = corner(2);
  Value* bin = Map<Add>(n, Map<Div>(n, length, 2), 1);
  bin = n.CastTo(Along(n, PositionsBelow(n, bin), 0, 2), DType::kF64);
  const auto between = [&](Value* from, Value* to) {
    return Map<And>(n, Map<LessEqual>(n, from, bin), Map<LessEqual>(n, bin, to));
  };
  Value* none = n.Scalar(DType::kF64, 0);
  const auto slope = [&](Value* distance, Value* of) {  // a triangle of no width is one bin
    return Select(n, Map<Equal>(n, of, 0), n.Scalar(DType::kF64, 1), Map<Div>(n, distance, of));
  };
  Value* rising = Select(n, between(left, top), slope(Map<Sub>(n, bin, left), Map<Sub>(n, top, left)), none);
  Value* falls = Map<And>(n, between(top, right), Map<Less>(n, bin, right));
  Value* falling = Map<Div>(n, Map<Sub>(n, right, bin), Map<Sub>(n, right, top));
  n.Set(0, n.CastTo(Select(n, falls, falling, rising), dtype));
}

constexpr OnnxOp kSignalOps[] = {
    {"DFT", 17, 1, 3, ImportDft, "a product with a table, not a fast transform; axis must be known"},
    {"STFT", 17, 2, 4, ImportStft, "as DFT"},
    {"HannWindow", 17, 1, 1, ImportHann},
    {"HammingWindow", 17, 1, 1, ImportHamming},
    {"BlackmanWindow", 17, 1, 1, ImportBlackman},
    {"MelWeightMatrix", 17, 5, 5, ImportMelWeightMatrix},
};

}  // namespace

absl::Span<const OnnxOp> OnnxSignalOps() { return kSignalOps; }

}  // namespace llmc
