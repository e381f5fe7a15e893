// What runs parts of a model on a device. The library knows no device: whoever calls it hands one in.
#pragma once

#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "ir/graph.h"
#include "quantize/matrices.h"

namespace llmc {

class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // Runs the first step of a model without weights and gives its outputs. Its states begin as anything. Models that
  // print alike are the same model: what was made ready for one serves the next.
  virtual absl::StatusOr<NamedTensors> Run(const Model& model, const NamedTensors& inputs) = 0;
  // nullptr: it multiplies no matrices but those of models.
  virtual Matrices* matrices() { return nullptr; }
};

}  // namespace llmc
