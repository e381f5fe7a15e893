// Mixtures of experts, and attention over a paged cache with what only some models have.
#include <limits>

#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

void AddRoutes(std::vector<OpCase>* cases) {
  struct Form {
    const char* name;
    int64_t experts;
    const char *operands, *attributes;
  };
  const Form forms[] = {
      {"softmax", 128, "", "top_k = 8, normalize = true"},
      {"softmax and bias", 60, ", %b", "top_k = 4, scale = 2.5"},
      {"sigmoid", 100, "", "top_k = 3, score = \"sigmoid\""},
      {"groups", 256, ", %b",
       "top_k = 8, score = \"sigmoid\", groups = 8, top_groups = 4, group_best = 2, normalize = true, scale = 2.5"},
      {"groups of softmax", 160, "", "top_k = 6, groups = 8, top_groups = 3, scale = 16.0"},
      {"chosen", 32, ", %b", "top_k = 4, score = \"chosen\""},
      {"chosen_sigmoid", 16, "", "top_k = 1, score = \"chosen_sigmoid\""},
      {"one expert", 1, "", "top_k = 1"},
      {"all experts", 7, "", "top_k = 7, score = \"chosen\", normalize = true"},
      {"4096 experts", 4096, ", %b", "top_k = 40, score = \"chosen\""},
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Form& form : forms) {
      cases->push_back({absl::StrCat("route by ", form.name, " ", Name(dtype)),
                        {.text = absl::StrReplaceAll(R"(model m
dim T <= 100
step main(%x: TYPE[T, EXPERTS], %b: f32[EXPERTS]) {
  %e, %w = route %xOPERANDS {ATTRIBUTES}
  return "e" = %e, "w" = %w
}
)",
                                                     {{"TYPE", Name(dtype)},
                                                      {"EXPERTS", absl::StrCat(form.experts)},
                                                      {"OPERANDS", form.operands},
                                                      {"ATTRIBUTES", form.attributes}}),
                         .dims = {{"T", 37}}}});
    }
  }
  // Equal logits, and those that are no numbers: of several, the first.
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  Tensor logits = RandomFloats(DType::kF32, {4, 8}, 5);
  const double rows[4][8] = {{1, 2, 2, 1, 0, -0.0, 2, 2},
                             {kNan, 1, kNan, 0.5, -3, kNan, -4, -5},
                             {-kInfinity, -kInfinity, 0, 1, -kInfinity, 2, 3, kInfinity},
                             {kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan}};
  for (int64_t i = 0; i < 32; ++i) logits.SetFloat(i, rows[i / 8][i % 8]);
  cases->push_back({"route of ties",
                    {.text = R"(model m
step main(%x: f32[4, 8]) {
  %a, %b = route %x {top_k = 6, score = "sigmoid"}
  %c, %d = route %x {top_k = 3, score = "sigmoid", groups = 4, top_groups = 2, group_best = 2}
  %e, %f = route %x {top_k = 8, score = "chosen_sigmoid"}
  return "a" = %a, "b" = %b, "c" = %c, "d" = %d, "e" = %e, "f" = %f
}
)",
                     .inputs = {{"x", std::move(logits)}}}});
}

// Small whole numbers, whose sums are exact in any order: what is chosen by them depends on no rounding.
Tensor WholeNumbers(DType dtype, Shape shape, uint64_t seed) {
  const Tensor ints = RandomInts(DType::kI32, shape, -2, 3, seed);
  Tensor floats(dtype, std::move(shape));
  for (int64_t i = 0; i < floats.size(); ++i) floats.SetFloat(i, static_cast<double>(ints.GetInt(i)));
  return floats;
}

// Products whose kernel chooses the experts, with what may stand between.
void AddRouters(std::vector<OpCase>* cases) {
  struct Form {
    int64_t tokens, experts, in;
    const char *operands, *attributes;
  };
  const Form forms[] = {{1, 128, 256, "%y", "top_k = 8, normalize = true"},
                        {1, 32, 264, "%z", "top_k = 4, score = \"chosen\""},
                        {8, 64, 128, "%z, %b", "top_k = 6, score = \"sigmoid\", normalize = true, scale = 2.5"},
                        {3, 60, 40, "%y, %b", "top_k = 4, groups = 6, top_groups = 3, group_best = 2"},
                        {8, 512, 64, "%y", "top_k = 10"}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Form& form : forms) {
      cases->push_back({absl::StrCat("router of ", form.experts, " for ", form.tokens, " ", Name(dtype)),
                        {.text = absl::StrReplaceAll(R"(model m
dim T <= TOKENS
step main(%x: TYPE[T, IN], %w: TYPE[EXPERTS, IN], %c: TYPE[EXPERTS], %b: f32[EXPERTS], %s: TYPE[EXPERTS, IN]) {
  %y = linear %x, %w {transpose_rhs = true}
  %l = linear %x, %s {transpose_rhs = true}
  %z = add %l, %c
  %e, %f = route OPERANDS {ATTRIBUTES}
  return "e" = %e, "f" = %f
}
)",
                                                     {{"TYPE", Name(dtype)},
                                                      {"EXPERTS", absl::StrCat(form.experts)},
                                                      {"TOKENS", absl::StrCat(form.tokens)},
                                                      {"IN", absl::StrCat(form.in)},
                                                      {"OPERANDS", form.operands},
                                                      {"ATTRIBUTES", form.attributes}}),
                         .inputs = {{"x", WholeNumbers(dtype, {form.tokens, form.in}, 1)},
                                    {"w", WholeNumbers(dtype, {form.experts, form.in}, 2)},
                                    {"s", WholeNumbers(dtype, {form.experts, form.in}, 3)},
                                    {"c", WholeNumbers(dtype, {form.experts}, 4)}},
                         .dims = {{"T", form.tokens}}}});
    }
  }
}

struct Product {
  int64_t experts, in, out, chosen, tokens;
};

void AddExpertProducts(std::vector<OpCase>* cases) {
  const Product few[] = {{8, 64, 96, 2, 1}, {5, 33, 27, 3, 7}, {16, 256, 40, 4, 16}, {3, 1, 1, 1, 2}};
  const Product many[] = {
      {8, 64, 96, 2, 70}, {5, 33, 27, 3, 80}, {40, 136, 200, 4, 150}, {2, 40, 129, 1, 300}, {64, 32, 8, 8, 9}};
  const auto add = [&](const std::string& name, DType dtype, const Product& p, int64_t most) {
    cases->push_back({name,
                      {.text = absl::StrReplaceAll(R"(model m
dim T <= MOST
step main(%x: TYPE[T, IN], %y: TYPE[T, K, IN], %w: TYPE[E, IN, OUT], %t: TYPE[E, OUT, IN], %e: i32[T, K]) {
  %a = expert_linear %x, %w, %e
  %b = expert_linear %y, %w, %e
  %c = expert_linear %x, %t, %e {transpose_weight = true}
  %d = expert_linear %y, %t, %e {transpose_weight = true}
  return "a" = %a, "b" = %b, "c" = %c, "d" = %d
}
)",
                                                   {{"MOST", absl::StrCat(most)},
                                                    {"TYPE", Name(dtype)},
                                                    {"IN", absl::StrCat(p.in)},
                                                    {"OUT", absl::StrCat(p.out)},
                                                    {"K", absl::StrCat(p.chosen)},
                                                    {"[E", absl::StrCat("[", p.experts)}}),
                       .inputs = {{"e", RandomInts(DType::kI32, {p.tokens, p.chosen}, 0, p.experts, 7)}},
                       .dims = {{"T", p.tokens}}}});
  };
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Product& p : few) {
      add(absl::StrCat("few products of ", p.experts, " experts ", Name(dtype)), dtype, p, 64 / p.chosen);
    }
    for (const Product& p : many) {
      add(absl::StrCat("many products of ", p.experts, " experts ", Name(dtype)), dtype, p, 1000);
    }
  }
  // Compiled without a GPU, too.
  add("products of experts on tensor cores", DType::kBF16, many[2], 1000);
  add("products of experts with few tokens", DType::kF16, few[2], 16);
}

// As layers of language models have them: a bias and a gate; the sum of what the experts of a token give, by their
// shares. None reads the other, and sums
// whose roundings others carry on are exact.
void AddExpertLayers(std::vector<OpCase>* cases) {
  const Product layers[] = {{8, 64, 96, 2, 1},     {16, 256, 40, 4, 3},   {5, 33, 28, 3, 7},    {64, 128, 72, 8, 20},
                            {4, 264, 130, 2, 90},  {30, 40, 56, 5, 300},  {128, 64, 34, 8, 40}, {2, 520, 24, 1, 100},
                            {300, 72, 50, 6, 310}, {16, 96, 258, 4, 512}, {7, 8, 2, 3, 50},     {4, 328, 300, 2, 700}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Product& p : layers) {
      cases->push_back({absl::StrCat("layer of ", p.experts, " experts for ", p.tokens, " ", Name(dtype)),
                        {.text = absl::StrReplaceAll(R"(model m
dim T <= MOST
step main(%x: TYPE[T, IN], %w: TYPE[E, OUT, IN], %b: TYPE[E, OUT], %v: TYPE[E, IN, HALF], %c: TYPE[E, IN],
          %u: TYPE[E, HALF, IN], %e: i32[T, K], %s: f32[T, K], %r: TYPE[T, IN], %q: TYPE[T, IN],
          %y: TYPE[T, K, HALF], %z: TYPE[T, K, IN]) {
  %gu = expert_linear %x, %w, %e, %b {transpose_weight = true}
  %m = silu_mul %gu
  %d = expert_linear %y, %v, %e, %c {transpose_weight = true}
  %h = expert_linear %y, %u, %e, %c
  %plain = expert_linear %x, %w, %e {transpose_weight = true}
  %gate = slice %plain {axis = 2, start = [0], end = [HALF]}
  %up = slice %plain {axis = 2, start = [HALF], end = [OUT]}
  %sg = sigmoid %gate
  %gated = mul %up, %sg
  %one = reshape %s {shape = [T, K, 1]}
  %shares = cast %one {to = TYPE}
  %weighted = mul %d, %shares
  %sum = reduce_sum %weighted {axes = [1]}
  %one_more = add %r, %sum
  %two_more = add %one_more, %q
  %others = mul %z, %shares
  %other_sum = reduce_sum %others {axes = [1]}
  %other = add %other_sum, %r
  return "m" = %m, "h" = %h, "gated" = %gated, "two_more" = %two_more, "other" = %other
}
)",
                                                     {{"MOST", absl::StrCat(p.tokens)},
                                                      {"TYPE", Name(dtype)},
                                                      {"IN", absl::StrCat(p.in)},
                                                      {"OUT", absl::StrCat(p.out)},
                                                      {"HALF", absl::StrCat(p.out / 2)},
                                                      {"K", absl::StrCat(p.chosen)},
                                                      {"[E", absl::StrCat("[", p.experts)}}),
                         .inputs = {{"e", RandomInts(DType::kI32, {p.tokens, p.chosen}, 0, p.experts, 7)},
                                    {"x", WholeNumbers(dtype, {p.tokens, p.in}, 1)},
                                    {"w", WholeNumbers(dtype, {p.experts, p.out, p.in}, 2)},
                                    {"b", WholeNumbers(dtype, {p.experts, p.out}, 3)},
                                    {"y", WholeNumbers(dtype, {p.tokens, p.chosen, p.out / 2}, 4)},
                                    {"v", WholeNumbers(dtype, {p.experts, p.in, p.out / 2}, 5)}},
                         .dims = {{"T", p.tokens}}}});
    }
  }
}

// Two sequences: the last of 3 tokens at position 6, and a single token at position 0.
void AddPagedAttention(std::vector<OpCase>* cases) {
  for (const char* type : {"f32", "bf16"}) {
    for (const char* terms :
         {", %sinks {", ", _, %slopes {", ", %sinks, %slopes {window = 3, softcap = 5.0, ", " {chunk = 3, "}) {
      for (const auto& [keys, values] : {std::pair{64, 64}, {26, 26}, {576, 512}, {40, 1024}}) {
        cases->push_back(
            {absl::StrCat("paged_attention ", cases->size(), " ", keys, " ", values, " ", type),
             {.text = absl::StrReplaceAll(R"(model m
dim U <= 64
state @kv: paged[4, 4] {k: TYPE[1, KEYS], v: TYPE[1, VALUES]}
step main(%q: TYPE[4, WIDTH], %k: TYPE[U, KEYS], %v: TYPE[U, VALUES], %slots: i32[U], %pages: i32[2, 2],
          %lens: i32[2], %starts: i32[3], %sinks: f32[6], %slopes: f32[6]) {
  kv_write @kv, %k, %v, %slots
  %a = paged_attention %q, @kv, %pages, %lens, %startsTERMSscale = 0.125}
  return "a" = %a
}
)",
                                          {{"TYPE", type},
                                           {"KEYS", absl::StrCat(keys)},
                                           {"VALUES", absl::StrCat(values)},
                                           {"WIDTH", absl::StrCat(6 * keys)},
                                           {"TERMS", terms}}),
              .inputs = {{"slots", Ints(DType::kI32, {8, 9, 10, 11, 0, 1, 2, 4})},
                         {"pages", Tensor::FromValues(DType::kI32, {2, 2}, std::vector<int32_t>{2, 0, 1, 3})},
                         {"lens", Ints(DType::kI32, {7, 1})},
                         {"starts", Ints(DType::kI32, {0, 3, 4})}},
              .dims = {{"U", 8}},
              .by_row = true}});
      }
    }
  }
}

}  // namespace

void AddExpertCases(std::vector<OpCase>* cases) {
  AddRoutes(cases);
  AddRouters(cases);
  AddExpertProducts(cases);
  AddExpertLayers(cases);
  AddPagedAttention(cases);
}

}  // namespace llmc
