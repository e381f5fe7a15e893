#include "codegen/step_work.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "passes/driver/rewrite_driver.h"

namespace llmc {
namespace {

void WriteReport(const std::vector<const Node*>& nodes, const KernelReport& report, plan::LoweredKernel* to) {
  to->set_backend(report.backend);
  for (const Node* node : nodes) to->add_ops(std::string(node->op->info.name));
  to->set_place(PlaceOf(*nodes.front()));
  for (const std::string& rule : report.absorbed) to->add_absorbed(rule);
  const auto add = [](const std::vector<KernelReport::Reason>& reasons, auto* all) {
    for (const auto& [what, why] : reasons) {
      plan::LoweredKernel::Reason* reason = all->Add();
      reason->set_what(what);
      reason->set_why(why);
    }
  };
  add(report.refused, to->mutable_refused());
  add(report.others, to->mutable_others());
}

}  // namespace

absl::Status NoteMissing(const absl::Status& status, std::set<std::string>* missing) {
  if (!absl::IsUnimplemented(status)) return status;
  missing->insert(std::string(status.message()));
  return absl::OkStatus();
}

absl::Status SetCalls(absl::StatusOr<std::vector<DeviceCall>> calls, std::set<std::string>* missing, StepUnit* unit) {
  RETURN_IF_ERROR(NoteMissing(calls.status(), missing));
  if (calls.ok()) unit->calls = *std::move(calls);
  return absl::OkStatus();
}

namespace {

// Values that one kernel makes, which can write them in the order of the product that alone reads them.
absl::flat_hash_map<const Value*, std::string> OrderedValues(const std::vector<StepUnit>& units,
                                                             const absl::flat_hash_set<const Value*>& outputs) {
  const auto last = [](const StepUnit& unit) -> const KernelCall* {
    return unit.calls.empty() ? nullptr : std::get_if<KernelCall>(&unit.calls.back());
  };
  absl::flat_hash_set<const Value*> made;
  absl::flat_hash_map<const Value*, std::string> ordered;
  for (const StepUnit& unit : units) {
    const KernelCall* call = last(unit);
    if (call == nullptr) continue;
    const Value* x = call->reads_in_order;
    if (x != nullptr && made.contains(x) && x->users.size() == 1) ordered.emplace(x, call->order_codes);
    if (!call->can_order) continue;
    const KernelBody body = BodyOf(unit.nodes, outputs);
    if (body.results.size() == 1 && !outputs.contains(body.results[0])) made.insert(body.results[0]);
  }
  return ordered;
}

}  // namespace

absl::StatusOr<std::vector<StepUnit>> SelectStep(const Step& step, const ProgramScope& scope,
                                                 std::set<std::string>* missing) {
  std::vector<StepUnit> units = UnitsOf(step);
  const absl::flat_hash_set<const Value*> outputs = OutputsOf(step);
  for (StepUnit& unit : units) {
    const Kernel* kernel = unit.kernel();
    if (kernel == nullptr) continue;
    const KernelBody body = BodyOf(unit.nodes, outputs);
    RETURN_IF_ERROR(SetCalls(SelectKernel(kernel->backend, body, scope), missing, &unit));
    unit.keeps_rows = KeepsRows(kernel->backend, body);
  }
  ProgramScope with_orders = scope;
  with_orders.ordered = OrderedValues(units, outputs);
  const auto is_ordered = [&](const Value* value) { return with_orders.ordered.contains(value); };
  for (StepUnit& unit : units) {
    if (unit.kernel() == nullptr) continue;
    const KernelBody body = BodyOf(unit.nodes, outputs);
    const bool reads =
        absl::c_any_of(body.nodes, [&](const Node* n) { return absl::c_any_of(n->operands, is_ordered); });
    if (!reads && !absl::c_any_of(body.results, is_ordered)) continue;
    RETURN_IF_ERROR(SetCalls(SelectKernel(unit.kernel()->backend, body, with_orders), missing, &unit));
  }
  return units;
}

void DescribeKernels(const std::vector<StepUnit>& units, const std::vector<uint32_t>& begins,
                     const std::vector<KernelReport>& reports, plan::LoweredProgram* program) {
  size_t kernel = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i].kernel() == nullptr) continue;
    plan::LoweredKernel* to = program->add_kernels();
    to->set_first_task(begins[i]);
    to->set_tasks(static_cast<uint32_t>(units[i].calls.size()));
    WriteReport(units[i].nodes, reports[kernel++], to);
  }
}

}  // namespace llmc
