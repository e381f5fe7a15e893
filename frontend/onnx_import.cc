// Walks an ONNX graph and makes a model of it.
#include "frontend/onnx_import.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "frontend/import.h"
#include "frontend/onnx_functions.h"
#include "frontend/onnx_ops.h"
#include "ir/verify.h"

namespace llmc {
namespace {

constexpr int64_t kMinIrVersion = 3, kMaxIrVersion = 14;
constexpr int64_t kDimBound = int64_t{1} << 20;
constexpr int kMaxFunctionDepth = 32;
constexpr size_t kMaxNameBytes = 1024;
// Of what functions become at their calls; bodies of functions are small, but calls multiply them.
constexpr int64_t kMaxNodes = 1'000'000;  // the graph's own included
constexpr size_t kMaxInlinedNameBytes = size_t{64} << 20;
constexpr size_t kMaxInlinedBytes = size_t{256} << 20;
constexpr size_t kMaxWrong = 100;   // then the import stops
constexpr size_t kShownPlaces = 3;  // in an error; reports hold all

bool IsDefaultDomain(absl::string_view domain) { return domain.empty() || domain == "ai.onnx"; }

std::string OpName(const onnx::NodeProto& node) {
  return IsDefaultDomain(node.domain()) ? node.op_type() : absl::StrCat(node.domain(), ".", node.op_type());
}

absl::StatusOr<int> DefaultOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  std::optional<int64_t> version;
  for (const auto& import : imports) {
    if (!IsDefaultDomain(import.domain())) continue;
    if (version.has_value() && *version != import.version()) {
      return absl::InvalidArgumentError("two opsets of the default domain are imported");
    }
    version = import.version();
  }
  if (!version.has_value()) return absl::InvalidArgumentError("no opset of the default domain is imported");
  if (*version < kMinOpset || *version > kMaxOpset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "opset ", *version, " is not supported; export the model with opset ", kMinOpset, " to ", kMaxOpset));
  }
  return static_cast<int>(*version);
}

// An error if dims are negative, or if the known ones alone make a tensor too large to count.
absl::Status CheckSize(const TensorType& type) {
  Shape smallest;
  for (const Dim& dim : type.shape) smallest.push_back(dim.is_constant() ? dim.value() : 1);
  return CheckedElements(type.dtype, smallest).status();
}

// How a value differs from its declaration; empty if it does not, as far as is known before a run.
std::string Contradiction(const onnx::ValueInfoProto& declared, const TensorType& made) {
  if (declared.type().value_case() == onnx::TypeProto::VALUE_NOT_SET) return "";
  const std::string but = absl::StrCat(" but made as ", made.ToString());
  if (!declared.type().has_tensor_type()) return "is declared as something else than a tensor" + but;
  const auto& tensor = declared.type().tensor_type();
  if (tensor.elem_type() != onnx::TensorProto::UNDEFINED) {
    auto dtype = DTypeOfOnnx(tensor.elem_type());
    if (!dtype.ok() || *dtype != made.dtype) {
      return absl::StrCat("is declared ", OnnxTypeName(tensor.elem_type()), but);
    }
  }
  if (!tensor.has_shape()) return "";
  if (tensor.shape().dim_size() != made.rank()) {
    return absl::StrCat("is declared with rank ", tensor.shape().dim_size(), but);
  }
  for (int i = 0; i < made.rank(); ++i) {
    const auto& dim = tensor.shape().dim(i);
    const Dim& size = made.shape[static_cast<size_t>(i)];
    if (!dim.has_dim_value() || dim.dim_value() < 0 || !size.is_constant()) continue;
    if (dim.dim_value() != size.value()) return absl::StrCat("is declared with ", dim.dim_value(), " as dim ", i, but);
  }
  return "";
}

absl::Status CheckName(absl::string_view name, absl::string_view what) {
  if (name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " ", Quoted(name), ": a name of ", name.size(),
                                                 " bytes; at most ", kMaxNameBytes, " are read"));
}

absl::Status CheckNames(const onnx::NodeProto& node) {
  absl::Status s = CheckName(node.name(), "node");
  s.Update(CheckName(node.op_type(), "node"));
  s.Update(CheckName(node.domain(), "node"));
  const std::string what = absl::StrCat("node ", Quoted(node.name()), " (", node.op_type(), "): value");
  for (const std::string& name : node.input()) s.Update(CheckName(name, what));
  for (const std::string& name : node.output()) s.Update(CheckName(name, what));
  return s;
}

// The names that nodes of one graph or function body see.
struct Scope {
  std::string prefix;  // of names of values and places
  int opset = 0;
  int depth = 0;
  const OnnxAttributes* attributes = nullptr;  // of the call of a function
  // nullptr: what an unsupported or wrong node would have made.
  absl::flat_hash_map<std::string, Value*> values;
};

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

class Importer {
 public:
  explicit Importer(std::unique_ptr<OnnxFile> file) : file_(std::move(file)), model_(std::make_unique<Model>()) {}

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
  absl::Status CheckDeclared(const onnx::ValueInfoProto& declared, absl::string_view what);
  absl::Status Define(Scope* scope, const std::string& name, Value* value);
  absl::Status ImportNodes(const Nodes& nodes, Scope* scope);
  absl::Status ChargeInlined(const onnx::NodeProto& node, const std::string& place);
  absl::Status ImportNode(const onnx::NodeProto& node, const std::string& place, Scope* scope);
  // InvalidArgument and Unimplemented errors of these are gathered; others end the import.
  absl::Status ImportCallOrOp(const onnx::NodeProto& node, const std::string& place, Scope* scope);
  absl::Status ImportOp(const onnx::NodeProto& node, const std::string& place, std::vector<Value*> inputs,
                        Scope* scope);
  absl::Status ImportCall(const onnx::NodeProto& node, const onnx::FunctionProto& function, std::vector<Value*> inputs,
                          Scope* scope);
  void AddUnsupported(const std::string& op, absl::string_view reason, const std::string& place);
  absl::Status AddWrong(std::string what);
  // Takes note of an input or initializer that cannot be imported.
  absl::Status AddFailure(const std::string& kind, const std::string& name, const absl::Status& status);

  std::unique_ptr<OnnxFile> file_;
  std::unique_ptr<Model> model_;
  Step* step_ = nullptr;
  Scope graph_;
  absl::flat_hash_map<std::string, Dim> symbols_;  // by dim_param
  std::optional<OnnxFunctions> functions_;
  std::vector<const onnx::FunctionProto*> calls_;  // being inlined
  int64_t num_nodes_ = 0, num_calls_ = 0;
  size_t inlined_bytes_ = 0, inlined_name_bytes_ = 0;
  OnnxReport report_;
  absl::flat_hash_map<std::pair<std::string, std::string>, size_t> unsupported_;  // by op and reason, into the report
};

absl::Status Importer::Run() {
  if (absl::Status s = ReadHeader(); !s.ok()) return s;
  const onnx::GraphProto& graph = file_->model().graph();
  if (absl::Status s = CheckName(graph.name(), "graph"); !s.ok()) return s;
  model_->name = SanitizedName(graph.name().empty() ? "model" : graph.name());
  model_->steps.push_back(std::make_unique<Step>());
  step_ = model_->steps.back().get();
  step_->name = "main";
  if (absl::Status s = AddInputs(); !s.ok()) return s;
  if (absl::Status s = AddInitializers(); !s.ok()) return s;
  if (absl::Status s = ImportNodes(graph.node(), &graph_); !s.ok()) return s;
  for (const onnx::ValueInfoProto& info : graph.value_info()) {
    if (absl::Status s = CheckDeclared(info, "value"); !s.ok()) return s;
  }
  return AddOutputs();
}

absl::Status Importer::ReadHeader() {
  const onnx::ModelProto& proto = file_->model();
  report_.ir_version = proto.ir_version();
  report_.producer =
      absl::StrCat(proto.producer_name(), proto.producer_version().empty() ? "" : " ", proto.producer_version());
  if (proto.ir_version() < kMinIrVersion || proto.ir_version() > kMaxIrVersion) {
    return absl::InvalidArgumentError(absl::StrCat("IR version ", proto.ir_version(), " is not supported; ",
                                                   kMinIrVersion, " to ", kMaxIrVersion, " are"));
  }
  auto opset = DefaultOpset(proto.opset_import());
  if (!opset.ok()) return opset.status();
  graph_.opset = report_.opset = *opset;
  for (const auto& sparse : proto.graph().sparse_initializer()) {
    const std::string& name = sparse.values().name();
    absl::Status s = AddFailure("initializer", name, absl::UnimplementedError("sparse tensors are not supported"));
    if (!s.ok()) return s;
  }
  auto functions = OnnxFunctions::Create(proto);
  if (!functions.ok()) return functions.status();
  functions_ = *std::move(functions);
  return absl::OkStatus();
}

absl::Status Importer::Define(Scope* scope, const std::string& name, Value* value) {
  if (name.empty()) return absl::InvalidArgumentError("a value has no name");
  if (scope->values.emplace(name, value).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("value ", Quoted(name), " is defined twice"));
}

absl::Status Importer::AddInitializers() {
  const onnx::GraphProto& graph = file_->model().graph();
  Builder builder(model_.get(), &step_->block);
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const std::string& name = graph.initializer(i).name();
    if (absl::Status s = CheckName(name, "initializer"); !s.ok()) return s;
    auto tensor = file_->Initializer(i);
    if (!tensor.ok()) {
      if (absl::Status s = AddFailure("initializer", name, tensor.status()); !s.ok()) return s;
      continue;
    }
    builder.set_loc(name);
    Value* value = AddOnnxConstant(&builder, *file_, name, *std::move(tensor));
    if (!builder.status().ok()) return builder.status();
    if (absl::Status s = Define(&graph_, name, value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

Dim Importer::InputDim(const onnx::TensorShapeProto::Dimension& dim, absl::string_view input, int axis) {
  if (dim.has_dim_value()) return Dim(dim.dim_value());
  // An unnamed dim is a symbol of its own.
  const std::string key = dim.dim_param().empty() ? absl::StrCat("\n", input, "\n", axis) : dim.dim_param();
  auto it = symbols_.find(key);
  if (it != symbols_.end()) return it->second;
  std::string stem = dim.dim_param().empty() ? absl::StrCat(input, "_dim", axis) : dim.dim_param();
  for (char& c : stem) c = absl::ascii_isalnum(c) ? c : '_';
  if (absl::ascii_isdigit(stem[0])) stem = absl::StrCat("d", stem);
  return symbols_.emplace(key, model_->FreshDim(stem, kDimBound)).first->second;
}

absl::StatusOr<TensorType> Importer::InputType(const onnx::ValueInfoProto& input) {
  if (!input.type().has_tensor_type()) return absl::UnimplementedError("only tensors are supported as inputs");
  const auto& proto = input.type().tensor_type();
  auto dtype = DTypeOfOnnx(proto.elem_type());
  if (!dtype.ok()) return dtype.status();
  if (!proto.has_shape()) {
    return absl::InvalidArgumentError("has no shape; export the model with shapes (dims may be symbols)");
  }
  if (proto.shape().dim_size() > kMaxOnnxRank) {
    return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxOnnxRank, " dims"));
  }
  TensorType type{*dtype, {}};
  for (int i = 0; i < proto.shape().dim_size(); ++i) {
    if (absl::Status s = CheckName(proto.shape().dim(i).dim_param(), "dim"); !s.ok()) return s;
    type.shape.push_back(InputDim(proto.shape().dim(i), input.name(), i));
  }
  if (absl::Status s = CheckSize(type); !s.ok()) return s;
  return type;
}

// An input that an initializer gives a default is that constant.
absl::Status Importer::AddInputs() {
  const onnx::GraphProto& graph = file_->model().graph();
  absl::flat_hash_set<absl::string_view> constants;
  for (const auto& initializer : graph.initializer()) constants.insert(initializer.name());
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (constants.contains(input.name())) continue;
    if (absl::Status s = CheckName(input.name(), "input"); !s.ok()) return s;
    auto type = InputType(input);
    if (!type.ok()) {
      if (absl::Status s = AddFailure("input", input.name(), type.status()); !s.ok()) return s;
      continue;
    }
    // Runs find inputs by their names, so they stay as they are.
    Value* value = model_->AddParam(step_, absl::StrCat("%", input.name()), *std::move(type));
    if (absl::Status s = Define(&graph_, input.name(), value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Importer::AddOutputs() {
  const onnx::GraphProto& graph = file_->model().graph();
  if (graph.output_size() == 0) return absl::InvalidArgumentError("the graph has no outputs");
  absl::flat_hash_set<std::string> seen;
  for (const onnx::ValueInfoProto& output : graph.output()) {
    auto it = graph_.values.find(output.name());
    const bool made = it != graph_.values.end(), listed = !seen.insert(output.name()).second;
    if (!made || listed) {
      const absl::string_view why = made ? " is listed twice" : " is not made by any node";
      if (absl::Status s = AddWrong(absl::StrCat("output ", Quoted(output.name()), why)); !s.ok()) return s;
      continue;
    }
    if (it->second == nullptr) continue;
    if (absl::Status s = CheckDeclared(output, "output"); !s.ok()) return s;
    step_->outputs.push_back({output.name(), it->second});
  }
  return absl::OkStatus();
}

absl::Status Importer::CheckDeclared(const onnx::ValueInfoProto& declared, absl::string_view what) {
  auto it = graph_.values.find(declared.name());
  if (it == graph_.values.end() || it->second == nullptr) return absl::OkStatus();
  const std::string wrong = Contradiction(declared, it->second->type);
  if (wrong.empty()) return absl::OkStatus();
  return AddWrong(absl::StrCat(what, " ", Quoted(declared.name()), " ", wrong));
}

// ---- what cannot be imported -------------------------------------------------------

void Importer::AddUnsupported(const std::string& op, absl::string_view reason, const std::string& place) {
  auto [it, added] = unsupported_.try_emplace({op, std::string(reason)}, report_.unsupported.size());
  if (added) report_.unsupported.push_back({.op = op, .reason = std::string(reason)});
  report_.unsupported[it->second].places.push_back(place);
}

absl::Status Importer::AddWrong(std::string what) {
  report_.wrong.push_back(std::move(what));
  if (report_.wrong.size() < kMaxWrong) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wrong in ", kMaxWrong, " places or more:\n  ", absl::StrJoin(report_.wrong, "\n  ")));
}

absl::Status Importer::AddFailure(const std::string& kind, const std::string& name, const absl::Status& status) {
  graph_.values.try_emplace(name, nullptr);
  const std::string what = absl::StrCat(kind, " ", Quoted(name), ": ", status.message());
  if (absl::IsInvalidArgument(status)) return AddWrong(what);
  if (!absl::IsUnimplemented(status)) return absl::Status(status.code(), what);  // A file that is not there.
  AddUnsupported(kind, status.message(), name);
  return absl::OkStatus();
}

// ---- nodes --------------------------------------------------------------------

// A name that is used before it is made, or never made.
std::string UndefinedText(const Nodes& nodes, const std::string& name, const std::string& place) {
  for (const onnx::NodeProto& node : nodes) {
    if (std::find(node.output().begin(), node.output().end(), name) != node.output().end()) {
      return absl::StrCat("node ", Quoted(place), " uses ", Quoted(name), " before a later node (", node.op_type(), " ",
                          Quoted(node.name()), ") makes it; nodes must be in topological order, without cycles");
    }
  }
  return absl::StrCat("node ", Quoted(place), " uses ", Quoted(name), ", which nothing defines");
}

absl::Status Importer::ChargeInlined(const onnx::NodeProto& node, const std::string& place) {
  inlined_bytes_ += node.ByteSizeLong();
  inlined_name_bytes_ += place.size();
  for (const std::string& name : node.output()) inlined_name_bytes_ += name.size();
  if (inlined_bytes_ <= kMaxInlinedBytes && inlined_name_bytes_ <= kMaxInlinedNameBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("node ", Quoted(place), ": calls of functions add up to more than ",
                                                   kMaxInlinedBytes >> 20, " MiB of nodes, or ",
                                                   kMaxInlinedNameBytes >> 20, " MiB of names"));
}

absl::Status Importer::ImportNodes(const Nodes& nodes, Scope* scope) {
  for (int i = 0; i < nodes.size(); ++i) {
    const onnx::NodeProto& node = nodes[i];
    if (++num_nodes_ > kMaxNodes) return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxNodes, " nodes"));
    if (absl::Status s = CheckNames(node); !s.ok()) return s;
    const std::string place =
        absl::StrCat(scope->prefix, node.name().empty() ? absl::StrCat(node.op_type(), "#", i) : node.name());
    if (scope->depth > 0) {
      if (absl::Status s = ChargeInlined(node, place); !s.ok()) return s;
    }
    auto undefined = std::find_if(node.input().begin(), node.input().end(), [&](const std::string& name) {
      return !name.empty() && !scope->values.contains(name);
    });
    absl::Status s = undefined == node.input().end() ? ImportNode(node, place, scope)
                                                     : AddWrong(UndefinedText(nodes, *undefined, place));
    if (!s.ok()) return s;
    // What it did not make is not known, but defined.
    for (const std::string& name : node.output()) {
      if (!name.empty()) scope->values.try_emplace(name, nullptr);
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::ImportNode(const onnx::NodeProto& node, const std::string& place, Scope* scope) {
  ++report_.nodes[OpName(node)];
  absl::Status s = ImportCallOrOp(node, place, scope);
  if (absl::IsUnimplemented(s)) {
    AddUnsupported(OpName(node), s.message(), place);
    return absl::OkStatus();
  }
  if (s.ok()) return s;
  const std::string what = absl::StrCat("node ", Quoted(place), " (", OpName(node), "): ", s.message());
  return absl::IsInvalidArgument(s) ? AddWrong(what) : absl::Status(s.code(), what);
}

absl::Status Importer::ImportCallOrOp(const onnx::NodeProto& node, const std::string& place, Scope* scope) {
  std::vector<Value*> inputs;
  bool missing = false;
  for (const std::string& name : node.input()) {
    Value* value = name.empty() ? nullptr : scope->values[name];
    missing |= !name.empty() && value == nullptr;
    inputs.push_back(value);
  }
  // A model's function goes before an op of that name, as the format says.
  if (const onnx::FunctionProto* function = functions_->Find(node); function != nullptr) {
    return ImportCall(node, *function, std::move(inputs), scope);
  }
  if (!IsDefaultDomain(node.domain())) return absl::UnimplementedError("ops of this domain are not supported");
  const OnnxOp* op = FindOnnxOp(node.op_type());
  if (op == nullptr) return absl::UnimplementedError("this op is not supported");
  if (scope->opset < op->since) {
    return absl::UnimplementedError(absl::StrCat("opset ", scope->opset, " has no such op"));
  }
  if (missing) return absl::OkStatus();  // Nothing can be said of it.
  return ImportOp(node, place, std::move(inputs), scope);
}

absl::Status Importer::ImportOp(const onnx::NodeProto& node, const std::string& place, std::vector<Value*> inputs,
                                Scope* scope) {
  const OnnxOp& op = *FindOnnxOp(node.op_type());
  const int given = static_cast<int>(inputs.size());
  if (given < op.min_inputs || (op.max_inputs >= 0 && given > op.max_inputs)) {
    return absl::InvalidArgumentError(absl::StrCat("has ", given, " inputs"));
  }
  for (int i = 0; i < op.min_inputs; ++i) {
    if (inputs[static_cast<size_t>(i)] == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("input ", i, " is missing"));
    }
  }
  if (node.output_size() == 0) return absl::InvalidArgumentError("has no outputs");
  OnnxNode n(node, scope->opset, std::move(inputs), scope->attributes, file_.get(), model_.get(), &step_->block,
             scope->prefix, place);
  if (n.ok()) op.import(n);
  if (!n.ok()) return n.status();
  if (absl::Status s = n.CheckAttrsRead(); !s.ok()) return s;
  for (int i = 0; i < node.output_size(); ++i) {
    if (n.wants(i) && n.outputs()[static_cast<size_t>(i)] == nullptr) {
      return absl::UnimplementedError(absl::StrCat("output ", i, " is not supported"));
    }
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (!n.wants(i)) continue;
    Value* value = n.outputs()[static_cast<size_t>(i)];
    if (absl::Status s = CheckSize(value->type); !s.ok()) return s;
    if (absl::Status s = Define(scope, node.output(i), value); !s.ok()) return s;
    if (n.Made(value)) {
      model_->Rename(value, absl::StrCat("%", SanitizedName(absl::StrCat(scope->prefix, node.output(i)))));
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::ImportCall(const onnx::NodeProto& node, const onnx::FunctionProto& function,
                                  std::vector<Value*> inputs, Scope* scope) {
  if (scope->depth >= kMaxFunctionDepth || std::find(calls_.begin(), calls_.end(), &function) != calls_.end()) {
    return absl::InvalidArgumentError("calls of functions are recursive or nested too deeply");
  }
  if (node.input_size() > function.input_size() || node.output_size() > function.output_size() ||
      node.output_size() == 0) {
    return absl::InvalidArgumentError("the call has more inputs or outputs than the function, or no outputs");
  }
  auto opset = DefaultOpset(function.opset_import());
  if (!opset.ok() && function.opset_import_size() > 0) return opset.status();
  auto attributes = functions_->AttributesOf(function, node, scope->attributes);
  if (!attributes.ok()) return attributes.status();
  // Short, however deep the calls are.
  Scope body{.prefix = absl::StrCat(function.name().substr(0, 32), ".", ++num_calls_, "/"),
             .opset = opset.ok() ? *opset : scope->opset,
             .depth = scope->depth + 1,
             .attributes = &*attributes};
  for (int i = 0; i < function.input_size(); ++i) {
    Value* value = i < node.input_size() ? inputs[static_cast<size_t>(i)] : nullptr;
    if (value == nullptr && (i >= node.input_size() || node.input(i).empty())) {
      return absl::UnimplementedError(absl::StrCat("a call without input ", i, " is not supported"));
    }
    if (absl::Status named = CheckName(function.input(i), "function input"); !named.ok()) return named;
    if (absl::Status s = Define(&body, function.input(i), value); !s.ok()) return s;
  }
  calls_.push_back(&function);
  absl::Status s = ImportNodes(function.node(), &body);
  calls_.pop_back();
  if (!s.ok()) return s;
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    auto it = body.values.find(function.output(i));
    if (it == body.values.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output ", Quoted(function.output(i)), " is not made by any node"));
    }
    if (s = Define(scope, node.output(i), it->second); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// All that keeps the model from being imported.
absl::Status ReportError(const OnnxReport& report) {
  std::string text;
  if (report.wrong.size() == 1) text = report.wrong[0];
  if (report.wrong.size() > 1) {
    text = absl::StrCat("wrong in ", report.wrong.size(), " places:\n  ", absl::StrJoin(report.wrong, "\n  "));
  }
  if (!report.unsupported.empty()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", "the model has parts that are not supported:");
  }
  for (const OnnxUnsupported& item : report.unsupported) {
    absl::StrAppend(&text, "\n  ", item.op, ": ", item.reason, " (", SomePlaces(item, kShownPlaces), ")");
  }
  if (!report.wrong.empty()) return absl::InvalidArgumentError(text);
  return report.unsupported.empty() ? absl::OkStatus() : absl::UnimplementedError(text);
}

absl::StatusOr<std::unique_ptr<Importer>> RunImporter(const std::string& path, MappedFile bytes) {
  auto file = OnnxFile::Open(path, std::move(bytes));
  if (!file.ok()) return file.status();
  auto importer = std::make_unique<Importer>(*std::move(file));
  if (absl::Status s = importer->Run(); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(path, ": ", s.message()));
  }
  return importer;
}

}  // namespace

std::string SomePlaces(const OnnxUnsupported& item, size_t limit) {
  const auto end = item.places.begin() + static_cast<int64_t>(std::min(item.places.size(), limit));
  return absl::StrCat(item.places.size(),
                      item.places.size() == 1 ? " place: " : " places: ", absl::StrJoin(item.places.begin(), end, ", "),
                      end == item.places.end() ? "" : ", …");
}

absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path) {
  auto bytes = MapFile(path);
  if (!bytes.ok()) return bytes.status();
  return ImportOnnx(path, *std::move(bytes));
}

absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path, MappedFile bytes) {
  auto importer = RunImporter(path, std::move(bytes));
  if (!importer.ok()) return importer.status();
  absl::Status status = ReportError((*importer)->report());
  std::unique_ptr<Model> model = (*importer)->TakeModel();
  if (status.ok()) status = Verify(*model, Phase::kImported);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  return model;
}

absl::StatusOr<std::vector<std::string>> OnnxExternalFiles(const std::string& path) {
  absl::StatusOr<std::unique_ptr<OnnxFile>> file = OnnxFile::Open(path);
  if (!file.ok()) return file.status();
  std::set<std::string> files;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const onnx::TensorProto& tensor : (*file)->model().graph().initializer()) {
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "location") files.insert((folder / entry.value()).string());
    }
  }
  return std::vector<std::string>(files.begin(), files.end());
}

absl::StatusOr<OnnxReport> CheckOnnx(const std::string& path) {
  auto bytes = MapFile(path);
  if (!bytes.ok()) return bytes.status();
  auto importer = RunImporter(path, *std::move(bytes));
  if (!importer.ok()) return importer.status();
  return std::move((*importer)->report());
}

}  // namespace llmc
