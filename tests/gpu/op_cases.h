// Programs that use every op of the language over the types and shapes that its kernels tell apart: run on a GPU
// against the evaluator by tests/gpu, compiled without one by tests/codegen.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/gpu/device_check.h"

namespace llmc {

struct OpCase {
  std::string name;
  DeviceCase device_case;
};
// In the names and messages of tests.
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }
std::vector<OpCase> OpCases();
// The same in the same order, without inputs: to draw them takes seconds, and who lists tests or compiles needs none.
std::vector<OpCase> OpCasesWithoutInputs();

}  // namespace llmc
