// The ONNX project's node tests: a folder each, with a model of one node, its inputs and the outputs that it must give.
#pragma once

#include <onnx/onnx_pb.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "files/temporary_folder.h"
#include "ir/tensor.h"

namespace llmc {

// The folder onnx-node of the shared test data, or where that is absent the one of the build folder
// (tests/CMakeLists.txt); it need not exist.
std::filesystem::path OnnxNodeFolder();
// The folders in it, by name. None if there are none: a test skips then, and has failed where data is required.
std::vector<std::filesystem::path> OnnxNodeFolders();

absl::StatusOr<onnx::ModelProto> LoadNodeModel(const std::filesystem::path& folder);

// The tensors of test_data_set_0 that `prefix` names ("input_", "output_"), added as initializers.
absl::Status LoadNodeProtos(const std::filesystem::path& folder, const std::string& prefix, int count,
                            onnx::GraphProto* graph);
// The same through the importer's reader.
absl::StatusOr<Tensors> LoadNodeTensors(const std::filesystem::path& folder, const std::string& prefix, int count);

// Empty if what test `test` gave is right: rtol 1e-3 (bf16: 8e-3) and atol 1e-5; the type, the shape, integers,
// booleans and what was cast exactly.
std::string NodeDifference(const std::string& test, const Tensor& got, const Tensor& want);

// "Resize: this op is not supported; If: …" of an importer's message about several nodes.
std::string RefusalReasons(absl::string_view message);

// A model as a file that lives as long as this object.
class ScratchModel {
 public:
  explicit ScratchModel(const onnx::ModelProto& model);
  ScratchModel(const ScratchModel&) = delete;
  ScratchModel& operator=(const ScratchModel&) = delete;
  const std::string& path() const { return path_; }

 private:
  const TemporaryFolder folder_;
  const std::string path_;
};

}  // namespace llmc
