// Functions that an ONNX model defines itself.
#pragma once

#include <onnx/onnx_pb.h>

#include <list>
#include <string>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "frontend/onnx/node.h"

namespace llmc {

using OnnxFunctionKey = std::tuple<std::string, std::string, std::string>;  // domain, name, overload

class OnnxFunctions {
 public:
  // `model` must outlive the result. An error if two functions have one domain, name and overload.
  static absl::StatusOr<OnnxFunctions> Create(const onnx::ModelProto& model);

  // The function that a node calls; nullptr if it calls none.
  const onnx::FunctionProto* Find(const onnx::NodeProto& call) const;

  // What attributes the body of `function` sees under a call: those of the call, else the function's defaults. Those of
  // a call inside a function may refer to attributes of `caller` (may be null). Valid as long as this object.
  absl::StatusOr<OnnxAttributes> AttributesOf(const onnx::FunctionProto& function, const onnx::NodeProto& call,
                                              const OnnxAttributes* caller) const;

 private:
  struct Entry {
    const onnx::FunctionProto* function = nullptr;
    std::list<onnx::AttributeProto> defaults;
  };
  absl::flat_hash_map<OnnxFunctionKey, Entry> entries_;
};

}  // namespace llmc
