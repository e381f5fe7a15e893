// The kernels of language models on a GPU, over shapes at the edges, against the evaluator.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/device_check.h"

namespace llmc {
namespace {

constexpr const char* kTypes[] = {"f32", "f16", "bf16"};

TEST(Kernels, Norms) {
  LLMC_NEEDS_GPU();
  for (const std::string type : kTypes) {
    for (const int64_t rows : {1, 3, 257}) {
      for (const int64_t columns : {1, 7, 64, 96, 2048, 4100, 8192}) {
        SCOPED_TRACE(absl::StrCat(type, " ", rows, " x ", columns));
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= 4096
weight @w: TYPE[COLUMNS] = "f#w"
step main(%x: TYPE[T, COLUMNS], %y: TYPE[T, COLUMNS]) {
  %a = rms_norm %x, @w
  %s, %b = add_rms_norm %x, %y, @w {eps = 1e-6}
  return "a" = %a, "s" = %s, "b" = %b
}
)",
                                                        {{"TYPE", type}, {"COLUMNS", absl::StrCat(columns)}}),
                            .dims = {{"T", rows}}});
      }
    }
  }
}

TEST(Kernels, Products) {
  LLMC_NEEDS_GPU();
  struct Size {
    int64_t n, k;
  };
  for (const std::string type : kTypes) {
    for (const int64_t rows : {1, 2, 5, 8, 9, 100}) {
      for (const Size size : {Size{1, 8}, Size{64, 72}, Size{100, 96}, Size{1024, 512}}) {
        SCOPED_TRACE(absl::StrCat(type, " ", rows, " x ", size.n, " x ", size.k));
        // Bounds choose between kernels for few and for many rows.
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= BOUND
weight @w: TYPE[N, K] = "f#w"
step main(%x: TYPE[T, K]) {
  %y = matmul %x, @w {transpose_rhs = true}
  return "y" = %y
}
)",
                                                        {{"TYPE", type},
                                                         {"BOUND", absl::StrCat(rows <= 8 ? rows : 4096)},
                                                         {"N", absl::StrCat(size.n)},
                                                         {"K", absl::StrCat(size.k)}}),
                            .dims = {{"T", rows}}});
      }
    }
  }
}

TEST(Kernels, Elementwise) {
  LLMC_NEEDS_GPU();
  for (const std::string type : kTypes) {
    for (const int64_t rows : {1, 3, 130}) {
      ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= 4096
weight @row: TYPE[96] = "f#w"
step main(%x: TYPE[T, 96], %y: TYPE[T, 96], %g: TYPE[T, 192]) {
  %a = add %x, %y
  %b = mul %a, @row
  %c = silu %b
  %d = gelu %x
  %e = gelu_tanh %y
  %f = cast %c {to = f32}
  %h = silu_mul %g
  return "c" = %c, "d" = %d, "e" = %e, "f" = %f, "h" = %h
}
)",
                                                      {{"TYPE", type}}),
                          .dims = {{"T", rows}}});
    }
  }
}

}  // namespace
}  // namespace llmc
