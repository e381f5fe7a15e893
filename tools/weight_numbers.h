// Weights of an imported model that have numbers which are none.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace llmc {

struct WeightFinding {
  std::string file, tensor;
  std::string text;  // all of it in one sentence
};

// Of each weight in floats the first element that is NaN or infinite: what the model computes of it would be noise. All
// bytes are read, on all cores. Codes and scales of quantized weights are looked at when they are imported.
std::vector<WeightFinding> WeightsThatAreNotFinite(const Model& model);

}  // namespace llmc
