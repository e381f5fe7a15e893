// Merges ops which share a kernel or an input. The right sides do the same arithmetic in the same order; only silu_mul
// does not round in between in 16-bit types. Concats of weights run once: hoist-weights moves them to `prepare`.

#include "passes/driver/match.h"
#include "passes/rules/rule_lists.h"

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

// Queries come first; where they are as wide as keys, they are known by that.
bool IsQkv(const Match& m) {
  const int64_t q = LastDim(m["%q"]), k = LastDim(m["%k"]), v = LastDim(m["%v"]);
  return q > 0 && k > 0 && k == v && m["%q"]->type.rank() == 2 && (q != k || m["%q"]->def->order < m["%k"]->def->order);
}

// Where queries, keys and values end in a row of all three.
Attr EndOfQ(const Match& m) { return Dims{Dim(LastDim(m["%q"]))}; }
Attr EndOfK(const Match& m) { return Dims{Dim(LastDim(m["%q"]) + LastDim(m["%k"]))}; }
Attr EndOfV(const Match& m) { return Dims{Dim(LastDim(m["%q"]) + LastDim(m["%k"]) + LastDim(m["%v"]))}; }

bool IsRowOfWeights(const Match& m, absl::string_view bias, absl::string_view product) {
  return m[bias]->type.rank() == 1 && LastDim(m[bias]) == LastDim(m[product]);
}

// rope turns heads as long as those of the state.
// Keys and values of the size that is rotated.
bool HeadsAreOfState(const Match& m) {
  const StateComponent *k = m["@kv"]->state->Find("k"), *v = m["@kv"]->state->Find("v");
  return k->HeadDim() == m.Int("$d") && v->HeadDim() == m.Int("$d");
}

Attr Heads(const Match& m) { return LastDim(m["%q"]) / m.Int("$d"); }

// What is normalized are heads [T, heads, head_dim], by weights of their own type.
bool NormsAreOfHeads(const Match& m) {
  const auto is_norm = [&](absl::string_view heads, absl::string_view weight, absl::string_view flat) {
    const TensorType& split = m[heads]->type;
    return split.rank() == 3 && LastDim(m[heads]) == m.Int("$d") && m[flat]->type.rank() == 2 &&
           split.shape[0] == m[flat]->type.shape[0] && m[weight]->type == TensorType{split.dtype, {split.shape[2]}};
  };
  return is_norm("%q_heads", "%gq", "%q_flat") && is_norm("%k_heads", "%gk", "%k_flat");
}

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
                 kv_write @kv, %written, %v, %slots)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wq", "@wk", "@wv"); })
        .When("queries, keys and values", IsQkv)
        .Let("$a", EndOfQ)
        .Let("$b", EndOfK)
        .Let("$c", EndOfV)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %qkv = matmul %x, %w_qkv {transpose_rhs = true}
                    %q = slice %qkv {axis = 1, start = [0], end = $a}
                    %k = slice %qkv {axis = 1, start = $a, end = $b}
                    %v = slice %qkv {axis = 1, start = $b, end = $c}
                    kv_write @kv, %written, %v, %slots)")
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wk: f32[32, 32]; @wv: f32[32, 32]; %written: f32[4, 32]; "
                 "%slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}"),

    Rule("merge-qkv-bias")
        .Find(R"(%q0 = matmul %x, @wq {transpose_rhs = true}
                 %q = add %q0, @bq
                 %k0 = matmul %x, @wk {transpose_rhs = true}
                 %k = add %k0, @bk
                 %v0 = matmul %x, @wv {transpose_rhs = true}
                 %v = add %v0, @bv
                 kv_write @kv, %written, %v, %slots)")
        .When("weights without another user",
              [](const Match& m) { return UsedOnce(m, "@wq", "@wk", "@wv", "@bq", "@bk", "@bv"); })
        .When("queries, keys and values", IsQkv)
        .When("a bias as long as its result",
              [](const Match& m) {
                return IsRowOfWeights(m, "@bq", "%q") && IsRowOfWeights(m, "@bk", "%k") &&
                       IsRowOfWeights(m, "@bv", "%v");
              })
        .Let("$a", EndOfQ)
        .Let("$b", EndOfK)
        .Let("$c", EndOfV)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %b_qkv = concat @bq, @bk, @bv
                    %qkv0 = matmul %x, %w_qkv {transpose_rhs = true}
                    %qkv = add %qkv0, %b_qkv
                    %q = slice %qkv {axis = 1, start = [0], end = $a}
                    %k = slice %qkv {axis = 1, start = $a, end = $b}
                    %v = slice %qkv {axis = 1, start = $b, end = $c}
                    kv_write @kv, %written, %v, %slots)")
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wk: f32[32, 32]; @wv: f32[32, 32]; @bq: f32[64]; @bk: f32[32]; "
                 "@bv: f32[32]; %written: f32[4, 32]; %slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], "
                 "v: f32[2, 16]}"),

    // After merge-qkv, where nothing stands between the products and rope.
    Rule("fuse-rope-kv-write")
        .Find(R"(%q = slice %qkv {axis = 1, start = [0], end = $a}
                 %k = slice %qkv {axis = 1, start = $a, end = $b}
                 %v = slice %qkv {axis = 1, start = $b, end = $c}
                 %qr = rope %q, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots)")
        .When("heads as in the state", HeadsAreOfState)
        .Let("$heads", Heads)
        .Replace("%qr = rope_kv_write @kv, %qkv, %pos, %f, %slots {heads = $heads, interleaved = $i, scale = $s}")
        .Example("%qkv: f32[4, 128]; %pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; "
                 "state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}; "
                 "$a = [64]; $b = [96]; $c = [128]; $d = 16; $s = 1.5")
        .Example("%qkv: bf16[4, 128]; %pos: i32[4] = positions; %f: f32[4]; %slots: i32[4] = slots; "
                 "state @kv: paged[2, 16] {k: bf16[2, 16], v: bf16[2, 16]}; "
                 "$a = [64]; $b = [96]; $c = [128]; $d = 16; $i = true"),

    // The same with a norm of each head of the queries and keys.
    Rule("fuse-norm-rope-kv-write")
        .Find(R"(%q = slice %qkv {axis = 1, start = [0], end = $a}
                 %k = slice %qkv {axis = 1, start = $a, end = $b}
                 %v = slice %qkv {axis = 1, start = $b, end = $c}
                 %q_heads = reshape %q {shape = $q_split}
                 %q_normed = rms_norm %q_heads, %gq {eps = $e}
                 %q_flat = reshape %q_normed {shape = $q_whole}
                 %k_heads = reshape %k {shape = $k_split}
                 %k_normed = rms_norm %k_heads, %gk {eps = $e}
                 %k_flat = reshape %k_normed {shape = $k_whole}
                 %qr = rope %q_flat, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %kr = rope %k_flat, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots)")
        .When("heads as in the state", HeadsAreOfState)
        .When("norms of heads", NormsAreOfHeads)
        .Let("$heads", Heads)
        .Replace("%qr = rope_kv_write @kv, %qkv, %pos, %f, %slots, %gq, %gk {heads = $heads, interleaved = $i, scale = "
                 "$s, eps = $e}")
        .Example("%qkv: f32[4, 128]; %pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; %gq: f32[16]; %gk: "
                 "f32[16]; state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}; $a = [64]; $b = [96]; $c = [128]; "
                 "$d = 16; $s = 1.5; $e = "
                 "1e-6; $q_split = [4, 4, 16]; $q_whole = [4, 64]; $k_split = [4, 2, 16]; $k_whole = [4, 32]")
        .Example(
            "%qkv: bf16[4, 128]; %pos: i32[4] = positions; %f: f32[4]; %slots: i32[4] = slots; %gq: bf16[16]; %gk: "
            "bf16[16]; state @kv: paged[2, 16] {k: bf16[2, 16], v: bf16[2, 16]}; $a = [64]; $b = [96]; $c = [128]; $d "
            "= 16; $i = true; $e "
            "= 1e-6; $q_split = [4, 4, 16]; $q_whole = [4, 64]; $k_split = [4, 2, 16]; $k_whole = [4, 32]"),

    Rule("fuse-rope-write")
        .Find(R"(%kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots)")
        .When("heads as in the state", HeadsAreOfState)
        .Replace("rope_write @kv, %k, %v, %pos, %f, %slots {interleaved = $i, scale = $s}")
        .Example("%k: f32[4, 32]; %v: f32[4, 32]; %pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; "
                 "state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}; $d = 16; $s = 1.5")
        .Example("%k: bf16[4, 32]; %v: bf16[4, 32]; %pos: i32[4] = positions; %f: f32[4]; %slots: i32[4] = slots; "
                 "state @kv: paged[2, 16] {k: bf16[2, 16], v: bf16[2, 16]}; $d = 16; $i = true"),

    Rule("merge-gate-up")
        .Find(R"(%gate = matmul %x, @wg {transpose_rhs = true}
                 %act = silu %gate
                 %up = matmul %x, @wu {transpose_rhs = true}
                 %out = mul %act, %up)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wg", "@wu"); })
        .Rounds(Rounding::kIn16Bit)
        .When("gate and up of one type", [](const Match& m) { return m["@wg"]->type == m["@wu"]->type; })
        .Replace(R"(%w_gate_up = concat @wg, @wu
                    %gate_up = matmul %x, %w_gate_up {transpose_rhs = true}
                    %out = silu_mul %gate_up)")
        .Example("%x: f32[4, 8]; @wg: f32[16, 8]; @wu: f32[16, 8]"),
    Rule("merge-gate-up-columns")
        .Find(R"(%gate = matmul %x, @wg
                 %act = silu %gate
                 %up = matmul %x, @wu
                 %out = mul %act, %up)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wg", "@wu"); })
        .Rounds(Rounding::kIn16Bit)
        .When("gate and up of one type",
              [](const Match& m) { return m["@wg"]->type == m["@wu"]->type && m["@wg"]->type.rank() == 2; })
        .Replace(R"(%w_gate_up = concat @wg, @wu {axis = 1}
                    %gate_up = matmul %x, %w_gate_up
                    %out = silu_mul %gate_up)")
        .Example("%x: f32[4, 8]; @wg: f32[8, 16]; @wu: f32[8, 16]"));

}  // namespace

RuleSpan FuseRules() { return kFuseRules; }

}  // namespace llmc
