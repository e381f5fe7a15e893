// Products of three axes, [B * heads, L, K], as those of four that the rules of attention know: older exporters merge
// batch and heads for them, and split them again to add a mask. Norms of heads that stand among the tokens, likewise.
#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

// Whether [N, L, K] is [B, heads, L, K] with its first two axes as one.
bool AreMerged(const Value* merged, const Value* split) {
  const Dims &three = merged->type.shape, &four = split->type.shape;
  return three.size() == 3 && four.size() == 4 && four[0] * four[1] == three[0] && four[2] == three[1] &&
         four[3] == three[2];
}

bool SplitsProduct(const Match& m) {
  const Dims &a = m["%a"]->type.shape, &b = m["%b"]->type.shape, &p = m["%p"]->type.shape;
  return AreMerged(m["%p"], m["%y"]) && a.size() == 3 && b.size() == 3 && a[0] == p[0] && b[0] == p[0];
}
Dims SplitAs(const Value* merged, const Value* split) {
  const Dims &three = merged->type.shape, &four = split->type.shape;
  return {four[0], four[1], three[1], three[2]};
}
// An operand [B * heads or 1, L or 1, K or 1] of a sum, under the shape that splits it.
bool IsMergedOperand(const Value* operand, const Value* sum) {
  return operand->type.rank() == 3 && operand->type.shape[0] == sum->type.shape[0];
}
bool SplitsSum(const Match& m) {
  return AreMerged(m["%p"], m["%y"]) && IsMergedOperand(m["%a"], m["%p"]) && IsMergedOperand(m["%b"], m["%p"]);
}
// Whether x [B, S * heads, D] is split to [B, S, heads, D]: norms of heads, as onnxruntime-genai's model builder has
// them.
bool HasHeadsAmongTokens(const Match& m) {
  const Dims &three = m["%x"]->type.shape, &four = m["%y"]->type.shape;
  return three.size() == 3 && four.size() == 4 && three[0] == four[0] && three[2] == four[3];
}
bool SplitsScaled(const Match& m) { return AreMerged(m["%p"], m["%y"]) && IsScalarNumber(m["%c"]); }
Attr LhsShape(const Match& m) { return SplitAs(m["%a"], m["%y"]); }
Attr RhsShape(const Match& m) { return SplitAs(m["%b"], m["%y"]); }

constexpr auto kHeadsRules =
    Rules(Rule("split-heads-of-product")
              .Find(R"(%p = matmul %a, %b {transpose_rhs = $t}
                 %y = reshape %p {shape = $s})")
              .When("batch and heads as one axis", SplitsProduct)
              .Let("$l", LhsShape)
              .Let("$r", RhsShape)
              .Replace(R"(%c = reshape %a {shape = $l}
                    %d = reshape %b {shape = $r}
                    %y = matmul %c, %d {transpose_rhs = $t})")
              .Example("%a: f32[6, 4, 8]; %b: f32[6, 8, 5]; $s = [2, 3, 4, 5]")
              .Example("%a: f32[6, 4, 8]; %b: f32[6, 5, 8]; $s = [2, 3, 4, 5]; $t = true")
              .Quiet(),
          Rule("split-heads-of-sum")
              .Find(R"(%p = add %a, %b
                 %y = reshape %p {shape = $s})")
              .When("batch and heads as one axis", SplitsSum)
              .Let("$l", LhsShape)
              .Let("$r", RhsShape)
              .Replace(R"(%c = reshape %a {shape = $l}
                    %d = reshape %b {shape = $r}
                    %y = add %c, %d)")
              .Example("%a: f32[6, 4, 5]; %b: f32[6, 1, 5]; $s = [2, 3, 4, 5]")
              .Quiet(),
          Rule("split-heads-of-scaled")
              .Find(R"(%p = mul %x, %c
                 %y = reshape %p {shape = $s})")
              .When("batch and heads as one axis, and a number", SplitsScaled)
              .Replace(R"(%r = reshape %x {shape = $s}
                    %y = mul %r, %c)")
              .Example("%x: f32[6, 4, 5]; %c = constant {value = 0.5} : f32[]; $s = [2, 3, 4, 5]")
              .Quiet(),
          Rule("split-heads-before-softmax")
              .Find(R"(%w = softmax %x {axis = 2, log = $l}
                 %y = reshape %w {shape = $s})")
              .When("batch and heads as one axis", [](const Match& m) { return AreMerged(m["%x"], m["%y"]); })
              .Replace(R"(%r = reshape %x {shape = $s}
                    %y = softmax %r {axis = 3, log = $l})")
              .Example("%x: f32[6, 4, 5]; $s = [2, 3, 4, 5]")
              .Quiet(),
          Rule("split-heads-before-norm")
              .Find(R"(%n = rms_norm %x, %g {eps = $e}
                 %y = reshape %n {shape = $s})")
              .When("tokens and heads as one axis", HasHeadsAmongTokens)
              .Replace(R"(%r = reshape %x {shape = $s}
                    %y = rms_norm %r, %g {eps = $e})")
              .Example("%x: f32[2, 12, 5]; %g: f32[5]; $e = 1e-6; $s = [2, 3, 4, 5]")
              .Quiet(),
          Rule("merge-heads-after-softmax")
              .Find(R"(%m = reshape %x {shape = $s}
                 %y = softmax %m {axis = 2, log = $l})")
              .When("batch and heads as one axis", [](const Match& m) { return AreMerged(m["%m"], m["%x"]); })
              .Replace(R"(%w = softmax %x {axis = 3, log = $l}
                    %y = reshape %w {shape = $s})")
              .Example("%x: f32[2, 3, 4, 5]; $s = [6, 4, 5]")
              .Quiet());

}  // namespace

RuleSpan RaiseHeadRules() { return kHeadsRules; }

}  // namespace llmc
