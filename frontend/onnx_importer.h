// The walk over an ONNX graph that makes a model of it; used by onnx_import.cc, whose parts are in several files.
#pragma once

#include <onnx/onnx_pb.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "frontend/onnx_functions.h"
#include "frontend/onnx_import.h"
#include "frontend/onnx_ops.h"

namespace llmc {

inline constexpr int kMaxOnnxDepth = 32;  // of calls and bodies

// The names that nodes of one graph or function body see.
struct OnnxScope {
  std::string prefix;  // of names of values and places
  int opset = 0;
  int depth = 0;
  const OnnxAttributes* attributes = nullptr;  // of the call of a function
  // nullptr: what an unsupported or wrong node would have made.
  absl::flat_hash_map<std::string, Value*> values;
  const OnnxScope* outer = nullptr;  // whose names a body of If, Loop or Scan sees too

  // Null if no value has the name; it points to null if the value is not known.
  Value* const* Find(const std::string& name) const;
};

using OnnxNodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

class OnnxImporter {
 public:
  // To report is to go on wherever that is possible; see CheckOnnx.
  explicit OnnxImporter(std::unique_ptr<OnnxFile> file, bool reports = false)
      : file_(std::move(file)), model_(std::make_unique<Model>()), reports_(reports) {}

  absl::Status Run();
  OnnxReport& report() { return report_; }
  std::unique_ptr<Model> TakeModel() { return std::move(model_); }

 private:
  absl::Status ReadHeader();
  absl::Status AddInitializers();
  absl::Status AddInputs();
  absl::StatusOr<TensorType> InputType(const onnx::ValueInfoProto& input);
  Dim InputDim(const onnx::TensorShapeProto::Dimension& dim, absl::string_view input, int axis);
  absl::Status AddOutputs();
  // Tells a node of the graph what is declared of those of its outputs that are the graph's.
  void DeclareOutputs(const onnx::NodeProto& node, OnnxNode* n);
  void RemoveRetyped();
  absl::Status CheckDeclared(const onnx::ValueInfoProto& declared, absl::string_view what);
  absl::Status Define(OnnxScope* scope, const std::string& name, Value* value);
  absl::Status ImportNodes(const OnnxNodes& nodes, OnnxScope* scope);
  absl::Status ChargeInlined(const onnx::NodeProto& node, const std::string& place);
  absl::Status ImportNode(const onnx::NodeProto& node, const std::string& place, OnnxScope* scope);
  // InvalidArgument and Unimplemented errors of these are gathered; others end the import.
  absl::Status ImportCallOrOp(const onnx::NodeProto& node, const std::string& place, OnnxScope* scope);
  absl::Status ImportOp(const onnx::NodeProto& node, const OnnxOp& op, const std::string& place,
                        std::vector<Value*> inputs, OnnxScope* scope);
  absl::Status ImportCall(const onnx::NodeProto& node, const onnx::FunctionProto& function, std::vector<Value*> inputs,
                          OnnxScope* scope);
  // If, Loop and Scan, whose bodies become part of the graph.
  absl::Status ImportControl(const onnx::NodeProto& node, const std::vector<Value*>& inputs, const std::string& place,
                             OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportIf(const onnx::NodeProto& node, const std::vector<Value*>& inputs,
                                               OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportLoop(const onnx::NodeProto& node, const std::vector<Value*>& inputs,
                                                 const std::string& place, OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportScan(const onnx::NodeProto& node, const std::vector<Value*>& inputs,
                                                 const std::string& place, OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportBody(const onnx::GraphProto& body, const std::vector<Value*>& inputs,
                                                 const std::string& op, OnnxScope* scope);
  // The one integer or bool that a value is, if that is known at import.
  std::optional<int64_t> KnownNumber(const Value* value) const;
  // ---- reports (onnx_report.cc) ----
  void Describe();
  // A new version of the format, or of the operators, is read as the newest that is known.
  absl::Status TakeVersion(absl::string_view what, const absl::Status& status);
  // Values of declared types for what a node did not make; `status` is how its import ended, and what of it counts is
  // returned.
  absl::Status AddStandIns(const onnx::NodeProto& node, OnnxScope* scope, absl::Status status);
  Value* StandIn(const std::string& name, const TensorType& type);
  void AddStandIn(const onnx::TensorProto& initializer);
  absl::Status AddMissing(const std::string& what, const absl::Status& status);
  void AddLooseEnds();
  bool IsUncertain(const onnx::NodeProto& node, const OnnxScope& scope) const;

  void AddUnsupported(const std::string& op, absl::string_view reason, const std::string& place);
  absl::Status AddWrong(std::string what);
  // Takes note of an input or initializer that cannot be imported.
  absl::Status AddFailure(const std::string& kind, const std::string& name, const absl::Status& status);

  std::unique_ptr<OnnxFile> file_;
  std::unique_ptr<Model> model_;
  Step* step_ = nullptr;
  OnnxScope graph_;
  absl::flat_hash_map<std::string, Dim> symbols_;                                  // by dim_param
  absl::flat_hash_map<std::string, const onnx::TensorShapeProto*> output_shapes_;  // as declared
  std::optional<OnnxFunctions> functions_;
  std::vector<const onnx::FunctionProto*> calls_;  // being inlined
  int64_t num_nodes_ = 0, num_calls_ = 0;
  size_t inlined_bytes_ = 0, inlined_name_bytes_ = 0;
  const bool reports_;
  absl::flat_hash_map<std::string, const onnx::ValueInfoProto*> declared_;  // of the graph, by name
  absl::flat_hash_set<const Value*> stand_ins_;                             // and what was computed from them
  absl::flat_hash_set<std::string> missing_;                                // files, by what is said of them
  std::vector<Value*> loose_ends_;                                          // what unsupported nodes read
  OnnxReport report_;
  absl::flat_hash_map<std::pair<std::string, std::string>, size_t> unsupported_;  // by op and reason, into the report
};

}  // namespace llmc
