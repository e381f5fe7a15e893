#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "codegen/plan_writer.h"
#include "files/file_writer.h"
#include "nlohmann/json.hpp"
#include "runtime/executor.h"
#include "runtime/llmc.h"
#include "runtime/memory_needs.h"
#include "runtime/plan.h"
#include "tools/bench_cost.h"
#include "tools/bench_device.h"
#include "tools/bench_model.h"
#include "tools/bench_profile.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/plan_options.h"
#include "tools/runnable.h"
#include "tools/tune.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr char kSummary[] = "Times a language model on the GPU that is here, against what the GPU can do at best.";
constexpr char kDetails[] =
    "Measures the GPU's read bandwidth and its rate of matrix products first, then decode steps (a captured graph, as\n"
    "--device=cuda replays them), prefill, and the time to the first token through the engine. The bytes of a step "
    "are\n"
    "those of its weights and of the KV cache of its sequences; its floor is the time to read them at that bandwidth.\n"
    "Random weights are as fast as a model's own: a folder with only config.json is enough.\n"
    "Examples:\n"
    "  llmc bench plan.bin\n"
    "  llmc bench tools/bench/configs/llama-3.1-8b --random-weights --profile\n"
    "  llmc bench my-llama/ --batch 1,8,32 --context 128,8192 --prompt 2048 --json --output bench.json";

struct Options {
  ModelSource source;
  std::vector<int64_t> batches = {1, 8, 32}, contexts = {128}, prompts = {512, 2048, 8192};
  std::string output, trace;
  bool profile = false, json = false, trace_kernels = false;
  std::optional<bool> tune;
};

constexpr int kDecodeRuns = 50;
constexpr int kPrefillRuns = 5;
constexpr int kEngineRuns = 3;
constexpr int64_t kEngineTokens = 65;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A plan in the system's folder for temporary files, removed with this.
class TemporaryPlan {
 public:
  TemporaryPlan() : path_((std::filesystem::temp_directory_path() / absl::StrCat("llmc-bench-", getpid())).string()) {}
  ~TemporaryPlan() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

absl::Status Compile(const ModelSource& source, std::optional<bool> tune, const std::string& target,
                     const std::string& path, Progress* progress, TuneReport* tuning) {
  Ledger ledger;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadOptimized(source, {.target = target}, &ledger, progress);
  if (!model.ok()) return model.status();
  absl::StatusOr<PlanOptions> options = MakePlanOptions(**model, source, {.output = path, .targets = {target}}, ledger);
  if (!options.ok()) return options.status();
  if (absl::Status status = SetTuning(tune, progress, &*options, tuning); !status.ok()) return status;
  progress->Stage("compile");
  return WritePlan(**model, *options, path);
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
  absl::Status MeasureDevice();
  absl::Status CompileModel();
  absl::Status TimeSteps();
  absl::Status TimeDecode(BenchModel* model, int64_t batch, int64_t context);
  absl::Status TimePrefill(BenchModel* model, int64_t prompt);
  absl::Status TimeEngine();
  absl::Status TimePrompt(LoadedPlan* plan, int64_t prompt);
  absl::Status Profile(BenchModel* model, const BenchStep& step, const BenchInputs& inputs, const std::string& title,
                       Json* json);
  int64_t LargestCache() const;
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
  DeviceRates rates_;
  std::string target_, plan_path_;
  TemporaryPlan temporary_;
  std::unique_ptr<Plan> plan_;
  Json report_ = Json::object();
  Trace trace_{options_.trace_kernels};
};

absl::Status Bench::Run() {
  if (absl::Status status = CheckOutput(options_.output, {options_.source.path}); !status.ok()) return status;
  if (absl::Status status = CheckOutput(options_.trace, {options_.source.path}); !status.ok()) return status;
  if (absl::Status status = MeasureDevice(); !status.ok()) return status;
  if (absl::Status status = CompileModel(); !status.ok()) return status;
  if (absl::Status status = TimeSteps(); !status.ok()) return status;
  if (absl::Status status = TimeEngine(); !status.ok()) return status;
  progress_->Clear();
  if (!options_.trace.empty()) {
    if (absl::Status status = WriteWholeFile(options_.trace, trace_.ToJson()); !status.ok()) return status;
  }
  if (!options_.output.empty()) {
    const std::string text = absl::StrCat(report_.dump(2), "\n");
    if (absl::Status status = WriteWholeFile(options_.output, text); !status.ok()) return status;
  }
  if (options_.json) PrintJson(report_);
  return absl::OkStatus();
}

absl::Status Bench::MeasureDevice() {
  progress_->Stage("measure the GPU");
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open();
  if (!device.ok()) {
    return absl::Status(device.status().code(), absl::StrCat(device.status().message(),
                                                             "; llmc bench times models on a GPU: run it where there "
                                                             "is one, or see with llmc fit what a model needs"));
  }
  const absl::StatusOr<DeviceRates> rates = MeasureRates(device->get());
  if (!rates.ok()) return rates.status();
  const absl::StatusOr<Device::MemoryInfo> memory = (*device)->memory();
  if (!memory.ok()) return memory.status();
  rates_ = *rates;
  const int capability = (*device)->capability();
  target_ = absl::StrCat("sm_", capability, capability == 90 || capability == 100 ? "a" : "");
  report_["model"] = std::filesystem::path(options_.source.path).filename().string();
  report_["llmc"] = LLMC_VERSION;
  report_["date"] = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  report_["gpu"] = (*device)->name();
  report_["driver"] = DriverVersion();
  report_["gpu_memory"] = memory->total;
  report_["free_gpu_memory"] = memory->free;
  report_["read_gb_per_s"] = rates_.read_bytes * 1e-9;
  report_["matrix_tflops"] = rates_.flops * 1e-12;
  Print("%s, driver %s: reads %.0f GB/s, multiplies bf16 matrices at %.0f TFLOP/s\n", (*device)->name(),
        DriverVersion(), rates_.read_bytes * 1e-9, rates_.flops * 1e-12);
  return absl::OkStatus();
}

absl::Status Bench::CompileModel() {
  plan_path_ = options_.source.path;
  if (!Plan::IsPlan(plan_path_)) {
    const Clock::time_point begin = Clock::now();
    plan_path_ = temporary_.path();
    TuneReport tuning;
    absl::Status status = Compile(options_.source, options_.tune, target_, plan_path_, progress_, &tuning);
    if (!status.ok()) return status;
    report_["compile_s"] = SecondsSince(begin);
    Print("compiled in %.2f s\n", SecondsSince(begin));
    if (tuning.timed > 0) {
      report_["tuning"] = {{"seconds", tuning.seconds}, {"products", tuning.timed}, {"kept", tuning.kept}};
      Print("%s", TuningText(tuning));
    }
  } else if (options_.source.random_weights || !options_.source.dtype.empty() || !options_.source.bounds.empty() ||
             options_.source.promotion.has_value() || options_.tune.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        plan_path_, ": is a plan; --random-weights, --dtype, --bound, --promote and --tune are for models"));
  }
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(plan_path_, {.verify_weights = false});
  if (!plan.ok()) return plan.status();
  plan_ = *std::move(plan);
  return absl::OkStatus();
}

int64_t Bench::LargestCache() const {
  const int64_t page = std::max<int64_t>(plan_->manifest().language_model().page_size(), 1);
  int64_t tokens = 0;
  for (const int64_t prompt : options_.prompts) tokens = std::max(tokens, prompt);
  for (const int64_t batch : options_.batches) {
    for (const int64_t context : options_.contexts) tokens = std::max(tokens, batch * PagesFor(context, page) * page);
  }
  return tokens;
}

absl::Status Bench::Skip(const char* kind, Json sizes, const absl::Status& why) {
  if (!absl::IsResourceExhausted(why) && !absl::IsInvalidArgument(why)) return why;
  Print("%s %s: left out: %s\n", kind, sizes.dump(), why.message());
  sizes["left_out"] = std::string(why.message());
  report_[kind].push_back(sizes);
  return absl::OkStatus();
}

absl::Status Bench::TimeSteps() {
  progress_->Stage("load");
  const Clock::time_point begin = Clock::now();
  absl::StatusOr<std::unique_ptr<BenchModel>> model = BenchModel::Load(plan_.get(), LargestCache());
  if (!model.ok()) return model.status();
  report_["load_s"] = SecondsSince(begin);
  report_["weights"] = (*model)->needs().weights + (*model)->needs().prepared;
  Print("loaded in %.2f s: weights %s\n\n", SecondsSince(begin),
        BytesText((*model)->needs().weights + (*model)->needs().prepared));
  report_["decode"] = Json::array();
  Print("%8s %9s %12s %12s %11s %9s %8s\n", "batch", "context", "step", "fastest", "bytes", "floor", "of floor");
  for (const int64_t context : options_.contexts) {
    for (const int64_t batch : options_.batches) {
      if (absl::Status status = TimeDecode(model->get(), batch, context); !status.ok()) return status;
    }
  }
  report_["prefill"] = Json::array();
  Print("\n%8s %12s %12s %11s %12s\n", "prompt", "prefill", "fastest", "TFLOP/s", "of the roof");
  for (const int64_t prompt : options_.prompts) {
    if (absl::Status status = TimePrefill(model->get(), prompt); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Bench::TimeDecode(BenchModel* model, int64_t batch, int64_t context) {
  progress_->Stage(absl::StrCat("decode, batch ", batch, ", context ", context));
  const std::vector<BenchSequence> sequences(static_cast<size_t>(batch), {.position = context - 1, .tokens = 1});
  const absl::StatusOr<BenchStep> step = model->MakeStep(sequences);
  Json json = {{"batch", batch}, {"context", context}};
  if (!step.ok()) return Skip("decode", json, step.status());
  const absl::StatusOr<BenchInputs> inputs = model->MakeInputs(*step);
  if (!inputs.ok()) return inputs.status();
  if (absl::Status status = model->SetInputs(*inputs); !status.ok()) return status;
  // Once outside of the capture, so that products have found their algorithms.
  if (absl::Status status = model->Enqueue(*step); !status.ok()) return status;
  const absl::StatusOr<Device::MemoryInfo> before = model->device()->memory();
  const absl::StatusOr<DeviceGraph> graph = model->Capture(*step, [](const plan::Step&) { return true; });
  if (!graph.ok()) return graph.status();
  const absl::StatusOr<std::vector<double>> times =
      model->Time(kDecodeRuns, *inputs, [&] { return model->device()->Launch(*graph); });
  if (!times.ok()) return times.status();
  const absl::StatusOr<Device::MemoryInfo> after = model->device()->memory();
  if (!before.ok()) return before.status();
  if (!after.ok()) return after.status();
  const double median = Median(*times), fastest = *std::min_element(times->begin(), times->end());
  const StepCost cost = CostOf(model->manifest(), model->program(*step), *step);
  const double bytes = cost.weight_bytes + cost.kv_bytes, floor = bytes / rates_.read_bytes;
  json.update({{"median_us", median * 1e6},
               {"fastest_us", fastest * 1e6},
               {"weight_bytes", cost.weight_bytes},
               {"kv_bytes", cost.kv_bytes},
               {"floor_us", floor * 1e6},
               {"of_floor", floor / median},
               {"graph_bytes", before->free - after->free},
               {"tokens_per_s", static_cast<double>(batch) / median}});
  Print("%8d %9d %9.1f us %9.1f us %8.3f GB %6.0f us %7.1f%%\n", batch, context, median * 1e6, fastest * 1e6,
        bytes * 1e-9, floor * 1e6, 100 * floor / median);
  if (options_.profile) {
    if (absl::Status status =
            Profile(model, *step, *inputs, absl::StrCat("decode, batch ", batch, ", context ", context), &json);
        !status.ok()) {
      return status;
    }
  }
  report_["decode"].push_back(json);
  return absl::OkStatus();
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
    flops += CostOf(model->manifest(), model->program(*step), *step).flops;
    absl::StatusOr<BenchInputs> made = model->MakeInputs(*step);
    if (!made.ok()) return made.status();
    inputs.push_back(*std::move(made));
    steps.push_back(*std::move(step));
  }
  const absl::StatusOr<std::vector<double>> times = model->Time(kPrefillRuns, inputs[0], [&] {
    absl::Status status;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (i > 0 && status.ok()) status = model->SetInputs(inputs[i]);
      if (status.ok()) status = model->Enqueue(steps[i]);
    }
    return status;
  });
  if (!times.ok()) return times.status();
  const double median = Median(*times), fastest = *std::min_element(times->begin(), times->end());
  json.update({{"median_ms", median * 1e3},
               {"fastest_ms", fastest * 1e3},
               {"tflop", flops * 1e-12},
               {"tflops", flops / median * 1e-12},
               {"of_matrix_rate", flops / median / rates_.flops},
               {"tokens_per_s", static_cast<double>(prompt) / median}});
  Print("%8d %9.2f ms %9.2f ms %11.0f %11.1f%%\n", prompt, median * 1e3, fastest * 1e3, flops / median * 1e-12,
        100 * flops / median / rates_.flops);
  if (options_.profile) {
    const std::string title = absl::StrCat("prefill, ", steps.back().sequences[0].tokens, " tokens at position ",
                                           steps.back().sequences[0].position);
    if (absl::Status status = Profile(model, steps.back(), inputs.back(), title, &json); !status.ok()) return status;
  }
  report_["prefill"].push_back(json);
  return absl::OkStatus();
}

absl::Status Bench::Profile(BenchModel* model, const BenchStep& step, const BenchInputs& inputs,
                            const std::string& title, Json* json) {
  const absl::StatusOr<std::vector<ProfileRow>> rows = ProfileStep(model, step, inputs);
  if (!rows.ok()) return rows.status();
  double all = 0;
  for (const ProfileRow& row : *rows) all += row.seconds;
  Print("\n  kernels of: %s; one kernel at a time %.1f us\n", title, all * 1e6);
  Print("  %-34s %6s %11s %7s %10s %9s %8s\n", "kernel", "count", "time", "share", "GB/s", "TFLOP/s", "of roof");
  (*json)["profile"] = Json::array();
  for (const ProfileRow& row : *rows) {
    const double bytes_rate = row.cost.bytes() / row.seconds * 1e-9, flops_rate = row.cost.flops / row.seconds * 1e-12;
    Print("  %-34s %6d %8.1f us %6.1f%% %10.0f %9.1f %7.1f%%\n", row.name, row.count, row.seconds * 1e6,
          100 * row.seconds / all, bytes_rate, flops_rate, 100 * row.Share(rates_));
    (*json)["profile"].push_back({{"kernel", row.name},
                                  {"count", row.count},
                                  {"us", row.seconds * 1e6},
                                  {"share", row.seconds / all},
                                  {"bytes", row.cost.bytes()},
                                  {"flops", row.cost.flops},
                                  {"bound_by", row.IsBoundByBytes(rates_) ? "bytes" : "flops"},
                                  {"of_roof", row.Share(rates_)},
                                  {"first", row.example}});
  }
  Print("\n");
  return absl::OkStatus();
}

absl::Status Bench::TimeEngine() {
  progress_->Stage("load for the engine");
  report_["engine"] = Json::array();
  Print("\n%8s %18s %18s %18s\n", "prompt", "first token", "the first time", "then, per token");
  absl::StatusOr<std::unique_ptr<LoadedPlan>> plan = LoadedPlan::Load(
      plan_path_, {.device = "cuda", .verify_weights = false, .trace = options_.trace.empty() ? nullptr : &trace_});
  if (!plan.ok()) return plan.status();
  for (const int64_t prompt : options_.prompts) {
    if (absl::Status status = TimePrompt(plan->get(), prompt); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Bench::TimePrompt(LoadedPlan* plan, int64_t prompt) {
  progress_->Stage(absl::StrCat("first token after ", prompt));
  const absl::StatusOr<Executor*> executor = plan->executor();
  if (!executor.ok()) return executor.status();
  const ExecutorLimits& limits = (*executor)->limits();
  Json json = {{"prompt", prompt}};
  if (prompt + kEngineTokens > std::min(limits.max_context, limits.num_pages * limits.page_size)) {
    return Skip("engine", json, absl::ResourceExhaustedError("the prompt and what is generated do not fit"));
  }
  std::vector<double> first_token, per_token;
  for (int run = 0; run < kEngineRuns; ++run) {
    auto engine = plan->NewEngine({.max_tokens_per_step = limits.max_step_tokens, .max_sequences = 1});
    if (!engine.ok()) return engine.status();
    Request request;
    for (int64_t i = 0; i < prompt; ++i) {
      request.prompt_ids.push_back(static_cast<int32_t>((i * 7919 + run) % limits.vocab_size));
    }
    request.max_new_tokens = kEngineTokens;
    request.ignore_eos = true;
    Clock::time_point begin = Clock::now(), first = begin;
    Completion completion;
    const auto id = (*engine)->AddRequest(request, [&](const TokenEvent& event) {
      if (completion.tokens.empty()) first = Clock::now();
      completion.Add(event);
    });
    if (!id.ok()) return id.status();
    if (absl::Status status = (*engine)->RunUntilIdle(); !status.ok()) return status;
    if (!completion.status.ok()) return completion.status;
    first_token.push_back(std::chrono::duration<double>(first - begin).count());
    per_token.push_back(SecondsSince(first) / static_cast<double>(kEngineTokens - 1));
  }
  const double warm = *std::min_element(first_token.begin() + 1, first_token.end());
  json.update({{"first_token_ms", warm * 1e3},
               {"first_time_ms", first_token[0] * 1e3},
               {"token_us", *std::min_element(per_token.begin() + 1, per_token.end()) * 1e6}});
  Print("%8d %15.2f ms %15.2f ms %15.1f us\n", prompt, warm * 1e3, first_token[0] * 1e3,
        *std::min_element(per_token.begin() + 1, per_token.end()) * 1e6);
  report_["engine"].push_back(json);
  return absl::OkStatus();
}

}  // namespace

void AddBench(CLI::App& app, Command* chosen) {
  CLI::App* command = AddCommand(app, "bench", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source,
                  "a plan, or a Hugging Face folder or ONNX file, which is compiled for the GPU first");
  AddRandomWeightsOptions(command, &options->source);
  AddPromotionOptions(command, &options->source);
  AddBoundOption(command, &options->source);
  AddTuneOption(command, &options->tune);
  const auto numbers = [&](const char* name, std::vector<int64_t>* values, const char* what) {
    command->add_option(name, *values, what)->delimiter(',')->check(CLI::PositiveNumber)->capture_default_str();
  };
  numbers("--batch", &options->batches, "sequences in a decode step");
  numbers("--context", &options->contexts, "tokens of each of them");
  numbers("--prompt", &options->prompts, "tokens of a prompt");
  command->add_flag("--profile", options->profile, "a table of the kernels of each step");
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
