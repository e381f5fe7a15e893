// The importer's walk over nodes, and calls of the model's own functions.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "frontend/onnx/checks.h"
#include "frontend/onnx/exporter.h"
#include "frontend/onnx/fold.h"
#include "frontend/onnx/importer.h"
#include "frontend/onnx/ops.h"

namespace llmc {
namespace {

// Of what functions become at their calls; bodies of functions are small, but calls multiply them.
constexpr int64_t kMaxNodes = 1'000'000;  // the graph's own included
constexpr size_t kMaxInlinedNameBytes = size_t{64} << 20;
constexpr size_t kMaxInlinedBytes = size_t{256} << 20;

// Whether all numbers that an op of the default domain gives are those of its first input.
bool OnlyMoves(absl::string_view op) {
  static constexpr absl::string_view kOps[] = {"Identity",  "Reshape", "Transpose",    "Flatten",     "Squeeze",
                                               "Unsqueeze", "Concat",  "Slice",        "Gather",      "Split",
                                               "Expand",    "Tile",    "DepthToSpace", "SpaceToDepth"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

// "Add#2" for the third node, if it has no name.
std::string NameOf(const onnx::NodeProto& node, int place) {
  return node.name().empty() ? absl::StrCat(node.op_type(), "#", place) : node.name();
}

std::string CycleText(const OnnxNodes& nodes, const std::vector<int>& cycle) {
  return absl::StrCat("nodes read each other's results in a cycle: ",
                      absl::StrJoin(cycle, ", ", [&](std::string* out, int i) {
                        absl::StrAppend(out, nodes[i].op_type(), " ", Quoted(NameOf(nodes[i], i)));
                      }));
}

}  // namespace

Value* const* OnnxScope::Find(const std::string& name) const {
  for (const OnnxScope* scope = this; scope != nullptr; scope = scope->outer) {
    if (auto it = scope->values.find(name); it != scope->values.end()) return &it->second;
  }
  return nullptr;
}

absl::Status OnnxImporter::ChargeInlined(const onnx::NodeProto& node, const std::string& place) {
  inlined_bytes_ += node.ByteSizeLong();
  inlined_name_bytes_ += place.size();
  for (const std::string& name : node.output()) inlined_name_bytes_ += name.size();
  if (inlined_bytes_ <= kMaxInlinedBytes && inlined_name_bytes_ <= kMaxInlinedNameBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("node ", Quoted(place), ": calls of functions add up to more than ",
                                                   kMaxInlinedBytes >> 20, " MiB of nodes, or ",
                                                   kMaxInlinedNameBytes >> 20, " MiB of names"));
}

const OnnxOrder& OnnxImporter::OrderOf(const OnnxNodes& nodes, const std::string& prefix) {
  const auto [it, added] = orders_.try_emplace(&nodes);
  OnnxOrder& order = it->second;
  if (!added) return order;
  order = TopologicalOrder(nodes);
  if (order.moved_for >= 0 && order.cycles.empty()) {
    AddWarning(absl::StrCat("nodes are not in topological order: ",
                            Quoted(absl::StrCat(prefix, NameOf(nodes[order.moved_for], order.moved_for))),
                            " reads what a later node makes; they were sorted"));
  }
  return order;
}

absl::Status OnnxImporter::ImportNodes(const OnnxNodes& nodes, OnnxScope* scope) {
  const OnnxOrder& order = OrderOf(nodes, scope->prefix);
  for (const int i : order.nodes) {
    const onnx::NodeProto& node = nodes[i];
    if (++num_nodes_ > kMaxNodes) return absl::ResourceExhaustedError(absl::StrCat("more than ", kMaxNodes, " nodes"));
    if (absl::Status s = CheckNames(node); !s.ok()) return s;
    const std::string layer = LayerOf(node);
    const std::string place = absl::StrCat(scope->prefix, layer, layer.empty() ? "" : "/", NameOf(node, i));
    if (scope->depth > 0) {
      if (absl::Status s = ChargeInlined(node, place); !s.ok()) return s;
    }
    auto undefined = std::find_if(node.input().begin(), node.input().end(), [&](const std::string& name) {
      return !name.empty() && scope->Find(name) == nullptr;
    });
    const auto cycle = order.cycles.find(i);
    const bool defined = undefined == node.input().end();
    absl::Status s =
        cycle != order.cycles.end() ? AddWrong(CycleText(nodes, cycle->second))
        : defined
            ? ImportNode(node, place, scope)
            : AddWrong(absl::StrCat("node ", Quoted(place), " uses ", Quoted(*undefined), ", which nothing defines"));
    if (!s.ok()) return s;
    // What it did not make is not known, but defined.
    for (const std::string& name : node.output()) {
      if (!name.empty()) scope->values.try_emplace(name, nullptr);
    }
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::ImportNode(const onnx::NodeProto& node, const std::string& place, OnnxScope* scope) {
  ++report_.nodes[OpName(node)];
  absl::Status s = ImportCallOrOp(node, place, scope);
  if (reports_) s = AddStandIns(node, scope, std::move(s));
  if (absl::IsUnimplemented(s)) {
    AddUnsupported(OpName(node), s.message(), place);
    return absl::OkStatus();
  }
  if (s.ok()) return s;
  const std::string what = absl::StrCat("node ", Quoted(place), " (", OpName(node), "): ", s.message());
  return absl::IsInvalidArgument(s) ? AddWrong(what) : absl::Status(s.code(), what);
}

absl::Status OnnxImporter::ImportCallOrOp(const onnx::NodeProto& node, const std::string& place, OnnxScope* scope) {
  std::vector<Value*> inputs;
  bool missing = false;
  for (const std::string& name : node.input()) {
    Value* value = name.empty() ? nullptr : *scope->Find(name);
    missing |= !name.empty() && value == nullptr;
    inputs.push_back(value);
  }
  // A model's function goes before an op of that name, as the format says.
  if (const onnx::FunctionProto* function = functions_->Find(node); function != nullptr) {
    return ImportCall(node, *function, std::move(inputs), scope);
  }
  const bool is_default = IsDefaultDomain(node.domain());
  if (!is_default && node.domain() != kMicrosoftDomain) {
    return absl::UnimplementedError("ops of this domain are not supported");
  }
  if (is_default && (node.op_type() == "If" || node.op_type() == "Loop" || node.op_type() == "Scan")) {
    return missing ? absl::OkStatus() : ImportControl(node, inputs, place, scope);
  }
  const OnnxOp* op = FindOnnxOp(is_default ? "" : kMicrosoftDomain, node.op_type());
  if (op == nullptr) return absl::UnimplementedError("this op is not supported");
  if (scope->opset < op->since) {
    return absl::UnimplementedError(absl::StrCat("opset ", scope->opset, " has no such op"));
  }
  if (missing) return absl::OkStatus();  // Nothing can be said of it.
  return ImportOp(node, *op, place, std::move(inputs), scope);
}

absl::Status OnnxImporter::CheckU16(const onnx::NodeProto& node, const std::vector<Value*>& inputs) const {
  const bool reads =
      std::any_of(inputs.begin(), inputs.end(), [&](const Value* input) { return u16_.contains(input); });
  const std::string& op = node.op_type();
  if (!reads || op == "QuantizeLinear" || op == "DequantizeLinear" || OnlyMoves(op)) return absl::OkStatus();
  return absl::UnimplementedError("element type UINT16 is supported between QuantizeLinear and DequantizeLinear only");
}

void OnnxImporter::MarkU16(const onnx::NodeProto& node, OnnxNode* n) {
  if (node.op_type() == "Constant") {
    for (const onnx::AttributeProto& attr : node.attribute()) {
      if (attr.t().data_type() == onnx::TensorProto::UINT16) n->MarkU16(0);
    }
  }
  if (!n->IsU16(0) || !OnlyMoves(node.op_type())) return;
  for (int i = 0; i < node.output_size(); ++i) n->MarkU16(i);
}

absl::Status OnnxImporter::ImportOp(const onnx::NodeProto& node, const OnnxOp& op, const std::string& place,
                                    std::vector<Value*> inputs, OnnxScope* scope) {
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
  if (absl::Status s = CheckU16(node, inputs); !s.ok()) return s;
  OnnxNode n(node, scope->opset, std::move(inputs), scope->attributes, file_.get(), model_.get(), &step_->block,
             scope->prefix, place);
  n.KeepU16In(&u16_);
  if (scope == &graph_) DeclareOutputs(node, &n);
  if (n.ok()) op.import(n);
  if (!n.ok()) return n.status();
  MarkU16(node, &n);
  learned_.insert(n.learned().begin(), n.learned().end());
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
    const bool is_own = n.Made(value);
    // What is noted of a value of uint16 is noted of itself.
    const bool folds = is_own && !u16_.contains(value);
    std::optional<Tensor> known = folds ? FoldedAtImport(value, *model_) : std::nullopt;
    if (known.has_value()) value = n.Literal(*std::move(known));
    if (!n.ok()) return n.status();
    if (absl::Status s = Define(scope, node.output(i), value); !s.ok()) return s;
    if (is_own) {
      model_->Rename(value, absl::StrCat("%", SanitizedName(absl::StrCat(scope->prefix, node.output(i)))));
    }
  }
  return absl::OkStatus();
}

absl::Status OnnxImporter::ImportCall(const onnx::NodeProto& node, const onnx::FunctionProto& function,
                                      std::vector<Value*> inputs, OnnxScope* scope) {
  if (scope->depth >= kMaxOnnxDepth || std::find(calls_.begin(), calls_.end(), &function) != calls_.end()) {
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
  OnnxScope body{.prefix = absl::StrCat(function.name().substr(0, 32), ".", ++num_calls_, "/"),
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

}  // namespace llmc
