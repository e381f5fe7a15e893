#include "frontend/onnx/functions.h"

#include <google/protobuf/unknown_field_set.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/onnx/wire.h"

namespace llmc {
namespace {

// Attributes with defaults. The oldest supported ONNX package does not know the field yet.
constexpr int kFunctionAttributeProto = 11;
constexpr int kFunctionOverload = 13, kNodeOverload = 8;

std::string Domain(absl::string_view domain) { return domain == "ai.onnx" ? "" : std::string(domain); }

// A string field that the ONNX package may not know.
std::string StringField(const google::protobuf::Message& message, int number) {
  if (const auto* field = message.GetDescriptor()->FindFieldByNumber(number); field != nullptr) {
    return message.GetReflection()->GetString(message, field);
  }
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  std::string value;
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& field = unknown.field(i);
    if (field.number() != number || field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    value = field.length_delimited();
  }
  return value;
}

// Domain, name and overload.
OnnxFunctionKey KeyOf(const onnx::FunctionProto& function) {
  return {Domain(function.domain()), function.name(), StringField(function, kFunctionOverload)};
}

absl::Status ReadDefaults(const onnx::FunctionProto& function, std::list<onnx::AttributeProto>* defaults) {
  const auto* field = function.GetDescriptor()->FindFieldByNumber(kFunctionAttributeProto);
  if (field != nullptr) {
    const auto* reflection = function.GetReflection();
    for (int i = 0; i < reflection->FieldSize(function, field); ++i) {
      defaults->emplace_back().CopyFrom(reflection->GetRepeatedMessage(function, field, i));
    }
    return absl::OkStatus();
  }
  const auto& unknown = function.unknown_fields();
  for (int i = 0; i < unknown.field_count(); ++i) {
    if (unknown.field(i).number() != kFunctionAttributeProto) continue;
    if (unknown.field(i).type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (absl::Status s = ParseMessage(unknown.field(i).length_delimited(), &defaults->emplace_back(), "attribute");
        !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OnnxFunctions> OnnxFunctions::Create(const onnx::ModelProto& model) {
  OnnxFunctions functions;
  for (const onnx::FunctionProto& function : model.functions()) {
    auto [it, added] = functions.entries_.try_emplace(KeyOf(function));
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat("function ", Quoted(function.name()), " is defined twice"));
    }
    it->second.function = &function;
    if (absl::Status s = ReadDefaults(function, &it->second.defaults); !s.ok()) return s;
  }
  return functions;
}

const onnx::FunctionProto* OnnxFunctions::Find(const onnx::NodeProto& call) const {
  if (entries_.empty()) return nullptr;
  auto it = entries_.find(OnnxFunctionKey(Domain(call.domain()), call.op_type(), StringField(call, kNodeOverload)));
  return it == entries_.end() ? nullptr : it->second.function;
}

absl::StatusOr<OnnxAttributes> OnnxFunctions::AttributesOf(const onnx::FunctionProto& function,
                                                           const onnx::NodeProto& call,
                                                           const OnnxAttributes* caller) const {
  OnnxAttributes attributes;
  for (const onnx::AttributeProto& attr : call.attribute()) {
    const onnx::AttributeProto* actual = &attr;
    if (!attr.ref_attr_name().empty()) {
      if (caller == nullptr) return absl::InvalidArgumentError("an attribute refers to a function's, outside of one");
      auto it = caller->find(attr.ref_attr_name());
      if (it == caller->end()) continue;
      actual = it->second;
    }
    if (!attributes.emplace(attr.name(), actual).second) {
      return absl::InvalidArgumentError(absl::StrCat("has attribute ", Quoted(attr.name()), " twice"));
    }
  }
  const auto it = entries_.find(KeyOf(function));
  for (const onnx::AttributeProto& attr : it->second.defaults) attributes.emplace(attr.name(), &attr);
  return attributes;
}

}  // namespace llmc
