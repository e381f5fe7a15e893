#include "frontend/onnx/checks.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/onnx/file.h"
#include "frontend/onnx/ops.h"

namespace llmc {

constexpr size_t kMaxNameBytes = 1024;

bool IsDefaultDomain(absl::string_view domain) { return domain.empty() || domain == "ai.onnx"; }

std::string OpName(const onnx::NodeProto& node) {
  return IsDefaultDomain(node.domain()) ? node.op_type() : absl::StrCat(node.domain(), ".", node.op_type());
}

absl::StatusOr<int> DefaultOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  std::optional<int64_t> version;
  for (const auto& import : imports) {
    if (import.domain() == kMicrosoftDomain && import.version() != 1) {
      return absl::UnimplementedError(
          absl::StrCat("version ", import.version(), " of com.microsoft is not supported; 1 is"));
    }
    if (!IsDefaultDomain(import.domain())) continue;
    if (version.has_value() && *version != import.version()) {
      return absl::InvalidArgumentError("two opsets of the default domain are imported");
    }
    version = import.version();
  }
  if (imports.empty()) return absl::InvalidArgumentError("no opset is imported");
  if (!version.has_value()) return kMaxOpset;  // All ops are of other domains.
  if (*version < kMinOpset || *version > kMaxOpset) {
    return absl::UnimplementedError(absl::StrCat("opset ", *version, " is not supported; export the model with opset ",
                                                 kMinOpset, " to ", kMaxOpset));
  }
  return static_cast<int>(*version);
}

int NearestOpset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  int64_t newest = 0;
  for (const auto& import : imports) {
    if (IsDefaultDomain(import.domain())) newest = std::max(newest, import.version());
  }
  return static_cast<int>(std::clamp<int64_t>(newest, kMinOpset, kMaxOpset));
}

absl::Status CheckSize(const TensorType& type) {
  Shape smallest;
  for (const Dim& dim : type.shape) smallest.push_back(dim.is_constant() ? dim.value() : 1);
  return CheckedElements(type.dtype, smallest).status();
}

std::string ContradictedType(const onnx::ValueInfoProto& declared, const TensorType& made) {
  if (declared.type().value_case() == onnx::TypeProto::VALUE_NOT_SET) return "";
  const std::string but = absl::StrCat(" but made as ", made.ToString());
  if (!declared.type().has_tensor_type()) return "is declared as something else than a tensor" + but;
  const auto& tensor = declared.type().tensor_type();
  if (tensor.elem_type() == onnx::TensorProto::UNDEFINED) return "";
  auto dtype = DTypeOfOnnx(tensor.elem_type());
  if (dtype.ok() && *dtype == made.dtype) return "";
  return absl::StrCat("is declared ", OnnxTypeName(tensor.elem_type()), but);
}

std::string ContradictedShape(const onnx::ValueInfoProto& declared, const TensorType& made) {
  if (!declared.type().has_tensor_type() || !declared.type().tensor_type().has_shape()) return "";
  const onnx::TensorShapeProto& shape = declared.type().tensor_type().shape();
  const std::string but = absl::StrCat(" but made as ", made.ToString());
  if (shape.dim_size() != made.rank()) return absl::StrCat("is declared with rank ", shape.dim_size(), but);
  for (int i = 0; i < made.rank(); ++i) {
    const auto& dim = shape.dim(i);
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

}  // namespace llmc
