// The order in which a block of streamed_gemm.cuh takes its part of a line of tiles (stream_k.cuh).
#pragma once
#include "kernels/linear/stream_k.cuh"

namespace llmc {

// A part of a tile: chunks [first, end) of its chunks.
struct StreamedSegment {
  int tile, first, end;
};
// Along a block's part of a line of tiles of kChunks chunks. Tiles that others have parts of come first: sums of parts
// are added up while the whole tiles are streamed.
template <int kChunks>
struct StreamedWalk {
  int begin, end;
  int at = 0, step = 0;
  __device__ __forceinline__ bool Next(StreamedSegment* s) {
    const int first = (begin + kChunks - 1) / kChunks * kChunks, last = end / kChunks * kChunks;  // of whole tiles
    if (step == 0 && first > last) {
      step = 3;
      *s = {begin / kChunks, begin % kChunks, begin % kChunks + end - begin};
      return end > begin;
    }
    if (step == 0) {
      step = 1;
      at = first;
      *s = {last / kChunks, 0, end - last};
      if (end > last) return true;
    }
    if (step == 1) {
      step = 2;
      *s = {begin / kChunks, begin % kChunks, kChunks};
      if (begin < first) return true;
    }
    if (step == 3 || at >= last) return false;
    *s = {at / kChunks, 0, kChunks};
    at += kChunks;
    return true;
  }
};

}  // namespace llmc
