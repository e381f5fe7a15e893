#include "tools/tune.h"

#include <chrono>
#include <cstdio>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "cubins/targets.h"
#include "runtime/device/product_tuning.h"
#include "runtime/plan/step_programs.h"
#include "tools/commands.h"

namespace llmc {
namespace {

absl::Status CanTune(const PlanOptions& plan, bool has_sizes) {
  if (!has_sizes && (!plan.language_model.has_value() || plan.language_model->pools().empty())) {
    return absl::InvalidArgumentError(
        "--tune: the products of a step are known beforehand only of language models with a paged cache (Hugging Face "
        "folders); name sizes of other models with --tune-at");
  }
  const absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) {
    const std::vector<std::string> clauses = absl::StrSplit(device.status().message(), ';');  // others are of runs
    return absl::Status(device.status().code(), absl::StrCat("--tune needs a GPU: ", clauses[0]));
  }
  const absl::StatusOr<Target> target = TargetFor(device->capability);
  const std::vector<std::string> targets = NamesOf(plan.targets);
  if (!target.ok() || !absl::c_linear_search(targets, target->name)) {
    return absl::InvalidArgumentError(absl::StrCat("--tune: the plan is for ",
                                                   targets.empty() ? "host" : absl::StrJoin(targets, ", "),
                                                   ", and not for the GPU that is here, ", device->name));
  }
  const absl::Status found = MatrixProducts::Find();
  return found.ok() ? found : absl::Status(found.code(), absl::StrCat("--tune: ", found.message()));
}

// Whether they are sizes that the model has.
absl::Status CheckSizes(const plan::Manifest& manifest, const StepDims& run) {
  for (const auto& [name, size] : run) {
    const auto bound = absl::c_find_if(manifest.dims(), [&](const plan::DimBound& dim) { return dim.name() == name; });
    if (bound == manifest.dims().end()) {
      return absl::InvalidArgumentError(absl::StrCat("--tune-at: the model has no dim \"", name, "\""));
    }
    if (size > static_cast<int64_t>(bound->max())) {
      return absl::InvalidArgumentError(absl::StrCat("--tune-at: ", name, " is at most ", bound->max()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<plan::TunedProducts> Tune(const plan::Manifest& manifest, absl::Span<const StepDims> sizes,
                                         Progress* progress) {
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open());
  ASSIGN_OR_RETURN(const Target here, TargetFor(device->capability()));
  for (const StepDims& run : sizes) RETURN_IF_ERROR(CheckSizes(manifest, run));
  int target = 0;  // that of the GPU, which CanTune has found among them
  while (target + 1 < manifest.targets_size() && manifest.targets(target).target() != here.name) ++target;
  return TuneProducts(TargetCode(manifest, target), sizes, device.get(),
                      [&](int64_t done, int64_t total) { progress->Count(done, total); });
}

// "B=32,L=128", into the sizes of a run.
absl::Status AddSizes(const std::string& text, std::vector<StepDims>* sizes) {
  StepDims run;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> dim = absl::StrSplit(part, absl::MaxSplits('=', 1));
    int64_t size = 0;
    if (dim.first.empty() || !absl::SimpleAtoi(dim.second, &size) || size < 1 || !run.emplace(dim.first, size).second) {
      return absl::InvalidArgumentError(absl::StrCat("--tune-at: '", text, "' is not NAME=SIZE,NAME=SIZE…"));
    }
  }
  sizes->push_back(std::move(run));
  return absl::OkStatus();
}

}  // namespace

void AddTuneOption(CLI::App* command, bool has_sizes, TuneOptions* options) {
  if (has_sizes) {
    command
        ->add_option_function<std::vector<std::string>>(
            "--tune-at",
            [options](const std::vector<std::string>& texts) {
              for (const std::string& text : texts) RequireUsage(AddSizes(text, &options->sizes));
            },
            "NAME=SIZE,…: of a model that is no language model, sizes of runs whose products are timed; repeatable")
        ->allow_extra_args(false);
  }
  command->add_flag_function(
      "--tune,!--no-tune", [options](int64_t count) { options->wanted = count > 0; },
      "time cuBLASLt's algorithms for each product on the GPU that is here, and keep the fastest in the plan; default: "
      "if it is a language model, or --tune-at names sizes, and there is a GPU of --target. With --no-tune a plan has "
      "the same bytes wherever there is no GPU of its targets, or one that is alike");
}

std::string TuningText(const TuneReport& report) {
  return absl::StrFormat("timed %d products in %.1f s: %d are faster with another algorithm than cuBLASLt's first\n",
                         report.timed, report.seconds, report.kept);
}

absl::Status SetTuning(const TuneOptions& options, Progress* progress, PlanOptions* plan, TuneReport* report) {
  // Who names sizes wants it.
  const std::optional<bool> wanted =
      options.wanted.has_value() || options.sizes.empty() ? options.wanted : std::optional(true);
  if (wanted == false) return absl::OkStatus();
  if (absl::Status can = CanTune(*plan, !options.sizes.empty()); !can.ok())
    return wanted.has_value() ? can : absl::OkStatus();
  plan->tune = [=, sizes = options.sizes](const plan::Manifest& manifest) -> absl::StatusOr<plan::TunedProducts> {
    progress->Stage("tune");
    const auto begin = std::chrono::steady_clock::now();
    absl::StatusOr<plan::TunedProducts> tuned = Tune(manifest, sizes, progress);
    report->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (!tuned.ok() && !wanted.has_value()) {  // the plan is whole without
      progress->Clear();
      std::fprintf(stderr, "note: products are not tuned: %s\n", std::string(tuned.status().message()).c_str());
      return plan::TunedProducts();
    }
    if (!tuned.ok()) return absl::Status(tuned.status().code(), absl::StrCat("--tune: ", tuned.status().message()));
    report->timed = tuned->timed();
    report->kept = tuned->products_size();
    return tuned;
  };
  return absl::OkStatus();
}

}  // namespace llmc
