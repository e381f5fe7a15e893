// Convolution (cross-correlation) of images, channels first, as a product: rows are the features of a group, columns
// are positions of the result, and the depth goes over channels and taps of the kernel. Patches are read in place.
#pragma once
#include "kernels/linear/matmul.cuh"

namespace llmc {

// x[images, groups * channels, sizes…], weight[groups * features, channels, taps…], out[images, groups * features,
// positions…].
// C::T: element type.  C::kBias: there is a bias.  C::kThreads: 256.
template <class C, class Context, int kAxes>
__device__ __forceinline__ void Conv(const Context& context, typename C::T* __restrict__ out,
                                     const typename C::T* __restrict__ x, const typename C::T* __restrict__ weight,
                                     const typename C::T* __restrict__ bias, i64 groups, i64 channels, i64 features,
                                     const Axes<kAxes>& sizes, const Axes<kAxes>& taps, const Axes<kAxes>& positions,
                                     const Axes<kAxes>& strides, const Axes<kAxes>& dilations,
                                     const Axes<kAxes>& before) {
  using T = typename C::T;
  using X = Wide<T>;
  constexpr int kTile = kProductTile;
  static_assert(C::kThreads == kProductThreads, "kThreads: 256, of which each computes 16 elements");
  static_assert(kAxes > 0, "an image has axes");
  i64 image = 1, count = 1, kernel = 1;
#pragma unroll
  for (int axis = 0; axis < kAxes; ++axis) {
    image *= sizes.size[axis];
    count *= positions.size[axis];
    kernel *= taps.size[axis];
  }
  const i64 wide = (count + kTile - 1) / kTile, high = (features + kTile - 1) / kTile;
  const i64 part = context.TileX() / (wide * high), tile = context.TileX() % (wide * high);  // an image's group
  const i64 group = part % groups, depth = channels * kernel;
  x += part * channels * image;
  out += part * features * count;
  weight += group * features * depth;
  const auto patch = [&](i64 position, i64 d) {
    i64 tap = d % kernel, offset = d / kernel * image, step = 1;
    bool inside = true;
#pragma unroll
    for (int axis = kAxes - 1; axis >= 0; --axis) {
      const i64 at = position % positions.size[axis] * strides.size[axis] +
                     tap % taps.size[axis] * dilations.size[axis] - before.size[axis];
      position /= positions.size[axis];
      tap /= taps.size[axis];
      inside = inside && at >= 0 && at < sizes.size[axis];
      offset += at * step;
      step *= sizes.size[axis];
    }
    return inside ? Widen(x[offset]) : X(0);
  };
  TiledProduct<kTile, X>(
      context, tile / wide * kTile, tile % wide * kTile, features, count, depth,
      [=](i64 f, i64 d) { return Widen(weight[f * depth + d]); }, patch,
      [=](i64 f, i64 p, X sum) {
        if constexpr (C::kBias) sum += Widen(bias[group * features + f]);
        out[f * count + p] = Narrow<T>(sum);
      });
}

}  // namespace llmc
