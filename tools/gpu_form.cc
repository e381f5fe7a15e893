#include "tools/gpu_form.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "codegen/plan_writer.h"
#include "runtime/device/device_target.h"
#include "tools/commands.h"

namespace llmc {
namespace {

constexpr const char* kRequirements[] = {"gpu"};
constexpr size_t kShownReasons = 3, kShownOps = 4;

struct GpuReason {
  std::string text;  // with the symbols of the first place
  std::vector<std::pair<std::string, int64_t>> ops;
};

// u12 and u345 are the same for a reader.
std::string WithoutNumbers(absl::string_view text) {
  std::vector<std::string> words = absl::StrSplit(text, ' ');
  for (std::string& word : words) {
    if (absl::StartsWith(word, "u") && word.find_first_not_of("0123456789,", 1) == std::string::npos) word = "u";
  }
  return absl::StrJoin(words, " ");
}

// Lines are "op: reason", each followed by the node, indented.
std::vector<GpuReason> GpuReasons(const absl::Status& status) {
  std::vector<GpuReason> reasons;
  std::map<std::string, size_t> at;
  for (absl::string_view line : absl::StrSplit(status.message(), '\n')) {
    if (line.empty() || absl::StartsWith(line, " ")) continue;
    std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (parts.second.empty() || absl::StrContains(parts.first, ' ')) parts = {"", std::string(line)};
    const auto [it, added] = at.emplace(WithoutNumbers(parts.second), reasons.size());
    if (added) reasons.push_back({.text = parts.second, .ops = {}});
    auto& ops = reasons[it->second].ops;
    auto op = std::find_if(ops.begin(), ops.end(), [&](const auto& item) { return item.first == parts.first; });
    if (op == ops.end()) op = ops.insert(ops.end(), {parts.first, 0});
    ++op->second;
  }
  return reasons;
}

}  // namespace

absl::Status GpuForm(const Model& model, absl::Span<const Target> targets) {
  PlanOptions options;
  options.targets.assign(targets.begin(), targets.end());
  options.hash_files = false;
  return MakeManifest(model, options).status();
}

std::string GpuReasonsText(const absl::Status& status) {
  const std::vector<GpuReason> reasons = GpuReasons(status);
  std::vector<std::string> texts;
  for (const GpuReason& reason : reasons) {
    if (texts.size() == kShownReasons) break;
    std::vector<std::string> ops;
    for (const auto& [op, count] : reason.ops) {
      if (ops.size() < kShownOps && !op.empty()) ops.push_back(count == 1 ? op : absl::StrCat(op, " x", count));
    }
    if (reason.ops.size() > kShownOps) ops.push_back(absl::StrCat(reason.ops.size() - kShownOps, " other ops"));
    absl::string_view text = reason.text;
    absl::ConsumePrefix(&text, "there is no GPU form of ");
    texts.push_back(absl::StrCat(text, ops.empty() ? "" : absl::StrCat(" (", absl::StrJoin(ops, ", "), ")")));
  }
  if (reasons.size() > kShownReasons) texts.push_back(absl::StrCat("… ", reasons.size() - kShownReasons, " more"));
  return absl::StrJoin(texts, "; ");
}

std::string GpuLine(const absl::Status& status) {
  return status.ok() ? "gpu: every op has a form for GPUs\n"
                     : absl::StrCat("gpu: none, the model runs on the host only: ", GpuReasonsText(status), "\n");
}

nlohmann::ordered_json GpuReasonsJson(const absl::Status& status) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const GpuReason& reason : GpuReasons(status)) {
    nlohmann::ordered_json ops = nlohmann::ordered_json::object();
    for (const auto& [op, count] : reason.ops) ops[op] = count;
    list.push_back({{"reason", reason.text}, {"ops", ops}});
  }
  return list;
}

void AddOneTargetOption(CLI::App* command, std::optional<Target>* target, const std::string& what) {
  command->add_option_function<std::string>(
      "--target",
      [target](const std::string& name) {
        absl::StatusOr<Target> found = FindTarget(name);
        RequireUsage(found.status());
        UseNumbersOfDevice(absl::MakeSpan(&*found, 1));
        *target = *std::move(found);
      },
      what);
}

bool Requirements::gpu() const { return std::find(names.begin(), names.end(), "gpu") != names.end(); }

void AddRequireOption(CLI::App* command, Requirements* requirements) {
  command
      ->add_option("--require", requirements->names,
                   "gpu: exit with code 3 if the model has no form for a GPU, and say why")
      ->delimiter(',')
      ->check(CLI::IsMember(std::set<std::string>(std::begin(kRequirements), std::end(kRequirements))));
}

absl::Status CheckRequired(const Requirements& requirements, const std::string& path, const absl::Status& gpu) {
  if (!requirements.gpu() || gpu.ok()) return absl::OkStatus();
  return absl::Status(gpu.code(), absl::StrCat(path, ": has no form for a GPU (--require=gpu): ", GpuReasonsText(gpu)));
}

}  // namespace llmc
