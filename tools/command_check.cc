#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/runnable.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownPlaces = 20;  // the JSON report has all

constexpr char kSummary[] =
    "Says whether llmc can compile a model, or whether a plan is whole and how this machine runs it.";
constexpr char kDetails[] =
    "For ONNX files it lists every unsupported node at once, grouped by operator, with counts and places.\n"
    "Exit code 0: fine; 1: the file is wrong; 3: something is not supported.\n"
    "Examples:\n"
    "  llmc check model.onnx\n"
    "  llmc check plan.bin --quick --json";

struct Options {
  std::string path;
  bool quick = false, json = false;
};

Json UnsupportedJson(const OnnxReport& report) {
  Json list = Json::array();
  for (const OnnxUnsupported& item : report.unsupported) {
    list.push_back({{"op", item.op}, {"count", item.places.size()}, {"reason", item.reason}, {"nodes", item.places}});
  }
  return list;
}

absl::Status CheckOnnxFile(const Options& options) {
  absl::StatusOr<OnnxReport> report = CheckOnnx(options.path);
  if (!report.ok()) return report.status();
  int64_t nodes = 0;
  size_t unsupported = 0;
  for (const auto& [op, count] : report->nodes) nodes += count;
  for (const OnnxUnsupported& item : report->unsupported) unsupported += item.places.size();
  if (options.json) {
    const Json json = {{"ok", unsupported == 0 && report->wrong.empty()},
                       {"opset", report->opset},
                       {"producer", report->producer},
                       {"nodes", Json(report->nodes)},
                       {"unsupported", UnsupportedJson(*report)},
                       {"wrong", report->wrong}};
    PrintJson(json);
  } else {
    std::printf("%s: opset %d, %s, %lld nodes\n", options.path.c_str(), report->opset, report->producer.c_str(),
                static_cast<long long>(nodes));
    for (const OnnxUnsupported& item : report->unsupported) {
      std::printf("  unsupported: %s: %s\n    at %s\n", item.op.c_str(), item.reason.c_str(),
                  SomePlaces(item, kShownPlaces).c_str());
    }
    for (const std::string& wrong : report->wrong) std::printf("  wrong: %s\n", wrong.c_str());
  }
  if (!report->wrong.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("wrong in ", report->wrong.size(), report->wrong.size() == 1 ? " place" : " places"));
  }
  if (unsupported > 0)
    return absl::UnimplementedError(absl::StrCat(unsupported, unsupported == 1 ? " place is" : " places are",
                                                 " not supported, in ", nodes, " nodes"));
  if (absl::Status s = ReadUsableSideFiles(FolderOf(options.path), /*needed=*/false).status(); !s.ok()) return s;
  if (!options.json) std::printf("every node is supported\n");
  return absl::OkStatus();
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
  command->add_flag("--json", options->json, "the report as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
