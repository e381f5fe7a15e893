// What an ONNX file holds, and what of it cannot be compiled. The importer itself is ImportOnnx in import.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "files/mapped_file.h"
#include "ir/graph.h"

namespace llmc {

// What cannot be imported for one reason.
struct OnnxUnsupported {
  std::string op;                   // "LSTM", "com.microsoft.Attention", "input" or "initializer"
  std::string reason;               // "this op is not supported", "reduction \"add\" is not supported"
  std::vector<std::string> places;  // names of the nodes, inputs or initializers: all of them
};
// "5 places: a, b, c, …", with at most `limit` names.
std::string SomePlaces(const OnnxUnsupported& item, size_t limit);

struct OnnxReport {
  int64_t ir_version = 0;
  int opset = 0;
  std::string producer;                  // "pytorch 2.11"
  std::map<std::string, int64_t> nodes;  // how many of each op, bodies of local functions counted at each call
  std::vector<OnnxUnsupported> unsupported;
  std::vector<std::string> wrong;  // nodes, values and outputs that contradict the format, with what is wrong
};

// Paths of the external data files of the graph's initializers, which need not exist.
absl::StatusOr<std::vector<std::string>> OnnxExternalFiles(const std::string& path);

// ImportOnnx of a file that is mapped already; external data is read from the folder of `path`.
absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path, MappedFile bytes);

// Imports and reports; an error only if the file is so malformed that there is nothing to report on.
absl::StatusOr<OnnxReport> CheckOnnx(const std::string& path);

}  // namespace llmc
