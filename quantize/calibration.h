// Quantizes the layers of a decoder one after the other, by what their inputs are like on a calibration text: inputs of
// a part are those that the parts before it give, quantized (as in GPTQ, arXiv:2210.17323, section 3.3).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "quantize/gptq_factor.h"
#include "quantize/layer_runner.h"
#include "quantize/quantize_plan.h"
#include "quantize/scale_folds.h"
#include "quantize/scale_search.h"

namespace llmc {

class Calibration {
 public:
  // Both must outlive this.
  static absl::StatusOr<std::unique_ptr<Calibration>> Create(const QuantizeRequest* request, const QuantizePlan* plan);

  struct Result {
    const PlannedModule* module = nullptr;
    Tensor encoded;
    Tensor numbers;  // f32: what was encoded, with the factors that the method gave to channels
    std::optional<double> nearest_error, output_error;  // QuantizedModule
    float input_amax = 0;
    std::string note;
  };
  size_t parts() const { return runner_->parts(); }
  size_t batches() const { return runner_->batches(); }
  // Parts in their order. `on_batch` is called as batches of samples are done, each twice.
  absl::StatusOr<std::vector<Result>> RunPart(size_t part, const std::function<void()>& on_batch);

  // Weights that are not quantized and have changed, in the types that they had, by their values.
  const std::map<const Value*, Tensor>& changed() const { return changed_; }
  // The largest |x| of keys and values, by the names of their scales; of the parts that were run.
  const std::map<std::string, float>& kv_amax() const { return kv_amax_; }

 private:
  // An input of products, or what of it goes to one expert, and the layers that read it.
  struct Input {
    Tap tap;
    InputStats stats;
  };
  Calibration(const QuantizeRequest* request, const QuantizePlan* plan) : request_(*request), plan_(*plan) {}

  std::optional<Tap> TapOf(const PlannedModule& module) const;
  absl::StatusOr<std::vector<Input>> Observe(size_t part, const std::vector<const PlannedModule*>& modules,
                                             const std::function<void()>& on_batch);
  static const InputStats& AllStatsOf(const Tap& tap, const std::vector<Input>& inputs);
  // What the layer's input is like; nullptr: that is not known, or of too few tokens, and `note` says why.
  const InputStats* StatsOf(const PlannedModule& module, const std::vector<Input>& inputs, std::string* note) const;
  absl::Status FoldAll(const std::vector<const PlannedModule*>& modules, std::vector<Input>* inputs);
  absl::Status Fold(const Tap& folded, QuantizeMethod method, std::vector<Input>* inputs);
  absl::Status Divide(const ScaleFold& fold, std::vector<float>* factors);
  absl::Status InModule(const PlannedModule& module, const absl::Status& status) const;
  absl::StatusOr<Result> Quantize(const PlannedModule& module, const InputStats* stats);
  absl::StatusOr<Tensor> Encode(const PlannedModule& module, const Tensor& numbers, const InputStats* stats);
  // What was made last is kept: layers that follow each other often have one input.
  absl::StatusOr<const GptqFactor*> FactorFor(const PlannedModule& module, const InputStats& stats);
  // What a weight is now, in f32.
  absl::StatusOr<Tensor> Numbers(const Value* weight) const;
  // Makes it that; what is not quantized is rounded to its type.
  absl::Status SetNumbers(const Value* weight, Tensor numbers);
  std::vector<const PlannedModule*> ModulesIn(size_t part) const;

  const QuantizeRequest& request_;
  const QuantizePlan& plan_;
  std::unique_ptr<LayerRunner> runner_;
  absl::flat_hash_map<const Value*, const PlannedModule*> planned_;
  std::map<const Value*, Tensor> scaled_;  // f32, of weights that will be quantized
  std::map<const Value*, Tensor> changed_;
  std::map<const Value*, std::string> notes_;  // by the weight
  std::map<std::string, float> kv_amax_;
  std::unique_ptr<Matrices> host_matrices_;
  std::unique_ptr<GptqFactor> factor_;
  const InputStats* factor_of_ = nullptr;
};

}  // namespace llmc
