// docs/onnx.md, made from the importer's table.
#pragma once

#include <string>

namespace llmc {

// Every op of ONNX that is imported: since which opset, and with what limits; and the element types.
std::string OnnxOpsMarkdown();

}  // namespace llmc
