// One array in NumPy's format, in memory; used by numpy_file.cc and numpy_zip.cc.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/tensor.h"

namespace llmc {

// The array that all of `bytes` is. The tensor is a view of them, and owns a part of `owner`, if they are aligned and
// as the language has them.
absl::StatusOr<Tensor> ParseNpy(absl::string_view bytes, const std::shared_ptr<const char>& owner);

// The same tensor in a type that NumPy has.
Tensor WithNumpyType(const Tensor& tensor);
// What stands before the elements of such a tensor: a multiple of 64 bytes.
std::string NpyHeader(const Tensor& tensor);

}  // namespace llmc
