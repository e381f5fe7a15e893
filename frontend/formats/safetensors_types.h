// Names of element types in safetensors files.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"

namespace llmc {

// InvalidArgument for a name that the format does not have, Unimplemented for one that llmc does not have.
absl::StatusOr<DType> DTypeOfSafetensors(absl::string_view name);
absl::StatusOr<absl::string_view> SafetensorsName(DType dtype);

}  // namespace llmc
