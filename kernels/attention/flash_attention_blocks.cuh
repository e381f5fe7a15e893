// Attention of blocks of rows, each block of the grid some of them: as in flash_attention_hopper.cuh where that is
// asked for and the GPU can, else as in flash_attention.cuh, with blocks of as many rows. A Work says what there is to
// do:
//   Source                             see flash_attention.cuh
//   bool Get(context, i32 turn, Source* source) what the block does at its turn 0, 1…; false if nothing is left
//
// C::T: element type, 16 bits.  C::kSoftcap: whether scores are capped.
// C::kHopper: whether to compute as flash_attention_hopper.cuh does, and C::kByMaps, whether by maps of tiles.  C::kM:
// else a warp has 16 * kM rows. C::kKeys: of a tile.  C::kThreads: of a block. C::kSharedBytes: the dynamic shared
// memory; GPUs that have less need no more than they have.
#pragma once
#include "kernels/attention/flash_attention.cuh"
#include "kernels/attention/flash_attention_hopper.cuh"
#include "kernels/common/context.cuh"

namespace llmc {

// The dynamic shared memory of a block here.
template <class C>
inline constexpr int kFlashSharedBytes = C::kSharedBytes < kMaxSharedBytes ? C::kSharedBytes : kMaxSharedBytes;

// Without warpgroups: kHopper blocks on other GPUs, too. kDim: the larger of a key's and a value's elements.
template <class C, int kDim>
struct FlashShape : C {
  static constexpr int kThreads = C::kHopper ? 256 : C::kThreads;
  static constexpr int kM = C::kHopper ? 1 : C::kM;
  static constexpr int kRows = kThreads / 32 * 16 * kM;
  static_assert(kRows == kFlashRows, "the grid is made of so many rows a block");
  static constexpr int kKeys = FlashKeys(C::kKeys, kDim, kRows, kFlashSharedBytes<C>);
};

// All threads of the block.
template <class C, class Context, class Work, class Scale>
__device__ __forceinline__ void FlashAttentionBlocks(const Context& context, const Work& work, const Scale& scale) {
  char* const dynamic_shared = context.template Arena<1024>();
  using Source = typename Work::Source;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr bool kWarpgroups = C::kHopper;
#else
  constexpr bool kWarpgroups = false;
#endif
  if constexpr (kWarpgroups) {
    using Attention = FlashAttentionHopper<C, Source, Work, Context>;
    static_assert(C::kSharedBytes == Attention::kSharedBytes, "codegen reserves the memory that is used here");
    Attention(context, work, dynamic_shared).Run(scale);
  } else {
    constexpr int kDim = Source::kKeyDim > Source::kValueDim ? Source::kKeyDim : Source::kValueDim;
    using Shape = FlashShape<C, kDim>;
    using Attention = FlashAttention<Shape, Source, Context>;
    static_assert(Attention::kSharedBytes <= kFlashSharedBytes<C>, "codegen reserves the memory that is used here");
    if (threadIdx.x >= Shape::kThreads) return;
    Source source;
    for (i32 turn = 0; work.Get(context, turn, &source); ++turn) {
      if (turn > 0) context.Sync();
      Attention(context, source, dynamic_shared).Run(scale);
    }
  }
}

}  // namespace llmc
