#include "passes/rule_lists.h"

namespace llmc {

std::vector<const Rule*> AllRules() {
  std::vector<const Rule*> all;
  for (RuleSpan rules : {FoldRules(), SimplifyRules(), FuseRules()}) {
    for (const Rule& rule : rules) all.push_back(&rule);
  }
  return all;
}

const Rule* FindRule(absl::string_view name) {
  for (const Rule* rule : AllRules()) {
    if (rule->name() == std::string_view(name.data(), name.size())) return rule;
  }
  return nullptr;
}

}  // namespace llmc
