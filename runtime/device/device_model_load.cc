// How a DeviceModel comes to be on its GPU: kernels are loaded while weights are on their way.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/device/device_model.h"
#include "runtime/device/product_tuning.h"
#include "runtime/device/trace.h"

namespace llmc {

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::Load(const Plan* plan, const DeviceModelOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceModel> model, BeginLoading(plan, options));
  RETURN_IF_ERROR(model->FinishLoading());
  return model;
}

absl::StatusOr<std::unique_ptr<DeviceModel>> DeviceModel::BeginLoading(const Plan* plan,
                                                                       const DeviceModelOptions& options) {
  RETURN_IF_ERROR(CheckHasDeviceCode(*plan));
  RETURN_IF_ERROR(CheckMemoryFraction(options.memory_fraction));
  absl::StatusOr<DeviceInfo> info;
  {
    const TraceSpan span(options.trace, "find the GPU");
    info = DescribeDevice(options.device);
  }
  if (!info.ok()) return NeedsDevice(info.status());
  ASSIGN_OR_RETURN(const KernelChoice choice, ChooseKernels(*plan, *info));
  auto model = std::unique_ptr<DeviceModel>(new DeviceModel());
  model->plan_ = plan;
  model->code_ = TargetCode(plan->manifest(), choice.target);
  model->check_kernels_ = options.check_kernels;
  {
    const TraceSpan span(options.trace, "open the GPU");
    ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Open(options.device));
    model->device_ = std::move(device);
    model->device_->set_trace(options.trace);
  }
  ASSIGN_OR_RETURN(const MemoryNeeds needs, MemoryNeedsOf(model->code_));
  model->needs_ = needs;
  ASSIGN_OR_RETURN(const Device::MemoryInfo memory, model->device_->memory());
  model->memory_ = {.total = memory.total, .free = memory.free, .fraction = options.memory_fraction};
  if (absl::Status fits = CheckFits(needs, options.pages, model->memory_); !fits.ok()) {
    return absl::Status(fits.code(), absl::StrCat(plan->path(), ": ", fits.message()));
  }
  RETURN_IF_ERROR(model->PlaceWeights());
  model->copying_ =
      std::make_unique<WeightCopying>(*plan, model->CopiesOf(0), plan->must_verify_weights(), model->device_.get());
  {
    const TraceSpan span(options.trace, "open cuBLASLt");
    ASSIGN_OR_RETURN(model->products_, MatrixProducts::Create(model->device_.get()));
    UseTuning(plan->manifest().tuned(), *model->device_, model->products_.get());
  }
  absl::Status status = model->LoadKernels(options.cache_folder);
  if (status.ok()) status = model->LoadConstants();
  if (status.ok()) status = model->MakeDeviceErrorRecord();
  if (status.ok()) status = model->AllocatePersistent();
  if (!status.ok()) return status;
  return model;
}

absl::Status DeviceModel::FinishLoading() {
  if (copying_ == nullptr) return absl::FailedPreconditionError("the model is loaded already");
  {
    const TraceSpan span(device_->trace(), "wait for the weights");
    RETURN_IF_ERROR(copying_->Wait());
    copying_ = nullptr;
  }
  RETURN_IF_ERROR(Prepare());
  return TakeDeviceError();
}

absl::Status DeviceModel::PlaceWeights() {
  const TraceSpan span(device_->trace(), "allocate the weights");
  const plan::Program& prepare = code_.prepare();
  layout_ = LayOutWeights(code_);
  const WeightLayout& layout = layout_;
  const std::pair<DeviceMemory*, uint64_t> allocations[] = {
      {&kept_weights_, layout.kept_bytes},
      {&prepared_, prepare.arena_bytes() - prepare.temporary_bytes()},
      {&temporaries_, prepare.temporary_bytes()},
      {&passing_weights_, layout.passing_bytes}};
  for (const auto& [memory, bytes] : allocations) {
    if (bytes == 0) continue;
    ASSIGN_OR_RETURN(DeviceMemory allocated, device_->Allocate(static_cast<int64_t>(bytes)));
    *memory = std::move(allocated);
  }
  for (const WeightPlace& place : layout.places) {
    using Where = WeightPlace::Where;
    weights_.push_back(place.where == Where::kKept       ? kept_weights_.data() + place.offset
                       : place.where == Where::kPrepared ? PreparedPointer(place.offset)
                       : place.where == Where::kPassing  ? passing_weights_.data() + place.offset
                                                         : 0);
  }
  return absl::OkStatus();
}

}  // namespace llmc
