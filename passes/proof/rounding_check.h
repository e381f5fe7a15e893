// Whether numbers of 16 bits that a pass changed are rounded otherwise, or wrong. Roundings add up over a deep model,
// and grow where it turns small differences into large ones, so no bound on the difference itself tells.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "ir/graph.h"

namespace llmc {

class RoundingCheck {
 public:
  // Of the model before the pass, which may change afterwards.
  explicit RoundingCheck(const Model& before);

  // `was` and `is` are what EvaluateSmall gives for `inputs`, of the model before and after the pass. OK if both models
  // give the same in f64 (f32 where an op has no form in f64), and `is` lies at most kMostTimes as far from that as
  // `was` does, in all results taken together. Else Internal: which result does not. InvalidArgument or Unimplemented:
  // a model cannot have that type.
  absl::Status Compare(const Model& after, const NamedTensors& inputs, const NamedTensors& was,
                       const NamedTensors& is) const;

  // Two roundings of one number differ in size by chance; an op less exact than its types allow shows in every element.
  static constexpr double kMostTimes = 4;

 private:
  struct Exact {
    NamedTensors before, after;
  };
  absl::StatusOr<Exact> EvaluateBoth(const Model& after, const NamedTensors& inputs, DType dtype) const;

  std::string text_, name_;
  std::map<std::string, Tensor> data_;  // the bytes are the model's
};

}  // namespace llmc
