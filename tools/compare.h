// Compares output tensors with expected ones.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/eval.h"

namespace llmc {

struct Comparison {
  std::string name;
  int64_t elements = 0;
  double max_abs = 0;  // largest |got - want|; infinity where only one of them is NaN or their infinities differ
  double max_rel = 0;  // largest |got - want| / |want|, over want != 0
  std::vector<int64_t> where;  // index of the largest excess over the tolerance
  double got = 0, want = 0;    // there
  int64_t past_tolerance = 0;  // elements with |got - want| > atol + rtol * |want|
  bool ok() const { return past_tolerance == 0; }
};

// InvalidArgument if the shapes differ. Element types may differ: values are compared.
absl::StatusOr<Comparison> CompareTensors(const std::string& name, const Tensor& got, const Tensor& want, double rtol,
                                          double atol);

}  // namespace llmc
