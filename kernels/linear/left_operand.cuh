// Rows of a weight as the left operand of products of warpgroups, of every format: copied to stages in shared memory,
// and from there to registers, where codes become numbers of 16 bits with their scales, each rounded as `decode` does.
//
// A tile is kRows rows, in slots: 16 or 32 for each of eight warps, of which lane l has slots l / 4 + 8 j. A product
// takes 16 terms of two of these. Which term is which does not matter as long as x has the same order, so a lane takes
// what lies together in memory, and x is put in order beforehand (order_columns.cuh), within slabs of 64 terms.
#pragma once
#include "kernels/linear/row_decoder.cuh"
#include "kernels/linear/superblock_weight.cuh"

namespace llmc {

constexpr int kLeftSlab = 64;

// kQuads: of 16 terms lane t of four has 4 t to 4 t + 3.  kEights: of 64 terms it has 16 t to 16 t + 15, as two eights.
// kEightsFourApart: pairs of an eight are four apart.
enum class ColumnOrder { kAsTheyAre, kQuads, kEights, kEightsFourApart };

#if LLMC_SM90
// For C, as the reader has it, with C::kIn and C::T of 16 bits:
//   kOrder, kDepth: of x; terms of a stage: whole slabs
//   kStageBytes: of kRows rows; kMatrixRowBytes: of a row in memory
//   Copy: by kThreads threads, stage `at` of the rows row_of(slot), which begin offsets[slot] bytes behind the first
//   Scale: what is left to multiply the sums of a row with
//   StartsOf: what a lane keeps of the rows in slots `slot` + 8 j for all stages
//   Lane: Enter, slab `slab` of stage `at`, slots `slot` + 16 half and 8 more; Decode, eights e = 0 and 1, each the
//   operands of two products
template <class C, class Reader, int kRows>
struct LeftOperand;

template <class C, int kRows>
struct LeftOperand<C, DenseWeight<C>, kRows> {
  using Reader = DenseWeight<C>;
  static constexpr ColumnOrder kOrder = ColumnOrder::kAsTheyAre;
  static constexpr int kDepth = kLeftSlab, kRowBytes = 2 * kDepth, kStageBytes = kRows * kRowBytes;
  static constexpr int kMatrixRowBytes = 2 * C::kIn;
  static_assert(C::kIn % 8 == 0 && sizeof(typename C::T) == 2, "kIn: whole vectors of 16 bytes");

  // What is behind a row counts as zero.
  template <int kThreads, class RowOf>
  static __device__ __forceinline__ void Copy(int thread, const Reader& weight, const RowOf&, const u32* offsets,
                                              int at, char* stage) {
    const int chunk = thread % 8, column = at * kDepth + chunk * 8;
    const bool exists = C::kIn % kDepth == 0 || column < C::kIn;
    const char* const from = reinterpret_cast<const char*>(weight.Row(0, exists ? column : 0, C::kIn));
#pragma unroll 4
    for (int slot = thread / 8; slot < kRows; slot += kThreads / 8) {
      CopyAsync(SharedAddress(stage + slot * kRowBytes + (chunk ^ slot % 8) * 16), from + offsets[slot], exists);
    }
  }
  template <class RowOf>
  static __device__ __forceinline__ u32 StartsOf(const Reader&, const RowOf&, int) {
    return 0;
  }
  static __device__ __forceinline__ float Scale(const Reader&, i64) { return 1; }

  struct Lane {
    u32 row = 0;
    template <class RowOf>
    __device__ __forceinline__ void Enter(const Reader&, const RowOf&, u32, const char* stage, int, int, int slot,
                                          int half) {
      row = SharedAddress(stage) + (slot + 16 * half - Group() + Thread() % 16) * kRowBytes;
    }
    __device__ __forceinline__ void Decode(int e, u32 (&a)[2][4]) const {
#pragma unroll
      for (int i = 0; i < 2; ++i) LoadMatrices(a[i], row + ((4 * e + 2 * i + Thread() / 16) ^ Thread() % 8) * 16);
    }

   private:
    static __device__ __forceinline__ int Thread() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ __forceinline__ int Group() { return Thread() / 4; }
  };
};

template <class C, int kRows>
struct LeftOperand<C, EncodedWeight<C>, kRows> {
  using Reader = EncodedWeight<C>;
  using Q = typename C::Q;
  using Decoder = RowDecoder<C>;
  static constexpr EncodedGemmLayout kLayout = {Reader::kBits, Reader::kScaleBits, Reader::kZeroBits, C::kBlock,
                                                kRows / 128};
  static constexpr ColumnOrder kOrder =
      Decoder::Pairs::kOfNeighbours ? ColumnOrder::kEights : ColumnOrder::kEightsFourApart;
  static constexpr int kDepth = kLayout.Depth(), kChunks = kDepth * Reader::kBits / 128;  // of 16 bytes, of a row
  static constexpr int kMatrixRowBytes = C::kIn * Reader::kBits / 8;
  static constexpr int kStride = LeftGemmLayout::CodesStride(Reader::kBits);
  static constexpr int kScaleAt = kRows * kStride;
  static constexpr int kZeroAt = kScaleAt + kRows * kLayout.PartCopy(Reader::kScaleBits);
  static constexpr int kStageBytes = LeftGemmLayout::CodesStageBytes(kLayout);
  static_assert(kDepth * Reader::kBits % 128 == 0, "codes of a stage are whole vectors");
  static_assert(kLayout.Rows() == kRows && C::kIn % kDepth == 0, "kIn: whole stages");
  static_assert(kLayout.CanCopy(C::kIn, Reader::kScaleBits) && kLayout.CanCopy(C::kIn, Reader::kZeroBits),
                "kBlock: parts of a stage are whole words");

  template <int kThreads, class RowOf>
  static __device__ __forceinline__ void Copy(int thread, const Reader& weight, const RowOf& row_of, const u32* offsets,
                                              int at, char* stage) {
    constexpr int kRowsAtOnce = kThreads / kChunks;
    const int chunk = thread % kChunks;
    const char* const from =
        static_cast<const char*>(weight.Row(0, static_cast<i64>(at) * kDepth, C::kIn)) + chunk * 16;
    const int end = kThreads % kChunks == 0 || thread < kRowsAtOnce * kChunks ? kRows : 0;
#pragma unroll 4
    for (int slot = thread / kChunks; slot < end; slot += kRowsAtOnce) {
      CopyAsync(SharedAddress(stage + slot * kStride + chunk * 16), from + offsets[slot], true);
    }
#pragma unroll
    for (int slot = thread; slot < kRows; slot += kThreads) {
      CopyParts<Reader::kScaleBits>(weight, row_of(slot), at, false, stage + kScaleAt, slot);
      CopyParts<Reader::kZeroBits>(weight, row_of(slot), at, true, stage + kZeroAt, slot);
    }
  }
  static __device__ __forceinline__ float Scale(const Reader& weight, i64 row) {
    const float scale = Reader::kScaleInBlocks ? 1.0f : weight.template ScaleOf<float>(0, row, C::kIn, 0);
    return C::kOuter ? scale * weight.OuterOf(row) : scale;
  }
  template <class RowOf>
  static __device__ __forceinline__ u32 StartsOf(const Reader&, const RowOf&, int) {
    return 0;
  }

  struct Lane {
    Codes<Q, 16> words[2];
    Decoder rows[2];
    const char* stage = nullptr;
    int at = 0, first = 0, slot = 0;  // first: of the lane's terms in the stage

    template <class RowOf>
    __device__ __forceinline__ void Enter(const Reader& weight, const RowOf& row_of, u32, const char* from,
                                          int stage_at, int slab, int own_slot, int half) {
      const int t = static_cast<int>(threadIdx.x) % 4;
      stage = from, at = stage_at, slot = own_slot + 16 * half, first = slab * kLeftSlab + 16 * t;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        words[j].Load(from + (slot + 8 * j) * kStride + first * Reader::kBits / 8);
        if constexpr (C::kZero == kNoPart) rows[j].SetWholeZero(kShift<Q>);
        if constexpr (C::kZero != kNoPart && !Reader::kZeroInBlocks) {
          rows[j].SetZero(ReadElement(weight.zero, C::kZero == kOfColumns ? row_of(slot + 8 * j) : 0));
        }
      }
      if constexpr (C::kBlock >= 16) SetParts(0);
    }
    __device__ __forceinline__ void Decode(int e, u32 (&a)[2][4]) {
      if constexpr (C::kBlock < 16) SetParts(e);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        constexpr int kOfEight = Codes<Q, 8>::kWords;
        Codes<Q, 8> codes;
#pragma unroll
        for (int w = 0; w < kOfEight; ++w) codes.word[w] = words[j].word[e * kOfEight + w];
        u32 pairs[4];
        rows[j].Decode(codes, pairs);
#pragma unroll
        for (int p = 0; p < 4; ++p) a[p / 2][p % 2 * 2 + j] = pairs[p];
      }
    }

   private:
    // Those of eight e of both rows.
    __device__ __forceinline__ void SetParts(int e) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if constexpr (Reader::kScaleInBlocks) {
          rows[j].SetScale(Part<typename C::Scale, Reader::kScaleBits>(kScaleAt, slot + 8 * j, e));
        }
        if constexpr (Reader::kZeroInBlocks) {
          rows[j].SetZero(Part<typename C::Zero, Reader::kZeroBits>(kZeroAt, slot + 8 * j, e));
        }
      }
    }
    template <class Stored, int kBits>
    __device__ __forceinline__ Stored Part(int parts_at, int of_slot, int e) const {
      // Where the stage's first number lies in the word that was copied.
      int index = 0;
      if constexpr (kLayout.PartBytes(kBits) < 4) index = at * kDepth / C::kBlock % (32 / kBits);
      if constexpr (C::kBlock < kDepth) index += (first + 8 * e) / C::kBlock;
      return ReadElement(reinterpret_cast<const Stored*>(stage + parts_at + of_slot * kLayout.PartCopy(kBits)), index);
    }
  };

 private:
  template <int kBits>
  static __device__ __forceinline__ void CopyParts(const Reader& weight, i64 row, int at, bool is_zero, char* to,
                                                   int slot) {
    if constexpr (kBits > 0) {
      constexpr int kBytes = kLayout.PartCopy(kBits), kAtOnce = kBytes < 16 ? kBytes : 16;
      const u64 from = reinterpret_cast<u64>(weight.Part(row, static_cast<i64>(at) * kDepth, C::kIn, is_zero));
      const char* const words = reinterpret_cast<const char*>(from & ~static_cast<u64>(3));
#pragma unroll
      for (int i = 0; i < kBytes; i += kAtOnce) {
        CopyAsyncBytes<kAtOnce>(SharedAddress(to + slot * kBytes + i), words + i);
      }
    }
  }
};

template <class C, int kRows>
struct LeftOperand<C, SuperblockWeight<C>, kRows> {
  using Reader = SuperblockWeight<C>;
  using Format = typename C::Format;
  using T = typename C::T;
  static constexpr ColumnOrder kOrder = ColumnOrder::kQuads;
  static constexpr int kElements = Format::kElements;
  static constexpr int kDepth = kElements > 128 ? kElements : C::kIn % 128 == 0 ? 128 : kLeftSlab;
  static constexpr int kBytes = kDepth / kElements * Format::kBytes;  // of a row in a stage
  // Else copies begin up to 15 bytes before a row's.
  static constexpr int kMatrixRowBytes = C::kIn / kElements * Format::kBytes;
  static constexpr bool kAligned = kBytes % 16 == 0 && kMatrixRowBytes % 16 == 0;
  static constexpr int kChunks = kAligned ? kBytes / 16 : (kBytes + 15 + 15) / 16;
  static constexpr int kStride = (kChunks | 1) * 16, kStageBytes = kRows * kStride;  // 8 rows in different banks
  static constexpr int kGroups = kLeftSlab / Format::kGroup;
  // Products of scales, which have at most 19 bits, and codes of a few more are exact in f32, so that what is added to
  // them may be so in one operation. Where nothing is, that is what takes 128 off codes, which are read as 128 more;
  // but not of exponents, of which the largest would overflow.
  static constexpr bool kRaised = !Format::kOffsets && Format::kCodeBits < 8 && !kSame<Format, superblock::mxfp4_gguf>;
  static_assert(!Format::kOffsets || Format::kCodeBits < 6, "kCodeBits: products with scales of 17 bits are exact");
  static_assert(C::kIn % kDepth == 0 && kLeftSlab % Format::kGroup == 0, "kIn: whole stages");

  // What lies behind a row is not read.
  template <int kThreads, class RowOf>
  static __device__ __forceinline__ void Copy(int thread, const Reader& weight, const RowOf&, const u32* offsets,
                                              int at, char* stage) {
    const char* const first = weight.Row(0, static_cast<i64>(at) * kDepth, C::kIn);
#pragma unroll 4
    for (int i = thread; i < kRows * kChunks; i += kThreads) {
      const int slot = static_cast<u32>(i) / kChunks, chunk = static_cast<u32>(i) % kChunks;
      const char* row = first + offsets[slot];
      int before = 0;
      if constexpr (!kAligned) before = static_cast<int>(reinterpret_cast<u64>(row) % 16);
      const bool exists = kAligned || chunk * 16 < before + kBytes;
      CopyAsync(SharedAddress(stage + slot * kStride + chunk * 16), row + (exists ? chunk * 16 - before : -before),
                exists);
    }
  }
  // Bytes by which rows pass multiples of 16, 4 bits each.
  template <class RowOf>
  static __device__ __forceinline__ u32 StartsOf(const Reader& weight, const RowOf& row_of, int slot) {
    u32 starts = 0;
    if constexpr (!kAligned) {
#pragma unroll
      for (int j = 0; j < kRows / 64; ++j) {
        starts |= static_cast<u32>(reinterpret_cast<u64>(weight.Row(row_of(slot + 8 * j), 0, C::kIn)) % 16) << 4 * j;
      }
    }
    return starts;
  }
  static __device__ __forceinline__ float Scale(const Reader&, i64) { return 1; }

  struct Lane {
    const u8* blocks[2];
    float scale[2][kGroups], offset[2][kGroups];
    int first = 0;

    template <class RowOf>
    __device__ __forceinline__ void Enter(const Reader&, const RowOf&, u32 starts, const char* stage, int at, int slab,
                                          int slot, int half) {
      first = slab * kLeftSlab;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int before = 0;
        if constexpr (!kAligned) before = static_cast<int>((starts >> (8 * half + 4 * j)) + at * kBytes) & 15;
        blocks[j] = reinterpret_cast<const u8*>(stage) + (slot + 16 * half + 8 * j) * kStride + before;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const int term = first + g * Format::kGroup, group = term % kElements / Format::kGroup;
          typename Format::Parts parts;
          parts.Load(BlockOf(j, term));
          scale[j][g] = superblock::ScaleOf<Format>(parts, group);
          if constexpr (Format::kOffsets) offset[j][g] = superblock::OffsetOf<Format>(parts, group);
          if constexpr (kRaised) offset[j][g] = -(128.0f + Format::kShift) * scale[j][g];
        }
      }
    }
    __device__ __forceinline__ void Decode(int e, u32 (&a)[2][4]) const {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int of_slab = (2 * e + i) * 16, term = first + of_slab, g = of_slab / Format::kGroup;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const u32 codes[1] = {
              Format::Quad(BlockOf(j, term), term % kElements / 16, static_cast<int>(threadIdx.x) % 4 * 4)};
          float numbers[4];
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            if constexpr (kRaised) {
              const u32 raised = __byte_perm(codes[0], 0x43000000u, 0x7044 + 0x100 * n);  // 128 and the code
              numbers[n] = __fmaf_rn(__uint_as_float(raised), scale[j][g], offset[j][g]);
            } else if constexpr (Format::kOffsets) {
              numbers[n] = __fmaf_rn(superblock::ByteOf(codes, n, Format::kShift), scale[j][g], offset[j][g]);
            } else {
              numbers[n] = __fmul_rn(superblock::ByteOf(codes, n, Format::kShift), scale[j][g]);
            }
          }
          a[i][j] = Pack<T>(numbers[0], numbers[1]);
          a[i][2 + j] = Pack<T>(numbers[2], numbers[3]);
        }
      }
    }

   private:
    __device__ __forceinline__ const u8* BlockOf(int j, int term) const {
      return blocks[j] + term / kElements * Format::kBytes;
    }
  };
};
#endif

}  // namespace llmc
