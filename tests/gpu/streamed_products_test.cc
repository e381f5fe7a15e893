// Products of few rows of two factors of 8 bits, or of elements of 16 (kernels/linear/streamed_gemm.cuh), with what is
// fused to them, on a GPU, against the evaluator.
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/dtype.h"
#include "ir/text.h"
#include "kernels/layout/linear.h"
#include "tests/gpu/quantized_numbers.h"

namespace llmc {
namespace {

struct StreamedFactors {
  std::string x, weight;      // encodings; of elements the type
  std::string type = "bf16";  // of sums

  bool are_elements() const { return weight == type; }
};
const StreamedFactors kFactors[] = {
    {"bf16", "bf16"},
    {"f16", "f16", "f16"},
    {"f8e4m3 per=token scale=f32", "f8e4m3 per=channel scale=f32"},
    {"f8e5m2 per=token scale=f32", "f8e4m3 per=tensor scale=f32"},
    {"f8e4m3 group=128 scale=f32", "f8e4m3 block=128x128 scale=f32"},
    {"int8 per=token scale=f32", "int8 per=channel scale=f32"},
    {"int8 per=tensor scale=f32", "int8 per=channel scale=f32"},
};

// A factor: its declarations, with a symbol in place of the rows of x, and its tensors; how a step makes numbers of
// codes, and what they are called then.
struct Factor {
  std::string declared, made, numbers;
  NamedTensors tensors;
};
Factor FactorOf(const StreamedFactors& factors, const std::string& name, int64_t rows, int64_t columns,
                const std::string& symbol, uint64_t seed) {
  const std::string as = name == "x" ? factors.x : factors.weight;
  const std::string shape_text = absl::StrCat("[", symbol.empty() ? absl::StrCat(rows) : symbol, ", ", columns, "]");
  if (factors.are_elements()) {
    const DType dtype = *ParseDType(factors.type);
    return {.declared = absl::StrCat("%", name, ": ", factors.type, shape_text),
            .numbers = absl::StrCat("%", name),
            .tensors = {{name, RandomFloats(dtype, {rows, columns}, seed)}}};
  }
  const auto* e = *ParseEncoding(as);
  const DType codes = e->format->codes;
  TensorType scales = e->ComponentType(1, {Dim(rows), Dim(columns)});
  Shape shape;
  for (const Dim& dim : scales.shape) shape.push_back(dim.value());
  Factor factor = {.made = absl::StrCat("  %", name, "n = encode %", name, ", %s", name, " {as = \"", as,
                                        "\", to = ", factors.type, "}\n"),
                   .numbers = absl::StrCat("%", name, "n")};
  factor.tensors = {
      {name, IsFloat(codes) ? RandomFloats(codes, {rows, columns}, seed) : Any(codes, {rows, columns}, seed)},
      {"s" + name, Powers(scales.dtype, shape, seed + 1)}};
  if (!symbol.empty() && scales.rank() > 0) scales.shape[0] = Dim::Symbol(symbol);
  factor.declared = absl::StrCat("%", name, ": ", NameOf(codes), shape_text, ", %s", name, ": ", scales.ToString());
  return factor;
}

DeviceCase FusedCase(const StreamedFactors& factors, const Sizes& s, int64_t bound) {
  const Factor x = FactorOf(factors, "x", s.m, s.k, "M", 1), w = FactorOf(factors, "w", s.n, s.k, "", 3),
               g = FactorOf(factors, "g", 2 * s.n, s.k, "", 5);
  DeviceCase c = {.text = absl::StrReplaceAll(R"(model m
dim M <= BOUND
weight @b: TYPE[COLUMNS] = "f#b"
step main(INPUTS, %y: TYPE[M, COLUMNS]) {
MADE  %plain = linear LEFT, RIGHT {transpose_rhs = true}
  %p0 = linear LEFT, RIGHT {transpose_rhs = true}
  %added = add %y, %p0
  %p1 = linear LEFT, RIGHT {transpose_rhs = true}
  %biased = add %p1, @b
  %both = linear LEFT, GATES {transpose_rhs = true}
  %gated = silu_mul %both
  return "plain" = %plain, "added" = %added, "biased" = %biased, "gated" = %gated
}
)",
                                              {{"INPUTS", absl::StrCat(x.declared, ", ", w.declared, ", ", g.declared)},
                                               {"MADE", absl::StrCat(x.made, w.made, g.made)},
                                               {"LEFT", x.numbers},
                                               {"RIGHT", w.numbers},
                                               {"GATES", g.numbers},
                                               {"BOUND", absl::StrCat(bound)},
                                               {"TYPE", factors.type},
                                               {"COLUMNS", absl::StrCat(s.n)}}),
                  .inputs = x.tensors,
                  .dims = {{"M", s.m}},
                  .tolerance = FusedTolerance(factors.type)};
  if (factors.are_elements() && bound > kMaxGemvRows && bound <= kMaxStreamedElementRows)
    c.in_code = "StreamedGemmSiluMul";
  for (const Factor* factor : {&w, &g}) c.inputs.insert(factor->tensors.begin(), factor->tensors.end());
  c.inputs["y"] = RandomFloats(*ParseDType(factors.type), {s.m, s.n}, 7, 4);
  return c;
}

class StreamedProducts : public ::testing::TestWithParam<StreamedFactors> {};

// Of all numbers of rows for which the kernel has tiles of their own; parts of tiles and of stages, one tile for many
// blocks, and tiles that end within blocks' parts.
TEST_P(StreamedProducts, AgreeWithTheEvaluator) {
  LLMC_NEEDS_GPU();
  struct Case {
    Sizes sizes;
    int64_t bound;
  };
  for (const auto& [s, bound] :
       {Case{{3, 200, 400}, 8}, Case{{1, 64, 4096}, 1}, Case{{9, 320, 400}, 32}, Case{{32, 4160, 1040}, 32},
        Case{{17, 20480, 128}, 32}, Case{{31, 128, 14336}, 32}, Case{{60, 192, 400}, 64}, Case{{1, 192, 400}, 128},
        Case{{64, 1216, 1040}, 128}, Case{{65, 192, 2064}, 128}, Case{{128, 320, 400}, 128}}) {
    if (s.n % 64 != 0 && absl::StrContains(GetParam().weight, "block")) continue;  // no gates of these
    SCOPED_TRACE(absl::StrCat(s.m, " x ", s.n, " x ", s.k, ", up to ", bound));
    ExpectDeviceAgrees(FusedCase(GetParam(), s, bound));
  }
}

double RootMeanSquare(const Tensor& tensor) {
  double squares = 0;
  for (const double value : tensor.ToDoubles()) squares += value * value;
  return std::sqrt(squares / static_cast<double>(tensor.size()));
}

// Divides the scales of a factor, or its elements, so that its numbers are of the size 1 / sqrt(terms).
void Shrink(const std::string& name, double terms, Factor* factor) {
  const auto scales = factor->tensors.find("s" + name);
  Tensor& numbers = factor->tensors.at(name);
  Tensor& divided = scales != factor->tensors.end() ? scales->second : numbers;
  const double of_scales = scales != factor->tensors.end() ? RootMeanSquare(scales->second) : 1;
  const double size = RootMeanSquare(numbers) * of_scales * std::sqrt(terms);
  for (int64_t i = 0; i < divided.size(); ++i) divided.SetFloat(i, static_cast<float>(divided.GetFloat(i) / size));
}

// Queries, keys and values: the keys and values show in the attention that reads them. Each token is of a sequence with
// a page of its own. Sums are of the size 1: else some scores stand so far above others that the last bit of a key
// decides between them.
TEST_P(StreamedProducts, TurnHeads) {
  LLMC_NEEDS_GPU();
  for (const auto& [rows, bound] : {std::pair<int64_t, int64_t>{5, 8}, {12, 32}}) {
    for (const int64_t head : {64, 128}) {
      SCOPED_TRACE(absl::StrCat(rows, " rows, heads of ", head));
      std::vector<int64_t> pos, slots, lens, starts, pages;
      for (int64_t i = 0; i <= rows; ++i) starts.push_back(i);
      for (int64_t i = 0; i < rows; ++i) {
        pos.push_back(7 * i % 15);
        slots.push_back(16 * i + pos.back());
        lens.push_back(pos.back() + 1);
        pages.insert(pages.end(), {i, 15});
      }
      Factor x = FactorOf(GetParam(), "x", rows, 512, "M", 1), w = FactorOf(GetParam(), "w", 8 * head, 512, "", 3);
      Shrink("x", 512, &x);
      Shrink("w", 1, &w);
      DeviceCase c = {.text = absl::StrReplaceAll(R"(model m
dim M <= BOUND
weight @f: f32[HALF] = "f#f"
state @kv: paged[16, 16] {k: TYPE[2, HEAD], v: TYPE[2, HEAD]}
step main(INPUTS, %pos: i32[M], %slots: i32[M], %pages: i32[M, 2], %lens: i32[M], %starts: i32[M + 1]) {
MADE  %qkv = linear LEFT, RIGHT {transpose_rhs = true}
  %q0 = slice %qkv {axis = 1, start = [0], end = [FOUR]}
  %k0 = slice %qkv {axis = 1, start = [FOUR], end = [SIX]}
  %v0 = slice %qkv {axis = 1, start = [SIX], end = [EIGHT]}
  %q = rope %q0, %pos, @f {head_dim = HEAD}
  %k = rope %k0, %pos, @f {head_dim = HEAD}
  kv_write @kv, %k, %v0, %slots
  %a = paged_attention %q, @kv, %pages, %lens, %starts {scale = 0.1}
  return "q" = %q, "a" = %a
}
)",
                                                  {{"INPUTS", absl::StrCat(x.declared, ", ", w.declared)},
                                                   {"BOUND", absl::StrCat(bound)},
                                                   {"MADE", absl::StrCat(x.made, w.made)},
                                                   {"LEFT", x.numbers},
                                                   {"RIGHT", w.numbers},
                                                   {"TYPE", GetParam().type},
                                                   {"HEAD", absl::StrCat(head)},
                                                   {"HALF", absl::StrCat(head / 2)},
                                                   {"FOUR", absl::StrCat(4 * head)},
                                                   {"SIX", absl::StrCat(6 * head)},
                                                   {"EIGHT", absl::StrCat(8 * head)}}),
                      .inputs = x.tensors,
                      .dims = {{"M", rows}},
                      .tolerance = FusedTolerance(GetParam().type)};
      c.inputs.insert(w.tensors.begin(), w.tensors.end());
      c.inputs.insert({{"pos", Ints(DType::kI32, pos)},
                       {"slots", Ints(DType::kI32, slots)},
                       {"lens", Ints(DType::kI32, lens)},
                       {"starts", Ints(DType::kI32, starts)},
                       {"pages", Tensor::FromValues(DType::kI32, {rows, 2}, pages)}});
      ExpectDeviceAgrees(c);
    }
  }
}

// The first rows of each tensor whose first axis is that of the batch.
NamedTensors FirstRows(const NamedTensors& all, int64_t batch, int64_t rows) {
  NamedTensors first;
  for (const auto& [name, tensor] : all) {
    Shape shape = tensor.shape();
    if (shape.empty() || shape[0] != batch) {
      first[name] = tensor;
      continue;
    }
    shape[0] = rows;
    Tensor part(tensor.dtype(), shape);
    for (int64_t i = 0; i < part.size(); ++i) {
      if (IsFloat(part.dtype())) {
        part.SetFloat(i, tensor.GetFloat(i));
      } else {
        part.SetInt(i, tensor.GetInt(i));
      }
    }
    first[name] = part;
  }
  return first;
}

// A row has the same bits in every number of rows of a program.
TEST_P(StreamedProducts, OfARowAreTheSameInEveryBatch) {
  LLMC_NEEDS_GPU();
  for (const int64_t bound : {8, 32, 128}) {
    SCOPED_TRACE(absl::StrCat("up to ", bound));
    const DeviceCase c = FusedCase(GetParam(), {bound, 1152, 2048}, bound);
    const absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(c.text, "case.lir");
    ASSERT_TRUE(model.ok()) << model.status();
    (*model)->data["@b"] = RandomFloats(*ParseDType(GetParam().type), {1152}, 9);
    const absl::StatusOr<NamedTensors> all = RunOnDevice(**model, c.inputs);
    ASSERT_TRUE(all.ok()) << all.status();
    for (const int64_t rows : {int64_t{1}, bound / 2, bound - 1}) {
      const absl::StatusOr<NamedTensors> some = RunOnDevice(**model, FirstRows(c.inputs, bound, rows));
      ASSERT_TRUE(some.ok()) << some.status();
      const NamedTensors wanted = FirstRows(*all, bound, rows);
      for (const auto& [name, tensor] : *some) {
        for (int64_t i = 0; i < tensor.size(); ++i) {
          ASSERT_EQ(tensor.GetFloat(i), wanted.at(name).GetFloat(i)) << name << " of " << rows << " rows, at " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Factors, StreamedProducts, ::testing::ValuesIn(kFactors), [](const auto& info) {
  return absl::StrReplaceAll(absl::StrCat(info.param.x, "_", info.param.weight), {{" ", "_"}, {"=", ""}});
});

}  // namespace
}  // namespace llmc
