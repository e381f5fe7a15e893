#include "frontend/onnx/node.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "files/path_check.h"

namespace llmc {

constexpr int64_t kMaxConstantElements = 64;

std::string SanitizedName(absl::string_view name) {
  std::string result;
  for (char c : name) {
    const bool comment = c == '/' && absl::EndsWith(result, "/");  // "//" starts one in the language's text
    result.push_back(!comment && (absl::ascii_isalnum(c) || absl::StrContains("_.$/-", c)) ? c : '_');
  }
  return result.empty() ? "_" : result;
}

Value* AddOnnxConstant(Builder* builder, const OnnxFile& file, const std::string& name, Tensor tensor) {
  const std::string safe = SanitizedName(name);
  if (tensor.size() <= kMaxConstantElements) {
    return builder->Add(Constant{.value = std::move(tensor)}, absl::StrCat("%", safe));
  }
  TensorType type{tensor.dtype(), Dims(tensor.shape().begin(), tensor.shape().end())};
  const std::string source = WeightSource(std::filesystem::path(file.path()).filename().string(), name);
  Value* weight = builder->model()->AddWeight(absl::StrCat("@", safe), std::move(type), source);
  builder->model()->data[weight->name] = std::move(tensor);
  return weight;
}

OnnxNode::OnnxNode(const onnx::NodeProto& proto, int opset, std::vector<Value*> inputs, const OnnxAttributes* caller,
                   OnnxFile* file, Model* model, Block* block, std::string prefix, std::string loc)
    : proto_(proto),
      opset_(opset),
      inputs_(std::move(inputs)),
      outputs_(static_cast<size_t>(proto.output_size()), nullptr),
      file_(file),
      prefix_(std::move(prefix)),
      builder_(model, block) {
  builder_.set_loc(loc);
  for (const onnx::AttributeProto& attr : proto.attribute()) {
    const onnx::AttributeProto* actual = &attr;
    if (!attr.ref_attr_name().empty()) {
      if (caller == nullptr) {
        Invalid(absl::StrCat("attribute \"", attr.name(), "\" refers to one of a function, outside of a function"));
        return;
      }
      auto it = caller->find(attr.ref_attr_name());
      if (it == caller->end()) continue;  // The call leaves it at its default.
      actual = it->second;
    }
    if (!attrs_.emplace(attr.name(), actual).second) {
      Invalid(absl::StrCat("has attribute \"", attr.name(), "\" twice"));
      return;
    }
  }
}

void OnnxNode::Fail(absl::Status status) {
  if (ok()) status_ = std::move(status);
}

std::vector<Value*> OnnxNode::AllInputs() {
  for (const Value* input : inputs_) {
    if (input == nullptr) Invalid("an input is missing");
  }
  return inputs_;
}

bool OnnxNode::HasSince(size_t i, int since) {
  if (opset_ >= since || i >= inputs_.size()) return has(i);
  Invalid(absl::StrCat("has ", inputs_.size(), " inputs; opset ", opset_, " knows ", i));
  return false;
}

std::vector<int64_t> OnnxNode::StaticInts(size_t i, absl::string_view what) {
  if (!has(i) || !ok()) return {};
  if (!IsInteger(in(i)->type.dtype) || in(i)->type.rank() > 1) {
    Invalid(absl::StrCat(what, " must be integers in one row, not ", in(i)->type.ToString()));
    return {};
  }
  std::vector<int64_t> values;
  if (in(i)->contents.has_value()) {
    for (const Dim& dim : *in(i)->contents) {
      if (!dim.is_constant()) {
        Unsupported(absl::StrCat(what, " must be a constant, not [", DimsToString(*in(i)->contents), "]"));
        return {};
      }
      values.push_back(dim.value());
    }
  } else if (const Tensor* literal = Literal(i); literal != nullptr) {
    values = literal->ToInts();
  } else {
    Unsupported(absl::StrCat(what, " must be a constant"));
  }
  return values;
}

bool OnnxNode::IsKnown(size_t i) const {
  if (!has(i)) return false;
  if (!in(i)->contents.has_value()) return Literal(i) != nullptr;
  return std::all_of(in(i)->contents->begin(), in(i)->contents->end(), [](const Dim& d) { return d.is_constant(); });
}

int64_t OnnxNode::StaticInt(size_t i, absl::string_view what) {
  const std::vector<int64_t> values = StaticInts(i, what);
  if (ok() && values.size() != 1) Invalid(absl::StrCat(what, " must be one number, not ", values.size()));
  return ok() ? values[0] : 0;
}

const Tensor* OnnxNode::Literal(size_t i) const {
  if (!has(i)) return nullptr;
  const Value* value = in(i);
  if (Is<Constant>(value->def)) {
    auto it = value->def->attrs.find("value");
    return it == value->def->attrs.end() ? nullptr : std::get_if<Tensor>(&it->second);
  }
  if (value->kind != ValueKind::kWeight) return nullptr;
  auto it = builder_.model()->data.find(value->name);
  return it == builder_.model()->data.end() ? nullptr : &it->second;
}

Value* OnnxNode::Retyped(size_t i, Tensor tensor) {
  const Value* input = in(i);
  if (!ok()) return nullptr;
  if (input->kind != ValueKind::kWeight) return Literal(std::move(tensor));
  TensorType type{tensor.dtype(), Dims(tensor.shape().begin(), tensor.shape().end())};
  Value* weight = builder_.model()->AddWeight(absl::StrCat(input->name, ".", DTypeName(tensor.dtype())),
                                              std::move(type), input->source);
  builder_.model()->data[weight->name] = std::move(tensor);
  return weight;
}

Value* OnnxNode::AsI64(size_t i) {
  if (has(i) && !IsInteger(in(i)->type.dtype)) {
    Invalid(absl::StrCat("input ", i, " must be integers, not ", in(i)->type.ToString()));
  }
  return has(i) ? CastTo(in(i), DType::kI64) : nullptr;
}

bool OnnxNode::HasAttr(absl::string_view name) { return attrs_.contains(name); }

const onnx::AttributeProto* OnnxNode::Find(absl::string_view name, onnx::AttributeProto::AttributeType type) {
  read_.insert(std::string(name));
  auto it = attrs_.find(name);
  if (it == attrs_.end()) return nullptr;
  if (it->second->has_type() && it->second->type() != type) {
    Invalid(absl::StrCat("attribute \"", name, "\" has the wrong type"));
    return nullptr;
  }
  return it->second;
}

int64_t OnnxNode::Int(absl::string_view name, int64_t fallback) {
  const auto* attr = Find(name, onnx::AttributeProto::INT);
  return attr == nullptr ? fallback : attr->i();
}
double OnnxNode::Float(absl::string_view name, double fallback) {
  const auto* attr = Find(name, onnx::AttributeProto::FLOAT);
  return attr == nullptr ? fallback : attr->f();
}
std::string OnnxNode::String(absl::string_view name, absl::string_view fallback) {
  const auto* attr = Find(name, onnx::AttributeProto::STRING);
  return attr == nullptr ? std::string(fallback) : attr->s();
}
std::vector<int64_t> OnnxNode::Ints(absl::string_view name) {
  const auto* attr = Find(name, onnx::AttributeProto::INTS);
  return attr == nullptr ? std::vector<int64_t>{} : std::vector<int64_t>(attr->ints().begin(), attr->ints().end());
}
std::vector<double> OnnxNode::Floats(absl::string_view name) {
  const auto* attr = Find(name, onnx::AttributeProto::FLOATS);
  return attr == nullptr ? std::vector<double>{} : std::vector<double>(attr->floats().begin(), attr->floats().end());
}
std::vector<std::string> OnnxNode::Strings(absl::string_view name) {
  const auto* attr = Find(name, onnx::AttributeProto::STRINGS);
  return attr == nullptr ? std::vector<std::string>{}
                         : std::vector<std::string>(attr->strings().begin(), attr->strings().end());
}
const onnx::TensorProto* OnnxNode::TensorAttr(absl::string_view name) {
  const auto* attr = Find(name, onnx::AttributeProto::TENSOR);
  return attr == nullptr ? nullptr : &attr->t();
}

int64_t OnnxNode::Axis(absl::string_view name, int64_t fallback, int rank, bool inclusive) {
  return NormalizeAxis(Int(name, fallback), rank, inclusive);
}

int64_t OnnxNode::NormalizeAxis(int64_t axis, int rank, bool inclusive) {
  if (axis < -rank || axis >= rank + (inclusive ? 1 : 0)) {
    Invalid(absl::StrCat("axis ", axis, " is out of range for rank ", rank));
    return 0;
  }
  return axis < 0 ? axis + rank : axis;
}

std::vector<int64_t> OnnxNode::NormalizeAxes(std::vector<int64_t> axes, int rank) {
  for (int64_t& axis : axes) axis = NormalizeAxis(axis, rank);
  std::sort(axes.begin(), axes.end());
  if (ok() && std::adjacent_find(axes.begin(), axes.end()) != axes.end()) Invalid("an axis is given twice");
  return axes;
}

absl::Status OnnxNode::CheckAttrsRead() {
  for (const auto& [name, attr] : attrs_) {
    if (!read_.contains(name)) {
      return absl::UnimplementedError(absl::StrCat("attribute \"", name, "\" is not supported"));
    }
  }
  return absl::OkStatus();
}

void OnnxNode::Set(int i, Value* value) {
  if (i < static_cast<int>(outputs_.size())) outputs_[static_cast<size_t>(i)] = value;
}

void OnnxNode::MarkU16(int output) {
  const Value* value = static_cast<size_t>(output) < outputs_.size() ? outputs_[static_cast<size_t>(output)] : nullptr;
  if (value != nullptr && u16_ != nullptr) u16_->insert(value);
}

void OnnxNode::Learn(const Dim& dim, const Dim& size) {
  if (dim.is_symbol() && size.is_constant()) learned_.emplace(dim.ToString(), size.value());
}

std::optional<Dims> OnnxNode::Declared(int i) const {
  auto it = declared_.find(i);
  return it == declared_.end() ? std::nullopt : std::optional(it->second);
}

Value* OnnxNode::Scalar(DType dtype, double value) {
  return Literal(Tensor::FromValues(dtype, {}, std::vector{value}));
}

Value* OnnxNode::Ints64(const std::vector<int64_t>& values) {
  return Literal(Tensor::FromValues(DType::kI64, {static_cast<int64_t>(values.size())}, values));
}

Value* OnnxNode::Literal(Tensor tensor) { return Emit(Constant{.value = std::move(tensor)}); }

Value* OnnxNode::NamedConstant(Tensor tensor) {
  if (!ok() || !wants(0)) return nullptr;
  Value* value = AddOnnxConstant(&builder_, *file_, prefix_ + proto_.output(0), std::move(tensor));
  if (value != nullptr && value->def != nullptr) created_.push_back(value->def);
  return value;
}

Value* OnnxNode::ReshapeTo(Value* x, Dims shape) {
  if (x == nullptr || x->type.shape == shape) return x;
  return Emit(Reshape{.x = x, .shape = std::move(shape)});
}

Value* OnnxNode::CastTo(Value* x, DType dtype) {
  if (x == nullptr || x->type.dtype == dtype) return x;
  return Emit(Cast{.x = x, .to = dtype});
}

Value* OnnxNode::TransposeBy(Value* x, std::vector<int64_t> perm) {
  if (std::is_sorted(perm.begin(), perm.end())) return x;
  return Emit(Transpose{.x = x, .perm = std::move(perm)});
}

Value* OnnxNode::SliceOf(Value* x, int64_t axis, Dim start, Dim end) {
  if (x != nullptr && axis >= static_cast<int64_t>(x->type.shape.size())) {
    Invalid(absl::StrCat(x->name, " ", x->type.ToString(), " has no axis ", axis));
    return nullptr;
  }
  if (x == nullptr || (start == Dim(0) && end == x->type.shape[static_cast<size_t>(axis)])) return x;
  return Emit(Slice{.x = x, .axis = axis, .start = {std::move(start)}, .end = {std::move(end)}});
}

int64_t OnnxNode::OpsSoFar() const { return static_cast<int64_t>(builder_.model()->steps[0]->block.nodes.size()); }

bool OnnxNode::Made(const Value* value) const {
  return value != nullptr && std::find(created_.begin(), created_.end(), value->def) != created_.end();
}

}  // namespace llmc
