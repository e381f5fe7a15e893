// Files of named tensors, by the endings of their names: .npz, .npy (one tensor, without a name), else safetensors.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/eval.h"

namespace llmc {

// The one tensor of a .npy file has the name "".
absl::StatusOr<NamedTensors> ReadTensorFile(const std::string& path);

// InvalidArgument for a .npy file unless there is one tensor.
absl::Status WriteTensorFile(const std::string& path, const NamedTensors& tensors);

}  // namespace llmc
