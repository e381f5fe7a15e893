#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "codegen/plan_writer.h"
#include "files/file_writer.h"
#include "files/temporary_folder.h"
#include "nlohmann/json.hpp"
#include "runtime/device/device_target.h"
#include "runtime/engine/executor.h"
#include "runtime/host/plan_model.h"
#include "runtime/llmc.h"
#include "runtime/plan/memory_needs.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/step_programs.h"
#include "tools/bench_cost.h"
#include "tools/bench_device.h"
#include "tools/bench_model.h"
#include "tools/bench_prefix.h"
#include "tools/bench_profile.h"
#include "tools/bench_report.h"
#include "tools/bench_requests.h"
#include "tools/bench_runs.h"
#include "tools/bench_steps.h"
#include "tools/bench_tensors.h"
#include "tools/commands.h"
#include "tools/gpu_monitor.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/plan_options.h"
#include "tools/random_inputs.h"
#include "tools/run_inputs.h"
#include "tools/runnable.h"
#include "tools/tune.h"

namespace llmc {
namespace bench_command {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr char kSummary[] = "Times a model on the GPU that is here, against what the GPU can do at best.";
constexpr char kDetails[] =
    "Of any model but a language model with a paged cache: runs over named tensors, given ones or random ones of "
    "sizes\n"
    "that --dim names, with the copies of inputs and outputs and without; on the host, too (--device=host). Of a\n"
    "language model:\n"
    "Measures the GPU's read bandwidth and its rate of matrix products first, in short runs (cold) and held until the\n"
    "clocks settle (hot); then decode steps (a captured graph, as --device=cuda replays them), without sampling and\n"
    "with it; prefill, cold and hot; and the time to the first token through the engine. The bytes of a step are "
    "those\n"
    "of its weights and of the KV cache of its sequences; its floor is the time to read them at the cold bandwidth.\n"
    "Steps run as fast with random weights as with a model's own (a folder with only config.json is enough), but "
    "these\n"
    "are drawn on the GPU, not read: the time to load says which.\n"
    "Examples:\n"
    "  llmc bench plan.bin\n"
    "  llmc bench tools/bench/configs/llama-3.1-8b --random-weights --profile\n"
    "  llmc bench plan.bin --prefix-cache\n"
    "  llmc bench model.onnx --dim batch=8 --dim sequence=128 --profile\n"
    "  llmc bench tools/bench/configs/bert-base --random-weights --dtype=f16 --dim B=32 --dim L=128 --profile\n"
    "  llmc bench encoder.plan --inputs in.safetensors --device=host\n"
    "  llmc bench my-llama/ --batch 1,8,32 --context 128,8192 --prompt 2048 --json --output bench.json";

struct Options {
  ModelSource source = {.device = "cuda"};
  InputOptions inputs;
  std::vector<int64_t> batches = {1, 8, 32, 128, 256}, contexts = {128, 4096, 32768}, prompts = {512, 2048, 8192};
  std::vector<RequestsLoad> loads;
  std::string output, trace;
  bool profile = false, json = false, trace_kernels = false, prefix_cache = false;
  double sustain = 2;  // seconds
  TuneOptions tune;
  DevicePlanOptions device_plan;
};

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

absl::Status Compile(const ModelSource& source, TuneOptions tune, const DevicePlanOptions& device, const Target& target,
                     const std::string& path, Progress* progress, TuneReport* tuning) {
  Ledger ledger;
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadOptimized(source, {.target = target.name}, &ledger, progress));
  ASSIGN_OR_RETURN(PlanOptions options,
                   MakePlanOptions(*model, source, {.output = path, .targets = {target}, .generates = false}, ledger));
  options.device = device;
  if (options.language_model.has_value()) tune.sizes.clear();  // its steps are known
  RETURN_IF_ERROR(SetTuning(tune, progress, &options, tuning));
  progress->Stage("compile");
  if (source.inspect) source.inspect(*model);
  return WritePlan(*model, options, path);
}

// "580.159.04", from what the driver says of itself.
std::string DriverVersion() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return "unknown";
}

// The measurements of one model, printed as they come.
class Bench {
 public:
  Bench(const Options& options, Progress* progress) : options_(options), progress_(progress) {}

  absl::Status Run();

 private:
  void Describe();
  absl::Status MeasureDevice();
  absl::Status CompileModel();
  absl::Status TimeOnHost();
  absl::Status TimeTensors();
  absl::Status TimeSteps();
  absl::Status TimeDecode(BenchModel* model, int64_t batch, int64_t context);
  absl::Status TimePrefill(BenchModel* model, int64_t prompt);
  absl::Status TimeEngine();
  absl::Status TimePrompt(LoadedPlan* plan, int64_t prompt);
  absl::Status TimePrefixes(LoadedPlan* plan);
  absl::Status TimeLoad(LoadedPlan* plan, const RequestsLoad& load);
  absl::Status Profile(BenchModel* model, const BenchStep& step, const BenchInputs& inputs,
                       absl::FunctionRef<absl::Status()> run, const std::string& title, Json* json);
  std::vector<int64_t> Caches() const;
  absl::Status Report(const char* kind, const Json& entry);
  // What does not fit is said and left out.
  absl::Status Skip(const char* kind, Json sizes, const absl::Status& why);

  template <class... Args>
  void Print(const absl::FormatSpec<Args...>& format, const Args&... args) {
    progress_->Clear();
    if (!options_.json) PrintText(absl::StrFormat(format, args...));
    std::fflush(stdout);
  }

  const Options& options_;
  Progress* progress_;
  std::unique_ptr<GpuMonitor> monitor_;  // nullptr where there is no NVML
  DeviceRates rates_;
  Target target_;
  std::string plan_path_;
  std::optional<TemporaryFolder> temporary_;  // of the plan
  std::shared_ptr<const Plan> plan_;
  TensorInputs inputs_{.from = options_.inputs, .sizes = {}};
  Json report_ = Json::object();
  Trace trace_{options_.trace_kernels};
};

absl::Status Bench::Run() {
  std::vector<std::string> read = InputFiles(options_.inputs);
  read.push_back(options_.source.path);
  RETURN_IF_ERROR(CheckOutput(options_.output, read));
  RETURN_IF_ERROR(CheckOutput(options_.trace, read));
  if (!options_.source.RunsOnGpu()) {
    RETURN_IF_ERROR(TimeOnHost());
  } else {
    RETURN_IF_ERROR(MeasureDevice());
    RETURN_IF_ERROR(CompileModel());
    RETURN_IF_ERROR(PagedContractOf(plan_->manifest()).ok() ? TimeSteps() : TimeTensors());
  }
  progress_->Clear();
  if (!options_.trace.empty()) {
    RETURN_IF_ERROR(WriteWholeFile(options_.trace, trace_.ToJson()));
  }
  if (options_.json) PrintJson(report_);
  return absl::OkStatus();
}

// Adds an entry to a list, and writes the report so far: what ends later loses nothing.
absl::Status Bench::Report(const char* kind, const Json& entry) {
  report_[kind].push_back(entry);
  if (options_.output.empty()) return absl::OkStatus();
  return WriteWholeFile(options_.output, absl::StrCat(report_.dump(2), "\n"));
}

absl::Status Bench::TimeOnHost() {
  if (options_.profile || !options_.trace.empty())
    return absl::InvalidArgumentError("--profile and --trace show what a GPU does, and this is --device=host");
  ModelSource source = options_.source;
  inputs_.sizes = TakeInputSizes(&source);
  Describe();
  report_["device"] = "host";
  ASSIGN_OR_RETURN(const Json entry, BenchTensorsOnHost(source, inputs_, progress_));
  Print("%s", TensorsText(entry));
  return Report("runs", entry);
}

absl::Status Bench::TimeTensors() {
  progress_->Stage("run");
  report_["weights_from"] = WeightsFrom(plan_->manifest());
  ASSIGN_OR_RETURN(const Json entry, BenchTensors(plan_, inputs_, rates_, monitor_.get(), options_.profile));
  Print("\n%s", TensorsText(entry));
  if (options_.profile) {
    Print("\n  kernels of a run of %.1f us; each kernel alone\n%s\n", entry["profile_step_us"].get<double>(),
          ProfileText(entry["profile"]));
  }
  return Report("runs", entry);
}

void Bench::Describe() {
  report_["model"] = std::filesystem::path(options_.source.path).filename().string();
  report_["llmc"] = LLMC_VERSION;
  report_["date"] = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
}

absl::Status Bench::MeasureDevice() {
  progress_->Stage("measure the GPU");
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open();
  if (!device.ok()) {
    return absl::Status(device.status().code(), absl::StrCat(device.status().message(),
                                                             "; llmc bench times models on a GPU: run it where there "
                                                             "is one, or see with llmc fit what a model needs"));
  }
  absl::StatusOr<std::unique_ptr<GpuMonitor>> monitor = GpuMonitor::Open((*device)->pci_bus_id());
  if (monitor.ok()) monitor_ = *std::move(monitor);
  ASSIGN_OR_RETURN(const DeviceRates rates, MeasureRates(device->get(), options_.sustain, monitor_.get()));
  ASSIGN_OR_RETURN(const Device::MemoryInfo memory, (*device)->memory());
  rates_ = rates;
  ASSIGN_OR_RETURN(const DeviceInfo info, DescribeDevice());
  ASSIGN_OR_RETURN(target_, TargetOf(info));
  Describe();
  report_["gpu"] = (*device)->name();
  report_["driver"] = DriverVersion();
  report_["gpu_memory"] = memory.total;
  report_["free_gpu_memory"] = memory.free;
  if (monitor_ == nullptr) report_["no_clocks"] = std::string(monitor.status().message());
  Print("%s, driver %s\n", (*device)->name(), DriverVersion());
  AddRates(rates_, &report_);
  Print("%s", RatesText(rates_));
  return absl::OkStatus();
}

absl::Status Bench::CompileModel() {
  plan_path_ = options_.source.path;
  ModelSource source = options_.source;
  inputs_.sizes = TakeInputSizes(&source);
  source.inspect = [&](const Model& model) { inputs_.tables = TableSizes(model); };
  if (!Plan::IsPlan(plan_path_)) {
    const Clock::time_point begin = Clock::now();
    TuneOptions tune = options_.tune;
    if (tune.wanted == true) tune.sizes = {StepDims(inputs_.sizes.begin(), inputs_.sizes.end())};
    ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::Create());
    plan_path_ = temporary_.emplace(std::move(folder)).PathOf("plan");
    TuneReport tuning;
    absl::Status status = Compile(source, tune, options_.device_plan, target_, plan_path_, progress_, &tuning);
    if (!status.ok()) return status;
    report_["compile_s"] = SecondsSince(begin);
    Print("compiled in %.2f s\n", SecondsSince(begin));
    if (tuning.timed > 0) {
      report_["tuning"] = {{"seconds", tuning.seconds}, {"products", tuning.timed}, {"kept", tuning.kept}};
      Print("%s", TuningText(tuning));
    }
  } else if (options_.source.random_weights || !options_.source.dtype.empty() || !options_.source.bounds.empty() ||
             !source.fixed.empty() || options_.source.pagination.has_value() || !options_.source.page_sizes.empty() ||
             !options_.source.kv.empty() || options_.tune.wanted.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        plan_path_,
        ": is a plan; --random-weights, --dtype, --bound, --paginate, --page-size, --kv and --tune are for models"));
  }
  ASSIGN_OR_RETURN(plan_, Plan::Load(plan_path_, {.verify_weights = false}));
  const bool is_paged = PagedContractOf(plan_->manifest()).ok();
  if (is_paged && !(inputs_.sizes.empty() && InputFiles(options_.inputs).empty() && options_.inputs.random.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat(options_.source.path,
                     ": is a language model, whose steps have the sizes of --batch, --context and --prompt; "
                     "--dim and inputs are for models over named tensors"));
  }
  if (!is_paged && Plan::IsPlan(options_.source.path)) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, ModelFromPlan(*plan_));
    source.inspect(*model);
  }
  return absl::OkStatus();
}

// Tokens of KV cache that measurements need.
std::vector<int64_t> Bench::Caches() const {
  int64_t page = 1;  // the largest
  for (const auto& pool : plan_->manifest().language_model().pools()) page = std::max(page, pool.page_size());
  std::vector<int64_t> tokens;
  for (const int64_t prompt : options_.prompts) tokens.push_back(PagesFor(prompt, page) * page);
  for (const int64_t batch : options_.batches) {
    for (const int64_t context : options_.contexts) tokens.push_back(batch * PagesFor(context, page) * page);
  }
  return tokens;
}

absl::Status Bench::Skip(const char* kind, Json sizes, const absl::Status& why) {
  if (!absl::IsResourceExhausted(why) && !absl::IsInvalidArgument(why)) return why;
  Print("%s %s: left out: %s\n", kind, sizes.dump(), why.message());
  sizes["left_out"] = std::string(why.message());
  return Report(kind, sizes);
}

absl::Status Bench::TimeSteps() {
  progress_->Stage("load");
  const Clock::time_point begin = Clock::now();
  ASSIGN_OR_RETURN(std::unique_ptr<BenchModel> model, BenchModel::Load(plan_.get(), Caches()));
  const std::string from = WeightsFrom(plan_->manifest());
  report_["load_s"] = SecondsSince(begin);
  report_["weights_from"] = from;
  report_["weights"] = model->needs().weights + model->needs().prepared;
  Print("loaded in %.2f s: weights %s, %s\n\n", SecondsSince(begin),
        BytesText(model->needs().weights + model->needs().prepared), from);
  report_["decode"] = Json::array();
  Print("%6s %8s %12s %12s %12s %11s %9s %8s\n", "batch", "context", "step", "and greedy", "and a draw", "bytes",
        "floor", "of floor");
  for (const int64_t context : options_.contexts) {
    for (const int64_t batch : options_.batches) {
      RETURN_IF_ERROR(TimeDecode(model.get(), batch, context));
    }
  }
  report_["prefill"] = Json::array();
  Print("\n%8s %12s %9s %9s %12s %9s %9s\n", "prompt", "cold", "TFLOP/s", "of cold", "hot", "TFLOP/s", "of hot");
  for (const int64_t prompt : options_.prompts) {
    RETURN_IF_ERROR(TimePrefill(model.get(), prompt));
  }
  model.reset();  // the engine has a cache of its own
  return TimeEngine();
}

absl::Status Bench::TimeDecode(BenchModel* model, int64_t batch, int64_t context) {
  progress_->Stage(absl::StrCat("decode, batch ", batch, ", context ", context));
  const std::vector<BenchSequence> sequences(static_cast<size_t>(batch), {.position = context - 1, .tokens = 1});
  const absl::StatusOr<BenchStep> step = model->MakeStep(sequences);
  Json json = {{"batch", batch}, {"context", context}};
  if (!step.ok()) return Skip("decode", json, step.status());
  ASSIGN_OR_RETURN(const BenchInputs inputs, model->MakeInputs(*step));
  DeviceGraph graph;
  ASSIGN_OR_RETURN(const DecodeTimes times, StepTimer(model, monitor_.get()).Decode(*step, inputs, &graph));
  const StepCost cost = CostOf(model->program(*step), *step);
  AddDecode(times, cost, rates_, &json);
  Print("%s", DecodeText(json));
  if (options_.profile) {
    const std::string title = absl::StrCat("decode, batch ", batch, ", context ", context);
    const auto run = [&] { return model->device()->Launch(graph); };
    RETURN_IF_ERROR(Profile(model, *step, inputs, run, title, &json));
  }
  return Report("decode", json);
}

absl::Status Bench::TimePrefill(BenchModel* model, int64_t prompt) {
  progress_->Stage(absl::StrCat("prefill, ", prompt, " tokens"));
  std::vector<BenchStep> steps;
  std::vector<BenchInputs> inputs;
  Json json = {{"prompt", prompt}};
  double flops = 0;
  for (int64_t position = 0; position < prompt; position += model->max_step_tokens()) {
    const int64_t tokens = std::min(model->max_step_tokens(), prompt - position);
    absl::StatusOr<BenchStep> step = model->MakeStep({{.position = position, .tokens = tokens}});
    if (!step.ok()) return Skip("prefill", json, step.status());
    flops += CostOf(model->program(*step), *step).flops;
    ASSIGN_OR_RETURN(BenchInputs made, model->MakeInputs(*step));
    inputs.push_back(std::move(made));
    steps.push_back(*std::move(step));
  }
  ASSIGN_OR_RETURN(const PrefillTimes times, StepTimer(model, monitor_.get()).Prefill(steps, inputs, options_.sustain));
  AddPrefill(times, flops, rates_, &json);
  Print("%s", PrefillText(json));
  if (options_.profile) {
    const std::string title = absl::StrCat("prefill, ", steps.back().sequences[0].tokens, " tokens at position ",
                                           steps.back().sequences[0].position);
    const auto run = [&] { return model->Enqueue(steps.back()); };
    RETURN_IF_ERROR(Profile(model, steps.back(), inputs.back(), run, title, &json));
  }
  return Report("prefill", json);
}

absl::Status Bench::Profile(BenchModel* model, const BenchStep& step, const BenchInputs& inputs,
                            absl::FunctionRef<absl::Status()> run, const std::string& title, Json* json) {
  TimedStep timed(model, step, inputs, run);
  ASSIGN_OR_RETURN(const StepProfile profile, ProfileStep(&timed));
  (*json)["profile_step_us"] = profile.seconds * 1e6;
  (*json)["profile"] = ProfileJson(profile, rates_);
  Print("\n  kernels of: %s, %.1f us; each kernel alone\n%s\n", title, profile.seconds * 1e6,
        ProfileText((*json)["profile"]));
  ASSIGN_OR_RETURN(const std::vector<RunRow> runs, ProfileRuns(model, step, inputs, run));
  if (!runs.empty()) Print("%s\n", RunsText(runs));
  return absl::OkStatus();
}

absl::Status Bench::TimeEngine() {
  progress_->Stage("load for the engine");
  report_["engine"] = Json::array();
  Print("\n%8s %18s %18s %18s\n", "prompt", "first token", "the first time", "then, per token");
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedPlan> plan,
                   LoadedPlan::Load(plan_path_, {.device = "cuda",
                                                 .memory_fraction = 1,
                                                 .verify_weights = false,
                                                 .trace = options_.trace.empty() ? nullptr : &trace_}));
  for (const int64_t prompt : options_.prompts) {
    RETURN_IF_ERROR(TimePrompt(plan.get(), prompt));
  }
  for (const RequestsLoad& load : options_.loads) RETURN_IF_ERROR(TimeLoad(plan.get(), load));
  return options_.prefix_cache ? TimePrefixes(plan.get()) : absl::OkStatus();
}

absl::Status Bench::TimeLoad(LoadedPlan* plan, const RequestsLoad& load) {
  progress_->Stage("requests at once");
  ASSIGN_OR_RETURN(Executor * executor, plan->executor());
  const absl::StatusOr<Json> entry = TimeRequests(executor, load);
  if (!entry.ok()) return Skip("requests", {{"requests", load.requests}}, entry.status());
  Print("\n%s", RequestsText(*entry));
  return Report("requests", *entry);
}

absl::Status Bench::TimePrefixes(LoadedPlan* plan) {
  progress_->Stage("prefix cache");
  ASSIGN_OR_RETURN(Executor * executor, plan->executor());
  const PrefixLoad load;
  const absl::StatusOr<Json> entry = TimePrefixCache(executor, load);
  if (!entry.ok()) return Skip("prefix_cache", {{"prompt", load.prompt}}, entry.status());
  Print("\n%s", PrefixCacheText(*entry));
  return Report("prefix_cache", *entry);
}

absl::Status Bench::TimePrompt(LoadedPlan* plan, int64_t prompt) {
  progress_->Stage(absl::StrCat("first token after ", prompt));
  const absl::StatusOr<Json> entry = TimeOnePrompt(plan, prompt);
  if (!entry.ok()) return Skip("engine", {{"prompt", prompt}}, entry.status());
  Print("%s", OnePromptText(*entry));
  return Report("engine", *entry);
}

}  // namespace
}  // namespace bench_command

void AddBench(CLI::App& app, Command* chosen) {
  using namespace bench_command;
  CLI::App* command = AddCommand(app, "bench", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source,
                  "a plan, or a Hugging Face folder, GGUF or ONNX file, which is compiled for the GPU first");
  AddRandomWeightsOptions(command, &options->source);
  command->add_option("--device", options->source.device, "where to run: cuda (the first GPU), or host")
      ->check(CLI::IsMember({"cuda", "host"}))
      ->capture_default_str();
  AddInputOptions(command, &options->inputs);
  AddPaginationOptions(command, &options->source);
  AddBoundOption(command, &options->source);
  AddTuneOption(command, /*has_sizes=*/false, &options->tune);
  AddDeviceOptions(command, &options->device_plan);
  const auto numbers = [&](const char* name, std::vector<int64_t>* values, const char* what) {
    command->add_option(name, *values, what)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  };
  numbers("--batch", &options->batches, "sequences in a decode step");
  numbers("--context", &options->contexts, "tokens of each of them");
  numbers("--prompt", &options->prompts, "tokens of a prompt");
  command->add_option("--sustain", options->sustain, "seconds of load before hot rates and hot prefill are timed")
      ->check(CLI::Range(0.1, 60.0))
      ->capture_default_str();
  command->add_flag("--profile", options->profile, "a table of the kernels of each step, and of what is between them");
  command->add_flag("--prefix-cache", options->prefix_cache,
                    "also time 64 prompts of 2,048 tokens that share 90 % of them, with the prefix cache and without");
  command
      ->add_option_function<std::vector<std::string>>(
          "--requests",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const absl::StatusOr<RequestsLoad> load = ParseRequestsLoad(text);
              if (!load.ok()) throw CLI::ValidationError("--requests", std::string(load.status().message()));
              options->loads.push_back(*load);
            }
          },
          "COUNT,PROMPT,ANSWER: also time so many requests at once, of so many tokens, for so many: 256,1024,256; "
          "repeatable")
      ->allow_extra_args(false);
  command->add_flag("--json", options->json, "the report as JSON");
  AddTraceOptions(command, &options->trace, &options->trace_kernels);
  command->add_option("--output", options->output, "a file for the report as JSON");
  command->callback([options, chosen] {
    options->source.output = "";
    *chosen = [options] {
      Progress progress;
      return Bench(*options, &progress).Run();
    };
  });
}

}  // namespace llmc
