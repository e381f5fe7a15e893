#include "tools/compile_model.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "codegen/plan_writer.h"
#include "runtime/device/device_target.h"
#include "tools/cache_folder.h"
#include "tools/commands.h"
#include "tools/fixed_options.h"

namespace llmc {

namespace {

class Stopwatch {
 public:
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> seconds = now - start_;
    start_ = now;
    return seconds.count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

void SetDefaultTarget(PlanRequest* request) {
  request->default_targets = true;
  request->targets = {TargetHere()};
}

void AddTargetOptions(CLI::App* command, CompileRequest* request) {
  command
      ->add_option_function<std::vector<std::string>>(
          "--target",
          [request](const std::vector<std::string>& texts) {
            if (texts == std::vector<std::string>{"host"}) return;
            absl::StatusOr<std::vector<Target>> targets = ParseTargets(texts);
            RequireUsage(targets.status());
            UseNumbersOfDevice(absl::MakeSpan(*targets));
            request->plan.targets = *std::move(targets);
          },
          absl::StrCat("GPUs to compile for, such as sm_80,sm_90a, each with programs of its own, or host for none; "
                       "default: the one that is here, else ",
                       DefaultTarget().name))
      ->allow_extra_args(false);
  AddDeviceOptions(command, &request->device);
  command->add_flag_callback(
      "--no-cache", [request] { request->use_cache = false; }, "compile all kernels, and keep none for the next time");
  command->add_flag("--fast-compile", request->plan.fast_compile,
                    "kernels compile in a fraction of the time, and may be slower on the GPU: to try things");
}

absl::StatusOr<CompileReport> CompileModel(const ModelSource& source, const CompileRequest& request,
                                           Progress* progress) {
  CompileReport report;
  report.stages.push_back({.name = "import"});
  const PipelineOptions pipeline{
      .dtype = std::nullopt,
      .from = "",
      .stop_after = request.plan.stop_after,
      .skip = {},
      .dump_dir = request.dump_dir,
      .target = request.plan.targets.empty() ? "host" : absl::StrJoin(NamesOf(request.plan.targets), ","),
      .check_numerics = request.device.check_numerics,
      .after = [&report](const PassRun& run) {
        if (run.number > 0) report.stages.push_back({std::string(run.pass), run.seconds});
      }};
  Ledger ledger;
  Stopwatch watch;
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadOptimized(source, pipeline, &ledger, progress));
  // All that was no pass.
  report.stages[0].seconds = watch.Lap();
  for (size_t i = 1; i < report.stages.size(); ++i) report.stages[0].seconds -= report.stages[i].seconds;
  if (request.requirements.gpu()) {
    absl::Status required = CheckRequired(request.requirements, source.path, GpuForm(*model, request.plan.targets));
    if (!required.ok()) return required;
  }
  ASSIGN_OR_RETURN(PlanOptions plan, MakePlanOptions(*model, source, request.plan, ledger));
  report.prepare_ops = model->prepare.nodes.size();
  for (const auto& step : model->steps) report.ops += step->block.nodes.size();
  plan.dump_dir = request.dump_dir;
  plan.weight_flags = FixedFlags(source.fixed, /*with_paths=*/true);
  plan.device = request.device;
  if (request.use_cache) plan.compile.cache_folder = CubinFolder();
  RETURN_IF_ERROR(SetTuning(request.tune, progress, &plan, &report.tuning));
  progress->Stage("kernels");
  plan.compile.on_kernel = [&](int64_t done, int64_t total) { progress->Count(done, total); };
  plan.on_weight = [&](int64_t done, int64_t total) {
    if (done == 1) progress->Stage("write");
    progress->Count(done, total);
  };
  if (request.plan.default_targets && !request.requirements.gpu()) {
    plan.on_host_only = [&](const absl::Status& reason) { report.host_only = reason; };
  }
  RETURN_IF_ERROR(WritePlan(*model, plan, request.plan.output));
  report.stages.push_back({"plan", watch.Lap()});
  return report;
}

}  // namespace llmc
