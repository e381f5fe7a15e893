#include "codegen/step_work.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "passes/driver/rewrite_driver.h"

namespace llmc {
namespace {

absl::flat_hash_set<const Value*> OutputsOf(const Step& step) {
  absl::flat_hash_set<const Value*> outputs;
  for (const Output& output : step.outputs) outputs.insert(output.value);
  return outputs;
}

KernelBody BodyOf(const std::vector<const Node*>& nodes, const absl::flat_hash_set<const Value*>& outputs) {
  KernelBody body = {.nodes = nodes};
  for (const Node* node : nodes) {
    for (const Value* result : node->results) {
      const bool leaves = absl::c_any_of(result->users, [&](const Node* user) { return user->kernel != node->kernel; });
      if (leaves || outputs.contains(result)) body.results.push_back(result);
    }
  }
  return body;
}

void WriteReport(const std::vector<const Node*>& nodes, const KernelReport& report, plan::LoweredKernel* to) {
  to->set_backend(report.backend);
  for (const Node* node : nodes) to->add_ops(std::string(node->op->info.name));
  to->set_place(PlaceOf(*nodes.front()));
  for (const std::string& rule : report.absorbed) to->add_absorbed(rule);
  for (const auto& [reasons, add] : {std::pair(&report.refused, &plan::LoweredKernel::add_refused),
                                     std::pair(&report.others, &plan::LoweredKernel::add_others)}) {
    for (const KernelReport::Reason& reason : *reasons) {
      plan::LoweredKernel::Reason* written = (to->*add)();
      written->set_what(reason.what);
      written->set_why(reason.why);
    }
  }
}

}  // namespace

std::optional<Size> ScratchOf(const std::vector<DeviceCall>& calls) {
  std::optional<Size> most;
  for (const DeviceCall& call : calls) {
    const auto* kernel = std::get_if<KernelCall>(&call);
    if (kernel == nullptr) continue;
    for (const KernelParam& param : kernel->params) {
      if (!param.arg.is_scratch) continue;
      const Size& bytes = param.arg.bytes;
      most = !most.has_value() || *most == bytes ? bytes : Size::Call("max", {*most, bytes});
    }
  }
  return most;
}

absl::Status NoteMissing(const absl::Status& status, std::set<std::string>* missing) {
  if (!absl::IsUnimplemented(status)) return status;
  missing->insert(std::string(status.message()));
  return absl::OkStatus();
}

absl::Status SetCalls(absl::StatusOr<std::vector<DeviceCall>> calls, std::set<std::string>* missing, Work* work) {
  RETURN_IF_ERROR(NoteMissing(calls.status(), missing));
  if (calls.ok()) work->calls = *std::move(calls);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Work>> SelectStep(const Step& step, const ProgramScope& scope,
                                             std::set<std::string>* missing) {
  std::vector<Work> all;
  const absl::flat_hash_set<const Value*> outputs = OutputsOf(step);
  for (StepUnit& unit : UnitsOf(step)) {
    Work& work = all.emplace_back(Work{.nodes = std::move(unit.nodes)});
    const Kernel* kernel = work.nodes.back()->kernel;
    if (kernel == nullptr) continue;
    RETURN_IF_ERROR(SetCalls(SelectKernel(kernel->backend, BodyOf(work.nodes, outputs), scope), missing, &work));
    work.keeps_rows = KeepsRows(kernel->backend, BodyOf(work.nodes, outputs));
  }
  return all;
}

KernelMemory MemoryOf(const std::vector<Work>& work) {
  KernelMemory memory;
  for (const Work& each : work) {
    const Node* last = each.nodes.back();
    if (std::optional<Size> scratch = ScratchOf(each.calls)) memory.scratch.emplace(last, *scratch);
    if (each.keeps_rows) memory.keeps_rows.insert(last->kernel);
  }
  return memory;
}

void DescribeKernels(const std::vector<Work>& work, const std::vector<uint32_t>& begins,
                     const std::vector<KernelReport>& reports, plan::LoweredProgram* program) {
  size_t kernel = 0;
  for (size_t i = 0; i < work.size(); ++i) {
    if (work[i].nodes.back()->kernel == nullptr) continue;
    plan::LoweredKernel* to = program->add_kernels();
    to->set_first_task(begins[i]);
    to->set_tasks(static_cast<uint32_t>(work[i].calls.size()));
    WriteReport(work[i].nodes, reports[kernel++], to);
  }
}

}  // namespace llmc
