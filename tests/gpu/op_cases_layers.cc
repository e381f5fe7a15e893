// Products, convolutions, attention and recurrent layers.
#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

void AddProducts(std::vector<OpCase>* cases) {
  for (const DType dtype :
       {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI64, DType::kI32, DType::kU8}) {
    OpProgram p(
        Head(absl::StrReplaceAll("%x: T[2, 3, 17, 40], %y: T[2, 3, 40, 21], %z: T[2, 3, 21, 40], %w: T[40, 96], "
                                 "%v: T[40], %one: T[1, 3, 40, 8], %few: T[3, 1, 40, 8], %s: T[4, 40], %e: T[5, 0], "
                                 "%f: T[0, 7], %g: T[4, 64], %n: T[0, 64]",
                                 {{"T", Name(dtype)}})));
    for (const char* line :
         {"matmul %x, %y", "matmul %x, %z {transpose_rhs = true}", "matmul %x, %w", "matmul %s, %w", "matmul %v, %w",
          "matmul %x, %v", "matmul %v, %v", "matmul %v, %y", "matmul %s, %y", "matmul %x, %one", "matmul %s, %few",
          "matmul %e, %f", "matmul %s, %s {transpose_rhs = true}", "matmul %g, %n {transpose_rhs = true}"}) {
      p.Add(line);
    }
    cases->push_back({absl::StrCat("products ", Name(dtype)), {.text = p.Text()}});
  }
  cases->push_back({"products of dims",
                    {.text = R"(model m
dim B <= 100
dim S <= 100
dim K <= 100
step main(%q: f16[B, 4, S, 16], %k: f16[B, 4, K, 16], %v: f16[B, 4, K, 16]) {
  %t = transpose %k {perm = [0, 1, 3, 2]}
  %s = matmul %q, %t
  %p = softmax %s {axis = 3}
  %o = matmul %p, %v
  return "s" = %s, "p" = %p, "o" = %o
}
)",
                     .dims = {{"B", 2}, {"S", 5}, {"K", 9}}}});
}

void AddQuantizedProducts(std::vector<OpCase>* cases) {
  for (const int64_t rows : {3, 40}) {
    OpProgram p(
        Head("%x: f32[T, 40], %a: u8[T, 40], %b: i8[40, 24], %t: i8[24, 40], %q: u4[24, 40], %s: f32[24], "
             "%z: i8[24], %sq: f32[24, 5], %zq: u4[24, 5], %sa: f32[], %za: u8[]",
             absl::StrCat("dim T <= ", rows <= 8 ? 4 : 100, "\n")));
    for (const char* line : {"%ab = encode %a, %sa, %za {as = \"uint8 per=tensor scale=f32 zero=u8\"}",
                             "%tb = encode %t, %s, %z {as = \"int8 per=channel scale=f32 zero=i8\"}",
                             "%bb = encode %b, %s {as = \"int8 per=channel along=-2 scale=f32\"}",
                             "%qb = encode %q, %sq, %zq {as = \"uint4 group=8 scale=f32 zero=u4\"}",
                             "%bz = encode %b, %s, %z {as = \"int8 per=channel along=-2 scale=f32 zero=i8\"}"}) {
      p.Line(line);
    }
    for (const char* line : {"linear %ab, %tb {transpose_rhs = true}", "linear %ab, %bb",
                             "linear %x, %qb {transpose_rhs = true}", "linear %x, %bz"}) {
      p.Add(line);
    }
    cases->push_back(
        {absl::StrCat("quantized products of ", rows, " rows"), {.text = p.Text(), .dims = {{"T", rows}}}});
  }
}

void AddConvs(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    OpProgram p(Head(absl::StrReplaceAll(
        "%x: T[2, 6, 33], %w1: T[8, 6, 5], %b1: T[8], %y: T[2, 4, 20, 24], %w2: T[70, 4, 8, 8], %g: T[8, 2, 3, 3], "
        "%d: T[4, 1, 3, 3], %z: T[1, 2, 6, 7, 8], %w3: T[3, 2, 2, 3, 2]",
        {{"T", Name(dtype)}})));
    p.Add("conv %x, %w1, %b1 {strides = [2], pads = [2, 1]}");
    p.Add("conv %x, %w1 {dilations = [3]}");
    p.Add("conv %y, %w2 {strides = [8, 8]}");
    p.Add("conv %y, %g {groups = 2, pads = [1, 1, 1, 1]}");
    p.Add("conv %y, %d {groups = 4, pads = [0, 2, 1, 0], strides = [1, 2]}");
    p.Add("conv %z, %w3");
    cases->push_back({absl::StrCat("conv ", Name(dtype)), {.text = p.Text()}});
  }
  cases->push_back({"conv of dims",
                    {.text = R"(model m
dim B <= 16
dim H <= 100
weight @w: f32[16, 3, 4, 4] = "f#w"
weight @b: f32[16] = "f#b"
step main(%x: f32[B, 3, H, H]) {
  %y = conv %x, @w, @b {strides = [4, 4]}
  return "y" = %y
}
)",
                     .dims = {{"B", 3}, {"H", 30}}}});
}

void AddAttention(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string type = Name(dtype);
    const std::string text = absl::StrReplaceAll(R"(model m
dim B <= 8
dim L <= 100
dim K <= 100
step main(%q: TYPE[B, 4, L, 24], %k: TYPE[B, 2, K, 24], %v: TYPE[B, 2, K, 40], %m: bool[B, 1, 1, K], %f: TYPE[L, K]) {
  %a = attention %q, %k, %v {scale = 0.2}
  %b = attention %q, %k, %v, %m {scale = 0.2}
  %d = attention %q, %k, %v, %f {scale = 0.2, softcap = 3}
  %e = attention %q, %k, %v {scale = 0.2, causal = true}
  %g = attention %q, %k, %v, %m {scale = 0.2, causal = true, causal_from_end = true}
  return "a" = %a, "b" = %b, "d" = %d, "e" = %e, "g" = %g
}
)",
                                                 {{"TYPE", type}});
    // On tensor cores weights are rounded before they meet values: see attention_test.cc.
    const double tolerance = dtype == DType::kF16 ? 1.0 / 512 : dtype == DType::kBF16 ? 1.0 / 64 : 0;
    for (const auto& [queries, keys] : {std::pair{1, 1}, {1, 70}, {37, 37}, {17, 64}}) {
      cases->push_back({absl::StrCat("attention ", type, " ", queries, " ", keys),
                        {.text = text,
                         .dims = {{"B", 2}, {"L", queries}, {"K", keys}},
                         .tolerance = tolerance,
                         .by_row = tolerance != 0}});
    }
    cases->push_back({absl::StrCat("rotary ", type),
                      {.text = absl::StrReplaceAll(R"(model m
dim B <= 8
dim L <= 100
step main(%q: TYPE[B, 4, L, 24], %c: TYPE[B, L, 8], %s: TYPE[B, L, 8]) {
  %h = rotary_embedding %q, %c, %s
  %i = rotary_embedding %q, %c, %s {interleaved = true}
  return "h" = %h, "i" = %i
}
)",
                                                   {{"TYPE", type}}),
                       .dims = {{"B", 2}, {"L", 37}}}});
  }
  cases->push_back({"attention with wide heads",
                    {.text = R"(model m
step main(%q: f16[1, 2, 20, 256], %k: f16[1, 1, 50, 256], %v: f16[1, 1, 50, 256]) {
  %a = attention %q, %k, %v {scale = 0.0625, causal = true}
  return "a" = %a
}
)",
                     .tolerance = 1.0 / 512,
                     .by_row = true}});
}

// Texts of one token, of none, and of more than a tile of rows or keys.
void AddPackedAttention(std::vector<OpCase>* cases) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    // On tensor cores weights are rounded before they meet values: see attention_test.cc.
    const double tolerance = dtype == DType::kF16 ? 1.0 / 512 : dtype == DType::kBF16 ? 1.0 / 64 : 0;
    for (const int64_t dim : {20, 24, 64}) {
      const std::string text = absl::StrReplaceAll(R"(model m
dim T <= 4096
dim S <= 64
step main(%q: TYPE[T, QUERY], %k: TYPE[T, KEY], %v: TYPE[T, KEY], %starts: i32[S + 1]) {
  %a = packed_attention %q, %k, %v, %starts {head_dim = DIM, scale = 0.2}
  %b = packed_attention %q, %k, %v, %starts {head_dim = DIM, scale = 0.2, window = 50}
  %d = packed_attention %q, %k, %v, %starts {head_dim = DIM, scale = 0.2, causal = true, softcap = 3}
  return "a" = %a, "b" = %b, "d" = %d
}
)",
                                                   {{"TYPE", Name(dtype)},
                                                    {"QUERY", absl::StrCat(4 * dim)},
                                                    {"KEY", absl::StrCat(2 * dim)},
                                                    {"DIM", absl::StrCat(dim)}});
      for (const std::vector<int64_t>& starts : {std::vector<int64_t>{0, 1}, {0, 0, 37, 38, 38, 166, 410, 412}}) {
        cases->push_back({absl::StrCat("packed attention ", Name(dtype), " ", dim, " of ", starts.back()),
                          {.text = text,
                           .inputs = {{"starts", Ints(DType::kI32, starts)}},
                           .dims = {{"T", starts.back()}, {"S", static_cast<int64_t>(starts.size()) - 1}},
                           .tolerance = tolerance,
                           .by_row = tolerance != 0}});
      }
    }
  }
}

void AddRecurrences(std::vector<OpCase>* cases) {
  struct Kind {
    const char* name;
    int64_t gates;
  };
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t hidden : {5, 130}) {
      for (const Kind& kind :
           {Kind{"lstm", 4}, Kind{"gru", 3}, Kind{"gru_reset_after", 3}, Kind{"rnn_tanh", 1}, Kind{"rnn_relu", 1}}) {
        const bool is_lstm = kind.gates == 4;
        const std::string cell = is_lstm ? "%c" : "_", bias = std::string(kind.name) == "gru_reset_after" ? ", %b" : "";
        OpProgram p(
            Head(absl::StrReplaceAll("%x: T[N, B, R], %w: T[R, H], %h: T[B, H], %c: T[B, H], %b: T[H], %l: i64[B]",
                                     {{"T[", absl::StrCat(Name(dtype), "[")},
                                      {"R", absl::StrCat(kind.gates * hidden)},
                                      {"H", absl::StrCat(hidden)}}),
                 "dim N <= 100\ndim B <= 100\n"));
        for (const char* reverse : {"false", "true"}) {
          const std::string attrs = absl::StrCat(" {kind = \"", kind.name, "\", reverse = ", reverse, "}");
          const std::string all = absl::StrCat("%all_", reverse), some = absl::StrCat("%some_", reverse);
          p.Line(absl::StrCat(all, ", ", all, "_last = recurrence %x, %w, %h, ", cell, ", _", bias, attrs));
          p.Line(absl::StrCat(some, ", ", some, "_last = recurrence %x, %w, %h, ", cell, ", %l", bias, attrs));
          for (const std::string& result : {all, all + "_last", some, some + "_last"}) p.Add("neg " + result);
        }
        // A recurrence carries rounding on: of halves only the results are rounded.
        cases->push_back({absl::StrCat(kind.name, " of ", hidden, " ", Name(dtype)),
                          {.text = p.Text(),
                           .inputs = {{"w", RandomFloats(dtype, {kind.gates * hidden, hidden}, 3, 0.1)},
                                      {"l", Ints(DType::kI64, {7, 0, 3})}},
                           .dims = {{"N", 7}, {"B", 3}}}});
      }
    }
  }
  cases->push_back({"choices",
                    {.text = R"(model m
dim N <= 100
step main(%x: f32[N, 6], %y: f32[N, 6], %k: i64[], %i: i64[N], %j: i64[N]) {
  %three = constant {value = 3} : i64[]
  %c = less %k, %three
  %a = neg %x
  %b = add %x, %y
  %p = choose %c, %a, %b
  %q = choose %c, %i, %j
  %n = not %c
  %r = choose %n, %a, %b
  return "p" = %p, "q" = %q, "r" = %r
}
)",
                     .inputs = {{"k", Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{7})}},
                     .dims = {{"N", 9}}}});
}

}  // namespace

void AddLayerCases(std::vector<OpCase>* cases) {
  AddProducts(cases);
  AddQuantizedProducts(cases);
  AddConvs(cases);
  AddAttention(cases);
  AddPackedAttention(cases);
  AddRecurrences(cases);
}

}  // namespace llmc
