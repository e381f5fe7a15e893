#include "tools/lowering_text.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// Kernels that are alike, or a task without one.
struct Group {
  const plan::LoweredKernel* first = nullptr;  // absent: a task by itself
  std::string label;                           // of that task
  int count = 0, tasks = 0;
};

// Names of values differ from layer to layer.
std::string WithoutNames(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    out.push_back(text[i]);
    if (text[i] != '%' && text[i] != '@') continue;
    while (i + 1 < text.size() && (absl::ascii_isalnum(static_cast<unsigned char>(text[i + 1])) || text[i + 1] == '_' ||
                                   text[i + 1] == '.' || text[i + 1] == '/')) {
      ++i;
    }
  }
  return out;
}

std::string KeyOf(const plan::LoweredKernel& kernel) {
  std::string key = absl::StrCat(kernel.backend(), "|", absl::StrJoin(kernel.ops(), ","), "|", kernel.tasks());
  for (const std::string& rule : kernel.absorbed()) absl::StrAppend(&key, "|", WithoutNames(rule));
  for (const auto* reasons : {&kernel.refused(), &kernel.others()}) {
    for (const auto& reason : *reasons) {
      absl::StrAppend(&key, "|", WithoutNames(reason.what()), "=", WithoutNames(reason.why()));
    }
  }
  return key;
}

// In the order of their first.
std::vector<Group> GroupsOf(const plan::LoweredProgram& lowered, const plan::Program& program) {
  std::vector<Group> groups;
  std::map<std::string, size_t> known;
  const auto add = [&](const std::string& key) -> Group& {
    const auto [it, added] = known.try_emplace(key, groups.size());
    if (added) groups.emplace_back();
    return groups[it->second];
  };
  std::map<int, const plan::LoweredKernel*> kernel_at;
  for (const plan::LoweredKernel& kernel : lowered.kernels()) {
    for (uint32_t i = 0; i < kernel.tasks(); ++i) kernel_at[static_cast<int>(kernel.first_task() + i)] = &kernel;
  }
  for (int task = 0; task < program.tasks_size(); ++task) {
    const auto it = kernel_at.find(task);
    const std::string& label = program.tasks(task).label();
    Group& group = add(it == kernel_at.end() ? absl::StrCat("task ", label) : KeyOf(*it->second));
    ++group.tasks;
    if (it == kernel_at.end()) {
      group.label = label.substr(0, label.find('\n'));
      ++group.count;
      continue;
    }
    if (group.first == nullptr) group.first = it->second;
    if (task == static_cast<int>(it->second->first_task())) ++group.count;
  }
  return groups;
}

// "rms_norm, matmul, slice x 3"
std::string OpsText(const plan::LoweredKernel& kernel) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& op : kernel.ops()) {
    if (counts.empty() || counts.back().first != op) counts.emplace_back(op, 0);
    ++counts.back().second;
  }
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& count) {
    absl::StrAppend(out, count.first, count.second > 1 ? absl::StrCat(" x ", count.second) : "");
  });
}

std::string GroupText(const Group& group) {
  const std::string times = group.count > 1 ? absl::StrCat(group.count, " x ") : "";
  if (group.first == nullptr) return absl::StrCat("  ", times, group.label, "\n");
  const plan::LoweredKernel& kernel = *group.first;
  std::string text = absl::StrCat("  ", times, kernel.backend(), ": ", OpsText(kernel));
  const int tasks = group.tasks / std::max(group.count, 1);
  if (tasks > 1) absl::StrAppend(&text, ", in ", tasks, " tasks");
  absl::StrAppend(&text, group.count > 1 ? "; the first at " : "; at ", kernel.place(), "\n");
  for (const std::string& rule : kernel.absorbed()) absl::StrAppend(&text, "      with ", rule, "\n");
  for (const auto& reason : kernel.refused()) {
    absl::StrAppend(&text, "      without ", reason.what(), ": ", reason.why(), "\n");
  }
  for (const auto& reason : kernel.others()) {
    absl::StrAppend(&text, "      not ", reason.what(), ": ", reason.why().substr(0, reason.why().find('\n')), "\n");
  }
  return text;
}

Json ReasonsJson(const google::protobuf::RepeatedPtrField<plan::LoweredKernel::Reason>& reasons) {
  Json list = Json::array();
  for (const auto& reason : reasons) list.push_back({{"what", reason.what()}, {"why", reason.why()}});
  return list;
}

Json GroupJson(const Group& group) {
  if (group.first == nullptr) return {{"task", group.label}, {"count", group.count}};
  const plan::LoweredKernel& kernel = *group.first;
  return {{"backend", kernel.backend()},
          {"ops", std::vector<std::string>(kernel.ops().begin(), kernel.ops().end())},
          {"count", group.count},
          {"tasks", group.tasks},
          {"place", kernel.place()},
          {"absorbed", std::vector<std::string>(kernel.absorbed().begin(), kernel.absorbed().end())},
          {"refused", ReasonsJson(kernel.refused())},
          {"others", ReasonsJson(kernel.others())}};
}

}  // namespace

std::string LoweringText(const plan::Lowering& lowering, const plan::Manifest& manifest) {
  std::string text;
  for (const plan::LoweredProgram& lowered : lowering.programs()) {
    const plan::Program& program = manifest.programs(static_cast<int>(lowered.program()));
    absl::StrAppend(&text, text.empty() ? "" : "\n", "program ", lowered.name(), ", ",
                    absl::StrJoin(program.bounds(), ", ",
                                  [](std::string* out, const plan::DimBound& bound) {
                                    absl::StrAppend(out, bound.name(), " <= ", bound.max());
                                  }),
                    ": ", program.tasks_size(), " tasks\n");
    for (const std::string& line : lowered.runs()) absl::StrAppend(&text, "  ", line, "\n");
    for (const Group& group : GroupsOf(lowered, program)) text += GroupText(group);
  }
  return text;
}

nlohmann::ordered_json LoweringJson(const plan::Lowering& lowering, const plan::Manifest& manifest) {
  Json programs = Json::array();
  for (const plan::LoweredProgram& lowered : lowering.programs()) {
    const plan::Program& program = manifest.programs(static_cast<int>(lowered.program()));
    Json kernels = Json::array(), bounds = Json::object();
    for (const Group& group : GroupsOf(lowered, program)) kernels.push_back(GroupJson(group));
    for (const plan::DimBound& bound : program.bounds()) bounds[bound.name()] = bound.max();
    programs.push_back({{"name", lowered.name()},
                        {"bounds", std::move(bounds)},
                        {"tasks", program.tasks_size()},
                        {"kernels", std::move(kernels)}});
    if (lowered.runs_size() > 0) {
      programs.back()["runs"] = std::vector<std::string>(lowered.runs().begin(), lowered.runs().end());
    }
  }
  return programs;
}

absl::StatusOr<const plan::LoweredProgram*> FindLowered(const plan::Lowering& lowering, const std::string& name) {
  std::vector<std::string> names;
  for (const plan::LoweredProgram& program : lowering.programs()) {
    if (program.name() == name) return &program;
    names.push_back(program.name());
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no program ", name, "; the plan has ",
                                                 names.empty() ? "none for a GPU" : absl::StrJoin(names, ", ")));
}

}  // namespace llmc
