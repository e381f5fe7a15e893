// Why a rule does not match, for those who look for what it left.
#pragma once

#include "passes/driver/match.h"

namespace llmc {

// Why the rule does not match with `anchor` as its last line, where `telling` stands for the last line of its op. The
// rule must have such a line, and not match.
Refusal WhyNot(const CompiledRule& rule, Model* model, Node* anchor, const Node* telling);

}  // namespace llmc
