// Whether a change of floating-point types leaves the integers as they are that a model computes from integers, through
// floats: at sizes and positions that 16 bits round.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "ir/eval.h"
#include "ir/graph.h"

namespace llmc {

class CountCheck {
 public:
  // Of the model before the change. Only the part that computes such integers is run.
  explicit CountCheck(const Model& model);

  // Internal names the first integer that another model of the same names has otherwise.
  absl::Status Compare(const Model& after) const;

 private:
  std::set<std::string> names_;
  NamedTensors inputs_, numbers_;
};

}  // namespace llmc
