// Runs a rule on the program of its example and compares the numbers before and after.
#pragma once

#include "absl/status/status.h"
#include "passes/driver/rule.h"

namespace llmc {

// An error if the rule does not compile, does not fire on one of its examples, leaves an invalid program, or changes a
// value that it keeps or the contents of a state.
absl::Status SelfTest(const Rule& rule);

}  // namespace llmc
