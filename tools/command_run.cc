#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "runtime/host/host_tensors.h"
#include "runtime/plan/plan.h"
#include "tools/commands.h"
#include "tools/compare.h"
#include "tools/findings.h"
#include "tools/fixed_options.h"
#include "tools/output.h"
#include "tools/run_inputs.h"
#include "tools/runnable.h"
#include "tools/tensor_files.h"
#include "tools/tensor_text.h"

namespace llmc {
namespace run_command {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr char kSummary[] = "Runs a model or a plan over named tensors, and times it.";
constexpr char kDetails[] =
    "Inputs are taken by name from a file (safetensors, or .npz as numpy.savez writes it), from one .npy file each, "
    "or\n"
    "made at random. Floating-point inputs are converted to the type that the model wants, integers if their values\n"
    "allow it; a tensor that no input takes is named. A language model with a paged\n"
    "cache takes input_ids [S] or [B, S] and gives logits [.., V]; names may end in _0, _1, … for several. It takes\n"
    "attention_mask and position_ids too: of a folder, tokens with a 0 in the mask are left out; a plan of an\n"
    "ONNX file refuses such masks, and positions that do not count from 0: compile with --no-paginate for those.\n"
    "Small outputs are printed, of large ones a summary.\n"
    "Examples:\n"
    "  llmc run model.onnx --inputs in.safetensors --outputs out.safetensors\n"
    "  llmc run model.onnx --input input_ids=ids.npy --input attention_mask=mask.npy --outputs out.npz\n"
    "  llmc run model.onnx --random --dim batch=4 --dim sequence=128 --repeat 20 --device=cuda\n"
    "  llmc run tools/bench/configs/bert-base --random-weights --random --dim B=8 --dim L=128 --repeat 50 "
    "--device=cuda\n"
    "  llmc run model-folder --form=hidden-states --inputs ids.safetensors --outputs hidden.safetensors\n"
    "  llmc run plan.bin --inputs in.npz --compare expected.npz --rtol 1e-3 --atol 1e-4";

struct Options {
  ModelSource source;
  InputOptions inputs;
  std::string outputs, compare;
  double rtol = 1e-3, atol = 1e-5;
  int64_t repeat = 1;
  bool json = false;
};

// What a run takes and gives.
struct RunContext {
  LoadedPlan* model = nullptr;
  RunInputs* inputs = nullptr;
  std::vector<double> seconds = {};      // of each repetition
  std::vector<double> gpu_seconds = {};  // on the GPU alone, of those that say so
};

absl::Status RunOnce(RunContext* run, const NamedHostTensors& inputs, const std::string& suffix,
                     NamedTensors* outputs) {
  absl::StatusOr<NamedHostTensors> results = absl::InternalError("not run");
  for (double& seconds : run->seconds) {
    const Clock::time_point start = Clock::now();
    results = run->model->Run(inputs);
    if (!results.ok()) return results.status();
    seconds += std::chrono::duration<double>(Clock::now() - start).count();
    const absl::StatusOr<double> on_gpu = run->model->device_seconds();
    if (on_gpu.ok()) run->gpu_seconds.push_back(*on_gpu);
  }
  for (const auto& [name, result] : *results) {
    ASSIGN_OR_RETURN(Tensor tensor, FromHostTensor(result));
    (*outputs)[name + suffix] = std::move(tensor);
  }
  return absl::OkStatus();
}

// Hugging Face's models take a batch; a row alone is one of a single sequence.
absl::Status ScoreOnce(RunContext* run, NamedHostTensors inputs, const std::string& suffix, NamedTensors* outputs) {
  const bool is_row = inputs.at("input_ids").shape.size() == 1;
  for (auto& [name, tensor] : inputs) {
    if (is_row && tensor.shape.size() == 1) tensor.shape.insert(tensor.shape.begin(), 1);
  }
  RETURN_IF_ERROR(RunOnce(run, inputs, suffix, outputs));
  Tensor& logits = outputs->at("logits" + suffix);
  if (is_row) logits = logits.Reshaped({logits.shape()[1], logits.shape()[2]});
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> RunPlain(RunContext* run) {
  ASSIGN_OR_RETURN(const NamedHostTensors inputs, run->inputs->Pick(run->model->inputs(), ""));
  NamedTensors outputs;
  RETURN_IF_ERROR(RunOnce(run, inputs, "", &outputs));
  return outputs;
}

// A cache that is left out would change what follows without a word.
absl::Status CheckHasNoCache(const NamedTensors& file, const std::string& path) {
  for (const auto& [name, tensor] : file) {
    if (!absl::StartsWith(name, "past") || tensor.size() == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds '", name, "', but the plan keeps its cache itself and begins with an empty one; ",
                     "run the ONNX file, or compile it with --no-paginate, to feed a cache"));
  }
  return absl::OkStatus();
}

// One run for each tensor input_ids or input_ids_N.
absl::StatusOr<NamedTensors> RunLanguageModel(RunContext* run) {
  const NamedTensors& tensors = run->inputs->tensors();
  const std::string& from = run->inputs->from();
  RETURN_IF_ERROR(CheckHasNoCache(tensors, from));
  NamedTensors outputs;
  for (const auto& [name, ids] : tensors) {
    if (!absl::StartsWith(name, "input_ids")) continue;
    const std::string suffix = name.substr(9);
    ASSIGN_OR_RETURN(const NamedHostTensors inputs, run->inputs->Pick(run->model->inputs(), suffix));
    if (absl::Status status = ScoreOnce(run, inputs, suffix, &outputs); !status.ok()) {
      return absl::Status(status.code(), absl::StrCat(from, ": ", name, ": ", status.message()));
    }
  }
  if (outputs.empty()) return run->inputs->Pick(run->model->inputs(), "").status();
  return outputs;
}

struct Results {
  NamedTensors outputs;
  std::vector<double> seconds, gpu_seconds;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

Json TimesJson(const Results& results) {
  const std::vector<double>&seconds = results.seconds, &gpu = results.gpu_seconds;
  Json json = {
      {"runs", seconds.size()}, {"first_s", seconds[0]}, {"median_s", Median(seconds)}, {"min_s", Least(seconds)}};
  if (!gpu.empty()) json.update({{"gpu_median_s", Median(gpu)}, {"gpu_min_s", Least(gpu)}});
  return json;
}

std::string TimesText(const Results& results) {
  const std::vector<double>&seconds = results.seconds, &gpu = results.gpu_seconds;
  std::string text = absl::StrFormat("time of %d runs: median %.6g ms, min %.6g ms, first %.6g ms\n", seconds.size(),
                                     Median(seconds) * 1e3, Least(seconds) * 1e3, seconds[0] * 1e3);
  if (!gpu.empty()) {
    absl::StrAppendFormat(&text, "on the GPU, without copies: median %.6g ms, min %.6g ms\n", Median(gpu) * 1e3,
                          Least(gpu) * 1e3);
  }
  return text;
}

void PrintOutputs(const Results& results, const Options& options) {
  Json list = Json::array();
  for (const auto& [name, tensor] : results.outputs) {
    Json item = {{"name", name}, {"dtype", DTypeName(tensor.dtype())}, {"shape", tensor.shape()}};
    item.update(ContentsJson(tensor));
    list.push_back(std::move(item));
    if (options.json) continue;
    PrintText(absl::StrCat(Shown(name, SIZE_MAX), "  ", DTypeName(tensor.dtype()), ShapeToString(tensor.shape()), "\n",
                           tensor.size() == 0 ? "" : absl::StrCat("  ", ContentsText(tensor), "\n")));
  }
  Json json = {{"outputs", list}};
  if (options.repeat > 1) json["time"] = TimesJson(results);
  if (options.json) PrintJson(json);
}

Json ToJson(const Number& number) {
  return std::visit([](auto value) { return Json(value); }, number);
}

std::string ToText(const Number& number) {
  if (const auto* integer = std::get_if<int64_t>(&number)) return absl::StrCat(*integer);
  return absl::StrFormat("%.9g", std::get<double>(number));
}

Json ToJson(const Comparison& c) {
  return {{"name", c.name},   {"elements", c.elements}, {"max_abs", c.max_abs},   {"max_rel", c.max_rel},
          {"where", c.where}, {"got", ToJson(c.got)},   {"want", ToJson(c.want)}, {"past_tolerance", c.past_tolerance}};
}

void PrintComparison(const Comparison& c) {
  std::printf("%-4s %s  max abs %.3g  max rel %.3g  worst at [%s]: %s, expected %s\n", c.ok() ? "ok" : "FAIL",
              c.name.c_str(), c.max_abs, c.max_rel, absl::StrJoin(c.where, ", ").c_str(), ToText(c.got).c_str(),
              ToText(c.want).c_str());
}

absl::Status ComparisonError(const Options& options, int64_t past, const std::vector<std::string>& missing) {
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.compare, ": lacks the outputs '", absl::StrJoin(missing, "', '"), "'"));
  }
  if (past == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%d elements differ by more than %g + %g * |expected|", past, options.atol, options.rtol));
}

// Prints one line per output. Expected tensors that are no outputs are ignored: the file may hold inputs too.
absl::Status Compare(const Results& results, const NamedTensors& expected, const Options& options) {
  Json list = Json::array();
  std::vector<std::string> missing;
  int64_t past = 0;
  for (const auto& [name, got] : results.outputs) {
    // A .npy file is of the only output.
    auto want = expected.find(results.outputs.size() == 1 && expected.contains("") ? "" : name);
    if (want == expected.end()) {
      missing.push_back(name);
      continue;
    }
    ASSIGN_OR_RETURN(Comparison c, CompareTensors(name, got, want->second, options.rtol, options.atol));
    past += c.past_tolerance;
    list.push_back(ToJson(c));
    if (!options.json) PrintComparison(c);
  }
  Json json = {{"ok", past == 0 && missing.empty()}, {"missing", missing}, {"outputs", list}};
  if (options.repeat > 1) json["time"] = TimesJson(results);
  if (options.json) PrintJson(json);
  return ComparisonError(options, past, missing);
}

absl::StatusOr<Results> ComputeOutputs(const Options& options) {
  ASSIGN_OR_RETURN(RunInputs inputs, RunInputs::Read(options.inputs));
  Progress progress;
  ModelSource source = options.source;
  // What goes in and out of a model is what its file says.
  if (!Plan::IsPlan(source.path)) source.pagination = Pagination::kNever;
  DimEnv sizes;
  const bool is_random = !options.inputs.random.empty();
  if (is_random) sizes = TakeInputSizes(&source);
  std::map<std::string, int64_t> tables;
  if (is_random) source.inspect = [&](const Model& model) { tables = TableSizes(model); };
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedPlan> model, LoadRunnable(source, "", &progress));
  RETURN_IF_ERROR(inputs.Complete(model->inputs(), tables, sizes));
  progress.Stage("run");
  RunContext run{
      .model = model.get(), .inputs = &inputs, .seconds = std::vector<double>(static_cast<size_t>(options.repeat))};
  ASSIGN_OR_RETURN(NamedTensors outputs, model->has_paged_cache() ? RunLanguageModel(&run) : RunPlain(&run));
  progress.Clear();
  inputs.NoteUnused(outputs);
  NoteLaunches(*model);
  return Results{std::move(outputs), std::move(run.seconds), std::move(run.gpu_seconds)};
}

absl::Status Run(const Options& options) {
  std::vector<std::string> read = InputFiles(options.inputs);
  read.push_back(options.compare);
  RETURN_IF_ERROR(CheckOutput(options.outputs, read));
  absl::StatusOr<NamedTensors> expected = NamedTensors();
  if (!options.compare.empty()) expected = ReadTensorFile(options.compare);
  if (!expected.ok()) return expected.status();
  ASSIGN_OR_RETURN(const Results results, ComputeOutputs(options));
  if (!options.outputs.empty()) {
    RETURN_IF_ERROR(WriteTensorFile(options.outputs, results.outputs));
  }
  if (options.repeat > 1 && !options.json) PrintText(TimesText(results));
  if (!options.compare.empty()) return Compare(results, *expected, options);
  PrintOutputs(results, options);
  return absl::OkStatus();
}

std::string CheckTolerance(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) && std::isfinite(value) && value >= 0
             ? ""
             : absl::StrCat("'", text, "' is not a finite number of at least 0");
}

}  // namespace
}  // namespace run_command

void AddRun(CLI::App& app, Command* chosen) {
  using namespace run_command;
  CLI::App* command = AddCommand(app, "run", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  AddRandomWeightsOptions(command, &options->source);
  AddKvOption(command, &options->source);
  AddFormOption(command, &options->source.fixed.form);
  AddInputOptions(command, &options->inputs);
  command->add_option("--outputs", options->outputs,
                      "file to write: .npz, .npy (of the only output), else safetensors");
  command->add_option("--compare", options->compare,
                      "file with expected outputs, of the same kinds; exit 1 past the tolerance");
  command->add_option("--repeat", options->repeat, "run so many times, and print the median, least and first time")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}));
  command->add_option("--rtol", options->rtol, "relative tolerance")->capture_default_str()->check(CheckTolerance);
  command->add_option("--atol", options->atol, "absolute tolerance")->capture_default_str()->check(CheckTolerance);
  command->add_flag("--json", options->json, "results as JSON");
  command->callback([options, chosen] {
    options->source.output = options->outputs;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
