#include "tools/runnable.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/host/host_executor.h"
#include "runtime/host/host_tensors.h"
#include "runtime/host/plan_model.h"
#include "runtime/score.h"
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

absl::StatusOr<Runnable> FromModel(const ModelSource& source, Progress* progress) {
  if (IsTextFile(source.path) && !source.dtype.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": is a dump, which runs as it stands; --dtype is for `llmc opt` and `llmc compile`"));
  }
  absl::StatusOr<std::unique_ptr<Model>> model =
      IsTextFile(source.path) ? LoadModel(source, progress) : LoadOptimized(source, {}, nullptr, progress);
  if (!model.ok()) return model.status();
  absl::StatusOr<SideFiles> side = ReadSideFiles(source.Folder());
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

void AddRunnableOptions(CLI::App* command, ModelSource* source) {
  AddModelOptions(command, source, "an ONNX file, a Hugging Face folder, a plan or a dump (.lir)");
}

absl::StatusOr<Runnable> LoadRunnable(const ModelSource& source, Progress* progress) {
  const std::string& path = source.path;
  const bool is_plan = IsPlanFile(path);
  if (is_plan && !(source.dtype.empty() && source.weights_folder.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a plan; --dtype and --weights-folder are for `llmc compile`"));
  }
  absl::StatusOr<Runnable> runnable = is_plan ? FromPlan(path) : FromModel(source, progress);
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

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& given, const std::string& path,
                                                         const Runnable& runnable) {
  if (given.empty() && runnable.tokenizer_json.empty()) return std::unique_ptr<Tokenizer>();
  if (given.empty()) return Tokenizer::FromJson(runnable.tokenizer_json, absl::StrCat(path, ": tokenizer.json"));
  const std::string file = absl::EndsWith(given, ".json") ? given : given + "/tokenizer.json";
  absl::StatusOr<std::string> text = ReadTextFile(file, int64_t{256} << 20);
  if (!text.ok()) return text.status();
  return Tokenizer::FromJson(*text, file);
}

absl::StatusOr<SideFiles> ReadUsableSideFiles(const std::string& folder, bool needed) {
  absl::StatusOr<SideFiles> side = ReadSideFiles(folder);
  if (!side.ok() || !side->tokenizer.has_value()) return side;
  const auto tokenizer = Tokenizer::FromJson(*side->tokenizer, absl::StrCat(folder, "/tokenizer.json"));
  if (tokenizer.ok()) return side;
  if (needed || !absl::IsUnimplemented(tokenizer.status())) return tokenizer.status();
  std::fprintf(stderr, "note: the tokenizer is left out: %s\n", std::string(tokenizer.status().message()).c_str());
  side->tokenizer.reset();
  return side;
}

absl::StatusOr<Tensor> ScoreTokens(Runnable* runnable, const Tensor& ids, const Tensor* mask) {
  if (ids.rank() != 1 && ids.rank() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("has shape ", ShapeToString(ids.shape()), ", not [S] or [B, S]"));
  }
  const Shape batch = ids.rank() == 2 ? ids.shape() : Shape{1, ids.size()};
  absl::StatusOr<std::unique_ptr<Executor>> executor = MakeExecutor(runnable, std::max<int64_t>(1, batch[1]));
  if (!executor.ok()) return executor.status();
  if (mask != nullptr && mask->shape() != ids.shape()) {
    return absl::InvalidArgumentError("attention_mask has another shape than input_ids");
  }
  const HostTensor host_mask = mask == nullptr ? HostTensor() : ToHostTensor(mask->Reshaped(batch));
  absl::StatusOr<HostTensor> logits =
      ScoreBatch(executor->get(), ToHostTensor(ids.Reshaped(batch)), mask == nullptr ? nullptr : &host_mask);
  if (!logits.ok()) return logits.status();
  absl::StatusOr<Tensor> tensor = FromHostTensor(*logits);
  if (!tensor.ok() || ids.rank() == 2) return tensor;
  return tensor->Reshaped({tensor->shape()[1], tensor->shape()[2]});
}

}  // namespace llmc
