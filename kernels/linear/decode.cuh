// The numbers of encoded tensors, of every format: (code - zero) * scale * outer scale.
#pragma once
#include "kernels/elementwise/elementwise.cuh"

namespace llmc {

// ---- what codes stand for: a struct for each kind of them, with the number of code i ------------------------------

template <class Q>
struct NumberCodes {
  using Storage = Q;
  __device__ static auto At(const Q* codes, i64 i) { return Widen(ReadElement(codes, i)); }
};

// Codes of 4 bits that stand for 16 numbers of f32, given by their bits.
template <u32... kBits>
struct CodebookCodes {
  using Storage = u4;
  // Bit by bit: an array that is indexed would lie on each thread's stack.
  template <int kFirst, int kCount>
  __device__ __forceinline__ static u32 Pick(u32 code) {
    constexpr u32 kNumbers[16] = {kBits...};
    if constexpr (kCount == 1) {
      return kNumbers[kFirst];
    } else {
      constexpr int kHalf = kCount / 2;
      return code & kHalf ? Pick<kFirst + kHalf, kHalf>(code) : Pick<kFirst, kHalf>(code);
    }
  }
  __device__ static float At(const u4* codes, i64 i) {
    static_assert(sizeof...(kBits) == 16, "kBits: of 16 numbers");
    return __uint_as_float(Pick<0, 16>(static_cast<u32>(Widen(ReadElement(codes, i)))));
  }
};

// Superblocks of GGUF, under the names of their encodings. They lie at any even address.
namespace superblock {

__device__ inline float HalfAt(const u8* bytes) { return Widen(*reinterpret_cast<const f16*>(bytes)); }

struct q4_0 {  // 32 elements in 18 bytes: d, codes; the second half of them in high halves
  using Storage = u8;
  __device__ static float At(const u8* codes, i64 i) {
    const u8* block = codes + i / 32 * 18;
    const int at = static_cast<int>(i % 32), byte = block[2 + at % 16];
    return static_cast<float>((at < 16 ? byte & 15 : byte >> 4) - 8) * HalfAt(block);
  }
};

struct q5_0 {  // 32 in 22: d, fifth bits of codes, their low halves as those of q4_0
  using Storage = u8;
  __device__ static float At(const u8* codes, i64 i) {
    const u8* block = codes + i / 32 * 22;
    const int at = static_cast<int>(i % 32), byte = block[6 + at % 16], high = block[2 + at / 8] >> at % 8 & 1;
    return static_cast<float>(((at < 16 ? byte & 15 : byte >> 4) | high << 4) - 16) * HalfAt(block);
  }
};

struct q8_0 {  // 32 in 34: d, signed bytes
  using Storage = u8;
  __device__ static float At(const u8* codes, i64 i) {
    const u8* block = codes + i / 32 * 34;
    return static_cast<float>(static_cast<signed char>(block[2 + i % 32])) * HalfAt(block);
  }
};

struct q4_k {  // 256 in 144: d, that of minima, 12 bytes of scales and minima of 6 bits for 32 each, codes
  using Storage = u8;
  __device__ static float At(const u8* codes, i64 i) {
    const u8* block = codes + i / 256 * 144;
    const u8* packed = block + 4;
    const int at = static_cast<int>(i % 256), group = at / 32;
    const int scale = group < 4 ? packed[group] & 63 : (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4;
    const int min = group < 4 ? packed[group + 4] & 63 : packed[group + 4] >> 4 | packed[group] >> 6 << 4;
    const int byte = block[16 + group / 2 * 32 + at % 32], code = group % 2 == 0 ? byte & 15 : byte >> 4;
    const float d = HalfAt(block) * static_cast<float>(scale), m = HalfAt(block + 2) * static_cast<float>(min);
    return __fsub_rn(__fmul_rn(d, static_cast<float>(code)), m);  // as the language: no fused multiplication
  }
};

struct q6_k {  // 256 in 210: low halves, two high bits, 16 signed scales, d
  using Storage = u8;
  __device__ static float At(const u8* codes, i64 i) {
    const u8* block = codes + i / 256 * 210;
    const int half = static_cast<int>(i % 256) / 128, at = static_cast<int>(i % 128), quarter = at / 32;
    const int byte = block[64 * half + quarter % 2 * 32 + at % 32];
    const int high = block[128 + 32 * half + at % 32] >> 2 * quarter & 3;
    const int code = (quarter < 2 ? byte & 15 : byte >> 4) | high << 4;
    const int scale = static_cast<signed char>(block[192 + 8 * half + at / 16]);
    return HalfAt(block + 208) * static_cast<float>(scale) * static_cast<float>(code - 32);
  }
};

}  // namespace superblock

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
// C::kHasScale, C::kHasZero, C::kHasOuter.  C::kOuterMatrices: each matrix has an outer scale.  C::kExponents: scales
// are powers of two, by their exponents plus 127.
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
  if constexpr (C::kHasOuter) x *= static_cast<X>(outer[C::kOuterMatrices ? matrix : 0]);
  out[at] = Narrow<typename C::T>(x);
}

}  // namespace llmc
