#include "runtime/host/host_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/eval.h"
#include "runtime/host/host_executor.h"
#include "runtime/host/host_tensors.h"
#include "runtime/host/paged_model.h"
#include "runtime/host/plan_model.h"

namespace llmc {
namespace {

TensorInfo Describe(absl::string_view name, const TensorType& type) {
  TensorInfo info{.name = std::string(name), .type = type.dtype};
  for (const Dim& dim : type.shape) info.shape.push_back(dim.ToString());
  return info;
}

class EvaluatedModel : public HostModel {
 public:
  // `plan`: where the model is from, if it is from one.
  EvaluatedModel(std::unique_ptr<Model> model, std::shared_ptr<const Plan> plan)
      : plan_(std::move(plan)), model_(std::move(model)) {}

  absl::StatusOr<NamedHostTensors> Run(const NamedHostTensors& inputs) override {
    if (evaluator_ == nullptr) {
      RETURN_IF_ERROR(DrawWeights());
      auto evaluator = Evaluator::Create(model_.get());
      if (!evaluator.ok()) return evaluator.status();
      evaluator_ = *std::move(evaluator);
    }
    return RunStep(evaluator_.get(), *model_->steps.front(), inputs);
  }

  absl::StatusOr<std::unique_ptr<Executor>> NewExecutor(const CacheOptions& options) override {
    RETURN_IF_ERROR(DrawWeights());
    return NewHostExecutor(model_.get(), options);
  }

 private:
  // On a device `prepare` does it.
  absl::Status DrawWeights() { return plan_ == nullptr ? absl::OkStatus() : DrawRandomWeights(*plan_, model_.get()); }

  std::shared_ptr<const Plan> plan_;  // its files hold the weights
  std::unique_ptr<Model> model_;
  std::unique_ptr<Evaluator> evaluator_;  // made when first needed
};

absl::StatusOr<std::unique_ptr<HostModel>> OpenHostModel(std::shared_ptr<const Plan> plan) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ModelFromPlan(*plan));
  ASSIGN_OR_RETURN(const ModelDescription of_text, Describe(*model));
  ASSIGN_OR_RETURN(const ModelParts parts, PartsOfPlan(plan));
  if (of_text != parts.description) {
    return absl::InvalidArgumentError(
        absl::StrCat(plan->path(), ": its text and its manifest are of different models; compile the model again"));
  }
  return std::make_unique<EvaluatedModel>(std::move(model), std::move(plan));
}

}  // namespace

absl::StatusOr<ModelDescription> Describe(const Model& model) {
  ModelDescription description{
      .name = model.name, .has_states = !model.states.empty(), .is_paged = IsPagedLanguageModel(model)};
  if (model.steps.empty()) return description;
  const Step& step = *model.steps.front();
  for (const Value* param : step.params) description.inputs.push_back(Describe(param->name.substr(1), param->type));
  for (const Output& output : step.outputs) description.outputs.push_back(Describe(output.name, output.value->type));
  if (description.is_paged) {
    ASSIGN_OR_RETURN(const PagedModel paged, DescribePagedModel(model));
    description.vocab_size = paged.vocab_size;
  }
  return description;
}

absl::StatusOr<ModelParts> PartsOfModel(std::string path, std::unique_ptr<Model> model) {
  absl::StatusOr<ModelDescription> description = Describe(*model);
  if (!description.ok()) {
    return absl::Status(description.status().code(), absl::StrCat(path, ": ", description.status().message()));
  }
  return ModelParts{.path = std::move(path),
                    .description = *std::move(description),
                    .host = std::make_unique<EvaluatedModel>(std::move(model), nullptr)};
}

}  // namespace llmc

extern "C" const llmc::HostModelOpener llmc_open_host_model = llmc::OpenHostModel;
