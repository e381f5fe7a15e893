// Who wrote an ONNX file, and in which way: exporters spell the same layers differently.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

namespace llmc {

struct OnnxExporter {
  std::string id;                  // "torch-dynamo"; see the table in exporter.cc
  std::string name;                // "PyTorch's exporter of dynamo graphs"
  std::vector<std::string> marks;  // what it was told by, and what was done to the file later
};

OnnxExporter FindExporter(const onnx::ModelProto& model);

// "model.layers.0.self_attn": the module that made a node, as PyTorch's newer exporter notes it; else empty.
std::string LayerOf(const onnx::NodeProto& node);

}  // namespace llmc
