#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/onnx_import.h"
#include "nlohmann/json.hpp"
#include "runtime/host/plan_model.h"
#include "runtime/plan.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/output.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Says whether llmc can compile a model, or whether a plan is whole.";
constexpr char kDetails[] =
    "For ONNX files it lists every unsupported node at once, grouped by operator, with counts and places.\n"
    "Exit code 0: fine; 1: the file is wrong; 3: something is not supported.\n"
    "Examples:\n"
    "  llmc check model.onnx\n"
    "  llmc check plan.bin --json";

struct Options {
  std::string path;
  bool json = false;
};

Json UnsupportedJson(const OnnxReport& report) {
  Json list = Json::array();
  for (const OnnxUnsupported& item : report.unsupported) {
    list.push_back({{"op", item.op}, {"count", item.count}, {"reason", item.reason}, {"nodes", item.nodes}});
  }
  return list;
}

absl::Status CheckOnnxFile(const Options& options) {
  absl::StatusOr<OnnxReport> report = CheckOnnx(options.path);
  if (!report.ok()) return report.status();
  int64_t nodes = 0, unsupported = 0;
  for (const auto& [op, count] : report->nodes) nodes += count;
  for (const OnnxUnsupported& item : report->unsupported) unsupported += item.count;
  if (options.json) {
    const Json json = {{"ok", unsupported == 0},
                       {"opset", report->opset},
                       {"producer", report->producer},
                       {"nodes", Json(report->nodes)},
                       {"unsupported", UnsupportedJson(*report)}};
    PrintJson(json);
  } else {
    std::printf("%s: opset %d, %s, %lld nodes\n", options.path.c_str(), report->opset, report->producer.c_str(),
                static_cast<long long>(nodes));
    for (const OnnxUnsupported& item : report->unsupported) {
      std::printf("  unsupported: %s x%lld: %s\n    at %s\n", item.op.c_str(), static_cast<long long>(item.count),
                  item.reason.c_str(), absl::StrJoin(item.nodes, ", ").c_str());
    }
  }
  if (unsupported > 0)
    return absl::UnimplementedError(absl::StrCat(unsupported, " of ", nodes, " nodes are not supported"));
  if (!options.json) std::printf("every node is supported\n");
  return absl::OkStatus();
}

absl::Status CheckPlan(const Options& options) {
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(options.path);
  if (!plan.ok()) return plan.status();
  if (auto model = ModelFromPlan(**plan); !model.ok()) return model.status();
  if (options.json) {
    const Json json = {{"ok", true}, {"target", (*plan)->manifest().target()}};
    PrintJson(json);
  } else {
    std::printf("%s: whole; runs on this machine's processor\n", options.path.c_str());
  }
  return absl::OkStatus();
}

absl::Status CheckOther(const Options& options) {
  Progress progress;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel({.path = options.path}, &progress);
  if (!model.ok()) return model.status();
  progress.Clear();
  if (options.json) {
    PrintJson({{"ok", true}});
  } else {
    std::printf("%s: every tensor is used, every op is supported\n", options.path.c_str());
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  if (Plan::IsPlan(options.path)) return CheckPlan(options);
  std::error_code error;
  if (std::filesystem::is_directory(options.path, error) || IsTextFile(options.path)) return CheckOther(options);
  return CheckOnnxFile(options);
}

}  // namespace

void AddCheck(CLI::App& app, Command* chosen) {
  CLI::App* command = AddCommand(app, "check", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  command->add_option("MODEL", options->path, "an ONNX file, a Hugging Face folder, a plan or a dump (.lir)")
      ->required();
  command->add_flag("--json", options->json, "the report as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
