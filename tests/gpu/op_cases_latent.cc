// Latent attention in its absorbed form, from queries and rows of the cache to the values of heads: as kernels that
// read and write what only moves where it lies.
#include <algorithm>

#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

struct LatentForm {
  std::string type;
  int64_t heads, latent, rope, nope, value;
  int64_t most_tokens;  // that the program takes
};
struct SequenceOfStep {
  int64_t tokens, length;  // in the step; in the cache, after it
};

constexpr char kLatentLayer[] = R"(model m
dim T <= MOST
dim U <= 8192
dim S <= 64
dim P <= 4096
state @kv: paged[PAGES, 16] {latent: TYPE[1, WIDTH]}
step main(%q: TYPE[T, QUERIES], %x: TYPE[U, ROW], %g: TYPE[LATENT], %f: f32[HALF], %pos: i32[U], %own: i32[T],
          %slots: i32[U], %pages: i32[S, P], %lens: i32[S], %starts: i32[S + 1], %up: TYPE[HEADS, NOPE, LATENT],
          %down: TYPE[HEADS, VALUE, LATENT]) {
  %c = slice %x {axis = 1, start = [0], end = [LATENT]}
  %n = rms_norm %c, %g {eps = 1e-6}
  %p = slice %x {axis = 1, start = [LATENT], end = [WIDTH]}
  %pr = rope %p, %pos, %f {head_dim = ROPE, interleaved = true}
  %row = concat %n, %pr {axis = 1}
  kv_write @kv, %row, %row, %slots {keys = "latent", values = "latent"}
  %h = reshape %q {shape = [T, HEADS, QDIM]}
  %hn = slice %h {axis = 2, start = [0], end = [NOPE]}
  %nt = transpose %hn {perm = [1, 0, 2]}
  %ql = matmul %nt, %up
  %qt = transpose %ql {perm = [1, 0, 2]}
  %hr = slice %h {axis = 2, start = [NOPE], end = [QDIM]}
  %rf = reshape %hr {shape = [T, ROPES]}
  %rr = rope %rf, %own, %f {head_dim = ROPE, interleaved = true}
  %rh = reshape %rr {shape = [T, HEADS, ROPE]}
  %qc = concat %qt, %rh {axis = 2}
  %qq = reshape %qc {shape = [T, WIDE]}
  %a = paged_attention %qq, @kv, %pages, %lens, %starts {scale = 0.1, keys = "latent", values = "latent"}
  %ah = reshape %a {shape = [T, HEADS, WIDTH]}
  %al = slice %ah {axis = 2, start = [0], end = [LATENT]}
  %at = transpose %al {perm = [1, 0, 2]}
  %o = matmul %at, %down {transpose_rhs = true}
  %ot = transpose %o {perm = [1, 0, 2]}
  %of = reshape %ot {shape = [T, VALUES]}
  return "ql" = %ql, "o" = %of
}
)";

// Over 60 lines: the step and what it reads.
OpCase LatentLayer(const LatentForm& form, const std::vector<SequenceOfStep>& sequences, bool keeps_product) {
  int64_t pages = 0, pages_per_sequence = 1;
  for (const SequenceOfStep& s : sequences) {
    pages += (s.length + 15) / 16;
    pages_per_sequence = std::max(pages_per_sequence, (s.length + 15) / 16);
  }
  // Pages from the last to the first.
  std::vector<int64_t> table, lens, starts = {0}, slots, positions, own;
  int64_t free = pages;
  for (const SequenceOfStep& s : sequences) {
    const size_t first = table.size();
    for (int64_t p = 0; p < s.length; ++p) {
      if (p % 16 == 0) table.push_back(--free);
      slots.push_back(table.back() * 16 + p % 16);
      positions.push_back(p);
      if (p >= s.length - s.tokens) own.push_back(p);
    }
    table.resize(first + static_cast<size_t>(pages_per_sequence), 0);
    lens.push_back(s.length);
    starts.push_back(starts.back() + s.tokens);
  }
  const int64_t count = static_cast<int64_t>(sequences.size()), width = form.latent + form.rope;
  std::vector<float> frequencies;
  for (int64_t i = 0; i < form.rope / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(1 + 3 * i));
  const auto text = [](int64_t n) { return absl::StrCat(n); };
  OpCase c{absl::StrCat("latent attention ", form.type, " ", form.heads, " heads ", form.latent, " ", form.rope, " ",
                        count, " sequences ", starts.back(), " of ", form.most_tokens, " tokens",
                        keeps_product ? " parts" : "")};
  c.device_case.text = absl::StrReplaceAll(kLatentLayer, {{"TYPE", form.type},
                                                          {"MOST", text(form.most_tokens)},
                                                          {"PAGES", text(pages)},
                                                          {"WIDTH", text(width)},
                                                          {"ROW", text(width)},
                                                          {"QUERIES", text(form.heads * (form.nope + form.rope))},
                                                          {"QDIM", text(form.nope + form.rope)},
                                                          {"ROPES", text(form.heads * form.rope)},
                                                          {"VALUES", text(form.heads * form.value)},
                                                          {"WIDE", text(form.heads * width)},
                                                          {"HALF", text(form.rope / 2)},
                                                          {"LATENT", text(form.latent)},
                                                          {"HEADS", text(form.heads)},
                                                          {"NOPE", text(form.nope)},
                                                          {"VALUE", text(form.value)},
                                                          {"ROPE", text(form.rope)},
                                                          {"\"ql\" = %ql, ", keeps_product ? "\"ql\" = %ql, " : ""}});
  c.device_case.inputs = {{"pages", Tensor::FromValues(DType::kI32, {count, pages_per_sequence}, table)},
                          {"lens", Ints(DType::kI32, lens)},
                          {"starts", Ints(DType::kI32, starts)},
                          {"slots", Ints(DType::kI32, slots)},
                          {"pos", Ints(DType::kI32, positions)},
                          {"own", Ints(DType::kI32, own)},
                          {"f", Tensor::FromValues(DType::kF32, {form.rope / 2}, frequencies)}};
  const DType dtype = form.type == "f32" ? DType::kF32 : form.type == "f16" ? DType::kF16 : DType::kBF16;
  c.device_case.inputs["up"] = RandomFloats(dtype, {form.heads, form.nope, form.latent}, 5, 0.1);
  c.device_case.inputs["down"] = RandomFloats(dtype, {form.heads, form.value, form.latent}, 6, 0.1);
  c.device_case.dims = {
      {"T", starts.back()}, {"U", static_cast<int64_t>(slots.size())}, {"S", count}, {"P", pages_per_sequence}};
  c.device_case.by_row = true;
  // What is rounded on the way: queries, weights of values, values.
  if (form.type != "f32") c.device_case.tolerance = form.type == "f16" ? 1.0 / 256 : 1.0 / 32;
  return c;
}

}  // namespace

void AddLatentCases(std::vector<OpCase>* cases) {
  const std::vector<SequenceOfStep> one = {{1, 300}}, few = {{1, 40}, {2, 700}, {0, 5}, {3, 3}, {1, 1}, {1, 129}},
                                    many = {{1, 33}, {70, 200}, {9, 9}, {40, 1500}};
  for (const char* type : {"bf16", "f16", "f32"}) {
    const auto form = [&](int64_t heads, int64_t latent, int64_t rope, int64_t nope, int64_t value, int64_t most) {
      return LatentForm{type, heads, latent, rope, nope, value, most};
    };
    cases->push_back(LatentLayer(form(16, 512, 64, 128, 128, 1), one, false));
    cases->push_back(LatentLayer(form(16, 512, 64, 128, 128, 8), few, false));
    cases->push_back(LatentLayer(form(16, 512, 64, 128, 128, 1000), many, false));
    cases->push_back(LatentLayer(form(5, 40, 24, 16, 72, 8), few, true));
    cases->push_back(LatentLayer(form(3, 96, 16, 40, 8, 1000), many, false));
    cases->push_back(LatentLayer(form(4, 36, 12, 20, 28, 8), few, false));  // no whole vectors
  }
  cases->push_back(LatentLayer({"bf16", 128, 512, 64, 128, 128, 8}, few, false));
  cases->push_back(LatentLayer({"bf16", 64, 256, 32, 64, 64, 1000}, many, false));
}

}  // namespace llmc
