#include "passes/rules/rule_lists.h"

#include "passes/driver/numerics.h"

namespace llmc {

std::vector<const Rule*> AllRules() {
  std::vector<const Rule*> all;
  for (RuleSpan rules :
       {FoldRules(), SimplifyRules(), RaiseNormRules(), RaiseActivationRules(), RaiseRopeRules(), RaiseHeadRules(),
        RaiseAttentionRules(), RaiseQuantRules(), RaiseLinearRules(), FuseRules(), LowerRules()}) {
    for (const Rule& rule : rules) all.push_back(&rule);
  }
  return all;
}

bool MayRound(const Ledger& ledger, const std::map<std::string, int64_t>& before, const Model& model) {
  const DType coarsest = CoarsestFloat(model);
  const bool is_coarse = coarsest != DType::kF64 && coarsest != DType::kF32;
  for (const Rule* rule : AllRules()) {
    auto it = before.find(std::string(rule->name()));
    const bool fired = ledger.CountFired(View(rule->name())) > (it == before.end() ? 0 : it->second);
    if (!fired || rule->rounding() == Rounding::kNowhere) continue;
    if (rule->rounding() == Rounding::kAnywhere || is_coarse) return true;
  }
  return false;
}

const Rule* FindRule(absl::string_view name) {
  for (const Rule* rule : AllRules()) {
    if (rule->name() == std::string_view(name.data(), name.size())) return rule;
  }
  return nullptr;
}

}  // namespace llmc
