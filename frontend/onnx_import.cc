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
constexpr int kMaxRank = 16;
constexpr int kMaxFunctionDepth = 32;
constexpr int64_t kMaxNodes = 1'000'000;  // after inlining of functions
constexpr size_t kMaxListedNodes = 3;

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

// The names that nodes of one graph or function body see.
struct Scope {
  std::string prefix;  // of names of values and places
  int opset = 0;
  int depth = 0;
  const OnnxAttributes* attributes = nullptr;  // of the call of a function
  // nullptr: what an unsupported node would have made.
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
  absl::Status Define(Scope* scope, const std::string& name, Value* value);
  absl::Status ImportNodes(const Nodes& nodes, Scope* scope);
  absl::Status ImportNode(const onnx::NodeProto& node, const std::string& place, Scope* scope);
  absl::Status ImportOp(const onnx::NodeProto& node, const std::string& place, std::vector<Value*> inputs,
                        Scope* scope);
  absl::Status ImportCall(const onnx::NodeProto& node, const onnx::FunctionProto& function, std::vector<Value*> inputs,
                          Scope* scope);
  absl::Status Unsupported(const onnx::NodeProto& node, const std::string& place, absl::string_view reason,
                           Scope* scope);

  std::unique_ptr<OnnxFile> file_;
  std::unique_ptr<Model> model_;
  Step* step_ = nullptr;
  Scope graph_;
  absl::flat_hash_map<std::string, Dim> symbols_;  // by dim_param
  std::optional<OnnxFunctions> functions_;
  std::vector<const onnx::FunctionProto*> calls_;  // being inlined
  int64_t num_nodes_ = 0;
  OnnxReport report_;
};

absl::Status Importer::Run() {
  if (absl::Status s = ReadHeader(); !s.ok()) return s;
  const onnx::GraphProto& graph = file_->model().graph();
  model_->name = SanitizedName(graph.name().empty() ? "model" : graph.name());
  model_->steps.push_back(std::make_unique<Step>());
  step_ = model_->steps.back().get();
  step_->name = "main";
  if (absl::Status s = AddInputs(); !s.ok()) return s;
  if (absl::Status s = AddInitializers(); !s.ok()) return s;
  if (absl::Status s = ImportNodes(graph.node(), &graph_); !s.ok()) return s;
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
  if (proto.graph().sparse_initializer_size() > 0) {
    return absl::UnimplementedError("sparse initializers are not supported");
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
    auto fail = [&](const absl::Status& s) {
      return absl::Status(s.code(), absl::StrCat("initializer ", Quoted(name), ": ", s.message()));
    };
    auto tensor = file_->Initializer(i);
    if (!tensor.ok()) return fail(tensor.status());
    builder.set_loc(name);
    Value* value = AddOnnxConstant(&builder, *file_, name, *std::move(tensor));
    if (!builder.status().ok()) return fail(builder.status());
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
  if (proto.shape().dim_size() > kMaxRank) return absl::InvalidArgumentError("has more than 16 dims");
  TensorType type{*dtype, {}};
  for (int i = 0; i < proto.shape().dim_size(); ++i) {
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
    auto type = InputType(input);
    if (!type.ok()) {
      return absl::Status(type.status().code(),
                          absl::StrCat("input ", Quoted(input.name()), ": ", type.status().message()));
    }
    Value* value = model_->AddParam(step_, absl::StrCat("%", SanitizedName(input.name())), *std::move(type));
    if (absl::Status s = Define(&graph_, input.name(), value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Importer::AddOutputs() {
  const onnx::GraphProto& graph = file_->model().graph();
  if (graph.output_size() == 0) return absl::InvalidArgumentError("the graph has no outputs");
  absl::flat_hash_set<std::string> seen;
  for (const onnx::ValueInfoProto& output : graph.output()) {
    auto fail = [&](absl::string_view why) {
      return absl::InvalidArgumentError(absl::StrCat("output ", Quoted(output.name()), " ", why));
    };
    auto it = graph_.values.find(output.name());
    if (it == graph_.values.end()) return fail("is not made by any node");
    if (!seen.insert(output.name()).second) return fail("is listed twice");
    if (it->second == nullptr) continue;  // Made by an unsupported node.
    if (output.type().has_tensor_type()) {
      auto dtype = DTypeOfOnnx(output.type().tensor_type().elem_type());
      if (dtype.ok() && *dtype != it->second->type.dtype) {
        return fail(absl::StrCat("is declared ", DTypeName(*dtype), " but made as ", it->second->type.ToString()));
      }
    }
    step_->outputs.push_back({output.name(), it->second});
  }
  return absl::OkStatus();
}

// ---- nodes --------------------------------------------------------------------

// A name that is used before it is made, or never made.
absl::Status Undefined(const Nodes& nodes, const std::string& name, const std::string& place) {
  for (const onnx::NodeProto& node : nodes) {
    if (std::find(node.output().begin(), node.output().end(), name) != node.output().end()) {
      return absl::InvalidArgumentError(absl::StrCat("node ", Quoted(place), " uses ", Quoted(name),
                                                     " before a later node (", node.op_type(), " ", Quoted(node.name()),
                                                     ") makes it; nodes must be in topological order, without cycles"));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("node ", Quoted(place), " uses ", Quoted(name), ", which nothing defines"));
}

absl::Status Importer::ImportNodes(const Nodes& nodes, Scope* scope) {
  for (int i = 0; i < nodes.size(); ++i) {
    const onnx::NodeProto& node = nodes[i];
    if (++num_nodes_ > kMaxNodes) return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxNodes, " nodes"));
    const std::string place =
        absl::StrCat(scope->prefix, node.name().empty() ? absl::StrCat(node.op_type(), "#", i) : node.name());
    for (const std::string& name : node.input()) {
      if (!name.empty() && !scope->values.contains(name)) return Undefined(nodes, name, place);
    }
    if (absl::Status s = ImportNode(node, place, scope); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Importer::ImportNode(const onnx::NodeProto& node, const std::string& place, Scope* scope) {
  ++report_.nodes[OpName(node)];
  std::vector<Value*> inputs;
  bool missing = false;
  for (const std::string& name : node.input()) {
    Value* value = name.empty() ? nullptr : scope->values[name];
    missing |= !name.empty() && value == nullptr;
    inputs.push_back(value);
  }
  // A model's function goes before an op of that name, as the format says.
  if (const onnx::FunctionProto* function = functions_->Find(node.domain(), node.op_type()); function != nullptr) {
    if (absl::Status s = ImportCall(node, *function, std::move(inputs), scope); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("in function ", OpName(node), ": ", s.message()));
    }
    return absl::OkStatus();
  }
  if (!IsDefaultDomain(node.domain())) return Unsupported(node, place, "ops of this domain are not supported", scope);
  const OnnxOp* op = FindOnnxOp(node.op_type());
  if (op == nullptr) return Unsupported(node, place, "this op is not supported", scope);
  if (scope->opset < op->since) {
    return Unsupported(node, place, absl::StrCat("opset ", scope->opset, " has no such op"), scope);
  }
  if (missing) return Unsupported(node, place, "", scope);
  absl::Status s = ImportOp(node, place, std::move(inputs), scope);
  if (absl::IsUnimplemented(s)) return Unsupported(node, place, s.message(), scope);
  if (!s.ok()) {
    return absl::Status(s.code(), absl::StrCat("node ", Quoted(place), " (", node.op_type(), "): ", s.message()));
  }
  return s;
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
  Scope body{.prefix = absl::StrCat(scope->prefix, node.output(0), "/"),
             .opset = opset.ok() ? *opset : scope->opset,
             .depth = scope->depth + 1,
             .attributes = &*attributes};
  for (int i = 0; i < function.input_size(); ++i) {
    Value* value = i < node.input_size() ? inputs[static_cast<size_t>(i)] : nullptr;
    if (value == nullptr && (i >= node.input_size() || node.input(i).empty())) {
      return absl::UnimplementedError(absl::StrCat("a call without input ", i, " is not supported"));
    }
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

// Takes note, and goes on with outputs that nothing can be known of. No reason: an input is of that kind.
absl::Status Importer::Unsupported(const onnx::NodeProto& node, const std::string& place, absl::string_view reason,
                                   Scope* scope) {
  if (!reason.empty()) {
    const std::string op = OpName(node);
    auto it = std::find_if(report_.unsupported.begin(), report_.unsupported.end(),
                           [&](const OnnxUnsupported& item) { return item.op == op && item.reason == reason; });
    if (it == report_.unsupported.end()) {
      it = report_.unsupported.insert(it, OnnxUnsupported{.op = op, .reason = std::string(reason)});
    }
    ++it->count;
    if (it->nodes.size() < kMaxListedNodes) it->nodes.push_back(place);
  }
  for (const std::string& name : node.output()) {
    if (name.empty()) continue;
    if (absl::Status s = Define(scope, name, nullptr); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat("node ", Quoted(place), ": ", s.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status UnsupportedError(const std::vector<OnnxUnsupported>& items) {
  std::string text = "the model has nodes that are not supported:";
  for (const OnnxUnsupported& item : items) {
    absl::StrAppend(&text, "\n  ", item.op, ": ", item.reason, " (", item.count,
                    item.count == 1 ? " node: " : " nodes: ", absl::StrJoin(item.nodes, ", "),
                    item.count > static_cast<int64_t>(item.nodes.size()) ? ", …)" : ")");
  }
  return absl::UnimplementedError(text);
}

absl::StatusOr<std::unique_ptr<Importer>> RunImporter(const std::string& path) {
  auto file = OnnxFile::Open(path);
  if (!file.ok()) return file.status();
  auto importer = std::make_unique<Importer>(*std::move(file));
  if (absl::Status s = importer->Run(); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat(path, ": ", s.message()));
  }
  return importer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path) {
  auto importer = RunImporter(path);
  if (!importer.ok()) return importer.status();
  absl::Status status;
  if (const auto& unsupported = (*importer)->report().unsupported; !unsupported.empty()) {
    status = UnsupportedError(unsupported);
  }
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
  auto importer = RunImporter(path);
  if (!importer.ok()) return importer.status();
  return std::move((*importer)->report());
}

}  // namespace llmc
