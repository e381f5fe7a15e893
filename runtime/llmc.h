// The runtime's public header: load a compiled plan, run it on named tensors, or generate text with it.
//
//   auto plan = llmc::LoadedPlan::Load("model.plan", {});
//   if (!plan.ok()) return plan.status();  // and so on below
//   auto engine = (*plan)->NewEngine({.max_sequences = 8});
//   auto ids = (*plan)->tokenizer()->Encode("Once upon a time", /*add_special_tokens=*/true);
//   auto id = (*engine)->AddRequest({.prompt_ids = *ids}, [](const llmc::TokenEvent& e) { std::cout << e.text; });
//   absl::Status status = (*engine)->RunUntilIdle();
//
// Errors are absl::Status: InvalidArgument for what the caller or a file got wrong, NotFound for a missing file,
// Unimplemented for what is not supported, Internal for a bug of llmc. Nothing throws. A LoadedPlan with its executor
// and engines is for one thread at a time; two LoadedPlans are independent; a Tokenizer may be shared by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/engine.h"
#include "runtime/executor.h"
#include "runtime/host_tensor.h"
#include "runtime/request.h"
#include "runtime/text/tokenizer.h"
#include "runtime/trace.h"

namespace llmc {

struct LoadOptions {
  std::string device = "host";  // or "cuda": the first NVIDIA GPU
  // Pages of the KV cache, [1, ExecutorLimits::num_pages]; 0: for four sequences of the longest context, but at most
  // 1 GiB. Of no meaning for models whose cache goes through inputs and outputs.
  int64_t num_pages = 0;
  int64_t max_context = 0;  // tokens of a sequence, at most what the model allows; 0: that
  // Read all weights once and compare their digests; see PlanLoadOptions in plan.h for what it costs.
  bool verify_weights = true;
  // Of the steps of a language model on a GPU: records them here, if not nullptr. Must outlive the plan.
  Trace* trace = nullptr;
  // On a GPU: capture the graphs of decode steps when the executor is made, not each when it is first needed.
  bool capture_at_start = false;
  // On a GPU: wait for each kernel, without graphs, so that a fault is reported with the op that caused it. Slow.
  bool check_kernels = false;
  // Where kernels are kept that the plan has only the sources of for this GPU; empty: they are compiled each time.
  std::string cache_folder;
};

// An input or output. Dims are numbers, symbols, or expressions of symbols, such as "past + 1".
struct TensorInfo {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::string> shape;
  bool optional = false;
};

struct ModelParts;  // runtime/host/model_parts.h

class LoadedPlan {
 public:
  // Reads and checks the plan. The file must not change while it is in use.
  static absl::StatusOr<std::unique_ptr<LoadedPlan>> Load(const std::string& path, const LoadOptions& options);
  // Of a model that is in memory, as the llmc command runs one.
  static absl::StatusOr<std::unique_ptr<LoadedPlan>> FromParts(ModelParts parts, const LoadOptions& options);
  ~LoadedPlan();

  const std::string& name() const;
  const std::vector<TensorInfo>& inputs() const;
  const std::vector<TensorInfo>& outputs() const;
  // Whether it is a language model whose KV cache the runtime keeps in pages.
  bool has_paged_cache() const;

  // Runs the model once. Inputs must be those of inputs(), with shapes that give every symbol one size within its
  // bound. A Hugging Face language model takes input_ids [B, S], and attention_mask [B, S] if wanted, and gives logits
  // f32 [B, S, V] (see ScoreBatch in runtime/score.h); no engine may have live requests then.
  absl::StatusOr<NamedHostTensors> Run(const NamedHostTensors& inputs);

  // What runs a language model's steps; the plan owns it. Unimplemented if this is no language model.
  absl::StatusOr<Executor*> executor();
  // nullptr if the plan has none.
  const Tokenizer* tokenizer() const;
  const std::vector<int32_t>& eos_token_ids() const;
  // An engine on executor(), with the plan's end-of-sequence tokens if the options have none. The plan must outlive it;
  // one engine at a time.
  absl::StatusOr<std::unique_ptr<Engine>> NewEngine(EngineOptions options);

 private:
  struct Parts;
  absl::StatusOr<NamedHostTensors> RunOnDevice(const NamedHostTensors& inputs);
  explicit LoadedPlan(std::unique_ptr<Parts> parts);
  absl::Status DrawWeights();
  std::unique_ptr<Parts> parts_;
};

}  // namespace llmc
