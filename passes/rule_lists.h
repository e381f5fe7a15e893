// Every rule, by the pass that runs it.
#pragma once

#include <vector>

#include "passes/rule.h"

namespace llmc {

RuleSpan FoldRules();      // passes/fold_constants.cc
RuleSpan SimplifyRules();  // passes/simplify.cc
RuleSpan FuseRules();      // passes/fuse.cc

std::vector<const Rule*> AllRules();
const Rule* FindRule(absl::string_view name);  // nullptr if there is none

}  // namespace llmc
