// The public LoadedPlan, here because this directory knows every device.
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/eval.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/cuda_run.h"
#include "runtime/engine/score.h"
#include "runtime/host/host_executor.h"
#include "runtime/host/host_tensors.h"
#include "runtime/host/model_parts.h"
#include "runtime/host/paged_model.h"
#include "runtime/host/past_kv_executor.h"
#include "runtime/host/plan_model.h"
#include "runtime/llmc.h"
#include "runtime/plan/plan.h"

namespace llmc {

struct LoadedPlan::Parts {
  LoadOptions options;
  DeviceChoice device;
  ModelParts from;
  std::once_flag tokenizer_once, generation_once;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = absl::UnknownError("not read");
  absl::StatusOr<GenerationConfig> generation = absl::UnknownError("not read");
  std::vector<TensorInfo> inputs, outputs;
  std::unique_ptr<Executor> executor;    // made when first needed
  std::unique_ptr<Evaluator> evaluator;  // made when first needed
  std::unique_ptr<CudaRun> cuda_run;     // made when first needed
};

namespace {

absl::StatusOr<DeviceChoice> ReadDevice(const LoadOptions& options) {
  RETURN_IF_ERROR(CheckMemoryFraction(options.memory_fraction));
  return ParseDevice(options.device);
}

absl::Status NeedsPlan() { return absl::InvalidArgumentError("a GPU runs plans; run `llmc compile` first"); }

TensorInfo Describe(absl::string_view name, const TensorType& type) {
  TensorInfo info{.name = std::string(name), .type = static_cast<ElementType>(type.dtype)};
  for (const Dim& dim : type.shape) info.shape.push_back(dim.ToString());
  return info;
}

void DescribePagedInputs(int64_t vocab_size, std::vector<TensorInfo>* inputs, std::vector<TensorInfo>* outputs) {
  *inputs = {{"input_ids", ElementType::kI64, {"B", "S"}},
             {"attention_mask", ElementType::kI64, {"B", "S"}, /*optional=*/true},
             {"position_ids", ElementType::kI64, {"B", "S"}, /*optional=*/true}};
  *outputs = {{"logits", ElementType::kF32, {"B", "S", absl::StrCat(vocab_size)}}};
}

absl::Status CheckInputNames(const NamedHostTensors& inputs, const std::vector<TensorInfo>& expected, bool is_paged) {
  for (const auto& [name, tensor] : inputs) {
    bool known = false;
    for (const TensorInfo& info : expected) known = known || info.name == name;
    if (known) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "the model has no input ", name,
        is_paged && absl::StartsWith(name, "past")
            ? ": it keeps its cache itself and begins with an empty one; compile the ONNX file with --no-paginate to "
              "feed a cache"
            : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedHostTensors> RunPaged(Executor* executor, const NamedHostTensors& inputs, bool skips_hidden) {
  const auto ids = inputs.find("input_ids");
  if (ids == inputs.end()) return absl::InvalidArgumentError("the input input_ids is missing");
  const auto find = [&](const char* name) {
    const auto it = inputs.find(name);
    return it == inputs.end() ? nullptr : &it->second;
  };
  auto logits = ScoreBatch(
      executor, ids->second,
      {.attention_mask = find("attention_mask"), .position_ids = find("position_ids"), .skips_hidden = skips_hidden});
  if (!logits.ok()) return logits.status();
  return NamedHostTensors{{"logits", *std::move(logits)}};
}

// run(inputs) on tensors of the language.
template <class F>
absl::StatusOr<NamedTensors> RunConverted(const NamedTensors& inputs, F run) {
  NamedHostTensors host_inputs;
  for (const auto& [name, tensor] : inputs) host_inputs.emplace(name, ToHostTensor(tensor));
  ASSIGN_OR_RETURN(const NamedHostTensors results, run(host_inputs));
  NamedTensors outputs;
  for (const auto& [name, tensor] : results) {
    auto converted = FromHostTensor(tensor);
    if (!converted.ok()) return converted.status();
    outputs.emplace(name, *std::move(converted));
  }
  return outputs;
}

}  // namespace

LoadedPlan::LoadedPlan(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedPlan::~LoadedPlan() = default;

absl::StatusOr<ModelParts> PartsOfPlan(std::shared_ptr<const Plan> plan) {
  auto model = ModelFromPlan(*plan);
  if (!model.ok()) return model.status();
  const plan::LanguageModel& language_model = plan->manifest().language_model();
  ModelParts parts{.path = plan->path(),
                   .model = *std::move(model),
                   .plan = plan,
                   .max_context = language_model.max_context(),
                   .skips_hidden = language_model.skips_hidden()};
  parts.files = {.prefix = plan->path() + ": ",
                 .config = std::string(plan->config_json()),
                 .generation_config = std::string(plan->generation_config()),
                 .tokenizer = std::string(plan->tokenizer_json()),
                 .tokenizer_config = std::string(plan->tokenizer_config()),
                 .chat_template = std::string(plan->chat_template())};
  parts.eos_token_ids.emplace();
  for (const int64_t id : language_model.eos_ids()) parts.eos_token_ids->push_back(static_cast<int32_t>(id));
  return parts;
}

absl::StatusOr<std::unique_ptr<LoadedPlan>> LoadedPlan::Load(const std::string& path, const LoadOptions& options) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ReadDevice(options));
  auto plan = Plan::Load(path, {.verify_weights = options.verify_weights, .verify_when_copied = device.is_gpu});
  if (!plan.ok()) return plan.status();
  auto parts = PartsOfPlan(*std::move(plan));
  if (!parts.ok()) return parts.status();
  return FromParts(*std::move(parts), options);
}

absl::StatusOr<std::unique_ptr<LoadedPlan>> LoadedPlan::FromParts(ModelParts from, const LoadOptions& options) {
  ASSIGN_OR_RETURN(const DeviceChoice device, ReadDevice(options));
  if (from.model->steps.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(from.path, ": the model has no step to run"));
  }
  auto parts = std::make_unique<Parts>();
  if (IsPagedLanguageModel(*from.model)) {
    const auto paged = DescribePagedModel(*from.model);
    if (!paged.ok()) {
      return absl::Status(paged.status().code(), absl::StrCat(from.path, ": ", paged.status().message()));
    }
    DescribePagedInputs(paged->vocab_size, &parts->inputs, &parts->outputs);
  } else {
    const Step& step = *from.model->steps.front();
    for (const Value* param : step.params) parts->inputs.push_back(Describe(param->name.substr(1), param->type));
    for (const Output& output : step.outputs) parts->outputs.push_back(Describe(output.name, output.value->type));
  }
  parts->options = options;
  parts->device = device;
  parts->from = std::move(from);
  return std::unique_ptr<LoadedPlan>(new LoadedPlan(std::move(parts)));
}

const std::string& LoadedPlan::name() const { return parts_->from.model->name; }
const std::vector<TensorInfo>& LoadedPlan::inputs() const { return parts_->inputs; }
const std::vector<TensorInfo>& LoadedPlan::outputs() const { return parts_->outputs; }
bool LoadedPlan::has_paged_cache() const { return IsPagedLanguageModel(*parts_->from.model); }

const Tokenizer* LoadedPlan::tokenizer() const {
  std::call_once(parts_->tokenizer_once, [this] { parts_->tokenizer = ReadTokenizer(parts_->from.files); });
  return parts_->tokenizer.ok() ? parts_->tokenizer->get() : nullptr;
}

absl::Status LoadedPlan::tokenizer_status() const {
  tokenizer();
  return parts_->tokenizer.status();
}

const absl::StatusOr<GenerationConfig>& LoadedPlan::generation() const {
  std::call_once(parts_->generation_once, [this] {
    parts_->generation = ReadGenerationConfig(
        parts_->from.files, [this] { return tokenizer(); }, parts_->from.eos_token_ids);
  });
  return parts_->generation;
}

absl::StatusOr<NamedHostTensors> LoadedPlan::Run(const NamedHostTensors& inputs) {
  RETURN_IF_ERROR(CheckInputNames(inputs, parts_->inputs, has_paged_cache()));
  if (has_paged_cache()) {
    const auto paged = executor();
    if (!paged.ok()) return paged.status();
    return RunPaged(*paged, inputs, parts_->from.skips_hidden);
  }
  if (parts_->device.is_gpu) return RunOnDevice(inputs);
  if (parts_->evaluator == nullptr) {
    RETURN_IF_ERROR(DrawWeights());
    auto evaluator = Evaluator::Create(parts_->from.model.get());
    if (!evaluator.ok()) return evaluator.status();
    parts_->evaluator = *std::move(evaluator);
  }
  NamedTensors tensors;
  for (const auto& [name, tensor] : inputs) {
    auto converted = FromHostTensor(tensor);
    if (!converted.ok())
      return absl::InvalidArgumentError(absl::StrCat("input ", name, ": ", converted.status().message()));
    tensors.emplace(name, *std::move(converted));
  }
  const auto results = parts_->evaluator->Run(*parts_->from.model->steps.front(), tensors);
  if (!results.ok()) return results.status();
  NamedHostTensors outputs;
  for (const auto& [name, tensor] : *results) outputs.emplace(name, ToHostTensor(tensor));
  return outputs;
}

absl::StatusOr<NamedHostTensors> LoadedPlan::RunOnDevice(const NamedHostTensors& inputs) {
  if (parts_->cuda_run == nullptr) {
    if (parts_->from.plan == nullptr) return NeedsPlan();
    auto run = CudaRun::Create(parts_->from.plan.get(), {.device = parts_->device.index,
                                                         .memory_fraction = parts_->options.memory_fraction,
                                                         .cache_folder = parts_->options.cache_folder,
                                                         .check_kernels = parts_->options.check_kernels});
    if (!run.ok()) return run.status();
    parts_->cuda_run = *std::move(run);
  }
  return parts_->cuda_run->Run(inputs);
}

// On a device `prepare` does it.
absl::Status LoadedPlan::DrawWeights() {
  if (parts_->from.plan == nullptr) return absl::OkStatus();
  return DrawRandomWeights(*parts_->from.plan, parts_->from.model.get());
}

absl::StatusOr<Executor*> LoadedPlan::executor() {
  if (parts_->executor == nullptr) {
    HostExecutorOptions options{.num_pages = parts_->options.num_pages, .max_context = parts_->options.max_context};
    if (!parts_->from.max_context.ok()) return parts_->from.max_context.status();
    const int64_t context = *parts_->from.max_context;
    if (options.max_context == 0) options.max_context = context;
    if (context > 0 && options.max_context > context) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_context is ", options.max_context, ", the model's context is ", context));
    }
    if (parts_->device.is_gpu && IsPastKvLanguageModel(*parts_->from.model)) {
      const auto run = [this](const NamedTensors& inputs) {
        return RunConverted(inputs, [this](const NamedHostTensors& tensors) { return RunOnDevice(tensors); });
      };
      auto executor = PastKvExecutor::Create(parts_->from.model.get(), options, run);
      if (!executor.ok()) return executor.status();
      parts_->executor = *std::move(executor);
      return parts_->executor.get();
    }
    if (parts_->device.is_gpu) {
      if (parts_->from.plan == nullptr) return NeedsPlan();
      auto executor =
          CudaExecutor::Create(parts_->from.plan.get(), {.device = parts_->device.index,
                                                         .num_pages = options.num_pages,
                                                         .memory_fraction = parts_->options.memory_fraction,
                                                         .max_context = options.max_context,
                                                         .capture_at_start = parts_->options.capture_at_start,
                                                         .check_kernels = parts_->options.check_kernels,
                                                         .trace = parts_->options.trace,
                                                         .cache_folder = parts_->options.cache_folder});
      if (!executor.ok()) return executor.status();
      parts_->executor = *std::move(executor);
      return parts_->executor.get();
    }
    RETURN_IF_ERROR(DrawWeights());
    auto executor = NewHostExecutor(parts_->from.model.get(), options);
    if (!executor.ok()) return executor.status();
    parts_->executor = *std::move(executor);
  }
  return parts_->executor.get();
}

absl::StatusOr<std::unique_ptr<Engine>> LoadedPlan::NewEngine(EngineOptions options) {
  const auto run = executor();
  if (!run.ok()) return run.status();
  if (options.eos_token_ids.empty() && parts_->from.eos_token_ids.has_value()) {
    options.eos_token_ids = *parts_->from.eos_token_ids;
  } else if (options.eos_token_ids.empty()) {
    if (!generation().ok()) return generation().status();
    options.eos_token_ids = generation()->eos_token_ids;
  }
  return Engine::Create(*run, tokenizer(), options);
}

}  // namespace llmc
