// If, both of whose bodies become part of the graph where the condition is not known at import; and Loop and Scan
// unrolled, if the number of their turns is known.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "files/path_check.h"
#include "frontend/onnx/checks.h"
#include "frontend/onnx/importer.h"
#include "frontend/onnx/node.h"

namespace llmc {
namespace {

constexpr int64_t kMaxTurns = 1024;

const onnx::AttributeProto* FindAttribute(const onnx::NodeProto& node, absl::string_view name) {
  for (const onnx::AttributeProto& attr : node.attribute()) {
    if (attr.name() == name) return &attr;
  }
  return nullptr;
}

absl::StatusOr<const onnx::GraphProto*> BodyOf(const onnx::NodeProto& node, absl::string_view name) {
  const onnx::AttributeProto* attr = FindAttribute(node, name);
  if (attr == nullptr || !attr->has_g()) return absl::InvalidArgumentError(absl::StrCat(name, " is missing"));
  return &attr->g();
}

// One number for each of `count` inputs or outputs.
absl::StatusOr<std::vector<int64_t>> PerValue(const onnx::NodeProto& node, absl::string_view name, size_t count) {
  const onnx::AttributeProto* attr = FindAttribute(node, name);
  if (attr == nullptr) return std::vector<int64_t>(count, 0);
  if (static_cast<size_t>(attr->ints_size()) != count) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must hold ", count, " numbers"));
  }
  return std::vector<int64_t>(attr->ints().begin(), attr->ints().end());
}

absl::StatusOr<int64_t> AxisOf(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) return absl::InvalidArgumentError(absl::StrCat("axis ", axis, " is out of range"));
  return axis < 0 ? axis + rank : axis;
}

// Equal shapes joined along a new axis; null if one of them is not known.
absl::StatusOr<Value*> Stack(Builder* builder, std::vector<Value*> parts, int64_t axis) {
  if (parts.empty()) return absl::UnimplementedError("outputs of no turns at all are not supported");
  for (Value*& part : parts) {
    if (part == nullptr) return nullptr;
    auto at = AxisOf(axis, part->type.rank() + 1);
    if (!at.ok()) return at.status();
    Dims shape = part->type.shape;
    shape.insert(shape.begin() + *at, Dim(1));
    axis = *at;
    part = builder->Add(Reshape{.x = part, .shape = std::move(shape)});
    if (part == nullptr) return builder->status();
  }
  if (parts.size() == 1) return parts[0];
  Value* all = builder->Add(Concat{.parts = std::move(parts), .axis = axis});
  if (all == nullptr) return builder->status();
  return all;
}

const Value* WithoutCopies(const Value* value) {
  while (Is<Identity>(value->def)) value = value->def->operands[0];
  return value;
}

// Whether `x` is `y` without axes, and the condition that they have one element: as exporters write a squeeze of an
// axis that they do not know. Then x stands for both, since a run in which there are more elements fails to make it.
bool DropsAxisOfOne(const Value* condition, const Value* x, const Value* y) {
  if (x->type.rank() >= y->type.rank() || !Is<Reshape>(x->def)) return false;
  if (WithoutCopies(x->def->operands[0]) != WithoutCopies(y)) return false;
  while (Is<Reshape>(condition->def) || Is<Cast>(condition->def)) condition = condition->def->operands[0];
  if (!Is<Equal>(condition->def)) return false;
  const std::optional<Dims>&a = condition->def->operands[0]->contents, &b = condition->def->operands[1]->contents;
  if (!a.has_value() || !b.has_value() || a->size() != 1 || b->size() != 1) return false;
  const Dim size = (*a)[0] == Dim(1) ? (*b)[0] : (*a)[0];
  const bool is_one = (*a)[0] == Dim(1) || (*b)[0] == Dim(1);
  const Dim all = Product(y->type.shape);
  return is_one && !all.is_unknown() && all == Product(x->type.shape) * size;
}

// How many turns a scan along these axes of its inputs takes. The axes then count from the front.
absl::StatusOr<int64_t> ScanTurns(absl::Span<Value* const> inputs, std::vector<int64_t>* axes) {
  std::optional<int64_t> turns;
  for (size_t i = 0; i < axes->size(); ++i) {
    const TensorType& type = inputs[i]->type;
    auto axis = AxisOf((*axes)[i], type.rank());
    if (!axis.ok()) return axis.status();
    (*axes)[i] = *axis;
    const Dim& size = type.shape[static_cast<size_t>(*axis)];
    if (!size.is_constant()) return absl::UnimplementedError("the length of the scan must be known at import");
    if (turns.has_value() && *turns != size.value()) {
      return absl::InvalidArgumentError("the scanned inputs differ in length");
    }
    turns = size.value();
  }
  if (*turns > kMaxTurns) return absl::UnimplementedError(absl::StrCat("more than ", kMaxTurns, " turns"));
  return *turns;
}

}  // namespace

std::optional<int64_t> OnnxImporter::KnownNumber(const Value* value) const {
  if (value->contents.has_value()) {
    const bool one = value->contents->size() == 1 && (*value->contents)[0].is_constant();
    return one ? std::optional((*value->contents)[0].value()) : std::nullopt;
  }
  if (!Is<Constant>(value->def) || IsFloat(value->type.dtype)) return std::nullopt;
  const Tensor& tensor = std::get<Tensor>(value->def->attrs.at("value"));
  return tensor.size() == 1 ? std::optional(tensor.GetInt(0)) : std::nullopt;
}

absl::StatusOr<std::vector<Value*>> OnnxImporter::ImportBody(const onnx::GraphProto& body,
                                                             const std::vector<Value*>& inputs, const std::string& op,
                                                             OnnxScope* scope) {
  if (scope->depth >= kMaxOnnxDepth) return absl::InvalidArgumentError("bodies are nested too deeply");
  if (static_cast<size_t>(body.input_size()) != inputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the body has ", body.input_size(), " inputs, not ", inputs.size()));
  }
  OnnxScope inner{.prefix = absl::StrCat(scope->prefix.substr(0, 64), op, ".", ++num_calls_, "/"),
                  .opset = scope->opset,
                  .depth = scope->depth + 1,
                  .attributes = scope->attributes,
                  .outer = scope};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& name = body.input(static_cast<int>(i)).name();
    if (absl::Status s = CheckName(name, "body input"); !s.ok()) return s;
    if (absl::Status s = Define(&inner, name, inputs[i]); !s.ok()) return s;
  }
  if (body.sparse_initializer_size() > 0) return absl::UnimplementedError("sparse tensors are not supported");
  Builder builder(model_.get(), &step_->block);
  for (const onnx::TensorProto& initializer : body.initializer()) {
    if (absl::Status s = CheckName(initializer.name(), "initializer"); !s.ok()) return s;
    auto tensor = file_->Literal(initializer);
    if (!tensor.ok()) return tensor.status();
    Value* value = AddOnnxConstant(&builder, *file_, inner.prefix + initializer.name(), *std::move(tensor));
    if (!builder.status().ok()) return builder.status();
    if (initializer.data_type() == onnx::TensorProto::UINT16) u16_.insert(value);
    if (absl::Status s = Define(&inner, initializer.name(), value); !s.ok()) return s;
  }
  if (absl::Status s = ImportNodes(body.node(), &inner); !s.ok()) return s;
  std::vector<Value*> outputs;
  for (const onnx::ValueInfoProto& output : body.output()) {
    Value* const* value = inner.Find(output.name());
    if (value == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("output ", Quoted(output.name()), " of the body is never made"));
    }
    outputs.push_back(*value);
  }
  return outputs;
}

absl::StatusOr<std::vector<Value*>> OnnxImporter::ImportIf(const onnx::NodeProto& node,
                                                           const std::vector<Value*>& inputs, const std::string& place,
                                                           OnnxScope* scope) {
  if (inputs.size() != 1 || inputs[0] == nullptr) return absl::InvalidArgumentError("the condition is missing");
  const std::optional<int64_t> condition = KnownNumber(inputs[0]);
  if (!condition.has_value()) return ImportBothBodies(node, inputs[0], place, scope);
  auto body = BodyOf(node, *condition != 0 ? "then_branch" : "else_branch");
  if (!body.ok()) return body.status();
  return ImportBody(**body, {}, "If", scope);
}

absl::StatusOr<std::vector<Value*>> OnnxImporter::ImportBothBodies(const onnx::NodeProto& node, Value* condition,
                                                                   const std::string& place, OnnxScope* scope) {
  const Dim conditions = Product(condition->type.shape);
  if (!conditions.is_constant()) return absl::UnimplementedError("the condition must be known at import");
  if (condition->type.dtype != DType::kBool || conditions != Dim(1)) {
    return absl::InvalidArgumentError(absl::StrCat("the condition is ", condition->type.ToString(), ", not one bool"));
  }
  Builder builder(model_.get(), &step_->block);
  builder.set_loc(place);
  if (condition->type.rank() > 0) condition = builder.Add(Reshape{.x = condition, .shape = {}});
  std::vector<std::vector<Value*>> sides;
  for (const char* name : {"then_branch", "else_branch"}) {
    auto body = BodyOf(node, name);
    if (!body.ok()) return body.status();
    auto made = ImportBody(**body, {}, "If", scope);
    if (!made.ok()) return made.status();
    if (std::find(made->begin(), made->end(), nullptr) != made->end()) return std::vector<Value*>();
    sides.push_back(*std::move(made));
  }
  if (sides[0].size() != sides[1].size()) return absl::InvalidArgumentError("the branches differ in their outputs");
  std::vector<Value*> outputs;
  for (size_t i = 0; i < sides[0].size(); ++i) {
    Value *x = sides[0][i], *y = sides[1][i];
    if (x->type.dtype != y->type.dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("the branches give ", x->type.ToString(), " and ", y->type.ToString()));
    }
    if (DropsAxisOfOne(condition, x, y)) {
      outputs.push_back(x);
      continue;
    }
    const bool is_list = IsInteger(x->type.dtype) && x->type.rank() == 1;
    if (x->type.rank() != y->type.rank() || (is_list && x->type.shape != y->type.shape)) {
      return absl::UnimplementedError(absl::StrCat("the condition must be known at import, since the branches give ",
                                                   x->type.ToString(), " and ", y->type.ToString()));
    }
    outputs.push_back(x == y ? x : builder.Add(Choose{.condition = condition, .x = x, .y = y}));
    if (outputs.back() == nullptr) return builder.status();
  }
  return outputs;
}

// Inputs: the number of turns and a first condition, both optional, and what one turn hands to the next.
absl::StatusOr<std::vector<Value*>> OnnxImporter::ImportLoop(const onnx::NodeProto& node,
                                                             const std::vector<Value*>& inputs,
                                                             const std::string& place, OnnxScope* scope) {
  auto body = BodyOf(node, "body");
  if (!body.ok()) return body.status();
  if (inputs.size() < 2) return absl::InvalidArgumentError("has fewer than two inputs");
  const std::vector<Value*> first(inputs.begin() + 2, inputs.end());
  if (std::find(first.begin(), first.end(), nullptr) != first.end()) {
    return absl::InvalidArgumentError("an input is missing");
  }
  if (static_cast<size_t>((*body)->output_size()) < 1 + first.size()) {
    return absl::InvalidArgumentError("the body has too few outputs");
  }
  int64_t turns = kMaxTurns + 1;
  if (inputs[0] != nullptr) {
    const std::optional<int64_t> given = KnownNumber(inputs[0]);
    if (!given.has_value()) return absl::UnimplementedError("the trip count must be known at import");
    turns = *given;
  }
  std::optional<int64_t> going = inputs[1] == nullptr ? 1 : KnownNumber(inputs[1]);
  std::vector<Value*> carried = first;
  std::vector<std::vector<Value*>> collected;
  Builder builder(model_.get(), &step_->block);
  builder.set_loc(place);
  for (int64_t turn = 0; turn < turns; ++turn) {
    if (!going.has_value()) return absl::UnimplementedError("the condition must be known at import");
    if (*going == 0) break;
    if (turn >= kMaxTurns) return absl::UnimplementedError(absl::StrCat("more than ", kMaxTurns, " turns"));
    std::vector<Value*> given = {builder.Add(Constant{.value = Tensor::FromValues<int64_t>(DType::kI64, {}, {turn})}),
                                 builder.Add(Constant{.value = Tensor::FromValues<int64_t>(DType::kBool, {}, {1})})};
    given.insert(given.end(), carried.begin(), carried.end());
    auto made = ImportBody(**body, given, "Loop", scope);
    if (!made.ok()) return made.status();
    if (std::find(made->begin(), made->end(), nullptr) != made->end()) return std::vector<Value*>();
    going = KnownNumber((*made)[0]);
    std::copy_n(made->begin() + 1, carried.size(), carried.begin());
    collected.resize(made->size() - 1 - carried.size());
    for (size_t i = 0; i < collected.size(); ++i) collected[i].push_back((*made)[1 + carried.size() + i]);
  }
  collected.resize(static_cast<size_t>((*body)->output_size()) - 1 - carried.size());
  for (std::vector<Value*>& parts : collected) {
    auto all = Stack(&builder, std::move(parts), 0);
    if (!all.ok()) return all.status();
    carried.push_back(*all);
  }
  return carried;
}

// Inputs: what one turn hands to the next, then tensors of which each turn gets a slice.
absl::StatusOr<std::vector<Value*>> OnnxImporter::ImportScan(const onnx::NodeProto& node,
                                                             const std::vector<Value*>& inputs,
                                                             const std::string& place, OnnxScope* scope) {
  if (scope->opset < 9) return absl::UnimplementedError("the form before opset 9 is not supported");
  auto body = BodyOf(node, "body");
  if (!body.ok()) return body.status();
  const onnx::AttributeProto* attr = FindAttribute(node, "num_scan_inputs");
  const int64_t scanned = attr == nullptr ? 0 : attr->i();
  if (scanned < 1 || static_cast<size_t>(scanned) > inputs.size() ||
      std::find(inputs.begin(), inputs.end(), nullptr) != inputs.end()) {
    return absl::InvalidArgumentError("num_scan_inputs does not fit the inputs");
  }
  const size_t states = inputs.size() - static_cast<size_t>(scanned);
  if (static_cast<size_t>((*body)->output_size()) < states) {
    return absl::InvalidArgumentError("the body has too few outputs");
  }
  const size_t results = static_cast<size_t>((*body)->output_size()) - states;
  auto axes = PerValue(node, "scan_input_axes", static_cast<size_t>(scanned));
  auto backward = PerValue(node, "scan_input_directions", static_cast<size_t>(scanned));
  auto out_axes = PerValue(node, "scan_output_axes", results);
  auto out_backward = PerValue(node, "scan_output_directions", results);
  for (const auto* list : {&axes, &backward, &out_axes, &out_backward}) {
    if (!list->ok()) return list->status();
  }
  const auto turns = ScanTurns(absl::MakeConstSpan(inputs).subspan(states), &*axes);
  if (!turns.ok()) return turns.status();
  std::vector<Value*> carried(inputs.begin(), inputs.begin() + static_cast<int64_t>(states));
  std::vector<std::vector<Value*>> collected(results);
  Builder builder(model_.get(), &step_->block);
  builder.set_loc(place);
  for (int64_t turn = 0; turn < *turns; ++turn) {
    std::vector<Value*> given = carried;
    for (size_t i = 0; i < axes->size(); ++i) {
      const int64_t at = (*backward)[i] != 0 ? *turns - 1 - turn : turn;
      Value* x =
          builder.Add(Slice{.x = inputs[states + i], .axis = (*axes)[i], .start = {Dim(at)}, .end = {Dim(at + 1)}});
      if (x == nullptr) return builder.status();
      Dims shape = x->type.shape;
      shape.erase(shape.begin() + (*axes)[i]);
      given.push_back(builder.Add(Reshape{.x = x, .shape = std::move(shape)}));
      if (given.back() == nullptr) return builder.status();
    }
    auto made = ImportBody(**body, given, "Scan", scope);
    if (!made.ok()) return made.status();
    if (std::find(made->begin(), made->end(), nullptr) != made->end()) return std::vector<Value*>();
    std::copy_n(made->begin(), states, carried.begin());
    for (size_t i = 0; i < results; ++i) {
      auto& parts = collected[i];
      parts.insert((*out_backward)[i] != 0 ? parts.begin() : parts.end(), (*made)[states + i]);
    }
  }
  for (size_t i = 0; i < results; ++i) {
    auto all = Stack(&builder, std::move(collected[i]), (*out_axes)[i]);
    if (!all.ok()) return all.status();
    carried.push_back(*all);
  }
  return carried;
}

absl::Status OnnxImporter::ImportControl(const onnx::NodeProto& node, const std::vector<Value*>& inputs,
                                         const std::string& place, OnnxScope* scope) {
  auto outputs = node.op_type() == "If"     ? ImportIf(node, inputs, place, scope)
                 : node.op_type() == "Loop" ? ImportLoop(node, inputs, place, scope)
                                            : ImportScan(node, inputs, place, scope);
  if (!outputs.ok()) return outputs.status();
  if (outputs->empty()) return absl::OkStatus();  // Something in a body is not supported.
  if (static_cast<size_t>(node.output_size()) > outputs->size()) {
    return absl::InvalidArgumentError("has more outputs than its body");
  }
  for (int i = 0; i < node.output_size(); ++i) {
    if (node.output(i).empty()) continue;
    if (absl::Status s = Define(scope, node.output(i), (*outputs)[static_cast<size_t>(i)]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace llmc
