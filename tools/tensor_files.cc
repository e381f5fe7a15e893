#include "tools/tensor_files.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "frontend/formats/numpy_file.h"
#include "frontend/formats/safetensors.h"

namespace llmc {

absl::StatusOr<NamedTensors> ReadTensorFile(const std::string& path) {
  if (absl::EndsWith(path, ".npz")) return ReadNpz(path);
  if (!absl::EndsWith(path, ".npy")) return ReadSafetensors(path);
  ASSIGN_OR_RETURN(Tensor tensor, ReadNpy(path));
  return NamedTensors{{"", std::move(tensor)}};
}

absl::Status WriteTensorFile(const std::string& path, const NamedTensors& tensors) {
  if (absl::EndsWith(path, ".npz")) return WriteNpz(path, tensors);
  if (!absl::EndsWith(path, ".npy")) return WriteSafetensors(path, tensors);
  if (tensors.size() == 1) return WriteNpy(path, tensors.begin()->second);
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": a .npy file holds one array, and there are ", tensors.size(), " outputs (",
                   absl::StrJoin(tensors, ", ", [](std::string* out, const auto& item) { *out += item.first; }),
                   "); give a .npz file"));
}

}  // namespace llmc
