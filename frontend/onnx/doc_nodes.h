// A node of each ONNX op, for trying element types.
#pragma once

#include <vector>

#include "absl/strings/string_view.h"

namespace llmc {

struct OnnxDocNode {
  absl::string_view domain, op_type;
  // Separated by spaces: "T[2,3]" has the type to be tried, "U[3]" the second one, "i64[3]" its own; "i64=[0,1]" and
  // "i64=1" are constants; "-" is left out.
  absl::string_view inputs;
  absl::string_view attributes = "";  // "axis=1 perm=[1,0] mode=linear value=T"
  int opset = 25;
};

// More than one where attributes go with types. An op without a row has min_inputs inputs T[2,3].
std::vector<OnnxDocNode> OnnxDocNodes(absl::string_view domain, absl::string_view op_type);

}  // namespace llmc
