// What the importer does to report on the whole of a file: it goes on behind what it cannot import, with stand-ins.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/onnx/checks.h"
#include "frontend/onnx/file.h"
#include "frontend/onnx/importer.h"
#include "frontend/onnx/ops.h"

namespace llmc {
namespace {

constexpr size_t kMaxLooseEnds = 4096;

// "i64[batch, 128]"
std::string TypeText(const onnx::ValueInfoProto& info) {
  if (!info.type().has_tensor_type()) return "?";
  const auto& tensor = info.type().tensor_type();
  const absl::StatusOr<DType> dtype = DTypeOfOnnx(tensor.elem_type());
  const std::string element = dtype.ok() ? std::string(DTypeName(*dtype)) : OnnxTypeName(tensor.elem_type());
  if (!tensor.has_shape()) return element + "[?]";
  return absl::StrCat(element, "[",
                      absl::StrJoin(tensor.shape().dim(), ", ",
                                    [](std::string* out, const auto& dim) {
                                      if (dim.has_dim_value() && dim.dim_value() >= 0) {
                                        absl::StrAppend(out, dim.dim_value());
                                      } else {
                                        absl::StrAppend(out, dim.dim_param().empty() ? "?" : dim.dim_param());
                                      }
                                    }),
                      "]");
}

}  // namespace

void OnnxImporter::Describe() {
  const onnx::ModelProto& proto = file_->model();
  report_.producer_name = proto.producer_name();
  report_.producer_version = proto.producer_version();
  for (const auto& import : proto.opset_import()) {
    report_.domains[IsDefaultDomain(import.domain()) ? "" : import.domain()] = import.version();
  }
  report_.exporter = FindExporter(proto);
  absl::flat_hash_set<absl::string_view> constants;
  for (const auto& initializer : proto.graph().initializer()) constants.insert(initializer.name());
  for (const onnx::ValueInfoProto& input : proto.graph().input()) {
    const bool is_fixed = options_.inputs.find(input.name()) != options_.inputs.end();
    if (!constants.contains(input.name()) && !is_fixed) report_.inputs.push_back({input.name(), TypeText(input)});
  }
  for (const onnx::ValueInfoProto& output : proto.graph().output()) {
    report_.outputs.push_back({output.name(), TypeText(output)});
  }
  for (const auto* list : {&proto.graph().value_info(), &proto.graph().output()}) {
    for (const onnx::ValueInfoProto& info : *list) declared_.try_emplace(info.name(), &info);
  }
}

absl::Status OnnxImporter::TakeVersion(absl::string_view what, const absl::Status& status) {
  const bool goes_on = reports_ && (absl::IsUnimplemented(status) || what == "IR version");
  if (status.ok() || !goes_on) return status;
  AddUnsupported(std::string(what), status.message(), file_->model().graph().name());
  return absl::OkStatus();
}

Value* OnnxImporter::StandIn(const std::string& name, const TensorType& type) {
  Value* value = model_->AddParam(step_, model_->FreshName(absl::StrCat("%", SanitizedName(name))), type);
  stand_ins_.insert(value);
  return value;
}

bool OnnxImporter::IsUncertain(const onnx::NodeProto& node, const OnnxScope& scope) const {
  return std::any_of(node.input().begin(), node.input().end(), [&](const std::string& name) {
    Value* const* value = scope.Find(name);
    return value != nullptr && stand_ins_.contains(*value);
  });
}

absl::Status OnnxImporter::AddStandIns(const onnx::NodeProto& node, OnnxScope* scope, absl::Status status) {
  const bool uncertain = !stand_ins_.empty() && IsUncertain(node, *scope);
  for (const std::string& name : node.output()) {
    auto made = scope->values.find(name);
    if (made != scope->values.end() && made->second != nullptr) {
      if (uncertain) stand_ins_.insert(made->second);
      continue;
    }
    // Only names of the graph are declared.
    const auto declared = scope == &graph_ ? declared_.find(name) : declared_.end();
    if (name.empty() || declared == declared_.end()) continue;
    if (absl::StatusOr<TensorType> type = InputType(*declared->second); type.ok()) {
      scope->values[name] = StandIn(name, *type);
    }
  }
  if (absl::IsUnimplemented(status)) {
    for (const std::string& name : node.input()) {
      Value* const* value = scope->Find(name);
      const bool is_loose = value != nullptr && *value != nullptr && (*value)->kind == ValueKind::kResult;
      if (is_loose && loose_ends_.size() < kMaxLooseEnds) loose_ends_.push_back(*value);
    }
  }
  // What the file declares may be less than what the node would have made: a contradiction behind it proves nothing.
  return uncertain && absl::IsInvalidArgument(status) ? absl::OkStatus() : status;
}

void OnnxImporter::AddStandIn(const onnx::TensorProto& initializer) {
  const absl::StatusOr<DType> dtype = DTypeOfOnnx(initializer.data_type());
  if (!dtype.ok() || initializer.dims_size() > kMaxOnnxRank) return;
  TensorType type{*dtype, {}};
  for (const int64_t dim : initializer.dims()) type.shape.push_back(Dim(dim));
  if (!CheckSize(type).ok()) return;
  graph_.values[initializer.name()] = StandIn(initializer.name(), type);
}

// Once for each file, not for each of its tensors.
absl::Status OnnxImporter::AddMissing(const std::string& what, const absl::Status& status) {
  return missing_.insert(std::string(status.message())).second ? AddWrong(what) : absl::OkStatus();
}

void OnnxImporter::AddLooseEnds() {
  absl::flat_hash_set<const Value*> seen;
  for (const Output& output : step_->outputs) seen.insert(output.value);
  for (Value* value : loose_ends_) {
    if (seen.insert(value).second) step_->outputs.push_back({absl::StrCat("unsupported.", seen.size()), value});
  }
}

}  // namespace llmc
