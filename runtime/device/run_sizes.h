// The sizes of a run over named tensors: what the shapes of its inputs, and elements of some, say of a model's dims.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "runtime/device/device.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// A tensor that was given for an input, on the host or else on the device, and is checked in itself.
struct GivenInput {
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  const char* host = nullptr;
  DevicePointer device = 0;
};
using GivenInputs = std::map<std::string, GivenInput>;

// Of the manifest's first entry point, which `program` runs. `read` copies from the device, for rules that ask for an
// element of an input there. InvalidArgument: an input is missing, of another type or shape, over a dim's bound, or two
// give one symbol different sizes.
using ReadFromDevice = absl::FunctionRef<absl::Status(void* to, DevicePointer from, int64_t bytes)>;
absl::StatusOr<StepDims> SizesOfRun(const plan::Manifest& manifest, const plan::Program& program,
                                    const GivenInputs& inputs, ReadFromDevice read);

}  // namespace llmc
