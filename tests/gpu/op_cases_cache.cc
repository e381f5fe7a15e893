// The paged cache of keys and values where it is encoded: written from given rows or from heads that rotate, and read
// by attention of few tokens a sequence and of chunks.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/gpu/op_case_parts.h"

namespace llmc {
namespace {

struct CachedSequence {
  int64_t tokens, length;  // in the step; in the cache, after it
};

struct CacheForm {
  std::string type, encoding;
  int64_t kv_heads, group, head_dim, page_size;
  std::string attributes = {};  // of the attention
  bool sinks = false, rotates = false;
  int64_t most_tokens = 1024;
};

constexpr char kCacheLayer[] = R"(model m
dim T <= TOKENS
dim U <= 8192
dim S <= 64
dim P <= 4096
state @kv: paged[PAGES, SIZE] {k: TYPE<ENCODING>[KV_HEADS, DIM], v: TYPE<ENCODING>[KV_HEADS, DIM]}
step main(%q: TYPE[T, WIDTH], %qkv: TYPE[U, ALL], %f: f32[HALF], %pos: i32[U], %slots: i32[U], %pages: i32[S, P],
          %lens: i32[S], %starts: i32[S + 1], %sinks: f32[HEADS], %ks: f32[SCALES], %vs: f32[SCALES]) {
  %k = slice %qkv {axis = 1, start = [WIDTH], end = [KEYS_END]}
  %v = slice %qkv {axis = 1, start = [KEYS_END], end = [ALL]}
ROPE  kv_write @kv, KEYS, %v, %slotsSTATIC
  %a = paged_attention %q, @kv, %pages, %lens, %starts, SINKS, _STATIC {scale = 0.125ATTRIBUTES}
  return "a" = %aOUTPUTS
}
)";

constexpr char kRotation[] = R"(  %qs = slice %qkv {axis = 1, start = [0], end = [WIDTH]}
  %qr = rope %qs, %pos, %f {head_dim = DIM}
  %kr = rope %k, %pos, %f {head_dim = DIM}
)";

// Over 60 lines: the step and what it reads.
OpCase CacheLayer(const CacheForm& form, const std::vector<CachedSequence>& sequences) {
  int64_t pages = 0, pages_per_sequence = 1;
  const auto pages_of = [&](const CachedSequence& s) { return (s.length + form.page_size - 1) / form.page_size; };
  for (const CachedSequence& s : sequences) {
    pages += pages_of(s);
    pages_per_sequence = std::max(pages_per_sequence, pages_of(s));
  }
  // Pages from the last to the first.
  std::vector<int64_t> table, lens, starts = {0}, slots, positions;
  int64_t free = pages;
  for (const CachedSequence& s : sequences) {
    const size_t first = table.size();
    for (int64_t p = 0; p < s.length; ++p) {
      if (p % form.page_size == 0) table.push_back(--free);
      slots.push_back(table.back() * form.page_size + p % form.page_size);
      positions.push_back(p);
    }
    table.resize(first + static_cast<size_t>(pages_per_sequence), 0);
    lens.push_back(s.length);
    starts.push_back(starts.back() + s.tokens);
  }
  const int64_t count = static_cast<int64_t>(sequences.size()), heads = form.kv_heads * form.group;
  const int64_t width = heads * form.head_dim, keys = form.kv_heads * form.head_dim;
  const bool of_all = absl::StrContains(form.encoding, "per=tensor"),
             is_static = of_all || absl::StrContains(form.encoding, "per=channel");
  const auto text = [](int64_t n) { return absl::StrCat(n); };
  OpCase c{absl::StrCat("cache ", form.type, " ", form.encoding, " ", form.kv_heads, " * ", form.group, " heads of ",
                        form.head_dim, " pages of ", form.page_size, " ", count, " sequences ", starts.back(),
                        " tokens", form.attributes, form.sinks ? " sinks" : "", form.rotates ? " rope" : "")};
  for (char& each : c.name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(each))) each = ' ';
  }
  c.device_case.text = absl::StrReplaceAll(kCacheLayer, {{"ROPE", form.rotates ? kRotation : ""}});
  c.device_case.text = absl::StrReplaceAll(
      c.device_case.text, {{"KEYS, %v", form.rotates ? "%kr, %v" : "%k, %v"},
                           {"OUTPUTS", form.rotates ? ", \"qr\" = %qr" : ""},
                           {"STATIC", is_static ? ", %ks, %vs" : ""},
                           {"SINKS", form.sinks ? "%sinks" : "_"},
                           {"TOKENS", text(form.most_tokens)},
                           {"TYPE", form.type},
                           {"ENCODING", form.encoding},
                           {"PAGES", text(pages)},
                           {"SIZE", text(form.page_size)},
                           {"KV_HEADS", text(form.kv_heads)},
                           {"HEADS", text(heads)},
                           {"f32[SCALES]", of_all ? "f32[]" : absl::StrCat("f32[", form.kv_heads, "]")},
                           {"KEYS_END", text(width + keys)},
                           {"ALL", text(width + 2 * keys)},
                           {"DIM", text(form.head_dim)},
                           {"HALF", text(form.head_dim / 2)},
                           {"WIDTH", text(width)},
                           {"ATTRIBUTES", form.attributes}});
  std::vector<float> frequencies, scales;
  for (int64_t i = 0; i < form.head_dim / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(1 + 3 * i));
  for (int64_t i = 0; i < (of_all ? 1 : form.kv_heads); ++i) scales.push_back(0.011f + 0.004f * static_cast<float>(i));
  const Tensor scale = Tensor::FromValues(DType::kF32, of_all ? Shape{} : Shape{form.kv_heads}, scales);
  c.device_case.inputs = {{"pages", Tensor::FromValues(DType::kI32, {count, pages_per_sequence}, table)},
                          {"lens", Ints(DType::kI32, lens)},
                          {"starts", Ints(DType::kI32, starts)},
                          {"slots", Ints(DType::kI32, slots)},
                          {"pos", Ints(DType::kI32, positions)},
                          {"f", Tensor::FromValues(DType::kF32, {form.head_dim / 2}, frequencies)},
                          {"ks", scale},
                          {"vs", scale}};
  c.device_case.dims = {
      {"T", starts.back()}, {"U", static_cast<int64_t>(slots.size())}, {"S", count}, {"P", pages_per_sequence}};
  c.device_case.by_row = true;
  // Weights times scales are rounded, and in chunks decoded keys and values. A rotated key may round to the other of
  // two codes.
  const bool is_f32 = form.type == "f32";
  c.device_case.tolerance = is_f32 ? 1e-5 : form.type == "f16" ? 1.0 / 256 : 1.0 / 32;
  if (form.rotates) c.device_case.tolerance = std::max(c.device_case.tolerance, is_f32 ? 2e-2 : 1.0 / 32);
  return c;
}

}  // namespace

void AddCacheCases(std::vector<OpCase>* cases) {
  const std::vector<CachedSequence> few = {{1, 300}, {1, 17}, {2, 40}, {0, 5}, {1, 1}, {1, 700}},
                                    chunks = {{1, 33}, {70, 200}, {9, 9}, {40, 300}};
  const char* const kFloat = "f8e4m3 per=token scale=f32";
  const char* const kInt8 = "int8 per=token scale=f32";
  const char* const kInt4 = "int4 group=32 scale=f16";
  const char* const kZeros = "uint4 group=32 scale=f16 zero=u8";
  for (const char* type : {"bf16", "f16", "f32"}) {
    for (const char* encoding : {kFloat, kInt8, kInt4, kZeros}) {
      cases->push_back(CacheLayer({type, encoding, 2, 4, 128, 16}, few));
      cases->push_back(CacheLayer({type, encoding, 2, 2, 64, 16}, chunks));
      cases->push_back(CacheLayer({type, encoding, 2, 2, 64, 16, "", false, true}, few));
    }
    for (const char* encoding : {"f8e4m3 per=tensor scale=f32", "f8e4m3 per=channel scale=f32"}) {
      cases->push_back(CacheLayer({type, encoding, 2, 2, 64, 16, "", false, true}, few));
      cases->push_back(CacheLayer({type, encoding, 2, 4, 128, 16}, chunks));
    }
  }
  // Other sizes of heads, pages and groups; what joins scores.
  for (const auto& steps : {few, chunks}) {
    cases->push_back(CacheLayer({"bf16", "f8e5m2 per=token scale=f32", 1, 8, 256, 5}, steps));
    cases->push_back(CacheLayer({"f16", kFloat, 3, 1, 80, 32, ", window = 33", true}, steps));
    cases->push_back(CacheLayer({"bf16", kInt8, 2, 2, 40, 8, ", softcap = 20.0"}, steps));
    cases->push_back(CacheLayer({"bf16", "uint4 group=64 scale=f32 zero=u8", 2, 4, 128, 64}, steps));
    cases->push_back(CacheLayer({"f16", "int4 per=token scale=f16", 1, 7, 96, 16, ", chunk = 64"}, steps));
    cases->push_back(CacheLayer({"f16", "uint4 group=32 scale=bf16 zero=u8", 2, 2, 96, 16}, steps));
    cases->push_back(CacheLayer({"bf16", "uint8 group=8 scale=f16 zero=u8", 2, 2, 24, 16}, steps));
    cases->push_back(CacheLayer({"f16", kInt8, 1, 24, 16, 16}, steps));
    cases->push_back(CacheLayer({"f32", "int4 group=6 scale=f32", 2, 2, 12, 16}, steps));
  }
  // Scratch memory for 512 decoded rows, which not all sequences fit: attention decodes the first ones' itself.
  for (const char* encoding : {kFloat, kInt4, kZeros}) {
    CacheForm form = {"bf16", encoding, 2, 8, 128, 16};
    form.most_tokens = 8;
    cases->push_back(CacheLayer(form, {{3, 300}, {1, 40}, {4, 400}}));
    cases->push_back(CacheLayer(form, {{3, 100}, {5, 600}}));
    form.attributes = ", window = 280";
    cases->push_back(CacheLayer(form, {{3, 300}, {5, 400}}));
  }
}

}  // namespace llmc
