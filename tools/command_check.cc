#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cubins/nvrtc.h"
#include "files/path_check.h"
#include "frontend/import.h"
#include "frontend/onnx_import.h"
#include "nlohmann/json.hpp"
#include "runtime/cublaslt.h"
#include "runtime/device.h"
#include "runtime/host/plan_model.h"
#include "runtime/plan.h"
#include "runtime/plan_kernels.h"
#include "tools/commands.h"
#include "tools/examine.h"
#include "tools/model_source.h"
#include "tools/onnx_text.h"
#include "tools/output.h"
#include "tools/runnable.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] =
    "Says whether llmc can compile a model, or whether a plan is whole and how this machine runs it.";
constexpr char kDetails[] =
    "Of an ONNX file: who wrote it and how, every node that is not supported (grouped by operator, with counts, "
    "places\n"
    "and what to export differently), what was recognized of attention, norms, rotary embeddings and activations, "
    "what\n"
    "was not and why, and whether the decoder's cache can be paged. docs/check.md describes the report and its JSON.\n"
    "Exit code 0: it can be compiled; 1: the file is wrong; 3: something is not supported.\n"
    "Examples:\n"
    "  llmc check model.onnx\n"
    "  llmc check model.onnx --all\n"
    "  llmc check model.onnx --json | jq '.unsupported[] | {op, count, reason}'\n"
    "  llmc check plan.bin --quick --json";

struct Options {
  std::string path;
  bool quick = false, all = false, json = false;
};

absl::Status CheckOnnxFile(const Options& options) {
  OnnxCheck check{.path = options.path, .report = {}, .side_files = {}};
  {
    Progress progress;
    progress.Stage("import");
    std::unique_ptr<Model> model;
    absl::StatusOr<OnnxReport> report = CheckOnnx(options.path, &model);
    if (!report.ok()) return report.status();
    check.report = *std::move(report);
    progress.Stage("passes");
    if (model != nullptr) check.examination = Examine(model.get(), {}, check.IsWhole());
  }
  check.side_files = ReadUsableSideFiles(FolderOf(options.path), /*needed=*/false).status();
  if (options.json) {
    PrintJson(OnnxCheckJson(check));
  } else {
    PrintText(OnnxCheckText(check, options.all));
  }
  return check.Verdict();
}

// How the first GPU of this machine runs a plan: "NVIDIA H200, with its code for sm_90a". An error says why it cannot.
absl::StatusOr<std::string> HowGpuRuns(const Plan& plan) {
  const absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) return device.status();
  const absl::StatusOr<KernelChoice> choice = ChooseKernels(plan, *device);
  if (!choice.ok()) return choice.status();
  if (absl::Status products = MatrixProducts::Find(); !products.ok()) return products;
  if (!choice->from_sources) return absl::StrCat(device->name, ", with its code for ", choice->target);
  const absl::StatusOr<std::string> nvrtc = NvrtcVersion();
  if (!nvrtc.ok()) return nvrtc.status();
  return absl::StrCat(device->name, ", after NVRTC ", nvrtc->substr(0, nvrtc->find(' ')), " compiled its sources for ",
                      choice->target);
}

absl::Status CheckPlan(const Options& options) {
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(options.path, {.verify_weights = !options.quick});
  if (!plan.ok()) return plan.status();
  if (auto model = ModelFromPlan(**plan); !model.ok()) return model.status();
  const absl::StatusOr<std::string> gpu = HowGpuRuns(**plan);
  if (options.json) {
    Json json = {{"ok", true}, {"target", (*plan)->manifest().target()}, {"host", true}, {"gpu", gpu.ok()}};
    json["how"] = gpu.ok() ? *gpu : std::string(gpu.status().message());
    PrintJson(json);
  } else {
    std::printf("%s: %s; runs on this machine's processor\n", options.path.c_str(),
                options.quick ? "whole but for the weights, which were not read" : "whole");
    std::printf(gpu.ok() ? "and on its %s\n" : "but not on a GPU: %s\n",
                gpu.ok() ? gpu->c_str() : std::string(gpu.status().message()).c_str());
  }
  return absl::OkStatus();
}

absl::Status CheckOther(const Options& options) {
  Progress progress;
  std::vector<IgnoredTensor> ignored;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel({.path = options.path}, &progress, &ignored);
  if (!model.ok()) return model.status();
  const bool is_folder = !IsTextFile(options.path);
  if (absl::Status s = ReadUsableSideFiles(FolderOf(options.path), is_folder).status(); !s.ok()) return s;
  progress.Clear();
  Json list = Json::array();
  for (const IgnoredTensor& tensor : ignored) list.push_back({{"tensor", tensor.name}, {"reason", tensor.reason}});
  if (options.json) {
    PrintJson({{"ok", true}, {"ignored", list}});
    return absl::OkStatus();
  }
  for (const IgnoredTensor& tensor : ignored) {
    std::printf("  not used: %s: %s\n", tensor.name.c_str(), tensor.reason.c_str());
  }
  std::printf("%s: every %stensor is used, every op is supported\n", options.path.c_str(),
              ignored.empty() ? "" : "other ");
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  if (Plan::IsPlan(options.path)) return CheckPlan(options);
  absl::StatusOr<ModelKind> kind = FindModelKind(options.path);
  if (!kind.ok()) return kind.status();
  return *kind == ModelKind::kOnnx ? CheckOnnxFile(options) : CheckOther(options);
}

}  // namespace

void AddCheck(CLI::App& app, Command* chosen) {
  CLI::App* command = AddCommand(app, "check", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  command->add_option("MODEL", options->path, "an ONNX file, a Hugging Face folder, a plan or a dump (.lir)")
      ->required();
  command->add_flag("--quick", options->quick, "of a plan: do not read its weights");
  command->add_flag("--all", options->all, "of an ONNX file: all places, not the first of each kind");
  command->add_flag("--json", options->json, "the report as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
