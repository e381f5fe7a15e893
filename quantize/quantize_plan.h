// What of a folder is quantized to what, and which tensors its output holds.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/formats/safetensors.h"
#include "ir/graph.h"
#include "ir/quantize.h"
#include "quantize/linear_modules.h"
#include "quantize/model_folder_writer.h"
#include "quantize/quantize.h"
#include "quantize/stored_form.h"

namespace llmc {

struct PlannedModule {
  LinearModule linear;
  const Scheme* scheme = nullptr;
  const Encoding* encoding = nullptr;
  DType dtype = DType::kF32;  // of the numbers
  QuantizeOptions options;
  std::vector<StoredPart> parts;
  bool has_input_scale = false;
};

// Weights as the module's scheme has them without its method.
absl::StatusOr<Tensor> RoundedToNearest(const PlannedModule& module, const Tensor& numbers);
// The tensors of the output that stand for a weight, `encoded` of `numbers`.
absl::Status WriteStored(const PlannedModule& module, const Tensor& encoded, const Tensor& numbers,
                         const std::function<absl::Status(const std::string& name, const Tensor& tensor)>& write);

struct QuantizePlan {
  nlohmann::json config;  // config.json
  Checkpoint checkpoint;
  std::unique_ptr<Model> model;
  std::vector<LinearModule> linears;   // all
  std::vector<PlannedModule> modules;  // those that are quantized, in the order of `linears`
  std::vector<std::pair<std::string, std::string>> left_out;
  std::map<std::string, std::string> kv_scales;  // tensors to be written, "….k_scale", with the file of each

  const PlannedModule* Of(const Value* weight) const;
};

// The request must outlive the plan, which refers to its schemes.
absl::StatusOr<QuantizePlan> PlanQuantization(const QuantizeRequest& request);

// All tensors of the output. With `decoded` those of the folder.
std::map<std::string, ModelFolderWriter::Entry> PlannedEntries(const QuantizePlan& plan, std::optional<DType> decoded);
// The output's config.json.
absl::StatusOr<std::string> PlannedConfig(const QuantizePlan& plan, std::optional<DType> decoded);

}  // namespace llmc
