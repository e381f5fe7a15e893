#include "tests/gpu/device_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "codegen/plan_writer.h"
#include "cubins/nvrtc.h"
#include "cubins/targets.h"
#include "files/temporary_folder.h"
#include "ir/text.h"
#include "runtime/device/cublaslt.h"
#include "runtime/device/cuda_run.h"
#include "runtime/host/host_tensors.h"

namespace llmc {
namespace {

bool g_draws = true;

double ToleranceOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1.0 / 128;
    case DType::kF16:
      return 1.0 / 1024;
    case DType::kF64:
      return 1e-12;
    default:
      return 1e-5;
  }
}

double RootMeanSquare(const double* values, size_t count) {
  double squares = 0;
  size_t finite = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) continue;
    squares += values[i] * values[i];
    ++finite;
  }
  return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

void Compare(const std::string& name, const Tensor& device, const Tensor& host, double tolerance, bool by_row) {
  ASSERT_EQ(device.dtype(), host.dtype()) << name;
  ASSERT_EQ(device.shape(), host.shape()) << name;
  if (!IsFloat(host.dtype())) {
    EXPECT_EQ(device.ToInts(), host.ToInts()) << name;
    return;
  }
  const std::vector<double> got = device.ToDoubles(), want = host.ToDoubles();
  const size_t row = by_row && host.rank() > 0 ? std::max<size_t>(static_cast<size_t>(host.shape().back()), 1)
                                               : std::max<size_t>(want.size(), 1);
  std::vector<double> sizes;  // root mean squares of the finite elements
  for (size_t begin = 0; begin < want.size(); begin += row) sizes.push_back(RootMeanSquare(&want[begin], row));
  if (tolerance == 0) tolerance = ToleranceOf(host.dtype());
  int wrong = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const bool same =
        std::isfinite(want[i])
            ? std::abs(got[i] - want[i]) <= tolerance * std::max(std::abs(want[i]), sizes[i / row])  // NaN: false
            : (std::isnan(want[i]) ? std::isnan(got[i]) : got[i] == want[i]);
    if (same) continue;
    if (++wrong <= 5) ADD_FAILURE() << name << "[" << i << "]: the device has " << got[i] << ", the host " << want[i];
  }
  EXPECT_EQ(wrong, 0) << name << ": so many of " << want.size() << " elements differ";
}

Tensor Random(const TensorType& type, const DimEnv& dims, uint64_t seed) {
  Shape shape;
  for (const Dim& dim : type.shape) {
    const absl::StatusOr<int64_t> size = dim.Evaluate(dims);
    EXPECT_TRUE(size.ok()) << size.status();
    shape.push_back(size.value_or(1));
  }
  return IsFloat(type.dtype) ? RandomFloats(type.dtype, shape, seed)
                             : RandomInts(type.dtype, shape, 0, type.dtype == DType::kBool ? 2 : 10, seed);
}

}  // namespace

bool HasGpu(std::string* why) {
  const absl::StatusOr<std::unique_ptr<Device>> device = Device::Open();
  absl::Status status = device.status();
  if (status.ok()) status = MatrixProducts::Create(device->get()).status();
  if (status.ok()) status = NvrtcVersion().status();
  *why = std::string(status.message());
  return status.ok();
}

NothingDrawn::NothingDrawn() { g_draws = false; }
NothingDrawn::~NothingDrawn() { g_draws = true; }

Tensor RandomFloats(DType dtype, Shape shape, uint64_t seed, double scale) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  Tensor tensor(dtype, std::move(shape));
  if (!g_draws) return tensor;
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.SetFloat(i, normal(random));
  return tensor;
}

Tensor RepeatedFloats(DType dtype, Shape shape, uint64_t seed) {
  const Tensor numbers = RandomFloats(dtype, {65537}, seed);
  Tensor tensor(dtype, std::move(shape));
  for (int64_t at = 0; at < tensor.bytes(); at += numbers.bytes()) {
    std::memcpy(tensor.mutable_raw() + at, numbers.raw(),
                static_cast<size_t>(std::min(numbers.bytes(), tensor.bytes() - at)));
  }
  return tensor;
}

Tensor RandomInts(DType dtype, Shape shape, int64_t low, int64_t high, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int64_t> uniform(low, high - 1);
  Tensor tensor(dtype, std::move(shape));
  if (!g_draws) return tensor;
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.SetInt(i, uniform(random));
  return tensor;
}

Tensor Ints(DType dtype, const std::vector<int64_t>& values) {
  return Tensor::FromValues(dtype, {static_cast<int64_t>(values.size())}, values);
}

std::string KernelCacheFolder() {
  static const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Create();
  return folder.ok() ? folder->PathOf("kernels") : "";
}

absl::StatusOr<NamedTensors> RunOnDevice(const Model& model, const NamedTensors& inputs, const Target& target,
                                         const DevicePlanOptions& device_options) {
  // Its context stays from one run to the next, which takes longer to make than most of them.
  [[maybe_unused]] static const auto* const device = new absl::StatusOr<std::unique_ptr<Device>>(Device::Open());
  const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Create();
  if (!folder.ok()) return folder.status();
  const std::string path = folder->PathOf("plan");
  PlanOptions options = {.compiler_version = "test", .targets = {target}, .device = device_options};
  options.compile.cache_folder = KernelCacheFolder();
  absl::Status written = WritePlan(model, options, path);
  if (!written.ok()) return written;
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(path);
  if (!plan.ok()) return plan.status();
  absl::StatusOr<std::unique_ptr<CudaRun>> run = CudaRun::Create(plan->get());
  if (!run.ok()) return run.status();
  NamedHostTensors host_inputs;
  for (const auto& [name, tensor] : inputs) host_inputs.emplace(name, ToHostTensor(tensor));
  const absl::StatusOr<NamedHostTensors> outputs = (*run)->Run(host_inputs);
  if (!outputs.ok()) return outputs.status();
  NamedTensors tensors;
  for (const auto& [name, tensor] : *outputs) {
    absl::StatusOr<Tensor> converted = FromHostTensor(tensor);
    if (!converted.ok()) return converted.status();
    tensors.emplace(name, *std::move(converted));
  }
  return tensors;
}

namespace {

void ExpectInCode(const Model& model, const Target& target, const std::string& wanted) {
  plan::Manifest manifest;
  DeviceCode code;
  const absl::Status planned = PlanDevice(model, {target}, &manifest, &code);
  ASSERT_TRUE(planned.ok()) << planned;
  EXPECT_THAT(code.sources, testing::HasSubstr(wanted));
}

}  // namespace

void ExpectDeviceAgrees(const DeviceCase& c) {
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(c.text, "case.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  uint64_t seed = c.seed;
  for (const Value* weight : (*model)->weights) (*model)->data[weight->name] = Random(weight->type, c.dims, ++seed);
  const Step& step = *(*model)->steps.front();
  NamedTensors inputs = c.inputs;
  for (const Value* param : step.params) {
    const std::string name = param->name.substr(1);
    if (!inputs.contains(name)) inputs[name] = Random(param->type, c.dims, ++seed);
  }
  absl::StatusOr<std::unique_ptr<Evaluator>> evaluator = Evaluator::Create(model->get());
  ASSERT_TRUE(evaluator.ok()) << evaluator.status();
  absl::Status allocated = (*evaluator)->AllocateStates(c.dims);
  ASSERT_TRUE(allocated.ok()) << allocated;
  const absl::StatusOr<NamedTensors> host = (*evaluator)->Run(step, inputs);
  ASSERT_TRUE(host.ok()) << host.status();
  const Target target = c.target.empty() ? TargetHere() : *FindTarget(c.target);
  if (!c.in_code.empty()) ExpectInCode(**model, target, c.in_code);
  const absl::StatusOr<NamedTensors> device = RunOnDevice(**model, inputs, target);
  ASSERT_TRUE(device.ok()) << device.status() << "\n" << c.text;
  for (const auto& [name, expected] : *host) {
    SCOPED_TRACE(c.text);
    ASSERT_TRUE(device->contains(name)) << name;
    Compare(name, device->at(name), expected, c.tolerance, c.by_row);
  }
}

}  // namespace llmc
