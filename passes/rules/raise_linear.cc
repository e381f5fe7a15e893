// linear, from a product with a weight.
#include "ir/ops.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/passes.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

// A product of activations is no linear that nearly was one: it is not refused.
bool TakeWeight(Rewriter& rewriter, Node* node) {
  const auto op = View<MatMul>(*node);
  const bool is_matrix = op.rhs->type.rank() == 2 && IsFloat(op.rhs->type.dtype) && op.rhs->name[0] == '@';
  if (!is_matrix || op.lhs->type.rank() < 2) return false;
  return rewriter.ReplaceWith(rewriter.Add(Linear{.lhs = op.lhs, .rhs = op.rhs, .transpose_rhs = op.transpose_rhs}));
}

constexpr auto kLinearRules =
    Rules(Rule("raise-linear")
              .Apply("matmul", TakeWeight)
              .Example("%x: f32[4, 64]; @w: f32[32, 64]; %y = matmul %x, @w {transpose_rhs = true}"));

}  // namespace

RuleSpan RaiseLinearRules() { return kLinearRules; }

absl::Status RaiseLinear(Model* model, const PassContext& context) {
  std::vector<const Rule*> rules;
  for (const Rule& rule : RaiseLinearRules()) rules.push_back(&rule);
  return RunToFixedPoint(model, rules, context.ledger);
}

}  // namespace llmc
