// Inputs that nobody gave: random numbers of kinds that models can take.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "ir/graph.h"
#include "runtime/llmc.h"

namespace llmc {

// By input, how many entries the smallest table has that the input's numbers are looked up in: a vocabulary, say.
std::map<std::string, int64_t> TableSizes(const Model& model);

struct RandomInputs {
  uint64_t seed = 0;
  DimEnv sizes = {};                           // of symbols; others get small defaults
  std::map<std::string, int64_t> tables = {};  // see above
};

// Contents of the inputs that `given` lacks and that are not optional. Floating point is normal; a mask is of ones,
// positions count up, other integers are below their table's size, else 0 or 1. InvalidArgument names a size that no
// input has. `notes` gets a line for each input.
absl::StatusOr<NamedTensors> MakeRandomInputs(const std::vector<TensorInfo>& inputs, const NamedTensors& given,
                                              const RandomInputs& random, std::vector<std::string>* notes);

}  // namespace llmc
