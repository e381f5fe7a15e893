#include "tools/device_steps.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "codegen/plan_writer.h"
#include "files/temporary_folder.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "runtime/device/device_target.h"
#include "runtime/host/host_tensors.h"
#include "tools/cache_folder.h"

namespace llmc {

absl::StatusOr<std::unique_ptr<DeviceSteps>> DeviceSteps::Create(int device) {
  auto steps = std::unique_ptr<DeviceSteps>(new DeviceSteps());
  steps->index_ = device;
  const absl::StatusOr<DeviceInfo> info = DescribeDevice(device);
  if (!info.ok()) return NeedsDevice(info.status());
  ASSIGN_OR_RETURN(steps->target_, TargetOf(*info));
  ASSIGN_OR_RETURN(steps->device_, Device::Open(device));
  absl::StatusOr<std::unique_ptr<DeviceMatrices>> matrices = DeviceMatrices::Create(steps->device_.get());
  // Without cuBLASLt the host multiplies.
  if (!matrices.ok() && !absl::IsNotFound(matrices.status())) return matrices.status();
  if (matrices.ok()) steps->matrices_ = *std::move(matrices);
  return steps;
}

absl::StatusOr<DeviceSteps::Compiled> DeviceSteps::Compile(const Model& model) const {
  Compiled compiled{.text = PrintModel(model)};
  const std::unique_ptr<Model> own = model.Clone();
  RETURN_IF_ERROR(RunPipeline(own.get(), {}, nullptr));
  ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create());
  const std::string file = folder.PathOf("plan");
  PlanOptions options{.compiler_version = LLMC_VERSION, .targets = {target_}};
  options.compile.cache_folder = CubinFolder();
  RETURN_IF_ERROR(WritePlan(*own, options, file));
  // It stays mapped when its file is gone.
  ASSIGN_OR_RETURN(compiled.plan, Plan::Load(file, {.verify_weights = false}));
  ASSIGN_OR_RETURN(compiled.run, CudaRun::Create(compiled.plan.get(), {.device = index_}));
  return compiled;
}

absl::StatusOr<NamedTensors> DeviceSteps::Run(const Model& model, const NamedTensors& inputs) {
  absl::StatusOr<NamedTensors> outputs = RunOrFail(model, inputs);
  if (outputs.ok() || !absl::IsResourceExhausted(outputs.status())) return outputs;
  return absl::ResourceExhaustedError(absl::StrCat(outputs.status().message(), kDeviceIsFull));
}

absl::StatusOr<NamedTensors> DeviceSteps::RunOrFail(const Model& model, const NamedTensors& inputs) {
  const std::string text = PrintModel(model);
  const auto known = std::find_if(compiled_.begin(), compiled_.end(), [&](const auto& c) { return c.text == text; });
  if (known != compiled_.end()) {
    compiled_.splice(compiled_.begin(), compiled_, known);
  } else {
    if (compiled_.size() == kMostPlans) compiled_.pop_back();
    ASSIGN_OR_RETURN(Compiled compiled, Compile(model));
    compiled_.push_front(std::move(compiled));
  }
  NamedHostTensors given;
  for (const auto& [name, tensor] : inputs) given.emplace(name, ToHostTensor(tensor));
  ASSIGN_OR_RETURN(const NamedHostTensors outputs, compiled_.front().run->Run(given));
  NamedTensors tensors;
  for (const auto& [name, tensor] : outputs) {
    ASSIGN_OR_RETURN(tensors[name], FromHostTensor(tensor));
  }
  return tensors;
}

}  // namespace llmc
