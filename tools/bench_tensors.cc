#include "tools/bench_tensors.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "ir/dim.h"
#include "runtime/model_parts.h"
#include "tools/bench_profile.h"
#include "tools/bench_report.h"
#include "tools/random_inputs.h"
#include "tools/runnable.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr double kGpuSeconds = 0.25, kHostSeconds = 2;
constexpr int kLeastGpuRuns = 10, kMostGpuRuns = 200, kMostHostRuns = 50;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Seconds on the clock of each run.
template <class Run>
absl::StatusOr<RunTimes> TimeOnClock(int runs, const Run& run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point begin = Clock::now();
    RETURN_IF_ERROR(run().status());
    seconds.push_back(SecondsSince(begin));
  }
  return RunTimes{
      .median = Median(seconds), .fastest = *std::min_element(seconds.begin(), seconds.end()), .runs = runs};
}

Json RunTimesJson(const RunTimes& times) {
  return {{"median_ms", times.median * 1e3}, {"fastest_ms", times.fastest * 1e3}, {"runs", times.runs}};
}

double FigureOf(const Json& json, const char* key) { return json.at(key).get<double>(); }

}  // namespace

absl::StatusOr<std::unique_ptr<TensorProgram>> TensorProgram::Create(CudaRun* run, const NamedHostTensors& inputs) {
  auto program = std::unique_ptr<TensorProgram>(new TensorProgram(run));
  const Clock::time_point begin = Clock::now();
  RETURN_IF_ERROR(run->Run(inputs).status());
  program->first_seconds_ = SecondsSince(begin);
  RETURN_IF_ERROR(run->Run(inputs).status());
  program->sizes_ = run->last_sizes();
  const DeviceProgram& last = *run->last_program();
  absl::StatusOr<DeviceProgram> each = run->model()->Build(*last.plan, last.buffers, /*model_alone=*/true,
                                                           /*runs=*/false);
  if (!each.ok()) return each.status();
  program->each_ = *std::move(each);
  for (const auto& [name, tensor] : inputs) {
    ASSIGN_OR_RETURN(const DeviceRange to, PlaceOf(last, absl::StrCat("%", name)));
    program->copies_.push_back({.to = to.data, .bytes = tensor.byte_size()});
  }
  RETURN_IF_ERROR(program->KeepInputs());
  for (size_t i = 0; const auto& [name, tensor] : inputs) {
    const BenchInputs::Copy& copy = program->copies_[i++];
    absl::Status status = program->device()->CopyToDevice(copy.from, tensor.bytes.get(), copy.bytes);
    if (!status.ok()) return status;
  }
  RETURN_IF_ERROR(program->device()->Synchronize());
  return program;
}

// Memory beside the run's, one input behind the other.
absl::Status TensorProgram::KeepInputs() {
  constexpr int64_t kAlignment = 256;
  int64_t bytes = 0;
  for (BenchInputs::Copy& copy : copies_) {
    copy.from = static_cast<DevicePointer>(bytes);
    bytes += (copy.bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  ASSIGN_OR_RETURN(DeviceMemory memory, device()->Allocate(std::max(bytes, kAlignment)));
  kept_ = std::move(memory);
  for (BenchInputs::Copy& copy : copies_) copy.from += kept_.data();
  return absl::OkStatus();
}

bool TensorProgram::IsInput(const std::string& name) const {
  const auto& inputs = manifest().entry_points(0).inputs();
  return std::any_of(inputs.begin(), inputs.end(), [&](const auto& input) { return input.name() == name; });
}

absl::Status TensorProgram::SetInputs() {
  for (const BenchInputs::Copy& copy : copies_) {
    if (copy.bytes == 0) continue;
    RETURN_IF_ERROR(device()->CopyOnDevice(copy.to, copy.from, copy.bytes));
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<TensorTimes> TimeOnGpu(TensorProgram* program, CudaRun* run, const NamedHostTensors& inputs,
                                      GpuMonitor* monitor) {
  TensorTimes times{.first = program->first_seconds()};
  const auto on_clock = [](auto again) -> absl::StatusOr<RunTimes> {
    ASSIGN_OR_RETURN(const RunTimes one, TimeOnClock(1, again));
    return TimeOnClock(RunsFor(one.median, kGpuSeconds, kLeastGpuRuns, kMostGpuRuns), again);
  };
  NamedHostTensors pinned;
  NamedAnyTensors on_device;
  for (const auto& [name, tensor] : inputs) {
    ASSIGN_OR_RETURN(HostTensor copy, run->NewHostTensor(tensor.type, tensor.shape));
    std::copy_n(tensor.bytes.get(), tensor.byte_size(), const_cast<char*>(copy.bytes.get()));
    pinned.emplace(name, std::move(copy));
    ASSIGN_OR_RETURN(on_device[name], run->ToDevice(tensor));
  }
  ASSIGN_OR_RETURN(times.with_copies, on_clock([&] { return run->Run(inputs); }));
  ASSIGN_OR_RETURN(times.pinned, on_clock([&] { return run->Run(pinned); }));
  ASSIGN_OR_RETURN(times.on_device, on_clock([&] { return run->RunOnDevice(on_device); }));
  const auto alone = [&] { return program->Run(); };
  ASSIGN_OR_RETURN(const std::vector<double> first, program->Time(1, alone));
  const int runs = RunsFor(first[0], kGpuSeconds, kLeastGpuRuns, kMostGpuRuns);
  if (monitor != nullptr) monitor->Start();
  const absl::StatusOr<std::vector<double>> seconds = program->Time(runs, alone);
  if (monitor != nullptr) times.alone.gpu = monitor->Stop();
  if (!seconds.ok()) return seconds.status();
  times.alone.runs = runs;
  times.alone.median = Median(*seconds);
  times.alone.fastest = *std::min_element(seconds->begin(), seconds->end());
  return times;
}

// The sizes of what goes in, of the symbols that inputs name alone.
StepDims SizesOf(const std::vector<TensorInfo>& infos, const NamedHostTensors& inputs) {
  StepDims sizes;
  for (const TensorInfo& info : infos) {
    const auto input = inputs.find(info.name);
    for (size_t i = 0; input != inputs.end() && i < info.shape.size(); ++i) {
      const absl::StatusOr<Dim> dim = Dim::Parse(info.shape[i]);
      if (dim.ok() && dim->is_symbol()) sizes[info.shape[i]] = input->second.shape[i];
    }
  }
  return sizes;
}

}  // namespace

absl::StatusOr<NamedHostTensors> TensorInputs::For(const std::vector<TensorInfo>& infos) const {
  InputOptions options = from;
  if (InputFiles(options).empty() && options.random.empty()) options.random = "0";
  ASSIGN_OR_RETURN(RunInputs inputs, RunInputs::Read(options));
  RETURN_IF_ERROR(inputs.Complete(infos, tables, sizes));
  ASSIGN_OR_RETURN(NamedHostTensors picked, inputs.Pick(infos, ""));
  inputs.NoteUnused({});
  return picked;
}

absl::StatusOr<Json> BenchTensors(const std::shared_ptr<const Plan>& plan, const TensorInputs& inputs,
                                  const DeviceRates& rates, GpuMonitor* monitor, bool profile) {
  ASSIGN_OR_RETURN(const ModelParts parts, PartsOfPlan(plan));
  ASSIGN_OR_RETURN(const NamedHostTensors tensors, inputs.For(parts.description.inputs));
  ASSIGN_OR_RETURN(const std::unique_ptr<CudaRun> run, CudaRun::Create(plan.get(), {.memory_fraction = 1}));
  ASSIGN_OR_RETURN(const std::unique_ptr<TensorProgram> program, TensorProgram::Create(run.get(), tensors));
  ASSIGN_OR_RETURN(const TensorTimes times, TimeOnGpu(program.get(), run.get(), tensors, monitor));
  Json entry = TensorsJson(SizesOf(parts.description.inputs, tensors), times);
  if (!run->graph_status().ok()) entry["no_graph"] = std::string(run->graph_status().message());
  AddTensorCost(CostOf(program->program(), {.dims = program->sizes()}), rates, &entry);
  if (!profile) return entry;
  ASSIGN_OR_RETURN(const StepProfile kernels, ProfileStep(program.get()));
  entry["profile_step_us"] = kernels.seconds * 1e6;
  entry["profile"] = ProfileJson(kernels, rates);
  return entry;
}

absl::StatusOr<Json> BenchTensorsOnHost(ModelSource source, TensorInputs inputs, Progress* progress) {
  // What goes in and out of a model is what its file says.
  if (!Plan::IsPlan(source.path)) source.pagination = Pagination::kNever;
  source.inspect = [&](const Model& model) { inputs.tables = TableSizes(model); };
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedPlan> model, LoadRunnable(source, "", progress));
  if (model->has_paged_cache()) {
    return absl::UnimplementedError(absl::StrCat(
        source.path, ": is a language model with a paged cache, whose steps are timed on GPUs (--device=cuda)"));
  }
  ASSIGN_OR_RETURN(const NamedHostTensors tensors, inputs.For(model->inputs()));
  progress->Stage("run");
  TensorTimes times;
  const auto run = [&] { return model->Run(tensors); };
  ASSIGN_OR_RETURN(const RunTimes first, TimeOnClock(1, run));
  times.first = first.median;
  ASSIGN_OR_RETURN(times.with_copies, TimeOnClock(RunsFor(times.first, kHostSeconds, 1, kMostHostRuns), run));
  return TensorsJson(SizesOf(model->inputs(), tensors), times);
}

Json TensorsJson(const StepDims& sizes, const TensorTimes& times) {
  Json entry = {{"dims", Json::object()}, {"first_ms", times.first * 1e3}, {"clock", RunTimesJson(times.with_copies)}};
  for (const auto& [name, size] : sizes) entry["dims"][name] = size;
  if (times.alone.runs > 0) {
    entry["gpu"] = RunTimesJson(times.alone);
    AddState(times.alone.gpu, &entry["gpu"]);
    entry["clock_pinned"] = RunTimesJson(times.pinned);
    entry["clock_on_device"] = RunTimesJson(times.on_device);
  }
  return entry;
}

void AddTensorCost(const StepCost& cost, const DeviceRates& rates, Json* entry) {
  const double bytes = cost.weight_bytes + cost.kv_bytes, seconds = FigureOf(entry->at("gpu"), "median_ms") * 1e-3;
  const double floor = std::max(bytes / rates.read_bytes, cost.flops / rates.flops);
  entry->update({{"weight_bytes", bytes},
                 {"tflop", cost.flops * 1e-12},
                 {"tflops", cost.flops / seconds * 1e-12},
                 {"floor_ms", floor * 1e3},
                 {"of_floor", floor / seconds}});
}

std::string TensorsText(const Json& entry) {
  std::string text;
  for (const auto& [name, size] : entry.at("dims").items()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " = ", size.get<int64_t>());
  }
  if (!text.empty()) text += "\n";
  const auto line = [&](const char* what, const Json& times) {
    absl::StrAppendFormat(&text, "  %-28s %10.3f ms, fastest %.3f ms, of %d runs%s\n", what,
                          FigureOf(times, "median_ms"), FigureOf(times, "fastest_ms"), times.at("runs").get<int>(),
                          StateText(times));
  };
  if (!entry.contains("gpu")) {
    line("on the host", entry.at("clock"));
  } else {
    line("on the GPU, without copies", entry.at("gpu"));
    line("with copies, on the clock", entry.at("clock"));
    line("from page-locked memory", entry.at("clock_pinned"));
    line("on the clock, left on the GPU", entry.at("clock_on_device"));
    absl::StrAppendFormat(&text, "  floor %.3f ms (%.3f GB of weights, %.4f TFLOP), %.1f %% of it; %.0f TFLOP/s\n",
                          FigureOf(entry, "floor_ms"), FigureOf(entry, "weight_bytes") * 1e-9, FigureOf(entry, "tflop"),
                          100 * FigureOf(entry, "of_floor"), FigureOf(entry, "tflops"));
  }
  absl::StrAppendFormat(&text, "  %-28s %10.3f ms\n", "the first run", FigureOf(entry, "first_ms"));
  return text;
}

}  // namespace llmc
