#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "cubins/nvrtc.h"
#include "files/path_check.h"
#include "frontend/import.h"
#include "frontend/onnx/import.h"
#include "nlohmann/json.hpp"
#include "runtime/device/cublaslt.h"
#include "runtime/device/device.h"
#include "runtime/device/device_target.h"
#include "runtime/device/plan_kernels.h"
#include "runtime/host/plan_model.h"
#include "runtime/plan/plan.h"
#include "tools/commands.h"
#include "tools/examine.h"
#include "tools/fixed_options.h"
#include "tools/folder_check.h"
#include "tools/gguf_groups.h"
#include "tools/gpu_form.h"
#include "tools/language_files.h"
#include "tools/model_folder.h"
#include "tools/model_source.h"
#include "tools/onnx_text.h"
#include "tools/output.h"
#include "tools/plan_summary.h"
#include "tools/quantization_report.h"
#include "tools/runnable.h"
#include "tools/weight_numbers.h"

namespace llmc {
namespace check_command {
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
    "Of a Hugging Face folder: all that is wrong with config.json, the checkpoint and the tokenizer.\n"
    "Of a GGUF file: how its tensors are stored, with how many bits, and what is odd about their scales.\n"
    "Exit code 0: it can be compiled; 1: the file is wrong; 3: something is not supported\n"
    "(with --require=gpu also: no GPU can run it; no kernel is compiled to find that out).\n"
    "Examples:\n"
    "  llmc check model.onnx\n"
    "  llmc check model.onnx --all\n"
    "  llmc check model.onnx --require=gpu --dim batch=1 --set sr=16000\n"
    "  llmc check model.onnx --json | jq '.unsupported[] | {op, count, reason}'\n"
    "  llmc check plan.bin --quick --json";

struct Options {
  std::string path, folder;  // the folder that was given, if `path` is its ONNX file
  Requirements requirements;
  std::optional<Target> target;
  ImportOptions fixed;
  bool quick = false, all = false, json = false, strict = false;
};

absl::Status FormFor(const Options& options, const Model& model) {
  return GpuForm(model, {options.target.has_value() ? *options.target : TargetHere()});
}

absl::Status CheckOnnxFile(const Options& options) {
  ASSIGN_OR_RETURN(const ImportOptions fixed, WithFiles(options.fixed));
  OnnxCheck check{.path = options.path, .report = {}};
  {
    Progress progress;
    progress.Stage("import");
    std::unique_ptr<Model> model;
    ASSIGN_OR_RETURN(OnnxReport report, CheckOnnx(options.path, &model, fixed));
    check.report = std::move(report);
    progress.Stage("passes");
    if (model != nullptr && IsLanguageModel(*model))
      check.files = ReadLanguageFiles(SideFilesOf(options.folder.empty() ? FolderOf(options.path) : options.folder));
    if (model != nullptr) check.examination = Examine(model.get(), {}, check.IsWhole());
    if (check.examination.ok() && check.IsWhole()) check.gpu = FormFor(options, *model);
  }
  if (options.json) {
    PrintJson(OnnxCheckJson(check));
  } else {
    PrintText(OnnxCheckText(check, options.all));
  }
  const absl::Status verdict = check.Verdict();
  return verdict.ok() ? CheckRequired(options.requirements, options.path, check.gpu) : verdict;
}

// How the first GPU of this machine runs a plan: "NVIDIA H200, with its code for sm_90a". An error says why it cannot.
absl::StatusOr<std::string> HowGpuRuns(const Plan& plan) {
  ASSIGN_OR_RETURN(const DeviceInfo device, DescribeDevice());
  ASSIGN_OR_RETURN(const KernelChoice choice, ChooseKernels(plan, device));
  if (absl::Status products = MatrixProducts::Find(); !products.ok()) return products;
  if (!choice.from_sources) return absl::StrCat(device.name, ", with its code for ", choice.architecture);
  ASSIGN_OR_RETURN(const std::string nvrtc, NvrtcVersion());
  return absl::StrCat(device.name, ", after NVRTC ", nvrtc.substr(0, nvrtc.find(' ')), " compiled its sources for ",
                      choice.architecture);
}

// Likewise a GPU of a target, whatever is on this machine.
absl::StatusOr<std::string> HowTargetRuns(const Plan& plan, const Target& target) {
  ASSIGN_OR_RETURN(const KernelChoice choice,
                   ChooseKernels(plan, {.name = target.name, .capability = target.capability}));
  return absl::StrCat(target.name,
                      choice.from_sources ? ", which compiles its sources, with programs for " : ", with its code for ",
                      plan.manifest().targets(choice.target).target());
}

absl::Status CheckPlan(const Options& options) {
  RETURN_IF_ERROR(CheckNothingFixed(options.path, options.fixed));
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Plan::Load(options.path, {.verify_weights = !options.quick}));
  if (auto model = ModelFromPlan(*plan); !model.ok()) return model.status();
  const absl::StatusOr<std::string> gpu =
      options.target.has_value() ? HowTargetRuns(*plan, *options.target) : HowGpuRuns(*plan);
  if (options.json) {
    Json json = {{"ok", true}, {"targets", TargetsOf(plan->manifest())}, {"host", true}, {"gpu", gpu.ok()}};
    json["how"] = gpu.ok() ? *gpu : std::string(gpu.status().message());
    PrintJson(json);
  } else {
    std::printf("%s: %s; runs on this machine's processor\n", options.path.c_str(),
                options.quick ? "whole but for the weights, which were not read" : "whole");
    std::printf(gpu.ok() ? "and on its %s\n" : "but not on a GPU: %s\n",
                gpu.ok() ? gpu->c_str() : std::string(gpu.status().message()).c_str());
  }
  absl::Status runs = CheckHasDeviceCode(*plan);
  if (options.target.has_value()) runs = gpu.status();
  return CheckRequired(options.requirements, options.path, runs.ok() ? runs : absl::UnimplementedError(runs.message()));
}

absl::Status StrictError(const Options& options, const std::string& warning) {
  return absl::InvalidArgumentError(absl::StrCat(options.path, ": a warning, with --strict: ", warning));
}

absl::Status CheckFolder(const Options& options) {
  Progress progress;
  progress.Stage("import");
  std::unique_ptr<Model> model;
  FolderCheck check = CheckFolderOf(options.path, &model);
  if (model != nullptr) {
    if (!check.files.generation.ok()) return check.files.generation.status();
    progress.Stage("passes");
    RETURN_IF_ERROR(RunPipeline(model.get(), {}, nullptr));
    check.gpu = FormFor(options, *model);
  }
  progress.Clear();
  if (options.json) {
    PrintJson(FolderCheckJson(check, options.strict));
  } else {
    PrintText(FolderCheckText(check));
  }
  RETURN_IF_ERROR(check.Verdict());
  if (options.strict && !check.findings.empty()) return StrictError(options, check.findings[0].text);
  return CheckRequired(options.requirements, options.path, *check.gpu);
}

// How the tensors of a GGUF file are stored, and what is odd about them.
struct GgufCheck {
  std::vector<GgufTensorGroup> groups;
  QuantizationReport quantization;
  std::vector<WeightFinding> numbers;

  // Of what is odd, kind and text.
  std::vector<std::pair<const char*, std::string>> Warnings() const {
    std::vector<std::pair<const char*, std::string>> all;
    for (const std::string& warning : quantization.warnings) all.emplace_back("quantization", warning);
    for (const WeightFinding& finding : numbers) all.emplace_back("number", finding.text);
    return all;
  }
};

absl::StatusOr<GgufCheck> CheckGguf(const std::string& path, const Model& model) {
  GgufCheck check;
  ASSIGN_OR_RETURN(check.groups, ReadGgufGroups(path));
  ASSIGN_OR_RETURN(check.quantization, ReportQuantization(model));
  check.numbers = WeightsThatAreNotFinite(model);
  return check;
}

std::string GgufText(const GgufCheck& check) {
  std::string text;
  for (const auto& [kind, warning] : check.Warnings()) absl::StrAppend(&text, "warning: ", warning, "\n");
  return absl::StrCat(text, GgufGroupsText(check.groups), QuantizationText(check.quantization));
}

void AddGguf(const GgufCheck& check, Json* json) {
  (*json)["tensors"] = GgufGroupsJson(check.groups);
  (*json)["findings"] = Json::array();
  for (const auto& [kind, warning] : check.Warnings()) {
    (*json)["findings"].push_back({{"severity", "warning"}, {"kind", kind}, {"message", warning}});
  }
  if (!check.quantization.groups.empty()) (*json)["quantized"] = QuantizationJson(check.quantization);
}

// Dumps, GGUF files, and folders that are none.
absl::Status CheckOther(const Options& options, ModelKind kind) {
  Progress progress;
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadModel({.path = options.path, .fixed = options.fixed}, &progress));
  LanguageFiles files;
  if (IsLanguageModel(*model)) files = ReadLanguageFiles(SideFilesOf(ModelSource{.path = options.path}.SideFolder()));
  if (!files.generation.ok()) return files.generation.status();
  std::optional<GgufCheck> gguf;
  if (kind == ModelKind::kGguf) {
    ASSIGN_OR_RETURN(gguf, CheckGguf(options.path, *model));
  }
  progress.Stage("passes");
  RETURN_IF_ERROR(RunPipeline(model.get(), {}, nullptr));
  const absl::Status gpu = FormFor(options, *model);
  progress.Clear();
  const bool is_refused = options.strict && gguf.has_value() && !gguf->Warnings().empty();
  if (options.json) {
    Json json = {{"ok", !is_refused}, {"gpu", gpu.ok()}, {"gpu_reasons", GpuReasonsJson(gpu)}};
    if (gguf.has_value()) AddGguf(*gguf, &json);
    json.update(LanguageFilesJson(files));
    PrintJson(json);
  } else {
    if (gguf.has_value()) PrintText(GgufText(*gguf));
    PrintText(LanguageFilesText(files, "  "));
    std::printf("%s: every op is supported\n", options.path.c_str());
    PrintText(GpuLine(gpu));
  }
  if (is_refused) return StrictError(options, gguf->Warnings()[0].second);
  return CheckRequired(options.requirements, options.path, gpu);
}

absl::Status Run(const Options& options) {
  if (Plan::IsPlan(options.path)) return CheckPlan(options);
  ASSIGN_OR_RETURN(ModelKind kind, FindModelKind(options.path));
  if (kind == ModelKind::kOnnx) return CheckOnnxFile(options);
  const bool is_folder = kind == ModelKind::kHuggingFace && IsHuggingFaceFolder(options.path);
  return is_folder && options.fixed.empty() ? CheckFolder(options) : CheckOther(options, kind);
}

}  // namespace
}  // namespace check_command

void AddCheck(CLI::App& app, Command* chosen) {
  using namespace check_command;
  CLI::App* command = AddCommand(app, "check", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelPath(command, &options->path, &options->folder,
               "an ONNX file or a folder with one, a Hugging Face folder or the name of one in its cache (org/name), a "
               "GGUF file, a plan or a dump (.lir)");
  AddFixedOptions(command, &options->fixed);
  AddRequireOption(command, &options->requirements);
  AddOneTargetOption(command, &options->target,
                     "the GPU that a model is to have a form for, or that a plan is to run on, such as sm_80; default: "
                     "the one that is here, else " +
                         DefaultTarget().name + " (of a plan: none)");
  command->add_flag("--quick", options->quick, "of a plan: do not read its weights");
  command->add_flag("--all", options->all, "of an ONNX file: all places, not the first of each kind");
  command->add_flag("--strict", options->strict,
                    "of a Hugging Face folder or a GGUF file: warnings, such as of scales that are zero, are errors");
  command->add_flag("--json", options->json, "the report as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
