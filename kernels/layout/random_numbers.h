// The random numbers that stand for weights whose own are not there.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

// The n-th 64 bits of a stream (splitmix64, by Sebastiano Vigna).
LLMC_HOST_DEVICE constexpr u64 RandomBits(u64 key, u64 n) {
  u64 z = key + (n + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

// 64 bits give four numbers in [-1, 1), of 16 bits each, the lowest first. A weight is mean + width * number.
constexpr int kRandomNumbersOfBits = 4;
LLMC_HOST_DEVICE constexpr float RandomNumber(u64 bits, int i) {
  return static_cast<float>(static_cast<i16>(bits >> 16 * i)) * 0x1p-15f;
}

constexpr int kRandomVectorBytes = 16;  // of weights that a thread draws

}  // namespace llmc
