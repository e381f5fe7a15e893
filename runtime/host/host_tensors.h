// Between the language's tensors and those of the runtime's users. The bytes are shared.
#pragma once

#include "ir/eval.h"
#include "ir/tensor.h"
#include "runtime/host_tensor.h"

namespace llmc {

HostTensor ToHostTensor(const Tensor& tensor);
// InvalidArgument: the shape is wrong, or there are no bytes.
absl::StatusOr<Tensor> FromHostTensor(const HostTensor& tensor);

// Evaluates a step on such tensors.
absl::StatusOr<NamedHostTensors> RunStep(Evaluator* evaluator, const Step& step, const NamedHostTensors& inputs);

}  // namespace llmc
