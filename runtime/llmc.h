// The runtime's public header: load a compiled plan, run it on named tensors, or generate text with it.
//
//   auto plan = llmc::LoadedPlan::Load("model.plan", {});
//   if (!plan.ok()) return plan.status();  // and so on below
//   auto engine = (*plan)->NewEngine({.max_sequences = 8});
//   auto ids = (*plan)->tokenizer()->Encode("Once upon a time", {});
//   auto id = (*engine)->AddRequest({.prompt_ids = *ids}, [](const llmc::TokenEvent& e) { std::cout << e.text; });
//   absl::Status status = (*engine)->RunUntilIdle();
//
// Errors are absl::Status: InvalidArgument for what the caller or a file got wrong, NotFound for a missing file,
// Unimplemented for what is not supported, Internal for a bug of llmc. Nothing throws. A LoadedPlan with its executor
// and its engine is for one thread at a time, but that any thread may add and cancel the engine's requests (engine.h);
// two LoadedPlans are independent; a Tokenizer may be shared by threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/device/device_choice.h"
#include "runtime/device/trace.h"
#include "runtime/device_tensor.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/generation_config.h"
#include "runtime/engine/request.h"
#include "runtime/host_tensor.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

struct LoadOptions {
  // "host"; "cuda", the first NVIDIA GPU; or "cuda:N", GPU N by CUDA's numbers (CUDA_VISIBLE_DEVICES chooses those).
  // Unimplemented: "host", in a program that links llmc::device alone (without the language's parser and evaluator).
  // NotFound, when the executor is made or the model first runs: there is no such GPU.
  std::string device = "host";
  // Pages of the KV cache, at least 1 and at most what the plan's bounds allow; where layers have pages of several
  // sizes, of the largest, and as many tokens in the others. 0: on the host, for four sequences of
  // the longest context, but at most 1 GiB; on a GPU, for as many sequences of the longest context as a step takes, but
  // at most what memory_fraction leaves. Of no meaning for models whose cache goes through inputs and outputs.
  int64_t num_pages = 0;
  // On a GPU: of all of its memory, in (0, 1], what this plan may take for weights, activations, graphs and KV cache
  // together, whatever other programs take; never more than what is free. ResourceExhausted if that is not enough. What
  // single runs of models without a paged cache need for their inputs, outputs and activations comes on top, as do the
  // graphs of up to 16 shapes of such runs, and what the driver takes for each process. Of no meaning on the host.
  double memory_fraction = kDefaultMemoryFraction;
  int64_t max_context = 0;  // tokens of a sequence, at most what the model allows; 0: that
  // Read all weights once and compare their digests; see PlanLoadOptions in plan.h for what it costs.
  bool verify_weights = true;
  // Of the steps of a language model on a GPU: records them here, if not nullptr. Must outlive the plan.
  Trace* trace = nullptr;
  // On a GPU: capture the graphs of decode steps when the executor is made, not each when it is first needed.
  bool capture_at_start = false;
  // On a GPU: wait for each kernel, without any graph, so that a device error is reported with the op that caused it.
  // Slow.
  bool check_kernels = false;
  // Where kernels are kept that the plan has only the sources of for this GPU; empty: they are compiled each time.
  std::string cache_folder;
};

class CudaRun;
struct CacheOptions;
struct ModelParts;  // runtime/model_parts.h

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
  // bound. A language model with a paged cache takes input_ids [B, S], and attention_mask and position_ids [B, S] if
  // wanted, and gives logits f32 [B, S, V] (see ScoreBatch in runtime/engine/score.h, which says which masks and
  // positions it takes). FailedPrecondition: the engine has live requests, whose KV cache that would overwrite.
  // On a GPU, a model without a paged cache keeps the memory of its largest run so far, and what it made ready for the
  // 16 shapes used last: the first run of a shape launches its kernels, the second captures them as a CUDA Graph, which
  // it and all later ones replay. A larger run than any before moves the memory, and all shapes begin anew.
  absl::StatusOr<NamedHostTensors> Run(const NamedHostTensors& inputs);

  // Of such a model on a GPU, whose tensors need not come through the host. Inputs of either kind, which must be
  // written; outputs stay on the GPU, whole when it returns, in memory that nothing writes to while anybody has them
  // (up to 256 MiB of it are kept for later runs). They can be inputs of the next run, of this plan or another, and
  // other libraries can have them (runtime/dlpack.h). InvalidArgument: the model runs on the host, or an input lies on
  // another GPU. Unimplemented: a paged cache.
  absl::StatusOr<NamedDeviceTensors> RunOnDevice(const NamedAnyTensors& inputs);
  // Copies, whole when they return. Errors as of RunOnDevice.
  absl::StatusOr<DeviceTensor> ToDevice(const HostTensor& tensor);
  absl::StatusOr<HostTensor> ToHost(const DeviceTensor& tensor);
  // Zeros; on a GPU in page-locked memory, from which Run copies at full speed. To be filled again for each run.
  absl::StatusOr<HostTensor> NewHostTensor(DType type, std::vector<int64_t> shape);

  // Of the last Run of such a model on a GPU: the seconds that it computed there, without copies of inputs and outputs.
  // FailedPrecondition: there was none.
  absl::StatusOr<double> device_seconds();
  // Of such a model: OK, or why shapes get no graphs any more and are launched kernel by kernel.
  absl::Status graph_status() const;

  // What runs a language model's steps; the plan owns it. Unimplemented if this is no language model.
  absl::StatusOr<Executor*> executor();
  // Read when first asked for; any thread may ask. nullptr if the plan has none that can be used.
  const Tokenizer* tokenizer() const;
  // OK if there is a tokenizer. NotFound: the plan has none; InvalidArgument or Unimplemented: why it cannot be used.
  absl::Status tokenizer_status() const;
  // End tokens, and what to sample for requests that do not say; read when first asked for. InvalidArgument names the
  // file and the key that are wrong, where no other file names an end token (else `left_out` does). Unchanged while the
  // plan lives.
  const absl::StatusOr<GenerationConfig>& generation() const;
  // An engine on executor(), with the plan's end-of-sequence tokens if the options have none. The plan must outlive it.
  // FailedPrecondition: there is one already, which must be destroyed first.
  absl::StatusOr<std::unique_ptr<Engine>> NewEngine(EngineOptions options);

 private:
  struct Parts;
  absl::StatusOr<NamedHostTensors> RunOnGpu(const NamedHostTensors& inputs);
  absl::StatusOr<CudaRun*> cuda_run();
  absl::StatusOr<CudaRun*> RunOfTensors();
  explicit LoadedPlan(std::unique_ptr<Parts> parts);
  absl::StatusOr<std::unique_ptr<Executor>> NewExecutor(const CacheOptions& options);
  std::unique_ptr<Parts> parts_;
};

}  // namespace llmc
