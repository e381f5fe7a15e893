// The codes of a few bits that words of checkpoints hold, one after the other: with attributes of the op `unpack`.
#pragma once
#include "kernels/common/device_error.cuh"

namespace llmc {

// Code i along an axis of `words` words, which are `step` apart. Words are little-endian: a code is in one byte, or in
// two that are neighbours.
// C::kWordBits: 8 or 32.  C::kBits: 1 to 8.  C::kPlanes, C::kAcross: as the op has them.  C::OrderOf(n): the place of
// the n-th code of a word.
template <class C>
__device__ __forceinline__ u32 CodeAt(const u8* x, i64 i, i64 words, i64 step) {
  constexpr int kOfWord = C::kWordBits / C::kBits, kWordBytes = C::kWordBits / 8;
  i64 word = 0;
  int bit = 0;
  if constexpr (C::kAcross) {
    word = i * C::kBits / C::kWordBits;
    bit = static_cast<int>(i * C::kBits % C::kWordBits);
  } else {
    word = C::kPlanes ? i % words : i / kOfWord;
    bit = C::OrderOf(static_cast<int>(C::kPlanes ? i / words : i % kOfWord)) * C::kBits;
  }
  const u8* at = x + word * step * kWordBytes;
  u32 code = at[bit / 8] >> bit % 8;
  if (bit % 8 + C::kBits > 8) {
    const u8* next = bit / 8 + 1 < kWordBytes ? at + bit / 8 + 1 : at + step * kWordBytes;
    code |= static_cast<u32>(*next) << (8 - bit % 8);
  }
  return code;
}

// out = codes [outer, codes, inner] of words [outer, words, inner]. A thread makes a byte of the result: one code, two
// of 4 bits, or what it has of codes that are packed.
// C::kOutBits: of a code, 1 to 8.  C::kSigned.  C::kAdd: to each code.  C::kTransposed: out is [outer, inner, codes],
// or, of words along the last axis (kLast: inner is 1), [outer / rows, codes, rows].  C::Index: of `index`, if
// C::kIndexed.
template <class C, class Context>
__device__ __forceinline__ void Unpack(const Context& context, u8* out, const u8* x, const typename C::Index* index,
                                       i64 outer, i64 rows, i64 words, i64 inner, i64 codes, i64 kept,
                                       const DeviceErrorSite& device_error) {
  static_assert(IsBlock(C::kThreads), "kThreads: whole warps, at most 1024 threads");
  static_assert(C::kOutBits >= 1 && C::kOutBits <= 8, "kOutBits: 1 to 8");
  static_assert(C::kWordBits == 8 || C::kWordBits == 32, "kWordBits: 8 or 32");
  constexpr int kCount = 8 % C::kOutBits == 0 ? 8 / C::kOutBits : (8 + C::kOutBits - 2) / C::kOutBits + 1;  // at most
  constexpr u32 kMask = (1u << C::kBits) - 1, kSign = C::kSigned ? 1u << (C::kBits - 1) : 0;
  context.Wait();
  const i64 byte = static_cast<i64>(context.TileX()) * C::kThreads + threadIdx.x, size = outer * codes * inner;
  if (byte * 8 >= size * C::kOutBits) return;
  const i64 first = byte * 8 / C::kOutBits;
  u32 made = 0;
#pragma unroll
  for (int n = 0; n < kCount; ++n) {
    const i64 at = first + n;
    const int bit = static_cast<int>(at * C::kOutBits - byte * 8);  // in the byte; below 0 it begins before
    if (at >= size || bit >= 8) break;
    // The place in [outer, codes, inner].
    i64 o = 0, c = 0, i = 0;
    if constexpr (!C::kTransposed) {
      i = at % inner;
      c = at / inner % codes;
      o = at / inner / codes;
    } else if constexpr (C::kLast) {
      c = at / rows % codes;
      o = at / rows / codes * rows + at % rows;
    } else {
      c = at % codes;
      i = at / codes % inner;
      o = at / codes / inner;
    }
    if constexpr (C::kIndexed) {
      const i64 given = index[c];
      if (given < 0 || given >= kept) {
        device_error.Raise(given, kept);
        continue;
      }
      c = given;
    }
    const u32 code = CodeAt<C>(x + (o * words * inner + i) * (C::kWordBits / 8), c, words, inner);
    const u32 number = (((code + C::kAdd) & kMask) ^ kSign) - kSign;
    const u32 bits = number & ((1u << C::kOutBits) - 1);
    made |= bit < 0 ? bits >> -bit : bits << bit;
  }
  out[byte] = static_cast<u8>(made);
}

}  // namespace llmc
