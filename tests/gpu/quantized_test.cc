// Products of quantized factors on a GPU, against the evaluator.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/quantized_numbers.h"

namespace llmc {
namespace {

// From 1/16 to 2.
Tensor Scales(DType dtype, Shape shape, uint64_t seed) {
  const Tensor numbers = RandomInts(DType::kI64, shape, 1, 33, seed);
  Tensor scales(dtype, std::move(shape));
  for (int64_t i = 0; i < scales.size(); ++i) scales.SetFloat(i, static_cast<double>(numbers.GetInt(i)) / 16);
  return scales;
}

void ExpectBytesAgree(const Sizes& s, DType a, DType b, DType scale, int64_t bound) {
  SCOPED_TRACE(absl::StrCat(s.m, " x ", s.n, " x ", s.k, ", ", NameOf(a), " and ", NameOf(b)));
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim M <= BOUND
step main(%a: A[M, K], %b: B[K, N], %t: B[N, K], %s: S[N], %z: B[N], %one: S[], %sa: S[], %za: A[], %wide: i32[1]) {
  %v.l = encode %a, %sa {as = "FA per=tensor scale=S", to = S}
  %v.r = encode %t, %one {as = "FB per=tensor scale=S", to = S}
  %v = linear %v.l, %v.r {transpose_rhs = true}
  %w.l = encode %a, %sa {as = "FA per=tensor scale=S", to = S}
  %w.r = encode %t, %s, %z {as = "FB per=channel scale=S zero=B", to = S}
  %w = linear %w.l, %w.r {transpose_rhs = true}
  %x.l = encode %a, %sa, %za {as = "FA per=tensor scale=S zero=A", to = S}
  %x.r = encode %t, %s {as = "FB per=channel scale=S", to = S}
  %x = linear %x.l, %x.r {transpose_rhs = true}
  %y.l = encode %a, %sa, %za {as = "FA per=tensor scale=S zero=A", to = S}
  %y.r = encode %t, %one, %wide {as = "FB per=tensor scale=S zero=i32", to = S}
  %y = linear %y.l, %y.r {transpose_rhs = true}
  %u.l = encode %a, %sa, %za {as = "FA per=tensor scale=S zero=A", to = S}
  %u.r = encode %b, %s, %z {as = "FB per=channel along=-2 scale=S zero=B", to = S}
  %u = linear %u.l, %u.r
  return "v" = %v, "w" = %w, "x" = %x, "y" = %y, "u" = %u
}
)",
                                                  {{"BOUND", absl::StrCat(bound)},
                                                   {"A", NameOf(a)},
                                                   {"B", NameOf(b)},
                                                   {"FA", FormatOf(a)},
                                                   {"FB", FormatOf(b)},
                                                   {"S", NameOf(scale)},
                                                   {"N", absl::StrCat(s.n)},
                                                   {"K", absl::StrCat(s.k)}}),
                      .inputs = {{"a", Any(a, {s.m, s.k}, 1)},
                                 {"b", Any(b, {s.k, s.n}, 2)},
                                 {"t", Any(b, {s.n, s.k}, 3)},
                                 {"s", Scales(scale, {s.n}, 4)},
                                 {"z", Any(b, {s.n}, 5)},
                                 {"one", Scales(scale, {}, 6)},
                                 {"sa", Scales(scale, {}, 7)},
                                 {"za", Any(a, {}, 8)},
                                 {"wide", Ints(DType::kI32, {-3})}},
                      .dims = {{"M", s.m}}});
}

TEST(Quantized, FewRowsOfBytes) {
  LLMC_NEEDS_GPU();
  for (const DType a : kBytes) {
    for (const DType b : kBytes) {
      // Rows of whole stages, of vectors of 16, 8 and 4 bytes, and of odd lengths, which tiles for many rows take;
      // columns that no warp has all of; many blocks.
      for (const Sizes& s : {Sizes{1, 512, 4096}, Sizes{2, 130, 88}, Sizes{5, 33, 36}, Sizes{8, 41, 77}, Sizes{3, 1, 1},
                             Sizes{4, 9001, 64}, Sizes{1, 10007, 32}, Sizes{7, 65, 1023}}) {
        ExpectBytesAgree(s, a, b, DType::kF32, s.m <= 2 ? s.m : s.m <= 4 ? 4 : 8);
      }
    }
  }
  for (const DType scale : {DType::kF16, DType::kBF16, DType::kF64}) {
    ExpectBytesAgree({3, 48, 160}, DType::kU8, DType::kI8, scale, 4);
  }
}

TEST(Quantized, ManyRowsOfBytes) {
  LLMC_NEEDS_GPU();
  for (const DType a : kBytes) {
    for (const DType b : kBytes) {
      // Tiles of 32 and of 128 rows; parts of tiles, of stages and of vectors.
      for (const Sizes& s : {Sizes{1, 96, 64}, Sizes{33, 128, 256}, Sizes{17, 21, 40}, Sizes{129, 257, 61},
                             Sizes{50, 130, 7}, Sizes{20, 12, 1}}) {
        ExpectBytesAgree(s, a, b, DType::kF32, 4096);
      }
    }
  }
  ExpectBytesAgree({1500, 1536, 192}, DType::kU8, DType::kI8, DType::kF32, 4096);
  ExpectBytesAgree({1400, 1411, 83}, DType::kI8, DType::kI8, DType::kF32, 4096);
  // Products of warpgroups: parts of tiles and of stages, many stages, an odd number of columns, no terms.
  for (const DType a : kBytes) {
    for (const DType b : kBytes) {
      ExpectBytesAgree({333, 1411, 400}, a, b, DType::kF32, 4096);
      ExpectBytesAgree({130, 1536, 2064}, a, b, DType::kF16, 4096);
    }
  }
  ExpectBytesAgree({512, 4096, 4096}, DType::kU8, DType::kI8, DType::kF32, 512);
  for (const DType scale : {DType::kF16, DType::kBF16, DType::kF64}) {
    ExpectBytesAgree({40, 48, 160}, DType::kU8, DType::kI8, scale, 64);
  }
}

// Codes of 8 bits of both factors by warpgroups, with scales of blocks of 128 or of rows: parts of tiles and of stages,
// and with m of 1,100 and more tiles of twice as many rows, in several groups.
// kGated: silu(y[t, i]) * y[t, n / 2 + i] of the product y is wanted.  kOfOneSign: y of codes that are not negative, so
// that what sums lose on the way adds up; in f16.
enum class Wanted { kProduct, kGated, kOfOneSign };

void ExpectCodesAgree(const Sizes& s, const std::string& x_as, const std::string& weight_as, int64_t bound,
                      Wanted wanted = Wanted::kProduct, const std::string& in_code = "") {
  SCOPED_TRACE(
      absl::StrCat(s.m, " x ", s.n, " x ", s.k, ", ", x_as, " by ", weight_as, ", ", static_cast<int>(wanted)));
  const bool one_sign = wanted == Wanted::kOfOneSign;
  const auto x = ParseEncoding(x_as), weight = ParseEncoding(weight_as);
  ASSERT_TRUE(x.ok() && weight.ok());
  const auto sizes = [](const TensorType& type) {
    std::vector<int64_t> all;
    for (const Dim& dim : type.shape) all.push_back(dim.value());
    return all;
  };
  const TensorType scales = (*x)->ComponentType(1, {Dim(s.m), Dim(s.k)}),
                   weight_scales = (*weight)->ComponentType(1, {Dim(s.n), Dim(s.k)});
  TensorType scales_of_any = scales;
  if (scales.rank() > 0) scales_of_any.shape[0] = Dim::Symbol("M");
  const DType codes = (*x)->format->codes, weight_codes = (*weight)->format->codes;
  const auto random = [&](DType type, const std::vector<int64_t>& shape, uint64_t seed) {
    if (!IsFloat(type)) return RandomInts(type, shape, -128, 128, seed);
    Tensor numbers = RandomFloats(type, shape, seed, one_sign ? 0.25 : 1);
    for (int64_t i = 0; i < numbers.size() && one_sign; ++i) numbers.SetFloat(i, std::abs(numbers.GetFloat(i)));
    return numbers;
  };
  const std::string gate = "  %z = silu_mul %y\n  return \"z\" = %z\n";
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(
                          R"(model m
dim M <= BOUND
step main(%a: TA[M, K], %sa: SA, %b: TB[N, K], %sb: SB) {
  %x = encode %a, %sa {as = "FA", to = TY}
  %w = encode %b, %sb {as = "FB", to = TY}
  %y = linear %x, %w {transpose_rhs = true}
THEN}
)",
                          {{"BOUND", absl::StrCat(bound)},
                           {"THEN", wanted == Wanted::kGated ? gate : "  return \"y\" = %y\n"},
                           {"TY", one_sign ? "f16" : "bf16"},
                           {"TA", NameOf(codes)},
                           {"TB", NameOf(weight_codes)},
                           {"SA", scales_of_any.ToString()},
                           {"SB", weight_scales.ToString()},
                           {"FA", x_as},
                           {"FB", weight_as},
                           {"N", absl::StrCat(s.n)},
                           {"K", absl::StrCat(s.k)}}),
                      .inputs = {{"a", random(codes, {s.m, s.k}, 1)},
                                 {"sa", Scales(scales.dtype, sizes(scales), 2)},
                                 {"b", random(weight_codes, {s.n, s.k}, 3)},
                                 {"sb", Scales(weight_scales.dtype, sizes(weight_scales), 4)}},
                      .dims = {{"M", s.m}},
                      // Of a gate, what both factors and the result are rounded by, a unit of the last place each. Of
                      // one sign: tensor cores lose 2.6e-3 of spans of 256 terms (1.0e-3 of 128; by proportion 4e-2 if
                      // they made the whole sum).
                      .tolerance = one_sign                   ? 1.0 / 256
                                   : wanted == Wanted::kGated ? 3.0 / 128
                                                              : 1.0 / 128,
                      .in_code = in_code});
}

// Clusters of blocks, which have more columns of tiles than there are multiprocessors, and such with an odd number of
// columns, which are in none; spans of two stages and a last one of its own; scales of blocks; tiles in two groups of
// rows.
TEST(Quantized, ManyCodesByWarpgroups) {
  LLMC_NEEDS_GPU();
  const char* const token = "f8e4m3 per=token scale=f32";
  const char* const channel = "f8e4m3 per=channel scale=f32";
  const char* const group = "f8e4m3 group=128 scale=f32";
  const char* const block = "f8e4m3 block=128x128 scale=f32";
  const bool clusters = TargetHere().wgmma && TargetHere().sms % 2 == 0 && TargetHere().sms <= 132;
  const char* const pairs = clusters ? "kCluster = 2;" : "";
  ExpectCodesAgree({300, 17144, 656}, token, channel, 8192, Wanted::kProduct, pairs);
  ExpectCodesAgree({300, 17016, 272}, token, channel, 8192);
  ExpectCodesAgree({300, 17408, 272}, token, channel, 8192, Wanted::kGated, pairs);
  ExpectCodesAgree({300, 17408, 272}, group, block, 8192, Wanted::kProduct, pairs);
  ExpectCodesAgree({300, 17408, 272}, group, block, 8192, Wanted::kGated, pairs);
  ExpectCodesAgree({2500, 17144, 144}, token, channel, 8192, Wanted::kProduct, pairs);
  ExpectCodesAgree({4200, 264, 384}, token, channel, 8192);
  ExpectCodesAgree({300, 17144, 400}, "int8 per=token scale=f32", "int8 per=channel scale=f32", 8192, Wanted::kProduct,
                   pairs);
}

TEST(Quantized, SumsOfCodesOfOneSign) {
  LLMC_NEEDS_GPU();
  ExpectCodesAgree({300, 256, 4096}, "f8e4m3 per=tensor scale=f32", "f8e4m3 per=channel scale=f32", 8192,
                   Wanted::kOfOneSign);
}

TEST(Quantized, CodesOfBlocksByWarpgroups) {
  LLMC_NEEDS_GPU();
  for (const char* codes : {"f8e4m3", "f8e5m2"}) {
    const std::string x = absl::StrCat(codes, " group=128 scale=f32"), weight = "f8e4m3 block=128x128 scale=f32";
    for (const Sizes& s : {Sizes{9, 128, 128}, Sizes{33, 200, 400}, Sizes{200, 136, 1040}, Sizes{1, 8, 16}}) {
      ExpectCodesAgree(s, x, weight, 256);
    }
    for (const Sizes& s : {Sizes{1, 264, 272}, Sizes{300, 1000, 640}, Sizes{1100, 3000, 400}, Sizes{4200, 1032, 144}}) {
      ExpectCodesAgree(s, x, weight, 8192);
    }
  }
}

struct Codes {
  const char *x, *weight;
};
std::string NameOfCodes(const testing::TestParamInfo<Codes>& tested) {
  return absl::StrReplaceAll(absl::StrCat(tested.param.x, "_by_", tested.param.weight), {{" ", "_"}, {"=", "_"}});
}
constexpr Codes kCodesWithGates[] = {{"f8e4m3 per=token scale=f32", "f8e4m3 per=channel scale=f32"},
                                     {"f8e4m3 per=tensor scale=f32", "f8e4m3 per=tensor scale=f32"},
                                     {"int8 per=token scale=f32", "int8 per=channel scale=f32"},
                                     {"f8e4m3 group=128 scale=f32", "f8e4m3 block=128x128 scale=bf16"}};
constexpr Codes kOtherCodes[] = {{"int8 per=tensor scale=f32", "int8 per=channel scale=f32"},
                                 {"int8 per=token scale=f32", "int8 per=tensor scale=f32"},
                                 {"f8e4m3 per=token scale=f32", "f8e4m3 per=channel scale=bf16"}};

class CodesByWarpgroups : public testing::TestWithParam<Codes> {};
INSTANTIATE_TEST_SUITE_P(Quantized, CodesByWarpgroups, testing::ValuesIn(kCodesWithGates), NameOfCodes);
INSTANTIATE_TEST_SUITE_P(More, CodesByWarpgroups, testing::ValuesIn(kOtherCodes), NameOfCodes);

TEST_P(CodesByWarpgroups, AgreeWithTheEvaluator) {
  LLMC_NEEDS_GPU();
  for (const Sizes& s : {Sizes{33, 200, 400}, Sizes{1100, 3000, 400}, Sizes{4200, 1032, 2064}}) {
    ExpectCodesAgree(s, GetParam().x, GetParam().weight, s.m < 256 ? 256 : 8192);
  }
}

class GatedCodesByWarpgroups : public testing::TestWithParam<Codes> {};
INSTANTIATE_TEST_SUITE_P(Quantized, GatedCodesByWarpgroups, testing::ValuesIn(kCodesWithGates), NameOfCodes);

// Parts of tiles, many tiles, the tiles of few rows and their shared stages.
TEST_P(GatedCodesByWarpgroups, AgreeWithTheEvaluator) {
  LLMC_NEEDS_GPU();
  for (const Sizes& s : {Sizes{33, 256, 400}, Sizes{40, 208, 400}, Sizes{200, 1408, 272}, Sizes{1100, 3200, 400},
                         Sizes{4200, 1408, 144}, Sizes{17, 20480, 128}}) {
    const int64_t bound = s.m < 32 ? 32 : s.m < 256 ? 256 : 8192;
    ExpectCodesAgree(s, GetParam().x, GetParam().weight, bound, Wanted::kGated);
  }
}

TEST(Quantized, CodesOfFewRowsByCublasLt) {
  LLMC_NEEDS_GPU();
  ExpectCodesAgree({33, 208, 400}, "f8e4m3 per=tensor scale=f32", "f8e4m3 per=tensor scale=f32", 256);
}

// Sums that 32 bits do not hold.
TEST(Quantized, ManyTermsOfBytes) {
  LLMC_NEEDS_GPU();
  for (const int64_t bound : {8, 4096}) {
    const Tensor a = RandomInts(DType::kU8, {5, 70000}, 250, 256, 1),
                 b = RandomInts(DType::kU8, {9, 70000}, 250, 256, 2);
    ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim M <= BOUND
step main(%a: u8[M, 70000], %b: u8[9, 70000], %s: f32[], %z: u8[]) {
  %y.l = encode %a, %s {as = "uint8 per=tensor scale=f32"}
  %y.r = encode %b, %s {as = "uint8 per=tensor scale=f32"}
  %y = linear %y.l, %y.r {transpose_rhs = true}
  %x.l = encode %a, %s, %z {as = "uint8 per=tensor scale=f32 zero=u8"}
  %x.r = encode %b, %s, %z {as = "uint8 per=tensor scale=f32 zero=u8"}
  %x = linear %x.l, %x.r {transpose_rhs = true}
  return "y" = %y, "x" = %x
}
)",
                                                    {{"BOUND", absl::StrCat(bound)}}),
                        .inputs = {{"a", a},
                                   {"b", b},
                                   {"s", Scales(DType::kF32, {}, 3)},
                                   {"z", Tensor::FromValues(DType::kU8, {}, std::vector<int64_t>{1})}},
                        .dims = {{"M", 5}}});
    ExpectBytesAgree({6, 10, 40003}, DType::kU8, DType::kI8, DType::kF32, bound);
  }
}

TEST(Quantized, BatchesOfBytes) {
  LLMC_NEEDS_GPU();
  ExpectDeviceAgrees({.text = R"(model m
dim B <= 8
dim S <= 100
step main(%q: u8[B, 4, S, 16], %k: u8[B, 4, 16, S], %t: i8[B, 4, S, 16], %one: i8[4, 16, 5], %w: i8[16, 24],
          %s: f32[], %zq: u8[], %zk: u8[]) {
  %a.l = encode %q, %s, %zq {as = "uint8 per=tensor scale=f32 zero=u8"}
  %a.r = encode %k, %s, %zk {as = "uint8 per=tensor scale=f32 zero=u8"}
  %a = linear %a.l, %a.r
  %b.l = encode %q, %s, %zq {as = "uint8 per=tensor scale=f32 zero=u8"}
  %b.r = encode %t, %s {as = "int8 per=tensor scale=f32"}
  %b = linear %b.l, %b.r {transpose_rhs = true}
  %c.l = encode %q, %s {as = "uint8 per=tensor scale=f32"}
  %c.r = encode %one, %s {as = "int8 per=tensor scale=f32"}
  %c = linear %c.l, %c.r
  %d.l = encode %q, %s, %zq {as = "uint8 per=tensor scale=f32 zero=u8"}
  %d.r = encode %w, %s {as = "int8 per=tensor scale=f32"}
  %d = linear %d.l, %d.r
  return "a" = %a, "b" = %b, "c" = %c, "d" = %d
}
)",
                      .inputs = {{"q", Any(DType::kU8, {3, 4, 37, 16}, 1)},
                                 {"k", Any(DType::kU8, {3, 4, 16, 37}, 2)},
                                 {"t", Any(DType::kI8, {3, 4, 37, 16}, 3)},
                                 {"one", Any(DType::kI8, {4, 16, 5}, 4)},
                                 {"w", Any(DType::kI8, {16, 24}, 5)},
                                 {"s", Scales(DType::kF32, {}, 6)},
                                 {"zq", Any(DType::kU8, {}, 7)},
                                 {"zk", Any(DType::kU8, {}, 8)}},
                      .dims = {{"B", 3}, {"S", 37}}});
}

// Products of many rows round each number of the weight to the type of x, where the evaluator dequantizes it in f32:
// here the type holds all of them, as scales are powers of two.
void ExpectFloatsAgree(const Sizes& s, DType x, DType q, int64_t block, int64_t bound) {
  SCOPED_TRACE(absl::StrCat(s.m, " x ", s.n, " x ", s.k, ", ", NameOf(x), " and ", NameOf(q), ", blocks of ", block));
  const int64_t blocks = (s.k + block - 1) / block;
  const DType scale = x == DType::kF64 ? DType::kF32 : x;
  const double half = x == DType::kBF16 && DTypeBits(q) == 8 ? 8 : 7.5;  // differences of bytes fill bf16
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim M <= BOUND
step main(%x: X[M, K], %b: Q[K, N], %t: Q[N, K], %s: S[N], %z: Q[N], %sb: S[BLOCKS, N], %zb: Q[BLOCKS, N],
          %st: f32[N, BLOCKS], %zt: Q[N, BLOCKS], %one: S[], %half: f32[]) {
  %u.r = encode %t, %st, %zt {as = "FQ group=SIZE scale=f32 zero=Q", to = X}
  %u = linear %x, %u.r {transpose_rhs = true}
  %v.r = encode %t, %st, %half {as = "FQ group=SIZE scale=f32 zero=f32/tensor", to = X}
  %v = linear %x, %v.r {transpose_rhs = true}
  %w.r = encode %t, %s, %z {as = "FQ per=channel scale=S zero=Q", to = X}
  %w = linear %x, %w.r {transpose_rhs = true}
  %o.r = encode %t, %one {as = "FQ per=tensor scale=S", to = X}
  %o = linear %x, %o.r {transpose_rhs = true}
  %y.r = encode %b, %sb, %zb {as = "FQ group=SIZE along=-2 scale=S zero=Q", to = X}
  %y = linear %x, %y.r
  %c.r = encode %b, %s, %half {as = "FQ per=channel along=-2 scale=S zero=f32/tensor", to = X}
  %c = linear %x, %c.r
  return "u" = %u, "v" = %v, "w" = %w, "o" = %o, "y" = %y, "c" = %c
}
)",
                                                  {{"BOUND", absl::StrCat(bound)},
                                                   {"BLOCKS", absl::StrCat(blocks)},
                                                   {"SIZE", absl::StrCat(block)},
                                                   {"X", NameOf(x)},
                                                   {"Q", NameOf(q)},
                                                   {"FQ", FormatOf(q)},
                                                   {"S", NameOf(scale)},
                                                   {"N", absl::StrCat(s.n)},
                                                   {"K", absl::StrCat(s.k)}}),
                      .inputs = {{"b", Any(q, {s.k, s.n}, 2)},
                                 {"t", Any(q, {s.n, s.k}, 3)},
                                 {"s", Powers(scale, {s.n}, 4)},
                                 {"z", Any(q, {s.n}, 5)},
                                 {"sb", Powers(scale, {blocks, s.n}, 6)},
                                 {"zb", Any(q, {blocks, s.n}, 7)},
                                 {"st", Powers(DType::kF32, {s.n, blocks}, 8)},
                                 {"zt", Any(q, {s.n, blocks}, 9)},
                                 {"one", Powers(scale, {}, 10)},
                                 {"half", Tensor::FromValues(DType::kF32, {}, std::vector<double>{half})}},
                      .dims = {{"M", s.m}},
                      .tolerance = x == DType::kBF16  ? 1.0 / 64
                                   : x == DType::kF16 ? 1.0 / 512
                                                      : 0});
}

TEST(Quantized, Floats) {
  LLMC_NEEDS_GPU();
  for (const DType x : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    for (const DType q : {DType::kI8, DType::kU8, DType::kI4, DType::kU4}) {
      // Rows that are streamed, and others: of odd sizes, where elements of 4 bits begin within bytes, and of many
      // rows.
      ExpectFloatsAgree({1, 300, 512}, x, q, 32, 1);
      ExpectFloatsAgree({3, 41, 264}, x, q, 16, 4);
      ExpectFloatsAgree({8, 130, 1032}, x, q, 32, 8);
      ExpectFloatsAgree({5, 17, 33}, x, q, 16, 8);
      ExpectFloatsAgree({70, 65, 96}, x, q, 32, 100);
    }
  }
}

}  // namespace
}  // namespace llmc
