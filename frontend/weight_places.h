// Where the contents of a model's weights lie on disk.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "ir/graph.h"

namespace llmc {

struct FilePlace {
  std::string file;  // relative to the model's folder
  int64_t offset = 0;
};

// By the names of the weights: those whose bytes lie in a safetensors or GGUF file, an ONNX file or its external data
// as they are in Model::data. Others are left out: typed fields of ONNX files, constants of ONNX nodes, what was
// computed. `folder` is that of the model, which the sources of its weights are relative to.
absl::StatusOr<std::map<std::string, FilePlace>> LocateWeights(const Model& model, const std::string& folder);

}  // namespace llmc
