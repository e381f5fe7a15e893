// Small instances of a model: random inputs and weights, evaluated and compared. Used by self-tests of rules, by
// --check-numerics and by tests of passes.
#pragma once

#include <random>

#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "ir/graph.h"

namespace llmc {

// Sizes for the symbols of parameters and states: small, different from each other, within their bounds.
DimEnv SmallDims(const Model& model);

// Normal floats, random integers of 0 and 1. Inputs that describe a language model's step (pos, slots, pages, lens,
// starts, rows; see ir/ops_lm.h) describe one; inputs whose name holds "mask" are all ones. The contents depend on
// name, type and seed only.
absl::StatusOr<NamedTensors> RandomInputs(const Step& step, const DimEnv& dims, uint64_t seed);
Tensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64* rng);

// Gives every weight that lacks contents random ones.
absl::Status FillRandomWeights(Model* model, uint64_t seed);

// Outputs of every step as "step/output", and states afterwards as "@name".
absl::StatusOr<NamedTensors> EvaluateSmall(const Model& model, uint64_t seed);

// The floating-point type with the coarsest rounding that a model computes in.
DType CoarsestFloat(const Model& model);

// Equal names, types and shapes; floats within the rounding of their type or of `coarsest`, relative to the largest
// element.
absl::Status CompareResults(const NamedTensors& before, const NamedTensors& after, DType coarsest = DType::kF64);

}  // namespace llmc
