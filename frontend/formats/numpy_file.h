// NumPy's files: .npy holds one array, .npz is a zip of them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/eval.h"

namespace llmc {

// Reads versions 1 to 3 of the format strictly: a header of at most 64 KiB with exactly its three members, numbers in
// little-endian order, no byte more than the shape says. Fortran order is turned into C order. Unsigned integers of 16,
// 32 and 64 bits become signed ones of twice the size, or of 64 bits, which must hold them; types that are no numbers
// are InvalidArgument. The tensor is a view of the mapped file where that can be.
absl::StatusOr<Tensor> ReadNpy(const std::string& path);

// Reads the members "NAME.npy" of a zip, stored or deflated, which together have at most 64 GiB. Whatever else is in
// it, two members of one name, and a member whose checksum is wrong are errors.
absl::StatusOr<NamedTensors> ReadNpz(const std::string& path);

// Both write with FileWriter (files/file_writer.h). Floating-point types that NumPy lacks are written as f32, and
// integers of 4 bits as those of 8.
absl::Status WriteNpy(const std::string& path, const Tensor& tensor);
absl::Status WriteNpz(const std::string& path, const NamedTensors& tensors);  // stored

}  // namespace llmc
