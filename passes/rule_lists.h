// Every rule, by the pass that runs it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "passes/ledger.h"
#include "passes/rule.h"

namespace llmc {

RuleSpan FoldRules();             // passes/fold_constants.cc
RuleSpan SimplifyRules();         // passes/simplify.cc
RuleSpan RaiseNormRules();        // passes/rules_raise_norm.cc
RuleSpan RaiseActivationRules();  // passes/rules_raise_activation.cc
RuleSpan RaiseRopeRules();        // passes/rules_raise_rope.cc
RuleSpan RaiseHeadRules();        // passes/rules_raise_heads.cc
RuleSpan RaiseAttentionRules();   // passes/rules_raise_attention.cc
RuleSpan RaiseQuantRules();       // passes/rules_raise_quant.cc
RuleSpan FuseRules();             // passes/fuse.cc

std::vector<const Rule*> AllRules();
// Whether a rule that fired since `before` may have changed the last bits of what `model` computes.
bool MayRound(const Ledger& ledger, const std::map<std::string, int64_t>& before, const Model& model);
const Rule* FindRule(absl::string_view name);  // nullptr if there is none

}  // namespace llmc
