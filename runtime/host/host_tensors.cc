#include "runtime/host/host_tensors.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {

HostTensor ToHostTensor(const Tensor& tensor) {
  return {.type = tensor.dtype(), .shape = tensor.shape(), .bytes = tensor.owner()};
}

absl::StatusOr<Tensor> FromHostTensor(const HostTensor& tensor) {
  RETURN_IF_ERROR(tensor.Check());
  return Tensor(tensor.type, tensor.shape, tensor.bytes);
}

absl::StatusOr<NamedHostTensors> RunStep(Evaluator* evaluator, const Step& step, const NamedHostTensors& inputs) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : inputs) {
    auto converted = FromHostTensor(tensor);
    if (!converted.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("input ", name, ": ", converted.status().message()));
    }
    tensors.emplace(name, *std::move(converted));
  }
  const auto results = evaluator->Run(step, tensors);
  if (!results.ok()) return results.status();
  NamedHostTensors outputs;
  for (const auto& [name, tensor] : *results) outputs.emplace(name, ToHostTensor(tensor));
  return outputs;
}

}  // namespace llmc
