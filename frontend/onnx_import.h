// What an ONNX file holds, and what of it cannot be compiled. The importer itself is ImportOnnx in import.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace llmc {

// Nodes that cannot be imported for one reason.
struct OnnxUnsupported {
  std::string op;      // "LSTM" or "com.microsoft.Attention"
  std::string reason;  // "no such op", "reduction \"add\" is not supported"
  int64_t count = 0;
  std::vector<std::string> nodes;  // names of the first few
};

struct OnnxReport {
  int64_t ir_version = 0;
  int opset = 0;
  std::string producer;                  // "pytorch 2.11"
  std::map<std::string, int64_t> nodes;  // how many of each op, bodies of local functions counted at each call
  std::vector<OnnxUnsupported> unsupported;
};

// Paths of the external data files of the graph's initializers, which need not exist.
absl::StatusOr<std::vector<std::string>> OnnxExternalFiles(const std::string& path);

// Imports and reports; unsupported nodes are no error here, malformed files are.
absl::StatusOr<OnnxReport> CheckOnnx(const std::string& path);

}  // namespace llmc
