// An ONNX file on disk: the parsed model and the contents of its tensors, in place where possible.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "files/mapped_file.h"
#include "ir/tensor.h"

namespace llmc {

inline constexpr int kMaxOnnxRank = 16;

// The element type of an ONNX data type number; Unimplemented for types that the language lacks.
absl::StatusOr<DType> DTypeOfOnnx(int64_t data_type);
// "FLOAT", "UINT32", …
std::string OnnxTypeName(int64_t data_type);

// A place in a file of the model.
struct OnnxDataPlace {
  std::string file;  // relative to the model's folder
  int64_t offset = 0;
};

// Not thread-safe. Tensors that it gives out keep the files they view mapped.
class OnnxFile {
 public:
  // Maps and parses `path`, a file below 2 GiB. Bytes of the graph's initializers are never copied into the model.
  static absl::StatusOr<std::unique_ptr<OnnxFile>> Open(const std::string& path);
  static absl::StatusOr<std::unique_ptr<OnnxFile>> Open(const std::string& path, MappedFile bytes);

  // The initializers of its graph lack their raw_data; use Initializer().
  const onnx::ModelProto& model() const { return model_; }
  const std::string& path() const { return path_; }

  // Contents of initializer `index` of the model's graph: a view of the file or of an external data file inside the
  // model's folder. A tensor that is not aligned to its element type, or holds typed data, is a copy; so is one of
  // uint16, whose numbers are given in i32.
  absl::StatusOr<Tensor> Initializer(int index);
  // Where the bytes of an initializer that Initializer() accepts begin; nothing if it holds typed data.
  std::optional<OnnxDataPlace> PlaceOf(int index) const;
  // Contents of a tensor elsewhere in the model, such as the value of a Constant: a copy.
  absl::StatusOr<Tensor> Literal(const onnx::TensorProto& tensor);

 private:
  OnnxFile() = default;
  absl::Status Parse(absl::string_view bytes);
  absl::Status ParseGraph(absl::string_view bytes);
  absl::Status ParseInitializer(absl::string_view bytes);
  absl::StatusOr<Tensor> Load(const onnx::TensorProto& tensor, std::optional<absl::string_view> raw);
  absl::StatusOr<Tensor> LoadAs(DType dtype, const onnx::TensorProto& tensor, std::optional<absl::string_view> raw);
  absl::StatusOr<Tensor> LoadExternal(const onnx::TensorProto& tensor, DType dtype, Shape shape);

  std::string path_;
  MappedFile file_;
  onnx::ModelProto model_;
  std::vector<std::optional<absl::string_view>> raw_data_;  // of each initializer, in file_
  std::map<std::string, MappedFile> external_files_;
};

}  // namespace llmc
