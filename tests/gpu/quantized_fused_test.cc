// Products of some rows and a quantized weight with what is fused to them, on a GPU, against the evaluator.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/quantized_numbers.h"

namespace llmc {
namespace {

struct Encoding {
  DType q;
  int64_t block;     // 0: a scale for each column
  std::string zero;  // type of zero points; empty: none
  bool block_zero;   // of blocks, else one for each column
};

const Encoding kEncodings[] = {{DType::kU4, 32, "u4", true},   {DType::kI4, 128, "", false},
                               {DType::kU4, 64, "TYPE", true}, {DType::kI8, 0, "", false},
                               {DType::kU8, 32, "u8", false},  {DType::kU4, 16, "u4", true},
                               {DType::kI8, 32, "f32", false}, {DType::kU4, 0, "i32", false}};

struct EncodedCase {
  std::string type;
  Encoding encoding;
  int64_t rows, n, k;
};

// The parts of a weight: codes, scales and zero points, as inputs, whose names end with `suffix`.
struct EncodedInputs {
  std::string declared;  // of the step
  std::string operands;  // of encode, with what it makes
  NamedTensors tensors;
};

EncodedInputs InputsOf(const EncodedCase& c, const std::string& suffix, int64_t n, int64_t k, uint64_t seed) {
  const Encoding& e = c.encoding;
  const Shape columns = {n}, blocks = {n, e.block == 0 ? 1 : (k + e.block - 1) / e.block};
  const DType scale = c.type == "bf16" ? DType::kBF16 : c.type == "f16" ? DType::kF16 : DType::kF32;
  EncodedInputs in;
  in.tensors = {{"q" + suffix, Any(e.q, {n, k}, seed)},
                {"s" + suffix, Powers(scale, e.block == 0 ? columns : blocks, seed + 1)}};
  in.operands = absl::StrCat("%q", suffix, ", %s", suffix);
  if (!e.zero.empty()) {
    const Shape shape = e.block_zero ? blocks : columns;
    const std::string name = e.zero == "TYPE" ? c.type : e.zero;
    const DType dtype = name == "u4"    ? DType::kU4
                        : name == "u8"  ? DType::kU8
                        : name == "i32" ? DType::kI32
                        : name == "f32" ? DType::kF32
                                        : scale;
    in.tensors["z" + suffix] = IsFloat(dtype)         ? RandomFloats(dtype, shape, seed + 2, 4)
                               : dtype == DType::kI32 ? RandomInts(dtype, shape, -20, 20, seed + 2)
                                                      : Any(dtype, shape, seed + 2);
    absl::StrAppend(&in.operands, ", %z", suffix);
  }
  for (const auto& [name, tensor] : in.tensors) {
    absl::StrAppend(&in.declared, ", %", name, ": ", NameOf(tensor.dtype()), ShapeToString(tensor.shape()));
  }
  const std::string format = absl::StrCat(e.q == DType::kU4 || e.q == DType::kU8 ? "uint" : "int", DTypeBits(e.q));
  const std::string granularity = e.block == 0 ? "per=channel" : absl::StrCat("group=", e.block);
  const auto zero = in.tensors.find("z" + suffix);
  const std::string zeros = zero == in.tensors.end() ? ""
                                                     : absl::StrCat(" zero=", NameOf(zero->second.dtype()),
                                                                    e.block != 0 && !e.block_zero ? "/channel" : "");
  absl::StrAppend(&in.operands, " {as = \"", format, " ", granularity, " scale=", c.type, zeros, "\"",
                  c.type == "f32" ? "" : absl::StrCat(", to = ", c.type), "}");
  return in;
}

int64_t BoundOf(int64_t rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : 32; }

void ExpectFusedAgree(const EncodedCase& c) {
  SCOPED_TRACE(absl::StrCat(c.type, ", ", NameOf(c.encoding.q), " in blocks of ", c.encoding.block, ", zeros ",
                            c.encoding.zero, ", ", c.rows, " x ", c.n, " x ", c.k));
  const EncodedInputs w = InputsOf(c, "", c.n, c.k, 10), g = InputsOf(c, "g", 2 * c.n, c.k, 20);
  NamedTensors inputs = w.tensors;
  inputs.insert(g.tensors.begin(), g.tensors.end());
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= BOUND
weight @norm: TYPE[K] = "f#n"
weight @b: TYPE[N] = "f#b"
step main(%x: TYPE[T, K], %y: TYPE[T, N]INPUTS) {
  %w = encode WEIGHT
  %plain = linear %x, %w {transpose_rhs = true}
  %p0 = linear %x, %w {transpose_rhs = true}
  %added = add %y, %p0
  %p1 = linear %x, %w {transpose_rhs = true}
  %biased = add %p1, @b
  %n = rms_norm %x, @norm
  %wg = encode GATED
  %g = linear %n, %wg {transpose_rhs = true}
  %gated = silu_mul %g
  return "plain" = %plain, "added" = %added, "biased" = %biased, "gated" = %gated
}
)",
                                                  {{"INPUTS", w.declared + g.declared},
                                                   {"WEIGHT", w.operands},
                                                   {"GATED", g.operands},
                                                   {"BOUND", absl::StrCat(BoundOf(c.rows))},
                                                   {"TYPE", c.type},
                                                   {"N", absl::StrCat(c.n)},
                                                   {"K", absl::StrCat(c.k)}}),
                      .inputs = inputs,
                      .dims = {{"T", c.rows}},
                      .tolerance = FusedTolerance(c.type)});
}

TEST(Quantized, FusedWithFewRows) {
  LLMC_NEEDS_GPU();
  for (const std::string type : {"f32", "f16", "bf16"}) {
    for (const Encoding& encoding : kEncodings) {
      for (const int64_t rows : {1, 3, 8}) {
        ExpectFusedAgree({type, encoding, rows, 300, 512});
        ExpectFusedAgree({type, encoding, rows, 41, 2048});
      }
    }
    // Several tiles and stages; rows in pieces; x in the ring; blocks that are not whole, or too small to be copied.
    ExpectFusedAgree({type, kEncodings[0], 2, 4700, 256});
    ExpectFusedAgree({type, kEncodings[0], 1, 520, 14336});
    ExpectFusedAgree({type, kEncodings[0], 8, 24, 14336});
    ExpectFusedAgree({type, kEncodings[4], 4, 700, 4096});
    ExpectFusedAgree({type, kEncodings[0], 3, 30, 96});
    ExpectFusedAgree({type, kEncodings[5], 3, 30, 72});
  }
}

// Rows that a norm writes in order and such that blocks put in order; tiles of 128 rows of the weight, in parts and as
// clusters; stages of one slab and of two, which those of clusters are in the case of 2048 terms.
TEST(Quantized, FusedWithSomeRows) {
  LLMC_NEEDS_GPU();
  ExpectFusedAgree({"bf16", kEncodings[1], 12, 8500, 512});
  ExpectFusedAgree({"bf16", kEncodings[1], 32, 600, 1536});
  ExpectFusedAgree({"bf16", kEncodings[1], 29, 4030, 2048});
  ExpectFusedAgree({"f16", kEncodings[1], 32, 8448, 1280});
  ExpectFusedAgree({"bf16", kEncodings[0], 17, 8500, 1024});
  ExpectFusedAgree({"bf16", kEncodings[3], 25, 8500, 512});
}

// A gate that is written in the order of the product that reads it.
void ExpectGateAndProductAgree(const EncodedCase& c, int64_t bound) {
  SCOPED_TRACE(absl::StrCat(c.type, ", ", NameOf(c.encoding.q), " in blocks of ", c.encoding.block, ", ", c.rows,
                            " of ", bound, " rows, ", c.n, " x ", c.k));
  const EncodedInputs g = InputsOf(c, "g", 2 * c.n, c.k, 10), w = InputsOf(c, "w", 300, c.n, 20);
  NamedTensors inputs = w.tensors;
  inputs.insert(g.tensors.begin(), g.tensors.end());
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= BOUND
weight @norm: TYPE[K] = "f#n"
step main(%x: TYPE[T, K], %y: TYPE[T, 300]INPUTS) {
  %n = rms_norm %x, @norm
  %wg = encode GATED
  %g = linear %n, %wg {transpose_rhs = true}
  %gated = silu_mul %g
  %w = encode WEIGHT
  %p = linear %gated, %w {transpose_rhs = true}
  %added = add %y, %p
  return "added" = %added
}
)",
                                                  {{"INPUTS", w.declared + g.declared},
                                                   {"WEIGHT", w.operands},
                                                   {"GATED", g.operands},
                                                   {"BOUND", absl::StrCat(bound)},
                                                   {"TYPE", c.type},
                                                   {"K", absl::StrCat(c.k)}}),
                      .inputs = inputs,
                      .dims = {{"T", c.rows}},
                      .tolerance = FusedTolerance(c.type),
                      .in_code = absl::StrCat("using OrderedBy = llmc::", NameOf(c.encoding.q), ";")});
}

TEST(Quantized, GateInOrderOfProduct) {
  LLMC_NEEDS_GPU();
  ExpectGateAndProductAgree({"bf16", kEncodings[1], 12, 1536, 256}, 32);
  ExpectGateAndProductAgree({"bf16", kEncodings[1], 40, 512, 256}, 256);
  ExpectGateAndProductAgree({"bf16", kEncodings[3], 19, 640, 256}, 32);
  ExpectGateAndProductAgree({"f16", kEncodings[1], 12, 1536, 256}, 32);
  ExpectGateAndProductAgree({"bf16", kEncodings[2], 12, 1536, 256}, 32);
}

void ExpectFusedBytesAgree(const std::string& type, DType a, DType b, const Sizes& s) {
  SCOPED_TRACE(absl::StrCat(type, ", ", NameOf(a), " and ", NameOf(b), ", ", s.m, " x ", s.n, " x ", s.k));
  const DType scale = type == "bf16" ? DType::kBF16 : type == "f16" ? DType::kF16 : DType::kF32;
  // Small scales, so that no result is past the largest number of 16 bits.
  const Tensor small = Tensor::FromValues(scale, {}, std::vector<double>{1.0 / 256});
  ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= BOUND
weight @b: TYPE[N] = "f#b"
step main(%x: A[T, K], %sx: TYPE[], %zx: A[], %q: B[N, K], %s: TYPE[N], %z: B[N], %qg: B[TWICE, K], %sg: TYPE[],
          %y: TYPE[T, N]) {
  %l = encode %x, %sx, %zx {as = "FA per=tensor scale=TYPE zero=A", to = TYPE}
  %w = encode %q, %s, %z {as = "FB per=channel scale=TYPE zero=B", to = TYPE}
  %plain = linear %l, %w {transpose_rhs = true}
  %p0 = linear %l, %w {transpose_rhs = true}
  %added = add %y, %p0
  %p1 = linear %l, %w {transpose_rhs = true}
  %biased = add %p1, @b
  %m = encode %x, %sx {as = "FA per=tensor scale=TYPE", to = TYPE}
  %g = encode %qg, %sg {as = "FB per=tensor scale=TYPE", to = TYPE}
  %both = linear %m, %g {transpose_rhs = true}
  %gated = silu_mul %both
  return "plain" = %plain, "added" = %added, "biased" = %biased, "gated" = %gated
}
)",
                                                  {{"BOUND", absl::StrCat(BoundOf(s.m))},
                                                   {"TYPE", type},
                                                   {"FA", FormatOf(a)},
                                                   {"FB", FormatOf(b)},
                                                   {"A", NameOf(a)},
                                                   {"B", NameOf(b)},
                                                   {"TWICE", absl::StrCat(2 * s.n)},
                                                   {"N", absl::StrCat(s.n)},
                                                   {"K", absl::StrCat(s.k)}}),
                      .inputs = {{"x", Any(a, {s.m, s.k}, 1)},
                                 {"sx", small},
                                 {"zx", Any(a, {}, 2)},
                                 {"q", Any(b, {s.n, s.k}, 3)},
                                 {"s", Powers(scale, {s.n}, 4)},
                                 {"z", Any(b, {s.n}, 5)},
                                 {"qg", Any(b, {2 * s.n, s.k}, 6)},
                                 {"sg", small},
                                 {"y", RandomFloats(scale, {s.m, s.n}, 7, 4)}},
                      .dims = {{"T", s.m}},
                      .tolerance = FusedTolerance(type)});
}

TEST(Quantized, BytesFusedWithFewRows) {
  LLMC_NEEDS_GPU();
  for (const std::string type : {"f32", "f16", "bf16"}) {
    for (const DType a : kBytes) {
      for (const DType b : kBytes) {
        // Rows that are streamed, in one stage and in several, also with x in the ring; and others.
        for (const Sizes& s : {Sizes{1, 300, 512}, Sizes{3, 700, 4096}, Sizes{8, 24, 14336}, Sizes{2, 4700, 256},
                               Sizes{5, 41, 76}, Sizes{8, 30, 96}}) {
          ExpectFusedBytesAgree(type, a, b, s);
        }
      }
    }
  }
}

// Queries, keys and values: the keys and values show in the attention that reads them.
// Each token is of a sequence with a page of its own.
void ExpectQkvAgrees(int64_t rows, int64_t bound, const std::vector<std::string>& types,
                     const std::vector<Encoding>& encodings) {
  std::vector<int64_t> pos, slots, lens, starts, pages;
  for (int64_t i = 0; i <= rows; ++i) starts.push_back(i);
  for (int64_t i = 0; i < rows; ++i) {
    pos.push_back(7 * i % 15);
    slots.push_back(16 * i + pos.back());
    lens.push_back(pos.back() + 1);
    pages.insert(pages.end(), {i, 15});
  }
  for (const std::string& type : types) {
    for (const Encoding& encoding : encodings) {
      const EncodedInputs w = InputsOf({type, encoding, rows, 512, 512}, "", 512, 512, 10);
      NamedTensors inputs = w.tensors;
      inputs.insert({{"pos", Ints(DType::kI32, pos)},
                     {"slots", Ints(DType::kI32, slots)},
                     {"lens", Ints(DType::kI32, lens)},
                     {"starts", Ints(DType::kI32, starts)},
                     {"pages", Tensor::FromValues(DType::kI32, {rows, 2}, pages)}});
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(absl::StrCat(type, ", ", NameOf(encoding.q), ", ", rows, " rows", biased ? ", biased" : ""));
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= BOUND
weight @norm: TYPE[512] = "f#n"
weight @b: TYPE[512] = "f#b"
weight @f: f32[32] = "f#f"
state @kv: paged[16, 16] {k: TYPE[2, 64], v: TYPE[2, 64]}
step main(%x: TYPE[T, 512], %pos: i32[T], %slots: i32[T], %pages: i32[T, 2], %lens: i32[T], %starts: i32[T + 1]INPUTS) {
  %n = rms_norm %x, @norm
  %w = encode WEIGHT
  %qkv0 = linear %n, %w {transpose_rhs = true}
  BIASED
  %q0 = slice QKV {axis = 1, start = [0], end = [256]}
  %k0 = slice QKV {axis = 1, start = [256], end = [384]}
  %v0 = slice QKV {axis = 1, start = [384], end = [512]}
  %r = rope %q0, %pos, @f {head_dim = 64}
  %k = rope %k0, %pos, @f {head_dim = 64}
  kv_write @kv, %k, %v0, %slots
  %a = paged_attention %r, @kv, %pages, %lens, %starts {scale = 0.01}
  return "r" = %r, "a" = %a
}
)",
                                                        {{"BIASED", biased ? "%qkv = add %qkv0, @b" : ""},
                                                         {"QKV", biased ? "%qkv" : "%qkv0"},
                                                         {"INPUTS", w.declared},
                                                         {"WEIGHT", w.operands},
                                                         {"BOUND", absl::StrCat(bound)},
                                                         {"TYPE", type}}),
                            .inputs = inputs,
                            .dims = {{"T", rows}},
                            .tolerance = FusedTolerance(type)});
      }
    }
  }
}

TEST(Quantized, QkvWithRope) {
  LLMC_NEEDS_GPU();
  ExpectQkvAgrees(3, 4, {"f32", "f16", "bf16"}, {kEncodings[0], kEncodings[3], kEncodings[5]});
}

TEST(Quantized, QkvWithRopeOfSomeRows) {
  LLMC_NEEDS_GPU();
  ExpectQkvAgrees(12, 32, {"f16", "bf16"}, {kEncodings[1], kEncodings[3]});
  ExpectQkvAgrees(11, 256, {"bf16"}, {kEncodings[1]});
}

}  // namespace
}  // namespace llmc
