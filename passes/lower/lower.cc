#include "passes/lower/lower.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/verify.h"
#include "passes/driver/numerics.h"
#include "passes/lower/kernel_former.h"
#include "passes/lower/kernel_order.h"
#include "passes/lower/round_once.h"
#include "passes/lower/side_by_side.h"

namespace llmc {
namespace {

absl::StatusOr<std::vector<CompiledRule>> CompileRules(RuleSpan rules) {
  std::vector<CompiledRule> compiled;
  for (const Rule& rule : rules) {
    ASSIGN_OR_RETURN(compiled.emplace_back(), CompileRule(rule));
  }
  return compiled;
}

// A copy of the model with that step only, for sizes up to `bounds`.
absl::StatusOr<std::unique_ptr<Model>> CopyOf(const Model& model, const Step& step, const DimEnv& bounds) {
  std::unique_ptr<Model> copy = model.Clone();
  for (size_t i = copy->steps.size(); i-- > 0;) {
    if (copy->steps[i]->name == step.name) continue;
    std::unique_ptr<Step> other = std::move(copy->steps[i]);
    copy->steps.erase(copy->steps.begin() + static_cast<ptrdiff_t>(i));
    copy->EraseStep(std::move(other));
  }
  for (const auto& [name, bound] : bounds) copy->dims[name] = bound;
  return copy;
}

bool IsLowered(const Step& step) {
  return absl::c_all_of(step.block.nodes, [](const std::unique_ptr<Node>& node) {
    return node->kernel != nullptr || NeedsNoKernel(*node);
  });
}

// A text may name backends that this target has not.
absl::Status CheckBackends(const Step& step, const Backends& backends) {
  for (const Kernel& kernel : step.kernels) {
    if (absl::c_any_of(backends, [&](const Backend& backend) { return backend.name == kernel.backend; })) continue;
    std::vector<std::string> names;
    for (const Backend& backend : backends) names.push_back(backend.name);
    return absl::InvalidArgumentError(absl::StrCat("step ", step.name, ": there is no backend ", kernel.backend,
                                                   "; backends are ", absl::StrJoin(names, ", ")));
  }
  return absl::OkStatus();
}

std::vector<Kernel*> KernelsInOrder(const Step& step) {
  std::vector<Kernel*> kernels;
  for (const auto& node : step.block.nodes) {
    if (node->kernel != nullptr && (kernels.empty() || kernels.back() != node->kernel)) kernels.push_back(node->kernel);
  }
  return kernels;
}

// Of a kernel that has joined another one, which `backend` runs now.
void AddReport(KernelReport report, const std::string& backend, KernelReport* to) {
  const auto append = [](auto& from, auto* all) { all->insert(all->end(), from.begin(), from.end()); };
  to->absorbed.push_back(
      absl::StrCat(kSideBySide, ": ", to->backend == backend ? "" : to->backend + " and ", report.backend));
  to->backend = backend;
  append(report.absorbed, &to->absorbed);
  append(report.refused, &to->refused);
  append(report.others, &to->others);
}

absl::Status Lower(const Backends& backends, RuleSpan all, LoweredStep* lowered) {
  ASSIGN_OR_RETURN(const std::vector<CompiledRule> rules, CompileRules(all));
  KernelFormer former(lowered->model.get(), lowered->step, backends, rules, &lowered->ledger);
  former.Run();
  lowered->missing = former.missing();
  RETURN_IF_ERROR(OrderKernels(lowered->step));
  RETURN_IF_ERROR(RoundOnce(lowered->model.get(), lowered->step, backends));
  ASSIGN_OR_RETURN(const JoinedKernels joined, JoinSideBySide(lowered->step, backends, &lowered->ledger));
  for (const Kernel* kernel : KernelsInOrder(*lowered->step)) {
    KernelReport report = former.TakeReport(kernel);
    for (const auto& [into, other] : joined) {
      if (into == kernel) AddReport(former.TakeReport(other), kernel->backend, &report);
    }
    lowered->reports.push_back(std::move(report));
  }
  std::erase_if(lowered->step->kernels, [&](const Kernel& kernel) {
    return absl::c_any_of(joined, [&](const auto& pair) { return pair.second == &kernel; });
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoweredStep> LowerStep(const Model& model, const Step& step, const Backends& backends,
                                      const LowerOptions& options) {
  LoweredStep lowered;
  ASSIGN_OR_RETURN(lowered.model, CopyOf(model, step, options.bounds));
  lowered.step = lowered.model->steps[0].get();
  RETURN_IF_ERROR(CheckBackends(*lowered.step, backends));
  if (IsLowered(*lowered.step)) {
    for (const Kernel* kernel : KernelsInOrder(*lowered.step)) {
      lowered.reports.push_back({.backend = kernel->backend});
    }
    return lowered;
  }
  std::optional<SmallRun> before;
  if (options.check_numerics) {
    lowered.model->data = model.data;
    ASSIGN_OR_RETURN(before, RunSmall(*lowered.model, 1));
  }
  RETURN_IF_ERROR(Lower(backends, options.rules, &lowered));
  RETURN_IF_ERROR(CheckKernels(*lowered.step, /*all=*/lowered.missing.empty()));
  if (before.has_value()) {
    ASSIGN_OR_RETURN(const NamedTensors after, EvaluateSmall(*lowered.model, before->inputs));
    RETURN_IF_ERROR(CompareResults(before->outputs, after, CoarsestFloat(*lowered.model)));
    lowered.model->data.clear();
  }
  return lowered;
}

}  // namespace llmc
