#include <sys/resource.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/compile_model.h"
#include "tools/fixed_options.h"
#include "tools/output.h"
#include "tools/summary.h"

namespace llmc {
namespace compile_command {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Compiles an ONNX file, a Hugging Face folder or a GGUF file to a plan.";
constexpr char kDetails[] =
    "Examples:\n"
    "  llmc compile model.onnx -o plan.bin\n"
    "  llmc compile my-llama/ -o plan.bin --target=sm_80,sm_90a     for an A100 and an H100; --target=host for no GPU\n"
    "  llmc compile my-llama/ -o plan.bin --dtype=f32 --dump-ir=ir && cat ir/index.txt\n"
    "  llmc compile my-llama/ -o my-llama/plan.bin --weights=external     the plan refers to the model's files\n"
    "  llmc compile model.onnx -o plan.bin --bound batch=4 --bound sequence=512\n"
    "  llmc compile model.onnx -o plan.bin --dim batch=1 --set use_cache_branch=false     fixed in the plan\n"
    "  llmc compile decoder.onnx -o plan.bin --no-paginate     its cache stays tensors, for `llmc run`\n"
    "  llmc compile tools/bench/configs/llama-3.1-8b --random-weights -o plan.bin --target=sm_90a     to time it";

struct Options {
  ModelSource source;
  CompileRequest request;
  bool json = false, time = false;
};

// What the plan runs on; the first line of the reason if that is less than was wished for.
std::string RunsOnText(const Options& options, const absl::Status& host_only) {
  if (host_only.ok()) {
    const std::vector<std::string> targets = NamesOf(options.request.plan.targets);
    return targets.empty() ? "for the host" : absl::StrCat("for ", absl::StrJoin(targets, ", "), " and the host");
  }
  if (!absl::IsUnimplemented(host_only)) return absl::StrCat("for the host only: ", host_only.message());
  const bool is_listed = absl::StrContains(host_only.message(), "\n");
  return absl::StrCat(
      "for the host only, as there is no form for a GPU: ", GpuReasonsText(host_only),
      is_listed ? absl::StrCat(" [--target=", options.request.plan.targets[0].name, " lists all places]") : "");
}

// The most memory that this process had at once.
int64_t PeakBytes() {
  rusage usage = {};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} << 10 : 0;
}

void AddTimes(const CompileReport& report, Json* json) {
  for (const StageTime& stage : report.stages) {
    (*json)["stages"].push_back({{"name", stage.name}, {"seconds", stage.seconds}});
  }
  (*json)["peak_bytes"] = PeakBytes();
}

std::string TimesText(const CompileReport& report) {
  std::string text;
  for (const StageTime& stage : report.stages) {
    absl::StrAppendFormat(&text, "  %-15s %8.2f s\n", stage.name, stage.seconds);
  }
  return absl::StrCat(text, "  peak memory     ", HumanBytes(PeakBytes()), "\n");
}

void Report(const CompileReport& report, const Options& options) {
  const std::string& plan = options.request.plan.output;
  std::error_code error;
  const uintmax_t size = fs::file_size(plan, error);
  const int64_t bytes = error ? 0 : static_cast<int64_t>(size);  // a device has none
  if (options.json) {
    const bool host = !report.host_only.ok() || options.request.plan.targets.empty();
    Json json = {{"plan", plan},
                 {"bytes", bytes},
                 {"ops", report.ops},
                 {"prepare_ops", report.prepare_ops},
                 {"targets", host ? std::vector<std::string>() : NamesOf(options.request.plan.targets)}};
    if (!report.host_only.ok()) json["host_only"] = report.host_only.message();
    if (report.tuning.timed > 0) {
      json["tuning"] = {
          {"seconds", report.tuning.seconds}, {"products", report.tuning.timed}, {"kept", report.tuning.kept}};
    }
    if (options.time) AddTimes(report, &json);
    PrintJson(json);
  } else {
    std::printf("%s: %s, %zu ops in a step, %s\n", plan.c_str(), HumanBytes(bytes).c_str(), report.ops,
                RunsOnText(options, report.host_only).c_str());
    if (report.tuning.timed > 0) PrintText(TuningText(report.tuning));
    if (options.time) PrintText(TimesText(report));
  }
}

absl::Status Run(const Options& options) {
  Progress progress;
  ASSIGN_OR_RETURN(const CompileReport report, CompileModel(options.source, options.request, &progress));
  progress.Clear();
  Report(report, options);
  return absl::OkStatus();
}

}  // namespace
}  // namespace compile_command

void AddCompile(CLI::App& app, Command* chosen) {
  using namespace compile_command;
  CLI::App* command = AddCommand(app, "compile", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(
      command, &options->source,
      "an ONNX file, a Hugging Face folder or the name of one in its cache (org/name), a GGUF file or a dump (.lir)");
  PlanRequest* plan = &options->request.plan;
  command->add_option("-o,--output", plan->output, "the plan to write")->required();
  AddTargetOptions(command, &options->request);
  options->request.tune.wanted = std::nullopt;
  AddTuneOption(command, /*has_sizes=*/true, &options->request.tune);
  AddRequireOption(command, &options->request.requirements);
  command->add_option("--dump-ir", options->request.dump_dir,
                      "folder for the text after each pass, index.txt, plan.txt and the sources of kernels");
  command->add_option("--stop-after", plan->stop_after, "last pass to run, by name or number")->check(CheckPassName);
  command->add_option("--weights", plan->weights, "inside the plan, or external")
      ->check(CLI::IsMember({"inside", "external"}))
      ->capture_default_str();
  AddPaginationOptions(command, &options->source);
  AddPoolingOptions(command, &options->source.fixed.pooling);
  AddFormOption(command, &options->source.fixed.form);
  AddBoundOption(command, &options->source);
  AddRandomWeightsOptions(command, &options->source);
  command->add_flag("--check-numerics", options->request.device.check_numerics,
                    "compare numbers before and after each pass");
  command->add_flag("--time", options->time, "report the seconds of each pass, and the peak of memory");
  command->add_flag("--json", options->json, "report as JSON");
  command->callback([options, command, chosen] {
    if (command->count("--target") == 0) SetDefaultTarget(&options->request.plan);
    if (options->request.requirements.gpu() && options->request.plan.targets.empty()) {
      RequireUsage(absl::InvalidArgumentError("--require=gpu and --target=host contradict each other"));
    }
    if (options->request.device.tf32 && options->request.plan.targets.empty()) {
      RequireUsage(absl::InvalidArgumentError("--tf32 is of GPUs: on the host factors in f32 keep all of their bits"));
    }
    options->source.output = options->request.plan.output;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
