// The walk over an ONNX graph that makes a model of it; used by import.cc, whose parts are in several files.
#pragma once

#include <onnx/onnx_pb.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/statusor.h"
#include "frontend/import_options.h"
#include "frontend/onnx/functions.h"
#include "frontend/onnx/import.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/order.h"

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

class OnnxImporter {
 public:
  // To report is to go on wherever that is possible; see CheckOnnx.
  OnnxImporter(std::unique_ptr<OnnxFile> file, const ImportOptions& options, bool reports)
      : file_(std::move(file)), options_(options), model_(std::make_unique<Model>()), reports_(reports) {}

  absl::Status Run();
  // Sizes of dims of inputs that nodes have told, by the keys of InputDim. Run() does not know them: take the file and
  // import it again with them. What a handler makes of known sizes may be simpler.
  absl::flat_hash_map<std::string, Dim> LearnedDims() const;
  std::unique_ptr<OnnxFile> TakeFile() { return std::move(file_); }
  void SetDims(absl::flat_hash_map<std::string, Dim> dims) { symbols_ = std::move(dims); }
  OnnxReport& report() { return report_; }
  std::unique_ptr<Model> TakeModel() { return std::move(model_); }

 private:
  absl::Status ReadHeader();
  absl::Status AddInitializers();
  // What is fixed (fixed.cc).
  absl::StatusOr<DimEnv> FixedSizes();
  absl::Status FixInputs();
  void FindDimsOfFirstStep();
  absl::Status AddInputs();
  absl::Status AddFixed(const std::string& name, Tensor contents);
  absl::StatusOr<TensorType> InputType(const onnx::ValueInfoProto& input);
  Dim InputDim(const onnx::TensorShapeProto::Dimension& dim, absl::string_view input, int axis);
  absl::Status AddOutputs();
  // Tells a node of the graph what is declared of those of its outputs that are the graph's.
  void DeclareOutputs(const onnx::NodeProto& node, OnnxNode* n);
  void RemoveRetyped();
  absl::Status CheckDeclared(const onnx::ValueInfoProto& declared, absl::string_view what);
  absl::Status Define(OnnxScope* scope, const std::string& name, Value* value);
  absl::Status ImportNodes(const OnnxNodes& nodes, OnnxScope* scope);
  // Found once for each graph and body, with a warning if it is not that of the file.
  const OnnxOrder& OrderOf(const OnnxNodes& nodes, const std::string& prefix);
  // Whether an op may read and give uint16; takes note of what it gives.
  absl::Status CheckU16(const onnx::NodeProto& node, const std::vector<Value*>& inputs) const;
  void MarkU16(const onnx::NodeProto& node, OnnxNode* n);
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
                                               const std::string& place, OnnxScope* scope);
  // Of an If whose condition a run alone tells.
  absl::StatusOr<std::vector<Value*>> ImportBothBodies(const onnx::NodeProto& node, Value* condition,
                                                       const std::string& place, OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportLoop(const onnx::NodeProto& node, const std::vector<Value*>& inputs,
                                                 const std::string& place, OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportScan(const onnx::NodeProto& node, const std::vector<Value*>& inputs,
                                                 const std::string& place, OnnxScope* scope);
  absl::StatusOr<std::vector<Value*>> ImportBody(const onnx::GraphProto& body, const std::vector<Value*>& inputs,
                                                 const std::string& op, OnnxScope* scope);
  // The one integer or bool that a value is, if that is known at import.
  std::optional<int64_t> KnownNumber(const Value* value) const;
  // ---- reports (report.cc) ----
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
  void AddWarning(const std::string& what);
  // Takes note of an input or initializer that cannot be imported.
  absl::Status AddFailure(const std::string& kind, const std::string& name, const absl::Status& status);

  std::unique_ptr<OnnxFile> file_;
  const ImportOptions options_;
  std::unique_ptr<Model> model_;
  Step* step_ = nullptr;
  OnnxScope graph_;
  absl::flat_hash_map<std::string, Dim> symbols_;                                  // by dim_param; numbers if fixed
  absl::flat_hash_map<std::string, Tensor> fixed_;                                 // contents of inputs
  absl::flat_hash_map<std::string, const onnx::TensorShapeProto*> output_shapes_;  // as declared
  std::optional<OnnxFunctions> functions_;
  std::vector<const onnx::FunctionProto*> calls_;  // being inlined
  absl::node_hash_map<const OnnxNodes*, OnnxOrder> orders_;
  absl::flat_hash_map<std::string, int64_t> learned_;  // by symbol
  absl::flat_hash_set<std::string> empty_;             // dims of caches that are of their own, by dim_param
  absl::flat_hash_set<const Value*> u16_;              // of that type in the file, of i32 here
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
