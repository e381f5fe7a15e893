// Every rule, by the pass that runs it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "passes/driver/ledger.h"
#include "passes/driver/rule.h"

namespace llmc {

RuleSpan FoldRules();             // passes/fold_constants.cc
RuleSpan SimplifyRules();         // passes/rules/simplify.cc
RuleSpan RaiseNormRules();        // passes/rules/raise_norm.cc
RuleSpan RaiseActivationRules();  // passes/rules/raise_activation.cc
RuleSpan RaiseRopeRules();        // passes/rules/raise_rope.cc
RuleSpan RaiseHeadRules();        // passes/rules/raise_heads.cc
RuleSpan RaiseAttentionRules();   // passes/rules/raise_attention.cc
RuleSpan RaiseQuantRules();       // passes/rules/raise_quant.cc
RuleSpan RaiseLinearRules();      // passes/rules/raise_linear.cc
RuleSpan FuseRules();             // passes/rules/fuse.cc
RuleSpan LowerRules();            // passes/lower/lower_rules.cc

std::vector<const Rule*> AllRules();
// Whether a rule that fired since `before` may have changed the last bits of what `model` computes.
bool MayRound(const Ledger& ledger, const std::map<std::string, int64_t>& before, const Model& model);
const Rule* FindRule(absl::string_view name);  // nullptr if there is none

}  // namespace llmc
