#include "codegen/join_heads.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "codegen/run_rows.h"
#include "codegen/tasks/kernel_call.h"

namespace llmc {
namespace {

// The only call of a unit, which could be a task.
const KernelCall* TaskOf(const StepUnit& unit) {
  if (unit.calls.size() != 1) return nullptr;
  const auto* call = std::get_if<KernelCall>(&unit.calls[0]);
  return call != nullptr && call->task.has_value() ? call : nullptr;
}

// Reads what is there before the step, so that it may do so before it waits.
bool IsEarly(const KernelCall& call) {
  return absl::c_linear_search(call.constants, std::pair<std::string, int64_t>("kEarly", 1));
}

KernelCall Joined(const KernelCall& turns, const KernelCall& attention) {
  KernelCall joined = attention;
  joined.function = "PagedAttentionDecodeOfHeads";
  joined.task.reset();
  for (const auto& [name, value] : turns.constants) {
    const bool is_known = absl::c_any_of(joined.constants, [&](const auto& known) { return known.first == name; });
    if (!is_known) joined.constants.emplace_back(name, value);
  }
  const auto name_of = [](std::string* to, const KernelParam& param) { to->append(param.name); };
  std::string arguments =
      attention.arguments.empty() ? absl::StrJoin(attention.params, ", ", name_of) : attention.arguments;
  arguments = std::string(absl::StripPrefix(arguments, "out, q, "));
  std::vector<std::string> before = {"nullptr"};  // queries are written nowhere
  joined.params = {attention.params[0]};          // out
  for (const KernelParam& param : turns.params) {
    if (param.name == "out") continue;
    KernelParam own = param;
    if (own.name != "kv" && own.name != "qkv") own.name = absl::StrCat("heads_", param.name);
    before.push_back(own.name);
    joined.params.push_back(std::move(own));
  }
  for (size_t i = 2; i < attention.params.size(); ++i) {
    if (attention.params[i].name != "kv") joined.params.push_back(attention.params[i]);
  }
  joined.arguments = absl::StrCat("out, qkv, llmc::BeforeOf", turns.function, "<Config>(", absl::StrJoin(before, ", "),
                                  "),\n      ", arguments);
  return joined;
}

// Whether the calls can be one: `turned`, the queries, are read by attention alone.
bool CanJoin(const KernelCall& turns, const KernelCall& attention, const StepUnit& reader,
             const absl::flat_hash_set<const Value*>& outputs) {
  if (!turns.task->turns_heads || turns.task->as_one != nullptr || turns.task->gives.size() != 1) return false;
  if (!attention.task->is_attention || attention.params.size() < 3 || attention.params[1].name != "q") return false;
  const Value* turned = turns.task->gives[0];
  return attention.params[1].arg.value == turned && !outputs.contains(turned) && HaveSameCache(turns, attention) &&
         IsEarly(turns) && IsEarly(attention) &&
         absl::c_all_of(turned->users, [&](const Node* user) { return absl::c_linear_search(reader.nodes, user); });
}

}  // namespace

void JoinHeads(const absl::flat_hash_set<const Value*>& outputs, std::vector<StepUnit>* units,
               std::vector<KernelReport>* reports) {
  std::vector<StepUnit> joined;
  std::vector<KernelReport> joined_reports;
  size_t report = 0;
  for (StepUnit& unit : *units) {
    const KernelCall* turns = joined.empty() ? nullptr : TaskOf(joined.back());
    const KernelCall* attention = TaskOf(unit);
    if (turns != nullptr && attention != nullptr && CanJoin(*turns, *attention, unit, outputs)) {
      unit.calls = {Joined(*turns, *attention)};
      unit.nodes.insert(unit.nodes.begin(), joined.back().nodes.begin(), joined.back().nodes.end());
      unit.keeps_rows = false;
      (*reports)[report].absorbed.insert((*reports)[report].absorbed.begin(), joined_reports.back().absorbed.begin(),
                                         joined_reports.back().absorbed.end());
      joined.pop_back();
      joined_reports.pop_back();
    }
    if (unit.kernel() != nullptr) joined_reports.push_back(std::move((*reports)[report++]));
    joined.push_back(std::move(unit));
  }
  *units = std::move(joined);
  *reports = std::move(joined_reports);
}

}  // namespace llmc
