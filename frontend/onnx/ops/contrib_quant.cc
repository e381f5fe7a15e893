// Products and lookups with weights of 2, 4 or 8 bits, packed into bytes, the first number in the lowest bits.
//
// Packed constants are read in place as u4 where they have 4 bits; those of 2 bits become u4. A weight of a product is
// widened where it is used, like that of DequantizeLinear, and takes at most twice its bytes otherwise; rows that are
// looked up stay encoded until then.
#include "frontend/onnx/ops/contrib_quant.h"

#include "absl/strings/str_cat.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/ops/math.h"
#include "ir/encoding.h"

namespace llmc {
namespace {

// Numbers of 2 bits as u4.
Tensor Widened(const Tensor& packed, Shape shape) {
  Tensor wide(DType::kU4, std::move(shape));
  const auto* from = packed.data<uint8_t>();
  auto* to = wide.mutable_data<uint8_t>();
  for (int64_t i = 0; i < packed.bytes(); ++i) {
    to[2 * i] = static_cast<uint8_t>((from[i] & 3) | (from[i] & 12) << 2);
    to[2 * i + 1] = static_cast<uint8_t>((from[i] >> 4 & 3) | (from[i] & 192) >> 2);
  }
  return wide;
}

}  // namespace

Value* UnpackedBits(OnnxNode& n, size_t i, int64_t bits) {
  Value* x = n.in(i);
  if (bits == 8 || !n.ok()) return x;
  if (DTypeOf(x) != DType::kU8 || RankOf(x) == 0) {
    n.Invalid(absl::StrCat("input ", i, " must be packed in uint8, not ", x->type.ToString()));
    return nullptr;
  }
  const int64_t count = 8 / bits;
  if (const Tensor* tensor = n.Literal(i); tensor != nullptr) {
    Shape shape = tensor->shape();
    shape.back() *= count;
    return n.Retyped(
        i, bits == 2 ? Widened(*tensor, std::move(shape)) : Tensor(DType::kU4, std::move(shape), tensor->owner()));
  }
  Dims apart = x->type.shape, joined = x->type.shape;
  apart.push_back(Dim(1));
  joined.back() = joined.back() * Dim(count);
  x = n.CastTo(x, DType::kI32);
  std::vector<Value*> parts;
  for (int64_t part = 0; part < count; ++part) {
    Value* shifted = Map<Div>(n, x, static_cast<double>(int64_t{1} << (bits * part)));
    parts.push_back(n.ReshapeTo(Map<Mod>(n, shifted, static_cast<double>(int64_t{1} << bits)), apart));
  }
  return n.ReshapeTo(n.Emit(Concat{.parts = parts, .axis = static_cast<int64_t>(apart.size()) - 1}), joined);
}

Value* WidenedBlocks(OnnxNode& n, Value* x, int64_t axis, int64_t block, const Dim& size) {
  if (x == nullptr || !n.ok()) return x;
  const size_t at = static_cast<size_t>(axis);
  Dims apart = x->type.shape, wide, joined = x->type.shape;
  apart.insert(apart.begin() + axis + 1, Dim(1));
  wide = apart;
  wide[at + 1] = Dim(block);
  joined[at] = joined[at] * Dim(block);
  return n.SliceOf(n.ReshapeTo(n.Emit(Expand{.x = n.ReshapeTo(x, apart), .shape = wide}), joined), axis, Dim(0), size);
}

Value* Dequantized(OnnxNode& n, Value* x, Value* zero_point, double otherwise, Value* scale) {
  x = n.CastTo(x, DType::kF32);
  if (zero_point != nullptr) {
    x = Map<Sub>(n, x, n.CastTo(zero_point, DType::kF32));
  } else if (otherwise != 0) {
    x = Map<Sub>(n, x, otherwise);
  }
  return Map<Mul>(n, x, n.CastTo(scale, DType::kF32));
}

bool CheckBlocks(OnnxNode& n, int64_t bits, int64_t block) {
  if (bits != 2 && bits != 4 && bits != 8) n.Unsupported(absl::StrCat(bits, " bits are not supported; 2, 4 and 8 are"));
  if (block < 16 || block > 1 << 20 || (block & (block - 1)) != 0) {
    n.Invalid(absl::StrCat("block_size ", block, " is not a power of 2 from 16 on"));
  }
  return n.ok();
}

namespace {

// A factor or zero point for each block, [N * blocks] or [N, blocks].
Value* OfBlocks(OnnxNode& n, Value* x, int64_t rows, int64_t blocks) {
  if (x == nullptr || !n.ok()) return x;
  const Dim size = Product(x->type.shape);
  if (size.is_constant() && size.value() != rows * blocks) {
    n.Invalid(absl::StrCat(x->type.ToString(), " has no element for each of ", rows, " x ", blocks, " blocks"));
    return nullptr;
  }
  return n.ReshapeTo(x, {Dim(rows), Dim(blocks)});
}

struct NBits {
  int64_t n = 0, k = 0, bits = 4, block = 0, blocks = 0;
};

// Packed by row, [N, ceil(blocks * bits / 8)], or floating point, [N, blocks].
Value* ZeroPoints(OnnxNode& n, const NBits& a) {
  Value* x = n.in(3);
  if (x == nullptr || !n.ok()) return nullptr;
  if (IsFloat(DTypeOf(x))) return OfBlocks(n, x, a.n, a.blocks);
  const int64_t row = (a.blocks * a.bits + 7) / 8;
  const Dim size = Product(x->type.shape);
  if (size.is_constant() && size.value() != a.n * row) {
    n.Invalid(absl::StrCat("the zero points are ", x->type.ToString(), ", not ", a.n, " rows of ", row, " bytes"));
    return nullptr;
  }
  const int64_t padded = row * 8 / a.bits;
  x = n.ReshapeTo(UnpackedBits(n, 3, a.bits), {Dim(a.n), Dim(padded)});
  if (padded != a.blocks) x = n.CastTo(x, DType::kU8);  // rows of 4 bits cannot be cut on GPUs
  return n.SliceOf(x, 1, Dim(0), Dim(a.blocks));
}

// The weights [N, K] as numbers.
Value* WeightsOf(OnnxNode& n, const NBits& a) {
  const Dim size = Product(DimsOfValue(n.in(1)));
  const int64_t bytes = a.block * a.bits / 8;
  if (DTypeOf(n.in(1)) != DType::kU8 || (size.is_constant() && size.value() != a.n * a.blocks * bytes)) {
    n.Invalid(absl::StrCat("the weights are ", n.in(1)->type.ToString(), ", not uint8 [", a.n, ", ", a.blocks, ", ",
                           bytes, "]"));
    return nullptr;
  }
  Value* q = UnpackedBits(n, 1, a.bits);
  Value* scales = OfBlocks(n, n.in(2), a.n, a.blocks);
  Value* zero_points = ZeroPoints(n, a);
  const double middle = static_cast<double>(int64_t{1} << (a.bits - 1));
  if (!n.has(4)) {
    const Dims column = {Dim(a.n), Dim(a.blocks), Dim(1)};
    q = n.ReshapeTo(q, {Dim(a.n), Dim(a.blocks), Dim(a.block)});
    Value* w = Dequantized(n, q, n.ReshapeTo(zero_points, column), middle, n.ReshapeTo(scales, column));
    return n.SliceOf(n.ReshapeTo(w, {Dim(a.n), Dim(a.blocks * a.block)}), 1, Dim(0), Dim(a.k));
  }
  // Each row of the matrix is in a block that the index names.
  Value* groups = n.AsI64(4);
  if (RankOf(groups) != 1) n.Invalid("g_idx must be a vector");
  groups = n.SliceOf(groups, 0, Dim(0), Dim(a.k));
  q = n.SliceOf(n.ReshapeTo(q, {Dim(a.n), Dim(a.blocks * a.block)}), 1, Dim(0), Dim(a.k));
  if (zero_points != nullptr) zero_points = GatherAlong(n, zero_points, groups, 1);
  return Dequantized(n, q, zero_points, middle, GatherAlong(n, scales, groups, 1));
}

void ImportMatMulNBits(OnnxNode& n) {
  NBits a{.n = n.Int("N", 0), .k = n.Int("K", 0), .bits = n.Int("bits", 4), .block = n.Int("block_size", 0)};
  n.Int("accuracy_level", 0);  // The least; this is more exact than any.
  if (n.Int("weight_prepacked", 0) != 0) {
    return n.Unsupported("weight_prepacked is not supported: the layout is that of one GPU; export with 0");
  }
  if (!CheckBlocks(n, a.bits, a.block)) return;
  constexpr int64_t kMaxSize = int64_t{1} << 30;
  if (a.n <= 0 || a.k <= 0 || a.n > kMaxSize || a.k > kMaxSize) return n.Invalid("N and K must be from 1 to 2^30");
  a.blocks = (a.k + a.block - 1) / a.block;
  Value* w = n.CastTo(WeightsOf(n, a), DTypeOf(n.in(0)));
  if (RankOf(n.in(0)) == 0) return n.Invalid("the input is a scalar");
  Value* y = nullptr;
  if (RankOf(n.in(0)) == 1) {
    y = n.ReshapeTo(n.Emit(MatMul{.lhs = n.ReshapeTo(n.in(0), {Dim(1), Dim(a.k)}), .rhs = w, .transpose_rhs = true}),
                    {Dim(a.n)});
  } else {
    y = n.Emit(MatMul{.lhs = n.in(0), .rhs = w, .transpose_rhs = true});
  }
  if (n.has(5)) y = Map<Add>(n, y, n.in(5));
  n.Set(0, y);
}

// Rows of a matrix whose blocks lie along them; nullptr if no encoding is of this form.
Value* EncodedRows(OnnxNode& n, Value* data, Value* scales, Value* zero_points, double middle, int64_t block) {
  if (zero_points == nullptr && middle != 0) {
    Tensor one(DTypeOf(data), Shape{});
    one.SetInt(0, static_cast<int64_t>(middle));
    zero_points = n.Emit(Constant{.value = std::move(one)});
  }
  std::optional<Encoding::Part> zero;
  if (zero_points != nullptr) {
    // Rows of 4 bits that end within a byte cannot be chosen on GPUs.
    const bool is_cut = RankOf(zero_points) == 2 && !Size(zero_points->type.shape[1]).IsMultipleOf(2);
    if (is_cut && DTypeBits(DTypeOf(zero_points)) == 4) {
      zero_points = n.CastTo(zero_points, DTypeOf(zero_points) == DType::kU4 ? DType::kU8 : DType::kI8);
    }
    zero = {DTypeOf(zero_points), RankOf(zero_points) == 0 ? Granularity::kTensor : Granularity::kGroup};
  }
  const absl::StatusOr<const Encoding*> encoding =
      IntegerEncoding(DTypeOf(data), {DTypeOf(scales), Granularity::kGroup}, zero, block);
  if (!encoding.ok()) return nullptr;
  std::vector<Value*> components = {data, scales};
  if (zero_points != nullptr) components.push_back(zero_points);
  return n.Emit(Encode{.components = std::move(components), .as = (*encoding)->text, .to = DTypeOf(scales)});
}

// Inputs: data, indices, scales, zero points.
void ImportGatherBlockQuantized(OnnxNode& n) {
  Value *data = n.in(0), *zero_points = n.in(3), *scales = n.in(2), *indices = n.AsI64(1);
  const int rank = RankOf(data);
  const int64_t gather_axis = n.Axis("gather_axis", 0, rank), axis = n.Axis("quantize_axis", 1, rank);
  const int64_t bits = n.Int("bits", 4), block = n.Int("block_size", 128);
  if (!CheckBlocks(n, bits, block)) return;
  double middle = 0;
  if (DTypeOf(data) == DType::kU8) {
    if (gather_axis != 0) return n.Invalid("gather_axis must be 0 for packed data");
    if (gather_axis == axis) return n.Invalid("gather_axis and quantize_axis must differ for packed data");
    data = UnpackedBits(n, 0, bits);
    if (zero_points != nullptr) zero_points = UnpackedBits(n, 3, bits);
    middle = static_cast<double>(int64_t{1} << (bits - 1));
  } else if (DTypeOf(data) != DType::kU4 && DTypeOf(data) != DType::kI4) {
    return n.Unsupported(absl::StrCat("data of type ", DTypeName(DTypeOf(data)), " is not supported"));
  }
  if (!n.ok()) return;
  if (RankOf(scales) != rank || (zero_points != nullptr && RankOf(zero_points) != rank)) {
    return n.Invalid("data, scales and zero points differ in rank");
  }
  const DType to = DTypeOf(scales);
  const Dim size = data->type.shape[static_cast<size_t>(axis)];
  if (zero_points != nullptr) {  // Packed rows may be padded.
    zero_points = n.SliceOf(zero_points, axis, Dim(0), scales->type.shape[static_cast<size_t>(axis)]);
  }
  if (rank == 2 && gather_axis == 0 && axis == 1) {
    const Dims blocks = {data->type.shape[0], Dim::FloorDiv(size + Dim(block - 1), Dim(block))};
    for (const Value* part : {scales, zero_points}) {
      if (part == nullptr || part->type.shape == blocks) continue;
      return n.Invalid(
          absl::StrCat(part->type.ToString(), " has no element for each block of ", block, ": ", DimsToString(blocks)));
    }
    Value* table = EncodedRows(n, data, scales, zero_points, middle, block);
    if (table != nullptr) return n.Set(0, n.Emit(Decode{.x = n.Emit(Gather{.x = table, .indices = indices})}));
  }
  if (gather_axis == axis) {
    Value* all = Dequantized(n, data, WidenedBlocks(n, zero_points, axis, block, size), middle,
                             WidenedBlocks(n, scales, axis, block, size));
    return n.Set(0, n.CastTo(GatherAlong(n, all, indices, gather_axis), to));
  }
  // The chosen slices only; the axis moves with what the indices insert before it.
  data = GatherAlong(n, data, indices, gather_axis);
  scales = GatherAlong(n, scales, indices, gather_axis);
  if (zero_points != nullptr) zero_points = GatherAlong(n, zero_points, indices, gather_axis);
  const int64_t moved = axis > gather_axis ? axis + RankOf(indices) - 1 : axis;
  Value* y = Dequantized(n, data, WidenedBlocks(n, zero_points, moved, block, size), middle,
                         WidenedBlocks(n, scales, moved, block, size));
  n.Set(0, n.CastTo(y, to));
}

constexpr OnnxOp kContribQuantOps[] = {
    {"MatMulNBits", 1, 3, 6, ImportMatMulNBits, "2, 4 and 8 bits; no prepacked weights"},
    {"GatherBlockQuantized", 1, 3, 4, ImportGatherBlockQuantized,
     "uint8 of 2, 4 or 8 bits, int4, uint4; an index out of range ends the run"},
};

}  // namespace

absl::Span<const OnnxOp> OnnxContribQuantOps() { return kContribQuantOps; }

}  // namespace llmc
