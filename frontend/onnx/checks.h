// Checks of parts of an ONNX file, one at a time.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/graph.h"

namespace llmc {

bool IsDefaultDomain(absl::string_view domain);
// "Add", "com.microsoft.Attention"
std::string OpName(const onnx::NodeProto& node);
// The version of the default domain; the newest if only others are imported. Unimplemented if it is too old or too new.
absl::StatusOr<int> DefaultOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);
// The version that is read nearest to the one that DefaultOpset refuses.
int NearestOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);
// An error if dims are negative, or if the known ones alone make a tensor too large to count.
absl::Status CheckSize(const TensorType& type);
// How the element type of a value differs from its declaration, or its shape; empty if it does not, as far as is known
// before a run. A wrong shape is common, and nothing depends on it: runtimes go by what is made.
std::string ContradictedType(const onnx::ValueInfoProto& declared, const TensorType& made);
std::string ContradictedShape(const onnx::ValueInfoProto& declared, const TensorType& made);
// Names are bounded.
absl::Status CheckName(absl::string_view name, absl::string_view what);
absl::Status CheckNames(const onnx::NodeProto& node);

}  // namespace llmc
