// What each ONNX op becomes: one table of rows.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "frontend/onnx_node.h"

namespace llmc {

struct OnnxOp {
  absl::string_view op_type;
  int since;       // the first opset of the default domain that has it
  int min_inputs;  // these must be present
  int max_inputs;  // -1: any number
  // Reads inputs and attributes, emits ops and sets the outputs; errors stay in the node. Inputs below min_inputs are
  // not null. Unimplemented errors are gathered over the whole model.
  void (*import)(OnnxNode& node);
};

inline constexpr int kMinOpset = 11;
inline constexpr int kMaxOpset = 25;

// nullptr if there is no row.
const OnnxOp* FindOnnxOp(absl::string_view op_type);
// Every row, by name.
std::vector<const OnnxOp*> AllOnnxOps();

// The rows of each family.
absl::Span<const OnnxOp> OnnxElementwiseOps();
absl::Span<const OnnxOp> OnnxShapeOps();
absl::Span<const OnnxOp> OnnxIndexingOps();
absl::Span<const OnnxOp> OnnxNnOps();
absl::Span<const OnnxOp> OnnxAttentionOps();

}  // namespace llmc
