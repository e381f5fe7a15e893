// Rows of elements that lie next to each other, in a tensor [rows, batches, n] whose first axes lie anywhere.
#pragma once
#include "kernels/common/common.cuh"

namespace llmc {

template <class T>
struct StridedRows {
  T* from;
  i64 row, batch;  // strides, in elements

  __device__ __forceinline__ T* At(i64 of_row, i64 of_batch) const { return from + of_row * row + of_batch * batch; }
};

}  // namespace llmc
