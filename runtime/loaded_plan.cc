// The public LoadedPlan. What runs on the host is linked in with llmc::runtime (runtime/model_parts.h).
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/device/cuda_executor.h"
#include "runtime/device/cuda_run.h"
#include "runtime/engine/past_kv_executor.h"
#include "runtime/engine/score.h"
#include "runtime/llmc.h"
#include "runtime/model_parts.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/step_programs.h"

namespace llmc {

struct LoadedPlan::Parts {
  LoadOptions options;
  DeviceChoice device;
  ModelParts from;
  std::vector<TensorInfo> inputs, outputs;  // as users see them
  std::once_flag tokenizer_once, generation_once;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = absl::UnknownError("not read");
  absl::StatusOr<GenerationConfig> generation = absl::UnknownError("not read");
  std::unique_ptr<Executor> executor;  // made when first needed
  std::unique_ptr<CudaRun> cuda_run;   // made when first needed
};

namespace {

absl::StatusOr<DeviceChoice> ReadDevice(const LoadOptions& options) {
  RETURN_IF_ERROR(CheckMemoryFraction(options.memory_fraction));
  return ParseDevice(options.device);
}

absl::Status NeedsPlan() { return absl::InvalidArgumentError("a GPU runs plans; run `llmc compile` first"); }

absl::StatusOr<TensorInfo> Describe(const plan::TensorSpec& spec) {
  ASSIGN_OR_RETURN(const DType type, ParseDType(spec.dtype()));
  return TensorInfo{.name = spec.name(), .type = type, .shape = {spec.shape().begin(), spec.shape().end()}};
}

absl::StatusOr<ModelDescription> Describe(const plan::Manifest& manifest) {
  ModelDescription description{.name = manifest.model_name(),
                               .has_states = manifest.states_size() > 0,
                               .is_paged = PagedContractOf(manifest).ok()};
  if (manifest.entry_points().empty()) return description;
  const plan::EntryPoint& entry = manifest.entry_points(0);
  for (const plan::TensorSpec& spec : entry.inputs()) {
    ASSIGN_OR_RETURN(description.inputs.emplace_back(), Describe(spec));
  }
  for (const plan::TensorSpec& spec : entry.outputs()) {
    ASSIGN_OR_RETURN(description.outputs.emplace_back(), Describe(spec));
    const TensorInfo& output = description.outputs.back();
    if (!description.is_paged || output.name != "logits" || output.shape.empty()) continue;
    if (!absl::SimpleAtoi(output.shape.back(), &description.vocab_size)) description.vocab_size = 0;
  }
  return description;
}

// The host's part of a plan.
absl::Status OpenOnHost(ModelParts* parts) {
  if (parts->host != nullptr) return absl::OkStatus();
  if (parts->plan == nullptr) return absl::InvalidArgumentError(absl::StrCat(parts->path, ": there is nothing to run"));
  if (&llmc_open_host_model == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        parts->path,
        ": this program runs plans on GPUs only (it links llmc::device); link llmc::runtime for the host"));
  }
  ASSIGN_OR_RETURN(parts->host, llmc_open_host_model(parts->plan));
  return absl::OkStatus();
}

void DescribePagedInputs(int64_t vocab_size, std::vector<TensorInfo>* inputs, std::vector<TensorInfo>* outputs) {
  *inputs = {{"input_ids", DType::kI64, {"B", "S"}},
             {"attention_mask", DType::kI64, {"B", "S"}, /*optional=*/true},
             {"position_ids", DType::kI64, {"B", "S"}, /*optional=*/true}};
  *outputs = {{"logits", DType::kF32, {"B", "S", absl::StrCat(vocab_size)}}};
}

template <class Inputs>
absl::Status CheckInputNames(const Inputs& inputs, const std::vector<TensorInfo>& expected, bool is_paged) {
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

absl::StatusOr<std::vector<SideFile>> TokenizerFilesOf(const Plan& plan) {
  ASSIGN_OR_RETURN(plan::TokenizerFiles section, plan.tokenizer());
  std::vector<SideFile> files;
  for (plan::TokenizerFiles::File& file : *section.mutable_files()) {
    files.push_back({std::move(*file.mutable_name()), std::move(*file.mutable_contents())});
  }
  return files;
}

}  // namespace

LoadedPlan::LoadedPlan(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
LoadedPlan::~LoadedPlan() = default;

absl::StatusOr<ModelParts> PartsOfPlan(std::shared_ptr<const Plan> plan) {
  ASSIGN_OR_RETURN(ModelDescription description, Describe(plan->manifest()));
  const plan::LanguageModel& language_model = plan->manifest().language_model();
  ModelParts parts{.path = plan->path(),
                   .description = std::move(description),
                   .plan = plan,
                   .max_context = language_model.max_context(),
                   .skips_hidden = language_model.skips_hidden()};
  parts.files = {.prefix = plan->path() + ": ",
                 .config = std::string(plan->config_json()),
                 .generation_config = std::string(plan->generation_config()),
                 .tokenizer = TokenizerFilesOf(*plan),
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
  if (from.description.outputs.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(from.path, ": the model has no step to run"));
  }
  if (!device.is_gpu) RETURN_IF_ERROR(OpenOnHost(&from));
  auto parts = std::make_unique<Parts>();
  parts->inputs = from.description.inputs;
  parts->outputs = from.description.outputs;
  if (from.description.is_paged) {
    DescribePagedInputs(from.description.vocab_size, &parts->inputs, &parts->outputs);
  }
  parts->options = options;
  parts->device = device;
  parts->from = std::move(from);
  return std::unique_ptr<LoadedPlan>(new LoadedPlan(std::move(parts)));
}

const std::string& LoadedPlan::name() const { return parts_->from.description.name; }
const std::vector<TensorInfo>& LoadedPlan::inputs() const { return parts_->inputs; }
const std::vector<TensorInfo>& LoadedPlan::outputs() const { return parts_->outputs; }
bool LoadedPlan::has_paged_cache() const { return parts_->from.description.is_paged; }

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
  if (parts_->device.is_gpu) return RunOnGpu(inputs);
  return parts_->from.host->Run(inputs);
}

absl::StatusOr<NamedHostTensors> LoadedPlan::RunOnGpu(const NamedHostTensors& inputs) {
  ASSIGN_OR_RETURN(CudaRun* const run, cuda_run());
  return run->Run(inputs);
}

absl::StatusOr<CudaRun*> LoadedPlan::cuda_run() {
  if (parts_->cuda_run != nullptr) return parts_->cuda_run.get();
  if (parts_->from.plan == nullptr) return NeedsPlan();
  ASSIGN_OR_RETURN(parts_->cuda_run,
                   CudaRun::Create(parts_->from.plan.get(), {.device = parts_->device.index,
                                                             .memory_fraction = parts_->options.memory_fraction,
                                                             .cache_folder = parts_->options.cache_folder,
                                                             .check_kernels = parts_->options.check_kernels}));
  return parts_->cuda_run.get();
}

// What has tensors of a GPU.
absl::StatusOr<CudaRun*> LoadedPlan::RunOfTensors() {
  if (!parts_->device.is_gpu) {
    return absl::InvalidArgumentError(
        "the model runs on the host, and has no tensors on a GPU; load it with the device \"cuda\"");
  }
  if (has_paged_cache()) {
    return absl::UnimplementedError(
        "the logits of a language model with a paged cache come to the host; to have tensors of an ONNX file on the "
        "GPU, compile it with --no-paginate");
  }
  return cuda_run();
}

absl::StatusOr<NamedDeviceTensors> LoadedPlan::RunOnDevice(const NamedAnyTensors& inputs) {
  ASSIGN_OR_RETURN(CudaRun* const run, RunOfTensors());
  RETURN_IF_ERROR(CheckInputNames(inputs, parts_->inputs, /*is_paged=*/false));
  return run->RunOnDevice(inputs);
}

absl::StatusOr<DeviceTensor> LoadedPlan::ToDevice(const HostTensor& tensor) {
  ASSIGN_OR_RETURN(CudaRun* const run, RunOfTensors());
  return run->ToDevice(tensor);
}

absl::StatusOr<HostTensor> LoadedPlan::ToHost(const DeviceTensor& tensor) {
  ASSIGN_OR_RETURN(CudaRun* const run, RunOfTensors());
  return run->ToHost(tensor);
}

absl::StatusOr<HostTensor> LoadedPlan::NewHostTensor(DType type, std::vector<int64_t> shape) {
  if (!parts_->device.is_gpu || has_paged_cache()) return HostTensor::Zeros(type, std::move(shape));
  ASSIGN_OR_RETURN(CudaRun* const run, cuda_run());
  return run->NewHostTensor(type, std::move(shape));
}

absl::StatusOr<double> LoadedPlan::device_seconds() {
  if (parts_->cuda_run == nullptr) return absl::FailedPreconditionError("nothing ran on a GPU as a single run");
  return parts_->cuda_run->DeviceSeconds();
}

absl::Status LoadedPlan::graph_status() const {
  return parts_->cuda_run == nullptr ? absl::OkStatus() : parts_->cuda_run->graph_status();
}

absl::StatusOr<Executor*> LoadedPlan::executor() {
  if (parts_->executor == nullptr) {
    CacheOptions options{.num_pages = parts_->options.num_pages, .max_context = parts_->options.max_context};
    if (!parts_->from.max_context.ok()) return parts_->from.max_context.status();
    const int64_t context = *parts_->from.max_context;
    if (options.max_context == 0) options.max_context = context;
    if (context > 0 && options.max_context > context) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_context is ", options.max_context, ", the model's context is ", context));
    }
    auto executor = NewExecutor(options);
    if (!executor.ok()) return executor.status();
    parts_->executor = *std::move(executor);
  }
  return parts_->executor.get();
}

absl::StatusOr<std::unique_ptr<Executor>> LoadedPlan::NewExecutor(const CacheOptions& options) {
  const ModelParts& from = parts_->from;
  if (!parts_->device.is_gpu) return from.host->NewExecutor(options);
  if (IsPastKvLanguageModel(from.description)) {
    return PastKvExecutor::Create(from.description, options,
                                  [this](const NamedHostTensors& inputs) { return RunOnGpu(inputs); });
  }
  if (from.plan == nullptr) return NeedsPlan();
  return CudaExecutor::Create(from.plan.get(), {.device = parts_->device.index,
                                                .num_pages = options.num_pages,
                                                .memory_fraction = parts_->options.memory_fraction,
                                                .max_context = options.max_context,
                                                .capture_at_start = parts_->options.capture_at_start,
                                                .check_kernels = parts_->options.check_kernels,
                                                .trace = parts_->options.trace,
                                                .cache_folder = parts_->options.cache_folder});
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
