// Rules that merge ops which share a kernel or an input. The right sides do the same arithmetic in the same order, so
// f32 numbers do not change; in 16-bit types silu_mul and rope_kv_write do not round in between. Concats of weights run
// once: hoist-weights moves them to `prepare`.

#include "passes/match.h"
#include "passes/rule_lists.h"

namespace llmc {
namespace {

int64_t LastDim(const Value* value) {
  return value->type.shape.empty() || !value->type.shape.back().is_constant() ? 0 : value->type.shape.back().value();
}

// A merged weight is a copy: the parts must not be needed elsewhere.
template <class... Names>
bool UsedOnce(const Match& m, Names... names) {
  return ((m[names]->users.size() == 1 && !m.model().IsOutput(m[names])) && ...);
}

bool HeadsAreWhole(const Match& m) {
  const int64_t d = m.Int("$d");
  return d > 0 && LastDim(m["%q"]) > 0 && LastDim(m["%k"]) > 0 && LastDim(m["%q"]) % d == 0 &&
         LastDim(m["%k"]) == LastDim(m["%v"]);
}

Attr Heads(const Match& m) { return LastDim(m["%q"]) / m.Int("$d"); }

constexpr auto kFuseRules = Rules(
    Rule("fuse-add-rms-norm")
        .Find(R"(%sum = add %x, %y
                 %out = rms_norm %sum, %w {eps = $eps})")
        .Replace(R"(%sum, %out = add_rms_norm %x, %y, %w {eps = $eps})")
        .When("addends of one type", [](const Match& m) { return m["%x"]->type == m["%y"]->type; })
        .Example("%x: f32[4, 64]; %y: f32[4, 64]; %w: f32[64]; $eps = 1e-6")
        .Example("%x: bf16[3, 32]; %y: bf16[3, 32]; %w: bf16[32]"),

    Rule("merge-qkv")
        .Find(R"(%q = matmul %x, @wq {transpose_rhs = true}
                 %k = matmul %x, @wk {transpose_rhs = true}
                 %v = matmul %x, @wv {transpose_rhs = true}
                 %qr = rope %q, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wq", "@wk", "@wv"); })
        .When("whole heads", HeadsAreWhole)
        .Let("$heads", Heads)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %qkv = matmul %x, %w_qkv {transpose_rhs = true}
                    %qr = rope_kv_write @kv, %qkv, %pos, %f, %slots {heads = $heads, interleaved = $i, scale = $s})")
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wk: f32[32, 32]; @wv: f32[32, 32]; %pos: i32[4]; %f: f32[8]; "
                 "%slots: i32[4]; state @kv: f32[2, 2, 16, 2, 16]; $d = 16; $s = 1.5"),

    Rule("merge-qkv-bias")
        .Find(R"(%q0 = matmul %x, @wq {transpose_rhs = true}
                 %q = add %q0, @bq
                 %k0 = matmul %x, @wk {transpose_rhs = true}
                 %k = add %k0, @bk
                 %v0 = matmul %x, @wv {transpose_rhs = true}
                 %v = add %v0, @bv
                 %qr = rope %q, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots)")
        .When("weights without another user",
              [](const Match& m) { return UsedOnce(m, "@wq", "@wk", "@wv", "@bq", "@bk", "@bv"); })
        .When("whole heads", HeadsAreWhole)
        .When("a bias as long as its result",
              [](const Match& m) {
                return m["@bq"]->type.rank() == 1 && m["@bk"]->type.rank() == 1 && m["@bv"]->type.rank() == 1 &&
                       LastDim(m["@bq"]) == LastDim(m["%q"]) && LastDim(m["@bk"]) == LastDim(m["%k"]) &&
                       LastDim(m["@bv"]) == LastDim(m["%v"]);
              })
        .Let("$heads", Heads)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %b_qkv = concat @bq, @bk, @bv
                    %qkv0 = matmul %x, %w_qkv {transpose_rhs = true}
                    %qkv = add %qkv0, %b_qkv
                    %qr = rope_kv_write @kv, %qkv, %pos, %f, %slots {heads = $heads, interleaved = $i, scale = $s})")
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wk: f32[32, 32]; @wv: f32[32, 32]; @bq: f32[64]; @bk: f32[32]; "
                 "@bv: f32[32]; %pos: i32[4]; %f: f32[8]; %slots: i32[4]; state @kv: f32[2, 2, 16, 2, 16]; $d = 16"),

    Rule("merge-gate-up")
        .Find(R"(%gate = matmul %x, @wg {transpose_rhs = true}
                 %act = silu %gate
                 %up = matmul %x, @wu {transpose_rhs = true}
                 %out = mul %act, %up)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wg", "@wu"); })
        .When("gate and up of one type", [](const Match& m) { return m["@wg"]->type == m["@wu"]->type; })
        .Replace(R"(%w_gate_up = concat @wg, @wu
                    %gate_up = matmul %x, %w_gate_up {transpose_rhs = true}
                    %out = silu_mul %gate_up)")
        .Example("%x: f32[4, 8]; @wg: f32[16, 8]; @wu: f32[16, 8]"));

}  // namespace

RuleSpan FuseRules() { return kFuseRules; }

}  // namespace llmc
