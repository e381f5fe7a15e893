// Walks an ONNX graph and makes a model of it.
#include "frontend/onnx/import.h"

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
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/import.h"
#include "frontend/onnx/checks.h"
#include "frontend/onnx/importer.h"
#include "frontend/onnx/ops.h"
#include "frontend/onnx/remedies.h"
#include "ir/verify.h"

namespace llmc {
namespace {

constexpr int64_t kMinIrVersion = 3, kMaxIrVersion = 14;
constexpr int64_t kDimBound = int64_t{1} << 20;
constexpr size_t kMaxWrong = 100;  // then the import stops
constexpr size_t kMaxWarnings = 1000;
constexpr size_t kShownPlaces = 3;  // in an error; reports hold all

// Whether --set fixes the choice of such a decoder to the body that takes a cache.
bool TakesCache(const ImportOptions& options) {
  const auto fixed = options.inputs.find("use_cache_branch");
  if (fixed == options.inputs.end()) return false;
  if (fixed->second.tensor.has_value()) {
    return fixed->second.tensor->size() == 1 && fixed->second.tensor->ToDoubles()[0] != 0;
  }
  return fixed->second.text == "1" || fixed->second.text == "true";
}

// "?", "*" and "-1" are no names: each stands for a size of its own.
bool IsNamed(const onnx::TensorShapeProto::Dimension& dim) {
  const std::string& name = dim.dim_param();
  return name[0] != '-' && std::any_of(name.begin(), name.end(), [](char c) { return absl::ascii_isalnum(c); });
}

// The input of optimum's merged decoders that chooses between a body that takes a cache and one that takes none.
bool ChoosesCache(const onnx::ValueInfoProto& input, const onnx::GraphProto& graph) {
  if (input.name() != "use_cache_branch" || input.type().tensor_type().elem_type() != onnx::TensorProto::BOOL) {
    return false;
  }
  bool is_condition = false;
  for (const onnx::NodeProto& node : graph.node()) {
    const auto uses = std::count(node.input().begin(), node.input().end(), input.name());
    if (uses > 0 && node.op_type() != "If") return false;
    is_condition = is_condition || uses > 0;
  }
  return is_condition;
}

}  // namespace

absl::Status OnnxImporter::Run() {
  if (absl::Status s = ReadHeader(); !s.ok()) return s;
  const onnx::GraphProto& graph = file_->model().graph();
  if (absl::Status s = CheckName(graph.name(), "graph"); !s.ok()) return s;
  model_->name = SanitizedName(graph.name().empty() ? "model" : graph.name());
  model_->steps.push_back(std::make_unique<Step>());
  step_ = model_->steps.back().get();
  step_->name = "main";
  FindDimsOfFirstStep();
  if (absl::Status s = FixInputs(); !s.ok()) return s;
  if (absl::Status s = AddInputs(); !s.ok()) return s;
  if (absl::Status s = AddInitializers(); !s.ok()) return s;
  for (const onnx::ValueInfoProto& output : graph.output()) {
    if (!output.type().tensor_type().has_shape()) continue;
    output_shapes_.emplace(output.name(), &output.type().tensor_type().shape());
  }
  if (absl::Status s = ImportNodes(graph.node(), &graph_); !s.ok()) return s;
  for (const onnx::ValueInfoProto& info : graph.value_info()) {
    if (absl::Status s = CheckDeclared(info, "value"); !s.ok()) return s;
  }
  if (absl::Status s = AddOutputs(); !s.ok()) return s;
  AddLooseEnds();
  return absl::OkStatus();
}

absl::Status OnnxImporter::ReadHeader() {
  const onnx::ModelProto& proto = file_->model();
  report_.ir_version = proto.ir_version();
  report_.producer =
      absl::StrCat(proto.producer_name(), proto.producer_version().empty() ? "" : " ", proto.producer_version());
  if (reports_) Describe();
  if (proto.ir_version() < kMinIrVersion || proto.ir_version() > kMaxIrVersion) {
    absl::Status s = absl::InvalidArgumentError(absl::StrCat("IR version ", proto.ir_version(), " is not supported; ",
                                                             kMinIrVersion, " to ", kMaxIrVersion, " are"));
    if (s = TakeVersion("IR version", s); !s.ok()) return s;
  }
  auto opset = DefaultOpset(proto.opset_import());
  if (absl::Status s = TakeVersion("opset", opset.status()); !s.ok()) return s;
  graph_.opset = report_.opset = opset.ok() ? *opset : NearestOpset(proto.opset_import());
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

absl::Status OnnxImporter::Define(OnnxScope* scope, const std::string& name, Value* value) {
  if (name.empty()) return absl::InvalidArgumentError("a value has no name");
  if (scope->values.emplace(name, value).second) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("value ", Quoted(name), " is defined twice"));
}

absl::Status OnnxImporter::AddInitializers() {
  const onnx::GraphProto& graph = file_->model().graph();
  Builder builder(model_.get(), &step_->block);
  for (int i = 0; i < graph.initializer_size(); ++i) {
    const std::string& name = graph.initializer(i).name();
    if (absl::Status s = CheckName(name, "initializer"); !s.ok()) return s;
    if (fixed_.contains(name)) continue;  // it was only a default
    auto tensor = file_->Initializer(i);
    if (!tensor.ok()) {
      if (absl::Status s = AddFailure("initializer", name, tensor.status()); !s.ok()) return s;
      if (reports_) AddStandIn(graph.initializer(i));
      continue;
    }
    builder.set_loc(name);
    Value* value = AddOnnxConstant(&builder, *file_, name, *std::move(tensor));
    if (!builder.status().ok()) return builder.status();
    if (graph.initializer(i).data_type() == onnx::TensorProto::UINT16) u16_.insert(value);
    if (absl::Status s = Define(&graph_, name, value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

Dim OnnxImporter::InputDim(const onnx::TensorShapeProto::Dimension& dim, absl::string_view input, int axis) {
  if (dim.has_dim_value() && dim.dim_value() >= 0) return Dim(dim.dim_value());
  // An unnamed dim is a symbol of its own; so is one of a negative number, by which some exporters mean the same.
  const bool is_named = IsNamed(dim), is_own = absl::StartsWith(input, "past") && empty_.contains(dim.dim_param());
  const std::string key = is_own     ? absl::StrCat("\npast\n", dim.dim_param())
                          : is_named ? dim.dim_param()
                                     : absl::StrCat("\n", input, "\n", axis);
  auto it = symbols_.find(key);
  if (it != symbols_.end()) return it->second;
  std::string stem = is_own     ? absl::StrCat("past_", dim.dim_param())
                     : is_named ? dim.dim_param()
                                : absl::StrCat(input, "_dim", axis);
  for (char& c : stem) c = absl::ascii_isalnum(c) ? c : '_';
  if (absl::ascii_isdigit(stem[0])) stem = absl::StrCat("d", stem);
  return symbols_.emplace(key, model_->FreshDim(stem, kDimBound)).first->second;
}

// A merged encoder-decoder declares caches of what the encoder gave as long as that, but in its first step, which takes
// no cache, they may be empty.
void OnnxImporter::FindDimsOfFirstStep() {
  const onnx::GraphProto& graph = file_->model().graph();
  const auto chooses = [&](const onnx::ValueInfoProto& input) { return ChoosesCache(input, graph); };
  if (std::none_of(graph.input().begin(), graph.input().end(), chooses) || TakesCache(options_)) return;
  absl::flat_hash_set<std::string> other;
  for (const onnx::ValueInfoProto& input : graph.input()) {
    const auto& shape = input.type().tensor_type().shape();
    for (int axis = 1; axis < shape.dim_size(); ++axis) {
      const std::string& name = shape.dim(axis).dim_param();
      if (!name.empty()) (absl::StartsWith(input.name(), "past") ? empty_ : other).insert(name);
    }
  }
  absl::erase_if(empty_, [&](const std::string& name) { return !other.contains(name); });
}

absl::StatusOr<TensorType> OnnxImporter::InputType(const onnx::ValueInfoProto& input) {
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
    const int64_t size = proto.shape().dim(i).dim_value();
    if (size < 0) {
      AddWarning(absl::StrCat("input ", Quoted(input.name()), " declares ", size, " as dim ", i,
                              "; it is taken for a dim of any size"));
    }
    type.shape.push_back(InputDim(proto.shape().dim(i), input.name(), i));
  }
  if (absl::Status s = CheckSize(type); !s.ok()) return s;
  return type;
}

// An input that an initializer gives a default is that constant; what chooses the body of a merged decoder must be
// fixed by then.
absl::Status OnnxImporter::AddInputs() {
  const onnx::GraphProto& graph = file_->model().graph();
  absl::flat_hash_set<absl::string_view> constants;
  for (const auto& initializer : graph.initializer()) constants.insert(initializer.name());
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (auto fixed = fixed_.find(input.name()); fixed != fixed_.end()) {
      if (absl::Status s = AddFixed(input.name(), fixed->second); !s.ok()) return s;
      continue;
    }
    if (constants.contains(input.name())) continue;
    if (absl::Status s = CheckName(input.name(), "input"); !s.ok()) return s;
    auto type = InputType(input);
    if (!type.ok()) {
      if (absl::Status s = AddFailure("input", input.name(), type.status()); !s.ok()) return s;
      continue;
    }
    if (ChoosesCache(input, graph)) {
      AddUnsupported("input", "use_cache_branch chooses between two bodies, for which there is no one program",
                     input.name());
      graph_.values.try_emplace(input.name(), nullptr);
      continue;
    }
    // Runs find inputs by their names, so they stay as they are.
    Value* value = model_->AddParam(step_, absl::StrCat("%", input.name()), *std::move(type));
    if (absl::Status s = Define(&graph_, input.name(), value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::AddFixed(const std::string& name, Tensor contents) {
  Builder builder(model_.get(), &step_->block);
  builder.set_loc(name);
  Value* value = AddOnnxConstant(&builder, *file_, name, std::move(contents));
  if (!builder.status().ok()) return builder.status();
  return Define(&graph_, name, value);
}

void OnnxImporter::DeclareOutputs(const onnx::NodeProto& node, OnnxNode* n) {
  for (int i = 0; i < node.output_size(); ++i) {
    const auto shape = output_shapes_.find(node.output(i));
    if (shape == output_shapes_.end()) continue;
    Dims dims;
    for (const auto& dim : shape->second->dim()) {
      if (dim.has_dim_value() && dim.dim_value() >= 0) {
        dims.emplace_back(dim.dim_value());
      } else if (!IsNamed(dim)) {
        dims.push_back(Dim::Unknown());
      } else {
        const auto symbol = symbols_.find(dim.dim_param());
        dims.push_back(symbol == symbols_.end() ? Dim::Symbol(dim.dim_param()) : symbol->second);
      }
    }
    n->Declare(i, std::move(dims));
  }
}

absl::Status OnnxImporter::AddOutputs() {
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
  RemoveRetyped();
  return absl::OkStatus();
}

// Packed constants that ops read under another type only (OnnxNode::Retyped): a source names one tensor.
void OnnxImporter::RemoveRetyped() {
  absl::flat_hash_set<absl::string_view> sources;
  bool twice = false;
  for (const Value* weight : model_->weights) twice |= !sources.insert(weight->source).second;
  if (twice) model_->RemoveUnusedWeights();
}

absl::Status OnnxImporter::CheckDeclared(const onnx::ValueInfoProto& declared, absl::string_view what) {
  auto it = graph_.values.find(declared.name());
  if (it == graph_.values.end() || it->second == nullptr || stand_ins_.contains(it->second)) return absl::OkStatus();
  const std::string name = absl::StrCat(what, " ", Quoted(declared.name()), " ");
  const TensorType& made = it->second->type;
  if (declared.type().tensor_type().elem_type() == onnx::TensorProto::UINT16 && u16_.contains(it->second)) {
    // An output would have another type than its file says.
    if (what == "output") AddUnsupported("output", "element type UINT16 is not supported", declared.name());
  } else if (const std::string wrong = ContradictedType(declared, made); !wrong.empty()) {
    return AddWrong(name + wrong);
  }
  if (const std::string wrong = ContradictedShape(declared, made); !wrong.empty()) AddWarning(name + wrong);
  return absl::OkStatus();
}

// ---- what cannot be imported -------------------------------------------------------

void OnnxImporter::AddUnsupported(const std::string& op, absl::string_view reason, const std::string& place) {
  auto [it, added] = unsupported_.try_emplace({op, std::string(reason)}, report_.unsupported.size());
  if (added) report_.unsupported.push_back({.op = op, .reason = std::string(reason)});
  report_.unsupported[it->second].places.push_back(place);
}

absl::flat_hash_map<std::string, Dim> OnnxImporter::LearnedDims() const {
  absl::flat_hash_map<std::string, Dim> dims;
  for (const auto& [key, dim] : symbols_) {
    const auto size = dim.is_symbol() ? learned_.find(dim.ToString()) : learned_.end();
    if (size != learned_.end()) dims.emplace(key, Dim(size->second));
  }
  return dims;
}

absl::Status OnnxImporter::AddWrong(std::string what) {
  report_.wrong.push_back(std::move(what));
  if (report_.wrong.size() < kMaxWrong) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wrong in ", kMaxWrong, " places or more:\n  ", absl::StrJoin(report_.wrong, "\n  ")));
}

void OnnxImporter::AddWarning(const std::string& what) {
  std::vector<std::string>& list = report_.warnings;
  if (list.size() < kMaxWarnings && std::find(list.begin(), list.end(), what) == list.end()) list.push_back(what);
}

absl::Status OnnxImporter::AddFailure(const std::string& kind, const std::string& name, const absl::Status& status) {
  graph_.values.try_emplace(name, nullptr);
  const std::string what = absl::StrCat(kind, " ", Quoted(name), ": ", status.message());
  if (absl::IsInvalidArgument(status)) return AddWrong(what);
  if (reports_ && absl::IsNotFound(status)) return AddMissing(what, status);
  if (!absl::IsUnimplemented(status)) return absl::Status(status.code(), what);  // A file that is not there.
  AddUnsupported(kind, status.message(), name);
  return absl::OkStatus();
}

namespace {

// One line for each thing to do, with the operators that it is for where there are several.
std::string Remedies(const std::vector<OnnxUnsupported>& items) {
  std::vector<std::pair<std::string, std::set<std::string>>> ops_of;
  for (const OnnxUnsupported& item : items) {
    const std::string remedy = OnnxRemedy(item.op, item.reason);
    auto at = std::find_if(ops_of.begin(), ops_of.end(), [&](const auto& entry) { return entry.first == remedy; });
    if (at == ops_of.end()) at = ops_of.insert(at, {remedy, {}});
    at->second.insert(item.op);
  }
  std::string text;
  for (const auto& [remedy, ops] : ops_of) {
    absl::StrAppend(&text, "\nremedy");
    if (ops_of.size() > 1) absl::StrAppend(&text, " for ", absl::StrJoin(ops, ", "));
    absl::StrAppend(&text, ": ", remedy);
  }
  return text;
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
  absl::StrAppend(&text, Remedies(report.unsupported));
  if (!report.wrong.empty()) return absl::InvalidArgumentError(text);
  return report.unsupported.empty() ? absl::OkStatus() : absl::UnimplementedError(text);
}

absl::StatusOr<std::unique_ptr<OnnxImporter>> RunImporter(const std::string& path, MappedFile bytes,
                                                          const ImportOptions& options, bool reports) {
  auto file = OnnxFile::Open(path, std::move(bytes));
  if (!file.ok()) return file.status();
  auto importer = std::make_unique<OnnxImporter>(*std::move(file), options, reports);
  absl::Status s = importer->Run();
  if (auto dims = importer->LearnedDims(); s.ok() && !dims.empty()) {
    importer = std::make_unique<OnnxImporter>(importer->TakeFile(), options, reports);
    importer->SetDims(std::move(dims));
    s = importer->Run();
  }
  // Then the report tells.
  if (reports && importer->report().wrong.size() >= kMaxWrong) return importer;
  if (!s.ok()) {
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

absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path, const ImportOptions& options) {
  auto bytes = MapFile(path);
  if (!bytes.ok()) return bytes.status();
  return ImportOnnx(path, *std::move(bytes), options);
}

absl::StatusOr<std::unique_ptr<Model>> ImportOnnx(const std::string& path, MappedFile bytes,
                                                  const ImportOptions& options) {
  auto importer = RunImporter(path, std::move(bytes), options, /*reports=*/false);
  if (!importer.ok()) return importer.status();
  absl::Status status = ReportError((*importer)->report());
  std::unique_ptr<Model> model = (*importer)->TakeModel();
  if (status.ok()) status = Verify(*model, Phase::kImported);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  for (const std::string& warning : (*importer)->report().warnings) {
    if (options.warnings != nullptr) options.warnings->push_back(absl::StrCat(path, ": ", warning));
  }
  return model;
}

absl::StatusOr<std::vector<std::string>> OnnxExternalFiles(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<OnnxFile> file, OnnxFile::Open(path));
  std::set<std::string> files;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const onnx::TensorProto& tensor : file->model().graph().initializer()) {
    for (const auto& entry : tensor.external_data()) {
      if (entry.key() == "location") files.insert((folder / entry.value()).string());
    }
  }
  return std::vector<std::string>(files.begin(), files.end());
}

absl::StatusOr<OnnxReport> CheckOnnx(const std::string& path, std::unique_ptr<Model>* model,
                                     const ImportOptions& options) {
  auto bytes = MapFile(path);
  if (!bytes.ok()) return bytes.status();
  auto importer = RunImporter(path, *std::move(bytes), options, /*reports=*/true);
  if (!importer.ok()) return importer.status();
  OnnxReport report = std::move((*importer)->report());
  for (OnnxUnsupported& item : report.unsupported) item.remedy = OnnxRemedy(item.op, item.reason);
  std::unique_ptr<Model> made = (*importer)->TakeModel();
  if (report.wrong.size() >= kMaxWrong) return report;  // there may be more
  if (absl::Status s = Verify(*made, Phase::kImported); !s.ok()) {
    // Of a part that does not verify nothing more is said.
    if (report.unsupported.empty() && report.wrong.empty()) return s;
    made.reset();
  }
  if (model != nullptr) *model = std::move(made);
  return report;
}

}  // namespace llmc
