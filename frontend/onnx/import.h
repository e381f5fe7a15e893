// What an ONNX file holds, and what of it cannot be compiled. The importer itself is ImportOnnx in import.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "files/mapped_file.h"
#include "frontend/import_options.h"
#include "frontend/onnx/exporter.h"
#include "ir/graph.h"

namespace llmc {

// What cannot be imported for one reason.
struct OnnxUnsupported {
  std::string op;                   // "LSTM", "com.microsoft.Attention", "input" or "initializer"
  std::string reason;               // "this op is not supported", "reduction \"add\" is not supported"
  std::vector<std::string> places;  // names of the nodes, inputs or initializers: all of them
  std::string remedy = {};          // what to export differently; in reports
};
// "5 places: a, b, c, …", with at most `limit` names.
std::string SomePlaces(const OnnxUnsupported& item, size_t limit);

// An input or output as the file declares it.
struct OnnxDeclared {
  std::string name, type;  // "i64[batch, 128]"; "?" where the file does not tell
};

struct OnnxReport {
  int64_t ir_version = 0;
  int opset = 0;                           // of the default domain, as it was read
  std::map<std::string, int64_t> domains;  // every domain and its version; the default one is ""
  std::string producer;                    // "pytorch 2.11"
  std::string producer_name, producer_version;
  OnnxExporter exporter;
  std::vector<OnnxDeclared> inputs, outputs;
  std::map<std::string, int64_t> nodes;  // how many of each op, bodies of local functions counted at each call
  std::vector<OnnxUnsupported> unsupported;
  std::vector<std::string> wrong;     // nodes, values and outputs that contradict the format, with what is wrong
  std::vector<std::string> warnings;  // what is wrong too, but was set right or ignored; at most 1000
};

// Paths of the external data files of the graph's initializers, which need not exist.
absl::StatusOr<std::vector<std::string>> OnnxExternalFiles(const std::string& path);

// ImportOnnx of a file that is mapped already; external data is read from the folder of `path`.
absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path, MappedFile bytes,
                                                  const ImportOptions& options = {});

// Imports and reports; an error only if the file is so malformed that there is nothing to report on. Where a node is
// not supported, what the file declares of its outputs stands in for them, so that the rest is looked at too.
//
// `model`, if not null, gets what could be imported, even if that is not the whole: stand-ins are inputs, and what
// unsupported nodes would have read are outputs "unsupported.N". It is for looking at, not for running. Null if the
// graph is wrong.
absl::StatusOr<OnnxReport> CheckOnnx(const std::string& path, std::unique_ptr<Model>* model = nullptr,
                                     const ImportOptions& options = {});

}  // namespace llmc
