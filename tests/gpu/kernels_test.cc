// The kernels of language models on a GPU, over shapes at the edges, against the evaluator.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

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
  %s = add %x, %y
  %b = rms_norm %s, @w {eps = 1e-6}
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

struct RopeForm {
  int64_t heads, kv_heads, head_dim, rotary, page_size;
  bool interleaved;
};

constexpr int64_t kSequences = 4;

// How queries, keys and values come: apart, merged, or merged and with norms of heads.
enum class Written { kApart, kMerged, kNormalized };

// Rotary positions with the write to the cache, and attention over it.
// `most` tokens in a step: where there may be many, a team of threads turns several heads.
std::string RopeText(const std::string& type, const RopeForm& form, Written written, int64_t table_width,
                     int64_t most) {
  const bool merged = written != Written::kApart;
  const std::string slices = merged ? R"(
  %q = slice %qkv {axis = 1, start = [0], end = [WIDTH]}
  %k = slice %qkv {axis = 1, start = [WIDTH], end = [K_END]}
  %v = slice %qkv {axis = 1, start = [K_END], end = [ALL]})"
                                    : "";
  const std::string norms = written == Written::kNormalized ? R"(
  %q_heads = reshape %q {shape = [T, HEADS, DIM]}
  %q_normed = rms_norm %q_heads, %gq {eps = 0.01}
  %q_turned = reshape %q_normed {shape = [T, WIDTH]}
  %k_heads = reshape %k {shape = [T, KV_HEADS, DIM]}
  %k_normed = rms_norm %k_heads, %gk {eps = 0.01}
  %k_turned = reshape %k_normed {shape = [T, KV_WIDTH]})"
                                                            : "";
  const std::string turned = written == Written::kNormalized ? "_turned" : "";
  const std::string write = absl::StrCat(slices, norms, R"(
  %r = rope %q)",
                                         turned, R"(, %pos, %f {head_dim = DIM, interleaved = INTERLEAVED, scale = 1.25}
  %kr = rope %k)",
                                         turned, R"(, %pos, %f {head_dim = DIM, interleaved = INTERLEAVED, scale = 1.25}
  kv_write @kv0, %kr, %v, %slots
)");
  const std::string inputs = written == Written::kNormalized ? "%qkv: TYPE[T, ALL], %gq: TYPE[DIM], %gk: TYPE[DIM]"
                             : merged                        ? "%qkv: TYPE[T, ALL]"
                                      : "%q: TYPE[T, WIDTH], %k: TYPE[T, KV_WIDTH], %v: TYPE[T, KV_WIDTH]";
  return absl::StrReplaceAll(
      absl::StrCat(R"(model m
dim S <= 16
dim T <= MOST
state @kv0: paged[PAGES, SIZE] {k: TYPE[KV_HEADS, DIM], v: TYPE[KV_HEADS, DIM]}
step main()",
                   inputs, R"(, %pos: i32[T], %f: f32[HALF], %slots: i32[T], %pages: i32[S, COLUMNS], %lens: i32[S],
          %starts: i32[S + 1]) {)",
                   write, R"(
  %values = paged_attention %r, @kv0, %pages, %lens, %starts {window = 1}
  %a = paged_attention %r, @kv0, %pages, %lens, %starts {scale = 0.125}
  return "r" = %r, "values" = %values, "a" = %a
}
)"),
      {{"TYPE", type},
       {"MOST", absl::StrCat(most)},
       {"ALL", absl::StrCat((form.heads + 2 * form.kv_heads) * form.head_dim)},
       {"K_END", absl::StrCat((form.heads + form.kv_heads) * form.head_dim)},
       {"KV_WIDTH", absl::StrCat(form.kv_heads * form.head_dim)},
       {"WIDTH", absl::StrCat(form.heads * form.head_dim)},
       {"KV_HEADS", absl::StrCat(form.kv_heads)},
       {"HEADS", absl::StrCat(form.heads)},
       {"DIM", absl::StrCat(form.head_dim)},
       {"HALF", absl::StrCat(form.rotary / 2)},
       {"INTERLEAVED", form.interleaved ? "true" : "false"},
       {"PAGES", absl::StrCat(kSequences * table_width)},
       {"COLUMNS", absl::StrCat(table_width)},
       {"SIZE", absl::StrCat(form.page_size)}});
}

// Tokens of sequences with and without a cached prefix, whose pages come in any order: what is written to the cache is
// read by attention. With a window of 1 that is the token's own value, exactly; else all keys count.
void ExpectRopeAgrees(const std::string& type, const RopeForm& form, Written written, int64_t most) {
  const int64_t tokens_of[] = {1, 7, form.page_size, 12}, cached[] = {3, 0, 1, 2 * form.page_size};
  const int64_t table_width = (12 + 2 * form.page_size) / form.page_size + 1, pages = kSequences * table_width;
  std::vector<int64_t> table(static_cast<size_t>(pages)), slots, pos, lens, starts = {0};
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937_64(3));
  for (int64_t s = 0; s < kSequences; ++s) {
    for (int64_t p = cached[s]; p < cached[s] + tokens_of[s]; ++p) {
      const int64_t page = table[static_cast<size_t>(s * table_width + p / form.page_size)];
      slots.push_back(page * form.page_size + p % form.page_size);
      pos.push_back(p == 0 ? 0 : 3000 - p);  // angles of long contexts
    }
    lens.push_back(cached[s] + tokens_of[s]);
    starts.push_back(starts.back() + tokens_of[s]);
  }
  DeviceCase c;
  c.text = RopeText(type, form, written, table_width, most);
  Tensor freq(DType::kF32, {form.rotary / 2});
  for (int64_t i = 0; i < freq.size(); ++i) {
    freq.SetFloat(i, std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(form.rotary)));
  }
  c.dims = {{"T", starts.back()}, {"S", kSequences}};
  c.inputs = {{"pos", Ints(DType::kI32, pos)},
              {"slots", Ints(DType::kI32, slots)},
              {"lens", Ints(DType::kI32, lens)},
              {"starts", Ints(DType::kI32, starts)},
              {"f", freq}};
  c.inputs["pages"] = Tensor::FromValues(DType::kI32, {kSequences, table_width}, table);
  // Of attention, as in attention_test.cc.
  c.by_row = true;
  if (type != "f32") c.tolerance = type == "f16" ? 1.0 / 512 : 1.0 / 64;
  SCOPED_TRACE(
      absl::StrCat(type, " ", form.heads, " + 2 * ", form.kv_heads, " heads of ", form.head_dim, ", up to ", most));
  ExpectDeviceAgrees(c);
}

TEST(Kernels, Rope) {
  LLMC_NEEDS_GPU();
  for (const std::string type : kTypes) {
    for (const RopeForm& form :
         {RopeForm{4, 2, 64, 64, 16, false}, RopeForm{3, 1, 80, 32, 5, true}, RopeForm{5, 5, 10, 6, 16, false},
          RopeForm{7, 7, 36, 20, 3, true}, RopeForm{3, 3, 5, 4, 1, false}, RopeForm{2, 1, 256, 256, 7, true}}) {
      for (const Written written : {Written::kApart, Written::kMerged, Written::kNormalized}) {
        ExpectRopeAgrees(type, form, written, 256);
      }
      ExpectRopeAgrees(type, form, Written::kMerged, 4096);
    }
  }
}

}  // namespace
}  // namespace llmc
