// The pass that recognizes what exporters have taken apart. Its rules stand in raise_*.cc by subject; those of
// simplify run with them, so that each rule meets one spelling.

#include "passes/driver/rewrite_driver.h"
#include "passes/passes.h"
#include "passes/rules/missed_patterns.h"
#include "passes/rules/rule_lists.h"

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
  if (status.ok()) status = HoistEncodings(model);
  if (status.ok()) status = NoteMissedPatterns(model, context.ledger);
  // Last, so that all above meet one kind of products.
  return status.ok() ? RaiseLinear(model, context) : status;
}

}  // namespace llmc
