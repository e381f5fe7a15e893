// What LoadedPlan is made of.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/generation_config.h"
#include "runtime/host_tensor.h"
#include "runtime/plan/plan.h"

namespace llmc {

// What can be said of a model without its program.
struct ModelDescription {
  std::string name;
  std::vector<TensorInfo> inputs, outputs;  // of its first step
  bool has_states = false;
  bool is_paged = false;   // its step is that of a language model with a paged cache (base/step_contract.h)
  int64_t vocab_size = 0;  // then

  bool operator==(const ModelDescription&) const = default;
};

struct CacheOptions {
  // KV cache pages, of the largest size; 0: for four sequences of the longest context, but at most 1 GiB.
  int64_t num_pages = 0;
  // Tokens of a sequence; 0: what the model allows.
  int64_t max_context = 0;
};

// A model that the language's evaluator runs on the host. One thread at a time.
class HostModel {
 public:
  virtual ~HostModel() = default;
  // The first step, of a model without states.
  virtual absl::StatusOr<NamedHostTensors> Run(const NamedHostTensors& inputs) = 0;
  // Unimplemented if it is no language model. The model must outlive it.
  virtual absl::StatusOr<std::unique_ptr<Executor>> NewExecutor(const CacheOptions& options) = 0;
};

struct ModelParts {
  std::string path;  // for messages
  ModelDescription description;
  std::unique_ptr<HostModel> host;   // of a plan, made when it is to run on the host
  std::shared_ptr<const Plan> plan;  // where the model is from one; devices other than the host need it
  SideFiles files;
  std::optional<std::vector<int32_t>> eos_token_ids;  // as recorded in a plan; else as the files say
  // Tokens of a sequence; 0: what the model's dims allow. An error: why it cannot be known.
  absl::StatusOr<int64_t> max_context = 0;
  // Of a model with a paged cache: tokens that attention_mask hides are left out; else such a mask is an error.
  bool skips_hidden = false;
};

// Reads the plan's program in the language.
using HostModelOpener = absl::StatusOr<std::unique_ptr<HostModel>> (*)(std::shared_ptr<const Plan> plan);

absl::StatusOr<ModelParts> PartsOfPlan(std::shared_ptr<const Plan> plan);

}  // namespace llmc

// In programs that link llmc::runtime; those that link llmc::device alone have none, and run plans on a GPU only.
extern "C" __attribute__((weak)) const llmc::HostModelOpener llmc_open_host_model;
