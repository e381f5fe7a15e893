// What is learned of inputs of products on the calibration text, and of which rows.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph.h"
#include "quantize/matrices.h"
#include "quantize/step_runner.h"

namespace llmc {

// A value of a step that is observed while samples run. All its axes but the last are rows.
struct Tap {
  const Value* value = nullptr;
  // Of an input [T, k] or [T, K, k] of products with the weights of experts[T, K]: only the rows that go to one expert.
  const Value* experts = nullptr;
  int64_t expert = 0;
  bool with_gram = true;

  bool operator==(const Tap&) const = default;
};

// Of the inputs [tokens, k] of products.
struct InputStats {
  int64_t k = 0, tokens = 0;
  std::vector<double> sum_abs;  // of each channel
  std::vector<float> amax;
  std::vector<float> gram;       // [k, k]: the sum of x^T x; empty where nobody asks for it
  StepRunner* device = nullptr;  // multiplies with it; nullptr: the host

  void Add(const Tensor& x, bool with_gram = true);  // its last axis is k
  // Of the contents of the tap's value, and of its experts where it has them.
  void AddRows(const Tap& tap, const Tensor& contents, const Tensor* experts);
  // What a device found of other tokens: sums and largest magnitudes f32[k], and X^T X, f32[k, k], if it is asked for.
  void AddSums(int64_t more_tokens, const Tensor& sums, const Tensor& largest, const Tensor* products);
  void DivideBy(const std::vector<float>& factors);  // as if the inputs had been, channel by channel
  // (x r^T)^2 summed over all inputs x, of each row r of d: f32[n, k].
  absl::StatusOr<std::vector<double>> SquaredOutputs(const Tensor& d) const;
  float Largest() const;  // of all channels; 0 without tokens

 private:
  void Begin(int64_t channels, bool with_gram);  // room for what is added, zeros if it is the first
};

// Many products with X^T X, which a device gets once.
class GramProducts {
 public:
  // `stats` must outlive this.
  static absl::StatusOr<GramProducts> Create(const InputStats* stats);

  // As InputStats::SquaredOutputs.
  absl::StatusOr<std::vector<double>> SquaredOutputs(const Tensor& d);

 private:
  const InputStats* stats_ = nullptr;
  Matrices* matrices_ = nullptr;  // nullptr: those of the host
  std::unique_ptr<Matrices::Memory> gram_, d_, products_;
  int64_t rows_ = 0;  // that the latter two have room for
};

}  // namespace llmc
