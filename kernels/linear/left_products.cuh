// Products of a tile: of rows of a weight, decoded in registers (left_operand.cuh), with slabs of x in shared memory,
// by two warpgroups of linear/left_gemm.cuh or of experts/expert_gemm.cuh. Products of one stretch of terms run while
// codes of the next are decoded.
//
// Body says what is multiplied, and where it lies:
//   T, Left, Reader              of elements, LeftOperand, of the weight
//   kHalves, kSlabs              times 64 rows of a warpgroup; slabs of a stage
//   kWeightStages, kXStages      of both rings
//   arena, kSlabBytes            slabs of x
//   WeightStage(slot)            a stage of the weight
//   shared                       has x_empty and weight_empty
//   RowOf(first, slot)           the row of the weight in a slot
//   OwnSlot()                    the lane's first slot
//   AwaitWeight(places, slab)    until the stage is there
//   AwaitX(places)               until the slab of x is there
#pragma once
#include "kernels/common/stage_ring.cuh"
#include "kernels/linear/left_operand.cuh"

namespace llmc {

#if LLMC_SM90
// Of a warp that multiplies, in both rings.
template <int kWeightStages, int kXStages>
struct LeftPlaces {
  RingPlace<kWeightStages> weight;
  RingPlace<kXStages> x;
  int x_before = -1;  // of the slab before, whose products may run still
};
template <class Body>
using LeftPlacesOf = LeftPlaces<Body::kWeightStages, Body::kXStages>;

__device__ __forceinline__ void FreeStage(u64* empty) {
  if (threadIdx.x % 32 == 0) ArriveAt(empty);
}

template <class Body, int kBlocks>
__device__ __forceinline__ void MultiplyLeftSlab(const Body& body, LeftPlacesOf<Body>& places,
                                                 const typename Body::Reader& weight, int first, u32 starts, int at,
                                                 int slab, float (&c)[Body::kHalves][kBlocks][4]) {
  const char* const stage = body.WeightStage(places.weight.slot);
  body.AwaitWeight(places, slab);
  // The same in all lanes, so that it is in registers from which products take it.
  const u64 x_at =
      __shfl_sync(~0u, places.x.slot, 0) * static_cast<u64>(Body::kSlabBytes / 16) + Operand(SharedAddress(body.arena));
  u32 a[2][2][4];
#pragma unroll
  for (int half = 0; half < Body::kHalves; ++half) {
    typename Body::Left::Lane lane;
    lane.Enter(
        weight, [=](int slot) { return Body::RowOf(first, slot); }, starts, stage, at, slab, Body::OwnSlot(), half);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      lane.Decode(e, a[e]);
      if (slab == Body::kSlabs - 1 && half == Body::kHalves - 1 && e == 1) {
        __syncwarp();
        FreeStage(&body.shared.weight_empty[places.weight.slot]);
      }
      if (half == 0 && e == 0) body.AwaitX(places);
      BeginProducts();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        MultiplyWarpgroup<typename Body::T, 0>(c[half], a[e][i], OperandBehind(x_at, (2 * e + i) * 32), 1);
      }
      CommitProducts();
      WaitForProducts<1>();
      // Now the products before these have ended.
      if (half == 0 && e == 0 && places.x_before >= 0) FreeStage(&body.shared.x_empty[places.x_before]);
    }
  }
  places.x_before = places.x.slot;
  places.x.Advance();
}

// Adds the sums of stages [begin, end) of a tile to c.
template <class Body, int kBlocks>
__device__ __forceinline__ void MultiplyLeftTile(const Body& body, LeftPlacesOf<Body>& places,
                                                 const typename Body::Reader& weight, int first, int begin, int end,
                                                 float (&c)[Body::kHalves][kBlocks][4]) {
  const u32 starts = Body::Left::StartsOf(
      weight, [=](int slot) { return Body::RowOf(first, slot); }, Body::OwnSlot());
#pragma unroll 1
  for (int at = begin; at < end; ++at) {
#pragma unroll
    for (int slab = 0; slab < Body::kSlabs; ++slab) {
      MultiplyLeftSlab(body, places, weight, first, starts, at, slab, c);
    }
    places.weight.Advance();
  }
  WaitForProducts<0>();
#pragma unroll
  for (int half = 0; half < Body::kHalves; ++half) Pin(c[half]);
  FreeStage(&body.shared.x_empty[places.x_before]);
  places.x_before = -1;
}
#endif

}  // namespace llmc
