// Merges weights whose products share an input. The right sides do the same arithmetic in the same order; only silu_mul
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

constexpr auto kFuseRules = Rules(
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
                 "%slots: i32[4] = slots; state @kv: f32[2, 2, 16, 2, 16]"),

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
                 "@bv: f32[32]; %written: f32[4, 32]; %slots: i32[4] = slots; state @kv: f32[2, 2, 16, 2, 16]"),

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
