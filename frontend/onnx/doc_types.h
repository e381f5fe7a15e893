// Which element types each ONNX op takes, found by importing one node of it with each type.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"

namespace llmc {

// One node with one element type, and whether the importer takes it.
struct OnnxTypeTrial {
  onnx::ModelProto model;  // that node; inputs that are no constants are the graph's
  DType dtype;
  int input;  // the first one that has the type; -1 if it is that of an attribute
  absl::Status status;
};

// Every element type as that of the op's data, and of its second kind of data if it has one (what OneHot chooses from),
// which is one more list.
std::vector<std::vector<OnnxTypeTrial>> TryOnnxTypes(absl::string_view domain, absl::string_view op_type);

// "floats, i64, bool; input 2: i8, u8": the types of those trials that were taken.
std::string OnnxTypesOf(absl::string_view domain, absl::string_view op_type);

// "floats", "ints", …: names of groups of types in OnnxTypesOf, with what is in them, as Markdown.
std::string OnnxTypeGroups();

}  // namespace llmc
