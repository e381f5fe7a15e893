// How matrix products are cut into tiles, and the shared memory that their kernels take.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

// ---- without tensor cores (matmul.cuh, conv.cuh, dequantize.cuh) --------------------------------------------------
constexpr int kProductTile = 64;  // rows and columns of the result that a block makes
constexpr int kProductThreads = kProductTile * kProductTile / 16;

// ---- GEMV: 1 to 8 rows (gemv.cuh) ---------------------------------------------------------------------------------
constexpr int kMaxGemvRows = 8;
constexpr int kGemvTile = 16;        // rows of the weight in a stage
constexpr int kGemvBlockBytes = 64;  // of a row of elements of the type of x, which 4 lanes read at once
constexpr int kCodesOfLane = 8;      // of a row of codes, which a lane multiplies at once

// From one row to the next in shared memory: an odd number of blocks, so that the lanes of two rows read different
// banks. In elements, as `columns` and `block`.
LLMC_HOST_DEVICE constexpr i64 GemvStride(i64 columns, i64 block) {
  return columns / block % 2 == 0 ? columns + block : columns;
}

// What each byte stands for that has two codes of a codebook: two pairs of 16 bits, once for each of 16 lanes, so that
// half a warp reads them from different banks.
constexpr int kPairTableLanes = 16, kPairTableBytes = 256 * kPairTableLanes * 8;

// Rows of so many stages are long: x takes more room beside them, and stages have smaller copies.
constexpr int kGemvManyChunks = 4;

// The largest power of two that divides `blocks`, up to `most`.
LLMC_HOST_DEVICE constexpr int GemvSteps(i64 blocks, int most) {
  int steps = most;
  while (steps > 1 && blocks % steps != 0) steps /= 2;
  return steps;
}

// A row of x as integers in shared memory (integer_x.cuh): blocks of 256, 128, 64 or 32 columns, whose integers are
// multiples of one power of two; of each the digits, then 16 bytes with the power of two and the sum of its integers.
// If the weight has several scales for them, 4 bytes for each of some parts follow, with what the sum of a part
// becomes; if its codes become words, four numbers where sums begin.
constexpr u32 kXDigits = 3;
constexpr i64 kSuperblockPart = 32;  // columns of such a part, of superblocks
struct IntegerXLayout {
  u32 columns, block, parts;
  u32 exponent_columns;   // that share an exponent: of a block, or of several that a warp has at a time
  bool of_quads = false;  // whether a lane has four neighbours of each 16 columns, else neighbours of all
  bool of_words = false;
  bool of_halves = false;  // floats of 16 bits instead (half_tile.cuh)

  LLMC_HOST_DEVICE constexpr u32 BlockBytes() const {
    return SumsAt() + 16 + (of_words ? 16 : parts == 1 ? 0 : 4 * parts);
  }
  // Columns of which the digits of one place are neighbours: a lane reads 16 bytes of them, or 8.
  LLMC_HOST_DEVICE constexpr u32 Half() const { return block < 64 ? block : 64; }
  // Where the first digits of columns 8 i to 8 i + 7 of a block lie; those of the next place lie Half() behind. Four
  // lanes share a block, and each has neighbouring columns.
  LLMC_HOST_DEVICE constexpr u32 DigitsAt(u32 i) const {
    const u32 each = block / 32, lane = i / each, part = i % each, wide = Half() / 32;
    return part / wide * kXDigits * Half() + lane * 8 * wide + part % wide * 8;
  }
  // The same of columns 4 i to 4 i + 3, which lane i % 4 has.
  LLMC_HOST_DEVICE constexpr u32 QuadAt(u32 i) const {
    return i * 4 / Half() * kXDigits * Half() + i % 4 * (Half() / 4) + i / 4 % (Half() / 16) * 4;
  }
  LLMC_HOST_DEVICE constexpr u32 SumsAt() const { return (of_halves ? 2 : kXDigits) * block; }
  LLMC_HOST_DEVICE constexpr u32 RowBytes() const { return columns / block * BlockBytes(); }
};

// Numbers of a codebook as words of 16 bits (code_words.cuh): kCodeWordZero - kCodeWordUnit * number. The numbers of
// nf4 are such to 2^-14.8 of each.
constexpr double kCodeWordUnit = 24240.1523, kCodeWordError = 3.5e-5;
constexpr int kCodeWordZero = 32657;
constexpr i64 kCodeWordBlock = 64;  // columns of x that share an exponent

LLMC_HOST_DEVICE constexpr int CodeWordOf(double number) {
  const double steps = number * kCodeWordUnit;
  return kCodeWordZero - static_cast<int>(steps < 0 ? steps - 0.5 : steps + 0.5);
}
// Whether words are as near as that, and each of their bytes can be looked up by two permutations: of numbers that are
// eight apart the first word has a greater high byte, by 127 at the most, and low bytes have the same first bit.
LLMC_HOST_DEVICE constexpr bool AreCodeWords(const double* numbers) {
  for (int i = 0; i < 16; ++i) {
    const int word = CodeWordOf(numbers[i]);
    const double error = (kCodeWordZero - word) / kCodeWordUnit - numbers[i], size = numbers[i] < 0 ? -1 : 1;
    if (word < 0 || word > 65535 || (error < 0 ? -error : error) > kCodeWordError * size * numbers[i]) return false;
    if (i >= 8) continue;
    const int other = CodeWordOf(numbers[i + 8]), more = word / 256 - other / 256;
    if (more < 0 || more > 127 || ((word ^ other) & 128) != 0) return false;
  }
  return true;
}

// A stage: rows of the weight, rows of x if they are in the ring, then the scales and the zero points of those rows.
struct GemvLayout {
  i64 columns;     // of a row of x
  i64 chunk;       // columns in a stage
  i64 rows;        // of x, at the most
  bool x_in_ring;  // x comes with the stages; else all of it is kept
  i64 element_bytes;
  i64 block;                          // elements that 4 lanes multiply at once
  i64 weight_bits;                    // of an element of the weight
  i64 scale_bits = 0, zero_bits = 0;  // of the numbers that come with the stages
  i64 part_block = 1;                 // columns that share one
  // Of weights in superblocks: columns and bytes of one. Rows may begin anywhere, and stages have what lies between
  // multiples of 16 bytes.
  i64 superblock = 0, superblock_bytes = 0;
  i64 integer_block = 0;   // x is kept as integers, in blocks of so many columns; else as it is
  i64 table_bytes = 0;     // of what bytes of codes stand for, beside x
  bool of_words = false;   // with integer_block: codes become words, of two bytes
  bool of_halves = false;  // with integer_block: x becomes floats of 16 bits

  LLMC_HOST_DEVICE constexpr IntegerXLayout IntegerX() const {
    const bool of_lanes = scale_bits > 0 && 4 * part_block == integer_block;
    const i64 parts = superblock > 0 ? integer_block / kSuperblockPart : of_lanes ? 4 : 1;
    // One maximum of a whole warp's columns takes less than those of its parts.
    constexpr i64 kOfWarp = 256;
    const bool of_warp = parts == 1 && superblock == 0 && !of_words && chunk % kOfWarp == 0 && columns % kOfWarp == 0;
    return {static_cast<u32>(columns),
            static_cast<u32>(integer_block),
            static_cast<u32>(parts),
            static_cast<u32>(of_warp ? kOfWarp : integer_block),
            superblock > 0,
            of_words,
            of_halves};
  }
  // Of x. With superblocks four lanes read 16 columns of a row at once.
  LLMC_HOST_DEVICE constexpr i64 Stride() const { return GemvStride(chunk, superblock > 0 ? 16 : block); }
  // What a stage has of a row of the weight.
  LLMC_HOST_DEVICE constexpr i64 RowBytes() const {
    return superblock > 0 ? chunk / superblock * superblock_bytes : chunk * weight_bits / 8;
  }
  LLMC_HOST_DEVICE constexpr bool IsAligned() const {
    return superblock == 0 || (columns / superblock * superblock_bytes % 16 == 0 && RowBytes() % 16 == 0);
  }
  // From one row of the weight to the next: of superblocks, and of codes of which four lanes read less than 16 bytes,
  // an odd number of 16 bytes.
  LLMC_HOST_DEVICE constexpr i64 WeightStrideBytes() const {
    if (superblock == 0 && block * weight_bits % 128 == 0) return Stride() * weight_bits / 8;
    return 16 * (CeilDiv(RowBytes() + (IsAligned() ? 0 : 15), 16) | 1);
  }
  LLMC_HOST_DEVICE constexpr i64 PartBytes(i64 bits) const { return chunk / part_block * bits / 8; }
  // An odd number of 16 bytes: eight rows are in different banks.
  LLMC_HOST_DEVICE constexpr i64 PartStride(i64 bits) const {
    return bits == 0 ? 0 : 16 * (CeilDiv(PartBytes(bits), 16) | 1);
  }
  // Bytes that are copied at once, 16, 8 or 4, and divide a row and what a stage has of it; 0 if none do.
  LLMC_HOST_DEVICE constexpr i64 PartCopy(i64 bits) const {
    i64 copy = 16;
    while (copy >= 4 &&
           (columns / part_block * bits % (8 * copy) != 0 || chunk / part_block * bits % (8 * copy) != 0)) {
      copy /= 2;
    }
    return copy >= 4 ? copy : 0;
  }
  LLMC_HOST_DEVICE constexpr i64 XAt() const { return kGemvTile * WeightStrideBytes(); }
  LLMC_HOST_DEVICE constexpr i64 ScaleAt() const { return XAt() + (x_in_ring ? rows * Stride() * element_bytes : 0); }
  LLMC_HOST_DEVICE constexpr i64 ZeroAt() const { return ScaleAt() + kGemvTile * PartStride(scale_bits); }
  LLMC_HOST_DEVICE constexpr i64 StageBytes() const { return ZeroAt() + kGemvTile * PartStride(zero_bits); }
  LLMC_HOST_DEVICE constexpr i64 XStride() const {
    if (integer_block > 0) return IntegerX().RowBytes();  // bytes
    return x_in_ring ? Stride() : GemvStride(columns, superblock > 0 ? 16 : block);
  }
  LLMC_HOST_DEVICE constexpr i64 XBytes() const {
    return x_in_ring ? 0 : rows * XStride() * (integer_block > 0 ? 1 : element_bytes);
  }
  // Of a block, beside the ring.
  LLMC_HOST_DEVICE constexpr i64 KeptBytes() const { return XBytes() + table_bytes; }
};

// ---- an encoded weight and some rows of x (encoded_gemm.cuh) -------------------------------------------------------
// Rows of x: at the least; at the most, of programs in which two blocks fit on a multiprocessor, and of any.
constexpr int kMinEncodedGemmRows = 9, kFewEncodedGemmRows = 32, kMaxEncodedGemmRows = 256;
constexpr int kEncodedGemmMost = 128;  // rows of x in a tile, at the most
// Of x in order, those that are copied at once.
LLMC_HOST_DEVICE constexpr int EncodedGemmBox(int tokens) { return tokens < 64 ? tokens : 64; }

struct EncodedGemmLayout {
  int weight_bits;            // of a code
  int scale_bits, zero_bits;  // of the numbers that come with the stages, 0 where there are none
  int block;                  // terms that share one
  int halves;                 // times 64 rows of the weight that a warpgroup has of a tile
  int slabs = 1;              // of a stage, one behind the other: of kRowBytes of codes of each row

  static constexpr int kRowBytes = 64;                         // four lanes read 16 each
  static constexpr int kMathThreads = 256;                     // two warpgroups
  static constexpr int kXThreads = 128, kWeightThreads = 128;  // that copy
  static constexpr int kThreads = kMathThreads + kXThreads + kWeightThreads;
  static constexpr int kMostStages = 16;

  LLMC_HOST_DEVICE constexpr int Rows() const { return 128 * halves; }  // of the weight, in a tile
  LLMC_HOST_DEVICE constexpr int SlabDepth() const {  // terms of a slab; codes of other bits: whole vectors
    return weight_bits == 4 || weight_bits == 8 ? kRowBytes * 8 / weight_bits : 128;
  }
  LLMC_HOST_DEVICE constexpr int Depth() const { return SlabDepth() * slabs; }  // of a stage
  LLMC_HOST_DEVICE constexpr int Run() const { return SlabDepth() / 4; }        // of a lane's codes of a row of a slab
  // Of a row of the weight in a stage, and how many are copied: whole words, of which a part may be all that is needed.
  LLMC_HOST_DEVICE constexpr int PartBytes(int bits) const {
    return ((block < Depth() ? Depth() / block : 1) * bits + 7) / 8;
  }
  LLMC_HOST_DEVICE constexpr int PartCopy(int bits) const {
    return bits == 0 ? 0 : PartBytes(bits) < 4 ? 4 : PartBytes(bits);
  }
  LLMC_HOST_DEVICE constexpr int ScaleAt() const { return slabs * Rows() * kRowBytes; }
  LLMC_HOST_DEVICE constexpr int ZeroAt() const { return ScaleAt() + Rows() * PartCopy(scale_bits); }
  LLMC_HOST_DEVICE constexpr int WeightStageBytes() const { return ZeroAt() + Rows() * PartCopy(zero_bits); }
  LLMC_HOST_DEVICE constexpr int XStageBytes(int rows) const { return rows * Depth() * 2; }
  // x lies in front, from a multiple of 1024 on.
  LLMC_HOST_DEVICE constexpr int XStages(int rows) const { return rows > kFewEncodedGemmRows || slabs > 1 ? 3 : 6; }
  // Behind the stages, of more than few rows: sums of two warpgroups on their way to results.
  static constexpr int kStagedTokens = 32, kStagedStride = 64 + 4;
  LLMC_HOST_DEVICE static constexpr int StagedBytes(int rows) {
    return rows <= kFewEncodedGemmRows ? 0 : 2 * kStagedTokens * kStagedStride * 4;
  }
  LLMC_HOST_DEVICE constexpr int WeightStages(int rows, int shared_bytes) const {
    const int fit = (shared_bytes - XStages(rows) * XStageBytes(rows) - StagedBytes(rows)) / WeightStageBytes();
    return fit < kMostStages ? fit : kMostStages;
  }
  // Whether parts of a row can be copied: blocks are whole stages or stages whole blocks, of whole runs of lanes or
  // runs of whole ones, and what is copied at once lies aligned.
  LLMC_HOST_DEVICE constexpr bool CanCopy(i64 k, int bits) const {
    if (bits == 0) return true;
    const int copy = PartCopy(bits), at_once = copy < 16 ? copy : 16;
    const bool divides = block < Depth() ? Depth() % block == 0 && block % 8 == 0 : block % Depth() == 0;
    return divides && k % block == 0 && (at_once & (at_once - 1)) == 0 && copy % at_once == 0 &&
           k / block * bits % (8 * at_once) == 0;
  }
};

// ---- a weight of any format and some or many rows of x (left_gemm.cuh) ----------------------------------------------
// Both come in slabs of 64 terms, several of the weight at once, through two rings.
struct LeftGemmLayout {
  int halves;        // times 64 rows of the weight that a warpgroup has of a tile
  int tokens;        // rows of x in a tile, at the most
  int slabs;         // of a stage of the weight
  int weight_bytes;  // of such a stage
  int shared_bytes;  // of both rings and results

  static constexpr int kSlab = 64;
  static constexpr int kMathThreads = 256;                   // two warpgroups
  static constexpr int kXThreads = 32, kWeightThreads = 96;  // that copy
  static constexpr int kThreads = kMathThreads + kXThreads + kWeightThreads;
  static constexpr int kMostStages = 16;
  static constexpr int kBoxRows = 64;  // of x, that are copied at once
  static constexpr int kSharedBytes = 223 * 1024;
  static constexpr int kSharedBytesOfTwo = 110 * 1024;  // of one of two blocks of a multiprocessor
  static constexpr int kLeastXStages = 3;

  LLMC_HOST_DEVICE constexpr int SlabBytes() const { return tokens * kSlab * 2; }
  // Of the weight, beside so many slabs of x.
  LLMC_HOST_DEVICE constexpr int WeightStagesBeside(int x_stages) const {
    return x_stages <= 2 * slabs ? 2 : (x_stages + slabs - 1) / slabs;
  }
  LLMC_HOST_DEVICE constexpr int XStages() const {
    int x = kMostStages;
    while (x > 0 && x * SlabBytes() + WeightStagesBeside(x) * weight_bytes > StoreAt()) --x;
    return x;
  }
  LLMC_HOST_DEVICE constexpr int WeightStages() const { return WeightStagesBeside(XStages()); }
  LLMC_HOST_DEVICE constexpr int StoreBytes() const {
    return halves == 1 ? (tokens < kBoxRows ? 9 : 18) * 1024 : 9 * 1024 + 256;
  }  // of results that are stored at once
  LLMC_HOST_DEVICE constexpr int StoreAt() const { return shared_bytes - StoreBytes(); }

  // From one row of codes in a stage to the next: rows of a lane's codes of less than 8 bits lie in different banks.
  LLMC_HOST_DEVICE static constexpr int CodesStride(int bits) {
    return bits == 4 ? 96 : bits == 8 ? 64 : (bits | 1) * 16;
  }
  // Of a stage: its codes, and scales and zero points behind them.
  LLMC_HOST_DEVICE static constexpr int CodesStageBytes(const EncodedGemmLayout& codes) {
    return codes.Rows() *
           (CodesStride(codes.weight_bits) + codes.PartCopy(codes.scale_bits) + codes.PartCopy(codes.zero_bits));
  }
};

// ---- products of bytes on tensor cores (quantized_matmul.cuh) -----------------------------------------------------
struct QuantizedLayout {
  int warps_m, warps_n;          // of a block, along rows and columns
  int fragments_m, fragments_n;  // of 16 rows and of 8 columns, that a warp makes
  int stages;

  static constexpr int kDepth = 64;            // terms of a stage
  static constexpr int kStride = kDepth + 16;  // bytes of a row in shared memory: 8 rows are in different banks

  LLMC_HOST_DEVICE constexpr int Rows() const { return warps_m * fragments_m * 16; }
  LLMC_HOST_DEVICE constexpr int Columns() const { return warps_n * fragments_n * 8; }
  LLMC_HOST_DEVICE constexpr int Threads() const { return 32 * warps_m * warps_n; }
  LLMC_HOST_DEVICE constexpr int StageBytes() const { return (Rows() + Columns()) * kStride; }
  LLMC_HOST_DEVICE constexpr int SharedBytes() const { return stages * StageBytes(); }
};
// The same by products of warpgroups (quantized_matmul_hopper.cuh): a block makes as many results as the largest above.
struct QuantizedHopperLayout {
  static constexpr int kRows = 128, kColumns = 128;
  static constexpr int kDepth = 128;  // terms of a stage: rows of 128 bytes
  static constexpr int kStages = 6;
  static constexpr int kStageBytes = (kRows + kColumns) * kDepth;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024;  // stages are aligned to 1024 bytes
};
constexpr QuantizedHopperLayout kQuantizedHopper = {};
// The same of codes whose tiles are copied by maps (warpgroup_matmul.cuh).
struct WarpgroupMatMulLayout {
  int warpgroups, halves;  // that multiply; the most times 64 rows that each has
  int stages;

  static constexpr int kColumns = 128;
  static constexpr int kDepth = 128;                     // terms of a stage: rows of 128 bytes
  static constexpr int kGroup = 16;                      // tiles of rows that go through all columns together
  static constexpr int kStoreStride = 144;               // of rows of 64 results: 8 of them are in different banks
  static constexpr int kStoreBytes = 16 * kStoreStride;  // of a warp

  LLMC_HOST_DEVICE constexpr int Rows() const { return 64 * warpgroups * halves; }
  LLMC_HOST_DEVICE constexpr int MathThreads() const { return 128 * warpgroups; }
  LLMC_HOST_DEVICE constexpr int Threads() const { return MathThreads() + 128; }
  LLMC_HOST_DEVICE constexpr int StageBytes() const { return (Rows() + kColumns) * kDepth; }
  // As many as fit where each warpgroup has 64 rows.
  LLMC_HOST_DEVICE constexpr int MostStages() const {
    return stages * StageBytes() / ((64 * warpgroups + kColumns) * kDepth);
  }
  LLMC_HOST_DEVICE constexpr int SharedBytes() const {
    return 1024 + stages * StageBytes() + MathThreads() / 32 * kStoreBytes;
  }
};
// Products of f16 or bf16 (dense_gemm.cuh).
enum DenseActivation { kDenseNone, kDenseGelu, kDenseGeluTanh };

struct DenseGemmLayout {
  static constexpr int kMathThreads = 256, kThreads = kMathThreads + 128;
  static constexpr int kSlabBytes = 128;         // of a row of either factor in a stage
  static constexpr int kBoxRows = 64;            // of either factor, that are copied at once
  static constexpr int kRingBytes = 200 * 1024;  // of stages
  static constexpr int kMostStages = 12;
  static constexpr int kStoreStride = 144;               // of rows of 64 results: 8 of them are in different banks
  static constexpr int kStoreBytes = 16 * kStoreStride;  // of a warp
  static constexpr int kSharedBytes = kRingBytes + kMathThreads / 32 * kStoreBytes;

  // Of a tile of 128 rows.
  LLMC_HOST_DEVICE static constexpr int ColumnsOf(i64 n) { return n % 192 == 0 ? 192 : 128; }
  LLMC_HOST_DEVICE static constexpr int StagesOf(int rows, int columns) {
    const int fit = kRingBytes / ((rows + columns) * kSlabBytes);
    return fit < kMostStages ? fit : kMostStages;
  }
};
// Few rows of x and a weight that is the left operand as it lies in memory (streamed_gemm.cuh). Of elements of 16 bits
// cuBLASLt is faster beyond the last number (H200).
constexpr int kFewStreamedRows = 32, kMaxStreamedRows = 128, kMaxStreamedElementRows = 64;

struct StreamedGemmLayout {
  int tokens;  // rows of x in a tile

  static constexpr int kRows = 128, kRowBytes = 128;  // of the weight in a tile; of a row of either factor in a stage
  static constexpr int kMathThreads = 256, kThreads = kMathThreads + 2 * 32;
  static constexpr int kMostStages = 16;
  static constexpr int kExchanged = 4;  // times 8 tokens whose halves of pairs warpgroups exchange at once
  static constexpr int kExchangeBytes = kExchanged * kMathThreads * 8;

  // The number of rows of x, at the most, that a kernel for up to `rows` has in a tile.
  LLMC_HOST_DEVICE static constexpr int TokensOf(i64 rows) {
    return rows <= 8 ? 8 : rows <= kFewStreamedRows ? kFewStreamedRows : rows <= 64 ? 64 : 128;
  }
  // Of x that are copied at once: the same for all tiles of a kernel.
  LLMC_HOST_DEVICE constexpr int XBoxRows() const { return tokens < 64 ? tokens : 64; }
  LLMC_HOST_DEVICE constexpr int StageBytes() const { return (kRows + tokens) * kRowBytes; }
  LLMC_HOST_DEVICE constexpr int Stages(int shared_bytes) const {
    const int fit = (shared_bytes - kExchangeBytes) / StageBytes();
    return fit < kMostStages ? fit : kMostStages;
  }
};
constexpr i64 kWholeTerms = 32768;  // products of bytes whose sum 32 bits hold

// ---- few rows of many small products (batched_gemv.cuh) ------------------------------------------------------------
constexpr int kBatchedGemvThreads = 256;
constexpr int kBatchedGemvTeam = 8;  // threads that share a row of a weight [k, n]

struct BatchedGemv {
  i64 n, k;         // of a product
  int vec;          // elements of a vector
  bool transposed;  // the weight is [n, k]

  // Of a column of n: as many as it has vectors, a power of two.
  LLMC_HOST_DEVICE constexpr int Lanes() const {
    int lanes = 1;
    while (lanes < 32 && lanes * vec < k) lanes *= 2;
    return lanes;
  }
  // Of the weight, that a thread reads of each of its columns.
  LLMC_HOST_DEVICE constexpr i64 Vectors() const {
    const i64 at_once = transposed ? Lanes() * vec : kBatchedGemvThreads / kBatchedGemvTeam;
    return (k + at_once - 1) / at_once;
  }
  // Columns of a team of lanes, one after the other.
  LLMC_HOST_DEVICE constexpr int Passes() const { return Vectors() >= 4 ? 1 : static_cast<int>(4 / Vectors()); }
  // Of a block.
  LLMC_HOST_DEVICE constexpr int Columns() const {
    return transposed ? kBatchedGemvThreads / Lanes() * Passes() : kBatchedGemvTeam * vec;
  }
  LLMC_HOST_DEVICE constexpr bool Fits() const { return k > 0 && Vectors() <= 16; }
};

// ---- scales and zero points of a quantized matrix (encoded_weight.cuh) --------------------------------------------
// One number; one for each column; one for each block of terms of each column.
enum PartKind { kNoPart = 0, kOneNumber = 1, kOfColumns = 2, kOfBlocks = 3 };

constexpr int kDequantizedRun = 8;  // neighbours that a thread of Dequantize makes

}  // namespace llmc
