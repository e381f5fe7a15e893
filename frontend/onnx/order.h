// The order in which the nodes of an ONNX graph can be computed.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace llmc {

using OnnxNodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

struct OnnxOrder {
  std::vector<int> nodes;  // all of them, by their places in the file: each behind those that make what it reads
  // Of nodes that read what is made of their own results: the nodes of the cycle, each reading from the next.
  absl::flat_hash_map<int, std::vector<int>> cycles;
  int moved_for = -1;  // the first node that reads from a later one, if any: the file is not sorted then
};

// Nodes keep their order where they can. What bodies of If, Loop and Scan read from outside counts. Takes time in the
// order of nodes and names.
OnnxOrder TopologicalOrder(const OnnxNodes& nodes);

}  // namespace llmc
