// Attention on a GPU, over a paged cache and over whole tensors, over shapes at the edges, against the evaluator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "tests/gpu/device_check.h"

namespace llmc {
namespace {

struct SequenceInStep {
  int64_t tokens, length;  // in the step; in the cache, after it
};

struct AttentionForm {
  std::string type;
  int64_t kv_heads, group, head_dim, page_size;
  std::string attributes;
  bool by_token = false;  // the kernel that keeps weights in f32
  int64_t value_dim = 0;  // 0: as wide as keys
  bool sinks = false, slopes = false;
};

// Pages in any order; keys and values of all positions are written first.
// Over 60 lines: the step, and the program that runs it.
void ExpectAttentionAgrees(const AttentionForm& form, const std::vector<SequenceInStep>& sequences) {
  int64_t pages = 0, pages_per_sequence = 1;
  const int64_t value_dim = form.value_dim == 0 ? form.head_dim : form.value_dim;
  for (const SequenceInStep& s : sequences) {
    const int64_t needed = (s.length + form.page_size - 1) / form.page_size;
    pages += needed;
    pages_per_sequence = std::max(pages_per_sequence, needed);
  }
  std::vector<int64_t> order(pages), table, lens, starts = {0}, slots;
  for (int64_t i = 0; i < pages; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  for (const SequenceInStep& s : sequences) {
    const int64_t first = static_cast<int64_t>(table.size());
    for (int64_t p = 0; p < s.length; ++p) {
      if (p % form.page_size == 0) {
        table.push_back(order.back());
        order.pop_back();
      }
      slots.push_back(table.back() * form.page_size + p % form.page_size);
    }
    table.resize(first + pages_per_sequence, 0);
    lens.push_back(s.length);
    starts.push_back(starts.back() + s.tokens);
  }
  const int64_t count = static_cast<int64_t>(sequences.size());
  SCOPED_TRACE(absl::StrCat(form.type, " ", form.kv_heads, " * ", form.group, " heads of ", form.head_dim,
                            ", pages of ", form.page_size, form.attributes, ", ", count, " sequences"));
  const std::string heads = absl::StrCat(form.kv_heads * form.group);
  const std::string parameters = absl::StrCat(form.sinks ? absl::StrCat(", %sinks: f32[", heads, "]") : "",
                                              form.slopes ? absl::StrCat(", %slopes: f32[", heads, "]") : "");
  const std::string terms = absl::StrCat(form.sinks    ? ", %sinks"
                                         : form.slopes ? ", _"
                                                       : "",
                                         form.slopes ? ", %slopes" : "");
  DeviceCase c;
  c.text = absl::StrReplaceAll(R"(model m
dim P <= 4096
dim S <= 256
dim T <= 4096
dim U <= 65536
state @kv0: paged[PAGES, SIZE] {k: TYPE[KV_HEADS, DIM], v: TYPE[KV_HEADS, VALUE_DIM]}
step main(%q: TYPE[T, WIDTH], %k: TYPE[U, KV_WIDTH], %v: TYPE[U, VALUE_WIDTH], %slots: i32[U], %pages: i32[S, P],
          %lens: i32[S], %starts: i32[S + 1]PARAMETERS) {
  kv_write @kv0, %k, %v, %slots
  %a = paged_attention %q, @kv0, %pages, %lens, %startsTERMS {scale = 0.125ATTRIBUTES}
  return "a" = %a
}
)",
                               {{"PARAMETERS", parameters},
                                {"TERMS", terms},
                                {"TYPE", form.type},
                                {"PAGES", absl::StrCat(pages)},
                                {"SIZE", absl::StrCat(form.page_size)},
                                {"KV_HEADS", absl::StrCat(form.kv_heads)},
                                {"KV_WIDTH", absl::StrCat(form.kv_heads * form.head_dim)},
                                {"VALUE_WIDTH", absl::StrCat(form.kv_heads * value_dim)},
                                {"DIM", absl::StrCat(form.head_dim)},
                                {"VALUE_DIM", absl::StrCat(value_dim)},
                                {"WIDTH", absl::StrCat(form.kv_heads * form.group * form.head_dim)},
                                {"ATTRIBUTES", form.attributes}});
  c.dims = {{"T", starts.back()}, {"U", static_cast<int64_t>(slots.size())}, {"S", count}, {"P", pages_per_sequence}};
  c.inputs["pages"] = Tensor::FromValues(DType::kI32, {count, pages_per_sequence}, table);
  c.inputs["lens"] = Ints(DType::kI32, lens);
  c.inputs["starts"] = Ints(DType::kI32, starts);
  c.inputs["slots"] = Ints(DType::kI32, slots);
  const DType type = *ParseDType(form.type);
  const auto written = static_cast<int64_t>(slots.size());
  c.inputs["q"] = RepeatedFloats(type, {starts.back(), form.kv_heads * form.group * form.head_dim}, 3);
  c.inputs["k"] = RepeatedFloats(type, {written, form.kv_heads * form.head_dim}, 1);
  c.inputs["v"] = RepeatedFloats(type, {written, form.kv_heads * value_dim}, 2);
  if (form.slopes) {
    // As ALiBi has them: near keys count most, so that rounded scores of far ones do not.
    const int64_t count_of_heads = form.kv_heads * form.group;
    std::vector<float> slopes;
    for (int64_t h = 0; h < count_of_heads; ++h) {
      slopes.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(count_of_heads)));
    }
    c.inputs["slopes"] = Tensor::FromValues(DType::kF32, {count_of_heads}, slopes);
  }
  // Outputs of long rows are small beside those of short ones. Weights are rounded to the type before they meet values:
  // an error of a row's own size times that rounding, beside that of the result.
  c.by_row = true;
  if (form.type != "f32" && !form.by_token) c.tolerance = form.type == "f16" ? 1.0 / 512 : 1.0 / 64;
  ExpectDeviceAgrees(c);
}

const std::vector<std::vector<SequenceInStep>>& Steps() {
  static const auto* steps = new std::vector<std::vector<SequenceInStep>>{
      {{1, 1}},
      {{1, 1000}},
      {{200, 200}},
      // Single tokens, chunks with and without a cached prefix, no token, ends of pages.
      {{1, 16}, {1, 17}, {3, 33}, {0, 40}, {64, 64}, {1, 700}, {130, 400}, {5, 5}, {1, 1}, {17, 300}, {2, 31}},
  };
  return *steps;
}

// Of few tokens a sequence: contexts that are split over many blocks, and as many sequences as there are blocks.
const std::vector<std::vector<SequenceInStep>>& DecodeSteps() {
  static const auto* const steps = [] {
    auto* made = new std::vector<std::vector<SequenceInStep>>{{{1, 5000}}, {{1, 1}, {1, 3001}, {1, 128}, {2, 129}}};
    std::vector<SequenceInStep>& many = made->emplace_back();
    for (int64_t i = 0; i < 150; ++i) many.push_back({1, 1 + i * 37 % 300});
    return made;
  }();
  return *steps;
}

TEST(PagedAttention, OnTensorCores) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"bf16", 2, 4, 128, 16, ""},
           {"f16", 2, 4, 64, 16, ", window = 100"},
           {"bf16", 1, 16, 64, 8, ", softcap = 20.0"},
           {"f16", 3, 1, 80, 32, ""},
           {"bf16", 1, 7, 256, 5, ", window = 33, softcap = 20.0"},
           {"f16", 1, 24, 16, 16, ""},
           {"bf16", 2, 2, 40, 16, ", window = 16"},
           {"bf16", 2, 4, 128, 64, ""},
           {"f16", 4, 2, 64, 64, ", window = 100"},
       }) {
    for (const auto& step : Steps()) ExpectAttentionAgrees(form, step);
  }
}

// Pages that maps of tiles copy, smaller and larger than a copy, windows that begin in a tile; blocks take several
// turns, so that stages are taken by copies of both kinds.
TEST(PagedAttention, ByMapsOfTiles) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"bf16", 8, 4, 128, 8, ""},
           {"bf16", 8, 4, 128, 16, ", window = 300"},
           {"f16", 8, 4, 64, 64, ""},
           {"bf16", 8, 4, 128, 128, ", window = 200"},
       }) {
    ExpectAttentionAgrees(form, {{150, 500}, {130, 400}, {250, 250}});
  }
}

// Chunks that end in pages, in tiles and in sequences, and longer ones than these.
TEST(PagedAttention, OfChunks) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"bf16", 2, 5, 128, 16, ", chunk = 100"},
           {"f16", 2, 4, 64, 16, ", chunk = 33"},
           {"f16", 1, 24, 16, 16, ", chunk = 7"},
           {"bf16", 1, 7, 256, 5, ", chunk = 64, softcap = 20.0"},
           {"bf16", 2, 2, 40, 16, ", chunk = 4096"},
           {"bf16", 2, 4, 64, 16, ", chunk = 48", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true},
           {"f32", 2, 2, 64, 16, ", chunk = 50"},
           {"f32", 2, 3, 10, 16, ", chunk = 1"},
           {"bf16", 2, 3, 20, 16, ", chunk = 10", /*by_token=*/true},
       }) {
    for (const auto& step : Steps()) ExpectAttentionAgrees(form, step);
    for (const auto& step : DecodeSteps()) ExpectAttentionAgrees(form, step);
  }
}

TEST(PagedAttention, Exactly) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"f32", 2, 2, 64, 16, ""},
           {"f32", 1, 20, 100, 7, ", window = 50, softcap = 20.0"},
           {"f32", 2, 3, 10, 16, ""},
       }) {
    for (const auto& step : Steps()) ExpectAttentionAgrees(form, step);
  }
}

TEST(PagedAttention, OfValuesOfAnotherSize) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"bf16", 2, 4, 128, 16, "", /*by_token=*/true, /*value_dim=*/64},
           {"f32", 2, 2, 24, 64, ", window = 50", /*by_token=*/true, /*value_dim=*/40},
           {"f16", 1, 3, 20, 5, ", softcap = 20.0", /*by_token=*/true, /*value_dim=*/256},
       }) {
    for (const auto& step : Steps()) ExpectAttentionAgrees(form, step);
  }
}

TEST(PagedAttention, WithSinksAndSlopes) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"bf16", 2, 4, 64, 16, "", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true},
           {"f16", 1, 8, 64, 16, ", window = 33", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true},
           {"bf16", 1, 16, 128, 64, ", window = 100", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true},
           {"f16", 1, 24, 16, 16, "", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true},
           {"bf16", 4, 1, 80, 16, "", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/false, /*slopes=*/true},
           {"f16", 8, 1, 64, 16, "", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/false, /*slopes=*/true},
           {"bf16", 2, 3, 128, 5, ", window = 33, softcap = 20.0", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true,
            /*slopes=*/true},
           {"f16", 1, 7, 256, 16, "", /*by_token=*/false, /*value_dim=*/0, /*sinks=*/true, /*slopes=*/true},
           {"f32", 2, 3, 64, 16, ", window = 50", /*by_token=*/true, /*value_dim=*/0, /*sinks=*/true},
           {"f32", 2, 3, 10, 7, ", softcap = 20.0", /*by_token=*/true, /*value_dim=*/0, /*sinks=*/true,
            /*slopes=*/true},
       }) {
    for (const auto& step : Steps()) ExpectAttentionAgrees(form, step);
    for (const auto& step : DecodeSteps()) ExpectAttentionAgrees(form, step);
  }
}

// Latent attention reads keys as values, in one head for all queries.
TEST(PagedAttention, OfWideHeads) {
  LLMC_NEEDS_GPU();
  for (const AttentionForm& form : std::vector<AttentionForm>{
           {"bf16", 1, 16, 576, 64, ", values = \"k\""},
           {"f16", 1, 6, 40, 16, ", values = \"k\", window = 50"},
           {"bf16", 1, 80, 192, 5, ", values = \"k\""},
           {"bf16", 1, 3, 580, 16, ", values = \"k\"", /*by_token=*/true},
           {"f32", 1, 5, 300, 16, "", /*by_token=*/true, /*value_dim=*/26},
           {"f16", 1, 4, 1024, 16, ", window = 50", /*by_token=*/true, /*value_dim=*/0, /*sinks=*/true},
           {"bf16", 1, 3, 577, 5, "", /*by_token=*/true, /*value_dim=*/512},
           {"f32", 1, 3, 8, 5, "", /*by_token=*/true, /*value_dim=*/1024},
       }) {
    for (const auto& step : Steps()) ExpectAttentionAgrees(form, step);
    for (const auto& step : DecodeSteps()) ExpectAttentionAgrees(form, step);
  }
  ExpectAttentionAgrees({"f16", 1, 128, 576, 64, ", values = \"k\""}, Steps().back());
}

TEST(PagedAttention, OfHeadsThatNoVectorDivides) {
  LLMC_NEEDS_GPU();
  for (const auto& step : Steps()) ExpectAttentionAgrees({"bf16", 2, 3, 20, 16, "", /*by_token=*/true}, step);
}

struct WholeForm {
  std::string type;
  int64_t kv_heads, group, dim, value_dim;
  std::string mask;  // as its parameter's type, "bool[B, 1, 1, K]"; empty: none
  std::string attributes;
  std::string scale = "0.125";
  std::string target = {};  // as in DeviceCase
};

// A mask that hides about a third: by -infinity, by the lowest number of its type, or by -1e4. Of several rows the
// first sees nothing, the second only what is as low as can be.
Tensor MaskOf(DType dtype, Shape shape) {
  if (dtype == DType::kBool) return RandomInts(dtype, std::move(shape), 0, 2, 7);
  const double lowest = dtype == DType::kF16 ? -65504 : -3.3895e38;
  const int64_t columns = shape.back();
  Tensor mask = RandomFloats(dtype, std::move(shape), 7);
  const bool has_rows = mask.size() > 2 * columns;
  std::mt19937_64 random(3);
  for (int64_t i = 0; i < mask.size(); ++i) {
    const uint64_t draw = random() % 9;
    if ((has_rows && i < columns) || draw == 0) {
      mask.SetFloat(i, -std::numeric_limits<double>::infinity());
    } else if ((has_rows && i < 2 * columns) || draw == 1) {
      mask.SetFloat(i, lowest);
    } else if (draw == 2) {
      mask.SetFloat(i, -1e4);
    }
  }
  return mask;
}

struct WholeSizes {
  int64_t batch, queries, keys;
};

void ExpectWholeAttentionAgrees(const WholeForm& form, const WholeSizes& sizes) {
  SCOPED_TRACE(absl::StrCat(form.type, " ", form.kv_heads, " * ", form.group, " heads of ", form.dim, ", ",
                            form.value_dim, form.attributes, ", mask ", form.mask, ", ", sizes.batch, " times ",
                            sizes.queries, " queries, ", sizes.keys, " keys"));
  DeviceCase c;
  c.text = absl::StrReplaceAll(R"(model m
dim B <= 64
dim L <= 4096
dim K <= 4096
step main(%q: TYPE[B, HEADS, L, DIM], %k: TYPE[B, KV, K, DIM], %v: TYPE[B, KV, K, VALUES]PARAMETER) {
  %a = attention %q, %k, %vOPERAND {scale = SCALEATTRIBUTES}
  return "a" = %a
}
)",
                               {{"TYPE", form.type},
                                {"SCALE", form.scale},
                                {"PARAMETER", form.mask.empty() ? "" : absl::StrCat(", %m: ", form.mask)},
                                {"OPERAND", form.mask.empty() ? "" : ", %m"},
                                {"HEADS", absl::StrCat(form.kv_heads * form.group)},
                                {"KV", absl::StrCat(form.kv_heads)},
                                {"DIM", absl::StrCat(form.dim)},
                                {"VALUES", absl::StrCat(form.value_dim)},
                                {"ATTRIBUTES", form.attributes}});
  c.dims = {{"B", sizes.batch}, {"L", sizes.queries}, {"K", sizes.keys}};
  if (!form.mask.empty()) {
    const auto model = ParseModel(c.text, "mask.lir");
    ASSERT_TRUE(model.ok()) << model.status();
    const TensorType& type = (*model)->steps[0]->params.back()->type;
    Shape shape;
    for (const Dim& dim : type.shape) shape.push_back(*dim.Evaluate(c.dims));
    c.inputs["m"] = MaskOf(type.dtype, shape);
  }
  c.by_row = true;
  c.tolerance = form.type == "f16" ? 1.0 / 512 : 1.0 / 64;
  c.target = form.target;
  ExpectDeviceAgrees(c);
}

TEST(WholeAttention, AtTheEdges) {
  LLMC_NEEDS_GPU();
  for (const WholeForm& form : std::vector<WholeForm>{
           {"bf16", 2, 1, 64, 64, "", ""},
           {"f16", 2, 4, 128, 128, "", ", causal = true"},
           {"bf16", 1, 3, 128, 128, "bool[B, 1, 1, K]", ""},
           {"f16", 2, 2, 64, 64, "f16[L, K]", ""},
           {"bf16", 2, 1, 64, 64, "f32[B, 2, L, K]", ", softcap = 20.0"},
           {"f16", 2, 2, 128, 128, "bool[B, 1, L, K]", ", causal = true, causal_from_end = true"},
           {"bf16", 2, 2, 128, 128, "bf16[B, 4, L, 1]", ", causal = true"},
           {"f16", 3, 1, 80, 80, "bool[L, K]", ""},
           {"bf16", 2, 2, 24, 40, "bf16[1, 1, L, K]", ", softcap = 5.0"},
           {"f16", 1, 2, 192, 128, "", ", causal = true, causal_from_end = true"},
           {"bf16", 1, 7, 256, 256, "f32[K]", ""},
           {"f16", 1, 1, 16, 8, "", ", softcap = 20.0"},
           {"f16", 2, 2, 64, 64, "f16[L, K]", "", "-0.5"},
       }) {
    for (const WholeSizes& sizes :
         std::vector<WholeSizes>{{1, 1, 1}, {2, 1, 700}, {2, 200, 200}, {1, 129, 65}, {3, 64, 128}, {1, 300, 77}}) {
      ExpectWholeAttentionAgrees(form, sizes);
    }
  }
}

TEST(WholeAttention, OfNothing) {
  LLMC_NEEDS_GPU();
  for (const WholeForm& form : std::vector<WholeForm>{{"bf16", 2, 1, 64, 64, "", ""},
                                                      {"f16", 2, 2, 128, 128, "bool[B, 1, L, K]", ""},
                                                      {"f16", 1, 1, 80, 80, "", ""}}) {
    for (const WholeSizes& sizes : std::vector<WholeSizes>{{0, 5, 5}, {2, 0, 7}, {2, 5, 0}}) {
      ExpectWholeAttentionAgrees(form, sizes);
    }
  }
}

// What GPUs without warpgroups run: the sources of a plan for them, compiled for the one that is here.
TEST(WholeAttention, WithoutWarpgroups) {
  LLMC_NEEDS_GPU();
  for (const WholeForm& form : std::vector<WholeForm>{
           {"bf16", 2, 2, 64, 64, "", ", causal = true", "0.125", "sm_80"},
           {"f16", 2, 1, 128, 128, "", "", "0.125", "sm_80"},
           {"f16", 2, 2, 128, 128, "f16[L, K]", ", softcap = 20.0", "0.125", "sm_80"},
       }) {
    for (const WholeSizes& sizes : std::vector<WholeSizes>{{2, 1, 700}, {2, 200, 200}, {1, 129, 65}}) {
      ExpectWholeAttentionAgrees(form, sizes);
    }
  }
}

// Keys and values that maps of tiles copy, rows of one head or of all heads: tiles that are whole, and the last that is
// not, in several turns, so that stages are taken by copies of both kinds.
TEST(WholeAttention, ByMapsOfTiles) {
  LLMC_NEEDS_GPU();
  for (const WholeSizes& sizes : std::vector<WholeSizes>{{1, 300, 700}, {9, 140, 270}, {2, 128, 384}}) {
    ExpectWholeAttentionAgrees({"bf16", 4, 2, 128, 128, "", ", causal = true, causal_from_end = true"}, sizes);
    ExpectWholeAttentionAgrees({"f16", 8, 1, 64, 64, "", ""}, sizes);
  }
}

// More than there are multiprocessors: blocks that stay take several turns.
TEST(WholeAttention, InSeveralTurns) {
  LLMC_NEEDS_GPU();
  ExpectWholeAttentionAgrees({"bf16", 8, 4, 64, 64, "", ", causal = true"}, {5, 200, 200});
  ExpectWholeAttentionAgrees({"f16", 8, 4, 128, 128, "bool[B, 1, 1, K]", ""}, {5, 200, 150});
}

}  // namespace
}  // namespace llmc
