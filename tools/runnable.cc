#include "tools/runnable.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frontend/side_files.h"
#include "runtime/host/host_executor.h"
#include "runtime/host/plan_model.h"
#include "tools/model_source.h"

namespace llmc {
namespace {

absl::StatusOr<Runnable> FromPlan(const std::string& path) {
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(path);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<std::unique_ptr<Model>> model = ModelFromPlan(**plan);
  if (!model.ok()) return model.status();
  Runnable runnable;
  runnable.model = *std::move(model);
  runnable.tokenizer_json = std::string((*plan)->tokenizer_json());
  for (const int64_t id : (*plan)->manifest().language_model().eos_ids()) {
    runnable.eos_ids.push_back(static_cast<int32_t>(id));
  }
  runnable.plan = *std::move(plan);
  return runnable;
}

absl::StatusOr<Runnable> FromModel(const std::string& path, const std::string& dtype, Progress* progress) {
  absl::StatusOr<std::optional<DType>> parsed = ParseDtypeOption(dtype);
  if (!parsed.ok()) return parsed.status();
  PipelineOptions pipeline;
  pipeline.dtype = *parsed;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadOptimized(path, pipeline, nullptr, progress);
  if (!model.ok()) return model.status();
  absl::StatusOr<SideFiles> side = ReadSideFiles(FolderOf(path));
  if (!side.ok()) return side.status();
  Runnable runnable;
  runnable.model = *std::move(model);
  runnable.tokenizer_json = side->tokenizer.value_or("");
  for (const int64_t id : side->eos_ids) runnable.eos_ids.push_back(static_cast<int32_t>(id));
  return runnable;
}

}  // namespace

int64_t MaxContext(const Model& model) {
  const auto pages = model.dims.find("P");
  return pages == model.dims.end() ? 0 : pages->second * model.states[0]->type.shape[2].value();
}

absl::StatusOr<Runnable> LoadRunnable(const std::string& path, const std::string& dtype, Progress* progress) {
  if (IsPlanFile(path) && !dtype.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a plan; --dtype is for `llmc compile`"));
  }
  absl::StatusOr<Runnable> runnable = IsPlanFile(path) ? FromPlan(path) : FromModel(path, dtype, progress);
  if (!runnable.ok()) return runnable;
  if (runnable->model->steps.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no step to run"));
  runnable->paged = IsPagedLanguageModel(*runnable->model);
  return runnable;
}

absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(Runnable* runnable, int64_t tokens) {
  HostExecutorOptions options;
  if (runnable->paged) {
    const int64_t page_size = runnable->model->states[0]->type.shape[2].value();
    options.num_pages = PagesFor(std::min(tokens, MaxContext(*runnable->model)), page_size) + 1;
  }
  return NewHostExecutor(runnable->model.get(), options);
}

}  // namespace llmc
