#include "frontend/onnx_doc.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/onnx_doc_types.h"
#include "frontend/onnx_file.h"
#include "frontend/onnx_ops.h"

namespace llmc {

namespace {

void AppendRows(absl::string_view domain, std::string* out) {
  for (const OnnxOp* op : AllOnnxOps(domain)) {
    std::string inputs = absl::StrCat(op->min_inputs);
    if (op->max_inputs < 0) {
      absl::StrAppend(&inputs, " or more");
    } else if (op->max_inputs != op->min_inputs) {
      absl::StrAppend(&inputs, " to ", op->max_inputs);
    }
    absl::StrAppend(out, "| ", op->op_type, " | ", op->since, " | ", inputs, " | ", OnnxTypesOf(domain, op->op_type),
                    " | ", op->limits, " |\n");
  }
}

}  // namespace

std::string OnnxOpsMarkdown() {
  std::vector<std::string> types;
  constexpr int kDataTypes = 32;
  for (int type = 1; type < kDataTypes; ++type) {
    if (auto dtype = DTypeOfOnnx(type); dtype.ok())
      types.push_back(absl::StrCat(OnnxTypeName(type), " (`", DTypeName(*dtype), "`)"));
  }
  std::string out = absl::StrCat(
      "# ONNX operators\n\nMade from the importer's table, `frontend/onnx_ops_*.cc`; a test keeps it so. Opset ",
      kMinOpset, " to ", kMaxOpset,
      " of the default domain;\nan operator has the semantics of the model's opset. What is not here, or not within "
      "the "
      "limits, is refused with the\nnames of the nodes.\n\nBesides these: If with a condition that is known at import, "
      "Loop and Scan (the latter since opset 9) of up to 1024\nturns that are known, and the model's own functions, "
      "all "
      "of which become part of the graph.\n\nElement types: ",
      absl::StrJoin(types, ", "),
      ".\n\nThe column of element types was found by importing one node of each operator with each type, of the data "
      "that "
      "the operator is\nabout: that is its first input, or the one that is named. Indices, axes and sizes are integers "
      "as "
      "ONNX says. `all` are the\ntypes above, `numbers` those without bool, ",
      OnnxTypeGroups(), ".\n\n| operator | since opset | inputs | element types | limits |\n|---|---|---|---|---|\n");
  AppendRows("", &out);
  absl::StrAppend(
      &out,
      "\n## com.microsoft\n\nThe operators that ONNX Runtime adds for language models, version 1. They mean "
      "what its CPU kernels compute, and what\nits documents say where it has none (packed projections, gates "
      "of experts).\n\n",
      "| operator | since version | inputs | element types | limits |\n|---|---|---|---|---|\n");
  AppendRows(kMicrosoftDomain, &out);
  return out;
}

}  // namespace llmc
