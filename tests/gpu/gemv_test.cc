// GEMV with what is fused to them, on a GPU, against the evaluator.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/device_check.h"

namespace llmc {
namespace {

constexpr const char* kFloatTypes[] = {"f32", "f16", "bf16"};

// What is compared has been rounded up to three times on the way, each time perhaps to the other neighbour.
double GemvTolerance(const std::string& type) { return type == "f32" ? 1e-5 : type == "f16" ? 3.0 / 1024 : 3.0 / 128; }

struct GemvSize {
  int64_t hidden, inner;
};

TEST(Gemv, EverySize) {
  LLMC_NEEDS_GPU();
  for (const std::string type : kFloatTypes) {
    for (const int64_t rows : {1, 3, 8}) {
      // Whole stages; rows in two pieces; many tiles a block; no whole blocks of 64 bytes; a ring that x goes through.
      for (const GemvSize size :
           {GemvSize{2048, 512}, GemvSize{896, 131}, GemvSize{1024, 6001}, GemvSize{1023, 40}, GemvSize{14336, 300}}) {
        SCOPED_TRACE(absl::StrCat(type, " ", rows, " x ", size.inner, " x ", size.hidden));
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= ROWS
weight @w: TYPE[N, K] = "f#w"
weight @b: TYPE[N] = "f#b"
step main(%x: TYPE[T, K], %y: TYPE[T, N]) {
  %plain = matmul %x, @w {transpose_rhs = true}
  %p0 = matmul %x, @w {transpose_rhs = true}
  %added = add %y, %p0
  %p1 = matmul %x, @w {transpose_rhs = true}
  %biased = add %p1, @b
  return "plain" = %plain, "added" = %added, "biased" = %biased
}
)",
                                                        {{"TYPE", type},
                                                         {"ROWS", absl::StrCat(rows <= 2   ? rows
                                                                               : rows <= 4 ? 4
                                                                                           : 8)},
                                                         {"N", absl::StrCat(size.inner)},
                                                         {"K", absl::StrCat(size.hidden)}}),
                            .dims = {{"T", rows}},
                            .tolerance = GemvTolerance(type)});
      }
    }
  }
}

TEST(Gemv, NormsAndGates) {
  LLMC_NEEDS_GPU();
  for (const std::string type : kFloatTypes) {
    for (const int64_t rows : {1, 2, 3, 8}) {
      for (const GemvSize size : {GemvSize{2048, 301}, GemvSize{512, 2000}, GemvSize{4096, 72}, GemvSize{100, 36}}) {
        SCOPED_TRACE(absl::StrCat(type, " ", rows, " x ", size.inner, " x ", size.hidden));
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= ROWS
weight @norm: TYPE[K] = "f#n"
weight @w: TYPE[N2, K] = "f#w"
weight @v: TYPE[K, N] = "f#v"
step main(%x: TYPE[T, K]) {
  %n1 = rms_norm %x, @norm
  %g1 = matmul %n1, @w {transpose_rhs = true}
  %h1 = silu_mul %g1
  %d1 = matmul %h1, @v {transpose_rhs = true}
  %s = add %x, %d1
  %n2 = rms_norm %s, @norm {eps = 1e-6}
  %g2 = matmul %n2, @w {transpose_rhs = true}
  return "h1" = %h1, "s" = %s, "g2" = %g2
}
)",
                                                        {{"TYPE", type},
                                                         {"ROWS", absl::StrCat(rows <= 2   ? rows
                                                                               : rows <= 4 ? 4
                                                                                           : 8)},
                                                         {"N2", absl::StrCat(2 * size.inner)},
                                                         {"N", absl::StrCat(size.inner)},
                                                         {"K", absl::StrCat(size.hidden)}}),
                            .dims = {{"T", rows}},
                            // The second half sees what the first has rounded differently.
                            .tolerance = GemvTolerance(type)});
      }
    }
  }
}

// Over 60 lines: a program and its inputs.
// Queries, keys and values: the keys and values show in the attention that reads them.
TEST(Gemv, QkvWithRope) {
  LLMC_NEEDS_GPU();
  struct Rope {
    int64_t head_dim, rotary;
    const char* attributes;
  };
  for (const std::string type : kFloatTypes) {
    for (const int64_t rows : {1, 3, 8}) {
      for (const Rope rope : {Rope{64, 64, ""}, Rope{128, 128, ", scale = 1.25"}, Rope{64, 32, ""},
                              Rope{64, 64, ", interleaved = true"}}) {
        SCOPED_TRACE(absl::StrCat(type, " ", rows, " heads of ", rope.head_dim, rope.attributes));
        std::vector<int64_t> pos, slots, lens, starts = {0}, pages;
        for (int64_t i = 0; i < rows; ++i) {
          pos.push_back(i * 7 % 32);
          lens.push_back(pos.back() + 1);
          slots.push_back((2 * i + pos.back() / 16) * 16 + pos.back() % 16);
          starts.push_back(i + 1);
          pages.push_back(2 * i);
          pages.push_back(2 * i + 1);
        }
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= ROWS
weight @norm: TYPE[512] = "f#n"
weight @w: TYPE[QKV, 512] = "f#w"
weight @b: TYPE[QKV] = "f#b"
weight @f: f32[HALF] = "f#f"
state @kv: paged[16, 16] {k: TYPE[2, DIM], v: TYPE[2, DIM]}
step main(%x: TYPE[T, 512], %pos: i32[T], %slots: i32[T], %pages: i32[T, 2], %lens: i32[T], %starts: i32[T + 1]) {
  %n = rms_norm %x, @norm
  %qkv0 = matmul %n, @w {transpose_rhs = true}
  %qkv = add %qkv0, @b
  %q0 = slice %qkv {axis = 1, start = [0], end = [Q_END]}
  %k0 = slice %qkv {axis = 1, start = [Q_END], end = [K_END]}
  %v0 = slice %qkv {axis = 1, start = [K_END], end = [QKV]}
  %q = rope %q0, %pos, @f {head_dim = DIMATTRIBUTES}
  %k = rope %k0, %pos, @f {head_dim = DIMATTRIBUTES}
  kv_write @kv, %k, %v0, %slots
  %a = paged_attention %q, @kv, %pages, %lens, %starts {scale = 0.01}
  return "q" = %q, "a" = %a
}
)",
                                                        {{"TYPE", type},
                                                         {"ROWS", absl::StrCat(rows <= 2   ? rows
                                                                               : rows <= 4 ? 4
                                                                                           : 8)},
                                                         {"Q_END", absl::StrCat(4 * rope.head_dim)},
                                                         {"K_END", absl::StrCat(6 * rope.head_dim)},
                                                         {"QKV", absl::StrCat(8 * rope.head_dim)},
                                                         {"DIM", absl::StrCat(rope.head_dim)},
                                                         {"HALF", absl::StrCat(rope.rotary / 2)},
                                                         {"ATTRIBUTES", rope.attributes}}),
                            .inputs = {{"pos", Ints(DType::kI32, pos)},
                                       {"slots", Ints(DType::kI32, slots)},
                                       {"lens", Ints(DType::kI32, lens)},
                                       {"starts", Ints(DType::kI32, starts)},
                                       {"pages", Tensor::FromValues(DType::kI32, {rows, 2}, pages)}},
                            .dims = {{"T", rows}},
                            .tolerance = GemvTolerance(type)});
      }
    }
  }
}

}  // namespace
}  // namespace llmc
