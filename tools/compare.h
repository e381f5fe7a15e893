// Compares output tensors with expected ones.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/eval.h"

namespace llmc {

using Number = std::variant<double, int64_t>;

struct Comparison {
  std::string name;
  int64_t elements = 0;
  double max_abs = 0;  // largest |got - want|; infinity where only one of them is NaN or their infinities differ
  double max_rel = 0;  // largest |got - want| / |want|, over want != 0
  std::vector<int64_t> where;    // index of the largest excess over the tolerance
  Number got = 0.0, want = 0.0;  // there
  int64_t past_tolerance = 0;    // elements without |got - want| <= atol + rtol * |want|
  bool ok() const { return past_tolerance == 0; }
};

// InvalidArgument if the shapes differ. Element types may differ: values are compared, those of two tensors of integers
// exactly and without tolerance.
absl::StatusOr<Comparison> CompareTensors(const std::string& name, const Tensor& got, const Tensor& want, double rtol,
                                          double atol);

}  // namespace llmc
