// The pass that recognizes what exporters have taken apart. Its rules stand in rules_raise_*.cc by subject; those of
// simplify run with them, so that each rule meets one spelling.

#include "passes/leftovers.h"
#include "passes/passes.h"
#include "passes/rewrite_driver.h"
#include "passes/rule_lists.h"

namespace llmc {

absl::Status Raise(Model* model, const PassContext& context) {
  const auto run = [&](const std::vector<RuleSpan>& lists) {
    std::vector<const Rule*> rules;
    for (RuleSpan list : lists) {
      for (const Rule& rule : list) rules.push_back(&rule);
    }
    return RunToFixedPoint(model, rules, context.ledger);
  };
  absl::Status status = run({SimplifyRules(), RaiseNormRules(), RaiseActivationRules(), RaiseRopeRules(),
                             RaiseHeadRules(), RaiseAttentionRules()});
  // Afterwards: products of attention are part of it whatever their factors are.
  if (status.ok()) status = run({SimplifyRules(), RaiseQuantRules()});
  if (!status.ok()) return status;
  return NoteLeftovers(model, context.ledger);
}

}  // namespace llmc
