// The numbers of encoded tensors, of every format: (code - zero) * scale * outer scale; and those of superblocks.
#pragma once
#include "kernels/linear/code_pairs.cuh"
#include "kernels/linear/superblocks.cuh"

namespace llmc {

// ---- what codes stand for: a struct for each kind of them, with the number of code i ------------------------------

template <class Q>
struct NumberCodes {
  using Storage = typename CodeKind<Q>::Storage;
  __device__ static auto At(const Storage* codes, i64 i) { return StoredCode<Q>(codes, i); }
};

template <class Q>
struct CodebookCodes {
  using Storage = u4;
  __device__ static float At(const u4* codes, i64 i) { return Q::Pick(static_cast<u32>(Widen(ReadElement(codes, i)))); }
};

// ---- scales and zero points ---------------------------------------------------------------------------------------

// Which of the numbers of a part is that of row r and column c of a matrix, where rectangles of kRows x kColumns share
// one: 0 for the whole axis. kMatrices: each matrix has its own.
template <int kRows, int kColumns, int kMatrices>
__device__ __forceinline__ i64 PartOf(i64 matrix, i64 r, i64 c, i64 rows, i64 columns) {
  const i64 down = kRows == 0 ? 1 : (rows + kRows - 1) / (kRows == 0 ? 1 : kRows);
  const i64 across = kColumns == 0 ? 1 : (columns + kColumns - 1) / (kColumns == 0 ? 1 : kColumns);
  const i64 row = kRows == 0 ? 0 : r / (kRows == 0 ? 1 : kRows),
            column = kColumns == 0 ? 0 : c / (kColumns == 0 ? 1 : kColumns);
  return ((kMatrices ? matrix : 0) * down + row) * across + column;
}

// C::T: of the result.  C::Codes: a struct from above.  C::Scale, C::Zero: types.
// C::kScaleRows, C::kScaleColumns, C::kScaleMatrices, and the same of zero points: as PartOf takes them.
// C::kHasScale, C::kHasZero, C::kHasOuter.  C::kOuterMatrices, C::kOuterRows: each matrix, or row, has an outer scale.
// C::kExponents: scales are powers of two, by their exponents plus 127.
template <class C, class Context>
__device__ __forceinline__ void Decode(const Context& context, typename C::T* out,
                                       const typename C::Codes::Storage* codes, const typename C::Scale* scale,
                                       const typename C::Zero* zero, const float* outer, i64 elements, i64 rows,
                                       i64 columns) {
  using X = Wide<typename C::T>;
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 at = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x;
  if (at >= elements) return;
  const i64 row = at / columns, c = at - row * columns, matrix = row / rows, r = row - matrix * rows;
  X x = static_cast<X>(C::Codes::At(codes, at));
  if constexpr (C::kHasZero) {
    const i64 i = PartOf<C::kZeroRows, C::kZeroColumns, C::kZeroMatrices>(matrix, r, c, rows, columns);
    x -= static_cast<X>(Widen(ReadElement(zero, i)));
  }
  if constexpr (C::kHasScale) {
    const i64 i = PartOf<C::kScaleRows, C::kScaleColumns, C::kScaleMatrices>(matrix, r, c, rows, columns);
    if constexpr (C::kExponents) {
      const u32 exponent = static_cast<u32>(Widen(scale[i]));
      x *= static_cast<X>(__uint_as_float(exponent == 255 ? 0x7fc00000u
                                          : exponent == 0 ? 0x00400000u
                                                          : exponent << 23));
    } else {
      x *= static_cast<X>(Widen(scale[i]));
    }
  }
  if constexpr (C::kHasOuter) x *= static_cast<X>(outer[C::kOuterRows ? row : C::kOuterMatrices ? matrix : 0]);
  out[at] = Narrow<typename C::T>(x);
}

// ---- superblocks --------------------------------------------------------------------------------------------------
// A thread makes 16 neighbours, which share a scale.  C::T: of the result.  C::Format: a struct of superblocks.cuh.
template <class C, class Context>
__device__ __forceinline__ void DecodeSuperblocks(const Context& context, typename C::T* out, const u8* blocks,
                                                  i64 elements) {
  using T = typename C::T;
  using Format = typename C::Format;
  constexpr int kVec = VectorOf<T>(16);
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  context.Wait();
  const i64 first = (static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x) * 16;
  if (first >= elements) return;
  const u8* block = blocks + first / Format::kElements * Format::kBytes;
  const int j = static_cast<int>(first % Format::kElements) / 16, group = j * 16 / Format::kGroup;
  typename Format::Parts parts;
  parts.Load(block);
  const float scale = superblock::ScaleOf<Format>(parts, group), offset = superblock::OffsetOf<Format>(parts, group);
  Vec<T, kVec> numbers[16 / kVec];
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const u32 codes[1] = {Format::Quad(block, j, 4 * q)};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      // As the language: not in one operation.
      float number = __fmul_rn(superblock::ByteOf(codes, e) - Format::kShift, scale);
      if constexpr (Format::kOffsets) number = __fadd_rn(number, offset);
      numbers[(4 * q + e) / kVec].v[(4 * q + e) % kVec] = Narrow<T>(static_cast<Wide<T>>(number));
    }
  }
#pragma unroll
  for (int i = 0; i < 16 / kVec; ++i) Store<T, kVec>(out + first + i * kVec, numbers[i]);
}

}  // namespace llmc
