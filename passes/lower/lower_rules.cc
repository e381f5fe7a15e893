// What joins a kernel, and what forms one. Whether it fits is the backend's answer; the rules say what is tried.
#include "ir/state_type.h"
#include "passes/driver/match.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

int64_t LastOf(const Value* value) {
  return value->type.shape.empty() || !value->type.shape.back().is_constant() ? 0 : value->type.shape.back().value();
}

// rope turns heads as long as those of the state, whose keys and values are of one size.
bool HeadsFitState(const Match& m) {
  const StateComponent *k = m["@kv"]->state->Find("k"), *v = m["@kv"]->state->Find("v");
  return k->HeadDim() == m.Int("$d") && v->HeadDim() == m.Int("$d");
}

// What is normalized are heads [T, heads, head_dim], by weights of their own type.
bool NormsFitHeads(const Match& m) {
  const auto is_norm = [&](absl::string_view heads, absl::string_view weight, absl::string_view flat) {
    const TensorType& split = m[heads]->type;
    return split.rank() == 3 && LastOf(m[heads]) == m.Int("$d") && m[flat]->type.rank() == 2 &&
           split.shape[0] == m[flat]->type.shape[0] && m[weight]->type == TensorType{split.dtype, {split.shape[2]}};
  };
  return is_norm("%q_heads", "%gq", "%q_flat") && is_norm("%k_heads", "%gk", "%k_flat");
}

constexpr char kBoundRopeExample[] =
    "%qkv0: f32[4, 32]; @w: f32[128, 32]; kernel test { %qkv = linear %qkv0, @w {transpose_rhs = true} }; "
    "%pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, "
    "16]}; "
    "$a = [64]; $b = [96]; $c = [128]; $d = 16; $s = 1.5";

constexpr auto kLowerRules = Rules(
    // ---- after a root: nearest first, since what is behind a view may be one of the next
    Rule("absorb-add")
        .Find(R"(%y in $k
                 %z = add %y, %r)")
        .Join()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }; "
                 "%r: bf16[4, 32]"),
    Rule("absorb-gate")
        .Find(R"(%y in $k
                 %z = silu_mul %y)")
        .Join()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }"),
    Rule("absorb-route")
        .Find("%y in $k\n"
              "%e, %w = route %y, %_b {top_k = $n, score = $score, groups = $groups, top_groups = $top, "
              "group_best = $best, normalize = $normalize, scale = $scale}")
        .Join()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }; "
                 "%b: f32[32]; $n = 2; $score = \"softmax\"; $groups = 1; $top = 1; $best = 1; $normalize = false; "
                 "$scale = 1.0"),
    Rule("absorb-activation")
        .Find(R"(%y in $k
                 %z = gelu_tanh %y)")
        .Join()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }"),
    Rule("absorb-gelu")
        .Find(R"(%y in $k
                 %z = gelu %y)")
        .Join()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }"),
    Rule("absorb-cast")
        .Find(R"(%y in $k
                 %z = cast %y {to = $t})")
        .Join()
        .Example(
            "%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }; $t = f32"),
    Rule("absorb-rope-kv-write")
        .Find(R"(%qkv in $k
                 %q = slice %qkv {axis = 1, start = [0], end = $a}
                 %k = slice %qkv {axis = 1, start = $a, end = $b}
                 %v = slice %qkv {axis = 1, start = $b, end = $c}
                 %qr = rope %q, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots, %_ks, %_vs)")
        .When("heads as in the state", HeadsFitState)
        .Join()
        .Example(kBoundRopeExample),
    Rule("absorb-view")
        .Find(R"(%y in $k
                 %z = :view %y)")
        .Join()
        .Quiet()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }; "
                 "%z = reshape %y {shape = [2, 2, 32]}; %u = neg %z"),

    // What is kept of the result, and where it lies.
    Rule("absorb-result-slice")
        .Find(R"(%y in $k
                 %z = slice %y {axis = $a, start = $s, end = $e})")
        .Join()
        .Quiet()
        .Example("%x: bf16[4, 64]; @w: bf16[32, 64]; kernel test { %y = linear %x, @w {transpose_rhs = true} }; "
                 "$a = 1; $s = [0]; $e = [16]"),
    Rule("absorb-result-transpose")
        .Find(R"(%y in $k
                 %z = transpose %y {perm = $p})")
        .Join()
        .Quiet()
        .Example("%x: bf16[2, 4, 64]; %w: bf16[2, 32, 64]; kernel test { %y = matmul %x, %w {transpose_rhs = true} }; "
                 "$p = [1, 0, 2]"),

    // ---- heads and the cache
    Rule("form-latent-kv-write")
        .Find(R"(%c = slice %kv {axis = 1, start = $z, end = $a}
                 %cn = rms_norm %c, %g {eps = $e}
                 %p = slice %kv {axis = 1, start = $a, end = $b}
                 %pr = rope %p, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %row = concat %cn, %pr {axis = 1}
                 kv_write @kv, %row, %row, %slots {keys = $n, values = $n})")
        .Form("latent_kv_write")
        .Example("%kv: f32[4, 24]; %pos: i32[4] = positions; %f: f32[4]; %slots: i32[4] = slots; %g: f32[16]; state "
                 "@kv: paged[2, 16] {latent: f32[1, 24]}; $z = [0]; $a = [16]; $b = [24]; $d = 8; $i = true; $s = 1.5; "
                 "$e = 1e-6; "
                 "$n = \"latent\""),
    Rule("form-norm-rope-kv-write")
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
                 kv_write @kv, %kr, %v, %slots, %_ks, %_vs)")
        .When("heads as in the state", HeadsFitState)
        .When("norms of heads", NormsFitHeads)
        .Form("rope_kv_write")
        .Example("%qkv: f32[4, 128]; %pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; %gq: f32[16]; %gk: "
                 "f32[16]; state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}; $a = [64]; $b = [96]; $c = [128]; "
                 "$d = 16; $s = 1.5; $e = "
                 "1e-6; $q_split = [4, 4, 16]; $q_whole = [4, 64]; $k_split = [4, 2, 16]; $k_whole = [4, 32]"),
    Rule("form-rope-kv-write")
        .Find(R"(%q = slice %qkv {axis = 1, start = [0], end = $a}
                 %k = slice %qkv {axis = 1, start = $a, end = $b}
                 %v = slice %qkv {axis = 1, start = $b, end = $c}
                 %qr = rope %q, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 %kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots, %_ks, %_vs)")
        .When("heads as in the state", HeadsFitState)
        .Form("rope_kv_write")
        .Example("%qkv: f32[4, 128]; %pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; state @kv: paged[2, "
                 "16] {k: f32[2, 16], v: f32[2, 16]}; $a = [64]; $b = [96]; $c = [128]; $d = 16; $s = 1.5"),
    Rule("form-rope-write")
        .Find(R"(%kr = rope %k, %pos, %f {head_dim = $d, interleaved = $i, scale = $s}
                 kv_write @kv, %kr, %v, %slots, %_ks, %_vs)")
        .When("heads as in the state", HeadsFitState)
        .Form("rope_kv_write")
        .Example("%k: f32[4, 32]; %v: f32[4, 32]; %pos: i32[4] = positions; %f: f32[8]; %slots: i32[4] = slots; "
                 "state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}; $d = 16; $s = 1.5"),

    // ---- activations to codes
    Rule("form-norm-quantize")
        .Find(R"(%n = rms_norm %x, @g {eps = $e}
                 %s = dynamic_scale %n {as = $as, limit = $l, inverse = $i}
                 %q = quantize %n, %s {as = $as, inverse = $i})")
        .Form("rms_norm")
        .Example("%x: f32[4, 64]; @g: f32[64]; $e = 1e-6; $as = \"int8 per=token scale=f32\"; $l = 127.0; $i = false"),
    Rule("form-norm-quantize-static")
        .Find(R"(%n = rms_norm %x, @g {eps = $e}
                 %q = quantize %n, @s {as = $as})")
        .Form("rms_norm")
        .Example("%x: f32[4, 64]; @g: f32[64]; @s: f32[]; $e = 1e-6; $as = \"f8e4m3 per=tensor scale=f32\""),
    Rule("form-gate-quantize")
        .Find(R"(%n = silu_mul %x
                 %s = dynamic_scale %n {as = $as, limit = $l, inverse = $i}
                 %q = quantize %n, %s {as = $as, inverse = $i})")
        .Form("quantize")
        .Example("%x: f32[4, 64]; $as = \"int8 per=token scale=f32\"; $l = 127.0; $i = false"),
    Rule("form-gate-quantize-static")
        .Find(R"(%n = silu_mul %x
                 %q = quantize %n, @s {as = $as})")
        .Form("quantize")
        .Example("%x: f32[4, 64]; @s: f32[]; $as = \"f8e4m3 per=tensor scale=f32\""),
    Rule("form-quantize")
        .Find(R"(%s = dynamic_scale %x {as = $as, limit = $l, inverse = $i}
                 %q = quantize %x, %s {as = $as, inverse = $i})")
        .Form("quantize")
        .Example("%x: f32[4, 64]; $as = \"int8 per=token scale=f32\"; $l = 127.0; $i = false"),

    // ---- before what is a kernel already
    Rule("absorb-norm")
        .Find(R"(%n = rms_norm %x, @g {eps = $e}
                 $k reads %n)")
        .Join(Readers::kAll)
        .Example("%x: bf16[4, 64]; @g: bf16[64]; @w: bf16[32, 64]; @u: bf16[16, 64]; "
                 "kernel test { %y = linear %n, @w {transpose_rhs = true} }; "
                 "kernel test { %z = linear %n, @u {transpose_rhs = true} }"),
    // A norm's kernel makes the sum that it normalizes, which others read too.
    Rule("absorb-sum")
        .Find(R"(%n = add %x, %y
                 $k reads %n)")
        .Join(Readers::kAny)
        .Example("%x: bf16[4, 64]; %y: bf16[4, 64]; @g: bf16[64]; kernel test { %z = rms_norm %n, @g }; "
                 "%a = neg %n"),
    // Its elements are read where they lie.
    Rule("absorb-slice")
        .Find(R"(%n = slice %x {axis = $a, start = $s, end = $e}
                 $k reads %n)")
        .Join(Readers::kAll)
        .Quiet()
        .Example("%x: bf16[4, 64]; $a = 1; $s = [0]; $e = [32]; kernel test { %z = exp %n }"),
    Rule("absorb-transpose")
        .Find(R"(%n = transpose %x {perm = $p}
                 $k reads %n)")
        .Join(Readers::kAll)
        .Quiet()
        .Example("%x: bf16[4, 2, 64]; $p = [1, 0, 2]; %w: bf16[2, 32, 64]; kernel test { %y = matmul %n, %w "
                 "{transpose_rhs = true} }"),
    Rule("absorb-concat")
        .Find(R"(%n = concat %a, %b {axis = $i}
                 $k reads %n)")
        .Join(Readers::kAll)
        .Quiet()
        .Example("%a: bf16[4, 32]; %b: bf16[4, 32]; $i = 1; kernel test { %z = exp %n }"),
    Rule("absorb-operand-view")
        .Find(R"(%n = :view %x
                 $k reads %n)")
        .Join(Readers::kAll)
        .Quiet()
        .Example("%x: bf16[4, 64]; %n = reshape %x {shape = [4, 2, 32]}; %u = neg %x; kernel test { "
                 "%z = exp %n }"),
    Rule("absorb-elementwise")
        .Find(R"(%n = :elementwise
                 $k reads %n)")
        .Join()
        .Quiet()
        .Example("%x: bf16[4, 64]; %n = neg %x; kernel test { %z = exp %n }"));

}  // namespace

RuleSpan LowerRules() { return kLowerRules; }

}  // namespace llmc
