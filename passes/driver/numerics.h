// Small instances of a model: random inputs and weights, evaluated and compared. Used by self-tests of rules, by
// --check-numerics and by tests of passes.
#pragma once

#include <optional>
#include <random>

#include "absl/status/statusor.h"
#include "ir/eval.h"
#include "ir/graph.h"

namespace llmc {

// Sizes for the symbols of parameters and states: small, different from each other, within their bounds.
DimEnv SmallDims(const Model& model);
// The same for sequences of about as many tokens, in batches of 2.
DimEnv LongDims(const Model& model, int64_t tokens);

// How integers are drawn: kNarrow from -7 to 7, and 0 or 1 for what becomes an index or a size. kWide: half of those of
// more than 8 bits from -4096 to 4096, indices from the whole axis; a model that computes others of them may fail then.
enum class Draws : uint8_t { kWide, kNarrow };

// Normal floats, and integers as `draws` says. With the edge seed half of them are zeros of both signs, infinities,
// NaN, large and small numbers. Inputs with roles in a language model's step (base/step_contract.h) describe one; rows
// of inputs whose name holds "mask" are ones, with zeros at first or in between.
// The contents depend on name, type, use and seed only.
inline constexpr uint64_t kEdgeSeed = UINT64_MAX;
absl::StatusOr<NamedTensors> RandomInputs(const Step& step, const DimEnv& dims, uint64_t seed,
                                          Draws draws = Draws::kWide);
Tensor RandomTensor(DType dtype, const Shape& shape, std::mt19937_64* rng);

// Gives every weight that lacks contents random ones.
absl::Status FillRandomWeights(Model* model, uint64_t seed);

// Inputs of every step as "step/input", and what EvaluateSmall gives for them. Draws are wide if the model runs then.
struct SmallRun {
  NamedTensors inputs, outputs;
};
absl::StatusOr<SmallRun> RunSmall(const Model& model, uint64_t seed);
absl::StatusOr<SmallRun> RunWith(const Model& model, const DimEnv& dims, uint64_t seed);

// The inputs of RunSmall. They depend on what the model does with them, so whoever compares two stages of
// a model makes them once.
absl::StatusOr<NamedTensors> SmallInputs(const Model& model, uint64_t seed);
// Outputs of every step as "step/output", and components of states afterwards as "@name.component".
absl::StatusOr<NamedTensors> EvaluateSmall(const Model& model, const NamedTensors& inputs);

// The floating-point type with the coarsest rounding that a model computes in.
DType CoarsestFloat(const Model& model);

// Equal names, types, shapes and numbers. With `rounded`, floats may differ by the rounding of their type or of that
// one, relative to the largest of their row.
absl::Status CompareResults(const NamedTensors& before, const NamedTensors& after,
                            std::optional<DType> rounded = std::nullopt);

}  // namespace llmc
