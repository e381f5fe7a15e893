// How the products of experts are cut into tiles, and where the pairs of a token and an expert are sorted.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

constexpr int kMaxExperts = 4096;

enum class RouteScore { kSoftmax, kSigmoid, kChosen, kChosenSigmoid };  // as the op names them

// ---- few pairs (expert_gemv.cuh) ----------------------------------------------------------------------------------
constexpr int kMaxExpertGemvPairs = 64;
// Of a weight whose codes expert_small_gemm.cuh does not read, of each expert: decoding all experts in front of another
// kernel moves about 8 times the bytes of codes of 4 bits, and each pair by itself reads them once, mostly from the L2
// cache.
constexpr int kMaxEncodedPairsOfExpert = 16;
// The same of superblocks, whose parts take more work for each byte: about as long as decoding all experts.
constexpr int kMaxSuperblockPairsOfExpert = 2;
constexpr int kExpertGemvRows = 4;  // of a weight [out, in], of a warp
// Of superblocks on tensor cores, columns of a row that a warp has at the least.
constexpr int kExpertBlockColumns = 256;

// ---- few pairs of each expert (expert_small_gemm.cuh) -------------------------------------------------------------
constexpr int kMaxExpertSmallPairs = 2048;  // in a step: each block looks at all
constexpr int kMaxPairsAtOnce = 32;         // of an expert: 8, 16 or 32
// Of codes, warps share rows as long as each has so many bytes of a row, and as there are no more warps than these.
constexpr int kEncodedExpertThreads = 128;
constexpr int kExpertSplitBytes = 128, kExpertWarpsOfSm = 32;

// ---- many pairs (expert_order.cuh, expert_matmul.cuh) -------------------------------------------------------------
constexpr int kExpertOrderThreads = 1024;
constexpr int kExpertTileRows = 64;      // pairs of one expert in a block
constexpr int kExpertTileColumns = 128;  // of the result, on tensor cores
constexpr int kExpertTileDepth = 32;     // elements of a row in a stage
constexpr int kExpertStages = 3;
constexpr int kExpertMatMulThreads = 256;

// The same on sm_90a (expert_gemm.cuh): a tile is 256 rows of the weight and up to so many pairs of one expert. Both
// come in slabs of 64 terms, several of the weight at once, through two rings.
struct ExpertGemmLayout {
  int slabs;         // of a stage of the weight
  int weight_bytes;  // of such a stage
  int shared_bytes;  // of both rings

  static constexpr int kRows = 256, kPairs = 160, kSlab = 64;
  static constexpr int kSlabBytes = kPairs * kSlab * 2;
  static constexpr int kMathThreads = 256, kCopyThreads = 128;  // two warpgroups, and one
  static constexpr int kThreads = kMathThreads + kCopyThreads;
  static constexpr int kMostStages = 8;
  static constexpr int kSharedBytes = 220 * 1024;

  // Of the weight, beside so many slabs of x.
  LLMC_HOST_DEVICE constexpr int WeightStagesBeside(int x_stages) const {
    return x_stages <= 2 * slabs ? 2 : (x_stages + slabs - 1) / slabs;
  }
  LLMC_HOST_DEVICE constexpr int XStages() const {
    int x = kMostStages;
    while (x > 0 && x * kSlabBytes + WeightStagesBeside(x) * weight_bytes > shared_bytes) --x;
    return x;
  }
  LLMC_HOST_DEVICE constexpr int WeightStages() const { return WeightStagesBeside(XStages()); }
};

// The scratch memory of both, in i32: the first pair of each expert among the sorted ones, and their number; the first
// tile of each expert, and their number; then the pairs, sorted by expert.
LLMC_HOST_DEVICE constexpr int ExpertTilesAt(int experts) { return experts + 1; }
LLMC_HOST_DEVICE constexpr int ExpertPairsAt(int experts) { return 2 * (experts + 1); }

}  // namespace llmc
