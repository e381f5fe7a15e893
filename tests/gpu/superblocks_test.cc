// Weights in superblocks of GGUF on a GPU, against the evaluator: one to eight rows, with what is fused to their
// products.
#include "ir/superblocks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

struct SuperblockCase {
  const EncodingFormat* format;
  DType x;
  int64_t rows, n, k;
};

int64_t BoundOfRows(int64_t rows) {
  return rows <= 2     ? rows
         : rows <= 4   ? 4
         : rows <= 8   ? 8
         : rows <= 32  ? 32
         : rows <= 100 ? 100
         : rows <= 256 ? 256
                       : 1000;
}

Tensor BlocksOf(const SuperblockCase& c, int64_t n, int64_t k, uint64_t seed) {
  return RandomSuperblocks(*c.format, {n, k / c.format->superblock * c.format->superblock_bytes}, seed);
}

// A product alone, one of a norm, one with a residual, a gated MLP whose down product is of k columns, too.
void ExpectSuperblocksAgree(const SuperblockCase& c) {
  SCOPED_TRACE(absl::StrCat(c.format->name, ", ", DTypeName(c.x), ", ", c.rows, " x ", c.n, " x ", c.k));
  const Tensor w = BlocksOf(c, c.n, c.k, 1), gate_up = BlocksOf(c, 2 * c.n, c.k, 2), square = BlocksOf(c, c.k, c.k, 3);
  const auto declared = [&](absl::string_view name, const Tensor& tensor) {
    return absl::StrCat(", %", name, ": u8", ShapeToString(tensor.shape()));
  };
  const std::string text = absl::StrCat("model m\ndim M <= ", BoundOfRows(c.rows), "\n", R"(
step main(%x: X[M, K], %g: X[K])",
                                        declared("w", w), declared("gu", gate_up), declared("sq", square), R"() {
  %wl = encode %w {as = "FORMAT", to = X}
  %plain = linear %x, %wl {transpose_rhs = true}
  %n = rms_norm %x, %g {eps = 1e-05}
  %normed = linear %n, %wl {transpose_rhs = true}
  %sql = encode %sq {as = "FORMAT", to = X}
  %s = linear %x, %sql {transpose_rhs = true}
  %added = add %s, %x
  %gul = encode %gu {as = "FORMAT", to = X}
  %both = linear %x, %gul {transpose_rhs = true}
  %gated = silu_mul %both
  return "plain" = %plain, "normed" = %normed, "added" = %added, "LAST" = %LAST
}
)");
  // Many rows round numbers of the weight, and a product of two sums has twice their rounding.
  const bool is_few = c.rows <= 8;
  ExpectDeviceAgrees(
      {.text = absl::StrReplaceAll(text, {{"X", DTypeName(c.x)},
                                          {"K", absl::StrCat(c.k)},
                                          {"FORMAT", std::string(c.format->name)},
                                          {"LAST", is_few ? "gated" : "both"}}),
       .inputs = {{"x", RandomFloats(c.x, {c.rows, c.k}, 4, 0.5)}, {"w", w}, {"gu", gate_up}, {"sq", square}},
       .dims = {{"M", c.rows}},
       // Weights of many rows are rounded to the type of x; of few, what is compared is rounded up to three times.
       .tolerance = c.x == DType::kF32   ? 2e-5
                    : c.x == DType::kF16 ? (is_few ? 1.0 / 512 : 1.0 / 256)
                                         : 1.0 / 64});
}

class Superblocks : public testing::TestWithParam<const EncodingFormat*> {};

TEST_P(Superblocks, FewRows) {
  LLMC_NEEDS_GPU();
  const EncodingFormat& format = *GetParam();
  // Rows of whole copies, and rows that begin between multiples of 16 bytes, of one chunk and of several.
  const int64_t odd = format.superblock == 32 ? 928 : 1280, several = format.superblock == 32 ? 5216 : 5376;
  ExpectSuperblocksAgree({&format, DType::kBF16, 1, 272, 2048});
  ExpectSuperblocksAgree({&format, DType::kBF16, 8, 136, odd});
  ExpectSuperblocksAgree({&format, DType::kBF16, 1, 32, several});
  ExpectSuperblocksAgree({&format, DType::kBF16, 7, 24, several});
  ExpectSuperblocksAgree({&format, DType::kF16, 1, 40, 1280});
  ExpectSuperblocksAgree({&format, DType::kF16, 5, 24, 512});
  ExpectSuperblocksAgree({&format, DType::kF32, 2, 40, odd});
}

TEST_P(Superblocks, ManyRows) {
  LLMC_NEEDS_GPU();
  const EncodingFormat& format = *GetParam();
  // Rows that begin between multiples of 16 bytes.
  const int64_t odd = format.superblock == 32 ? 960 : 1280;
  // Blocks share tiles of up to 32, 128 and 256 rows of x, each of which takes several stages; then they have their
  // own.
  ExpectSuperblocksAgree({&format, DType::kBF16, 17, 200, odd});
  ExpectSuperblocksAgree({&format, DType::kF16, 32, 1100, 2048});
  ExpectSuperblocksAgree({&format, DType::kBF16, 40, 72, 512});
  ExpectSuperblocksAgree({&format, DType::kBF16, 99, 136, 2048});
  ExpectSuperblocksAgree({&format, DType::kF16, 150, 72, odd});
  ExpectSuperblocksAgree({&format, DType::kBF16, 241, 200, odd});
  ExpectSuperblocksAgree({&format, DType::kBF16, 261, 200, odd});
}

std::vector<const EncodingFormat*> AllSuperblocks() {
  std::vector<const EncodingFormat*> formats;
  for (const EncodingFormat& format : SuperblockFormats()) formats.push_back(&format);
  return formats;
}

INSTANTIATE_TEST_SUITE_P(Formats, Superblocks, testing::ValuesIn(AllSuperblocks()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace llmc
