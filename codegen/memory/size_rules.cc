#include "codegen/memory/size_rules.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/tasks/elementwise_groups.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "ir/text.h"

namespace llmc {
namespace {

Dims Tail(const Dims& dims, size_t count) { return Dims(dims.end() - static_cast<ptrdiff_t>(count), dims.end()); }
Dims Head(const Dims& dims, size_t count) { return Dims(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(count)); }

}  // namespace

SizeRules::SizeRules(const Model& model, const Step& step) {
  const auto add = [&](const Value* value) {
    for (const Dim& dim : value->type.shape) {
      for (const std::string& symbol : dim.Symbols()) known_.insert(symbol);
    }
  };
  for (const Value* param : step.params) add(param);
  for (const Value* state : model.states) add(state);
}

void SizeRules::Equate(const Node& node, const Size& size, const Size& expected) {
  if (size == expected) return;
  plan::SizeRule rule;
  rule.set_size(size.ToString());
  rule.set_label(PrintNode(node));
  if (expected.has_dim() && expected.dim().is_symbol() && !known_.contains(expected.ToString())) {
    rule.set_symbol(expected.ToString());
    known_.insert(expected.ToString());
  } else {
    rule.set_expected(expected.ToString());
  }
  rules_.push_back(std::move(rule));
}

void SizeRules::EquateShapes(const Node& node, const Dims& a, const Dims& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) Equate(node, Size(a[i]), Size(b[i]));
}

void SizeRules::Broadcast(const Node& node, const std::vector<Dims>& shapes, const Dims& out) {
  for (size_t i = 0; i < out.size(); ++i) {  // from the last axis
    Size size = 1;
    for (const Dims& shape : shapes) {
      if (i >= shape.size()) continue;
      const Size other = shape[shape.size() - 1 - i];
      if (size.Is(1) || other == size) {
        size = other;
      } else if (!other.Is(1)) {
        size = Size::Call("broadcast", {size, other});
      }
    }
    Equate(node, size, Size(out[out.size() - 1 - i]));
  }
}

// The elements of small tensors that sizes depend on: those of inputs are read, others are computed.
void SizeRules::AddElements(const Node& node) {
  const bool reads = Is<SliceBy>(&node) || Is<ReshapeTo>(&node) || Is<ExpandTo>(&node) || Is<Range>(&node);
  if (!reads) return;
  for (size_t i = Is<Range>(&node) ? 0 : 1; i < node.operands.size(); ++i) {
    if (node.operands[i] != nullptr) small_.ContentsOf(node.operands[i]);
  }
  for (; inputs_ < small_.inputs().size(); ++inputs_) {
    const InputElement& from = small_.inputs()[inputs_];
    plan::SizeRule& rule = rules_.emplace_back();
    rule.set_symbol(from.symbol.ToString());
    rule.set_input(from.input->name.substr(1));
    rule.set_element(from.element);
    rule.set_label(PrintNode(node));
  }
  for (; computed_ < small_.computed().size(); ++computed_) {
    const SmallTensors::Computed& from = small_.computed()[computed_];
    for (size_t i = 0; i < from.symbols.size(); ++i) {
      plan::SizeRule& rule = rules_.emplace_back();
      rule.set_symbol(from.symbols[i].ToString());
      rule.set_size(from.elements[i].ToString());
      rule.set_label(PrintNode(*from.value->def));
    }
  }
}

bool SizeRules::AreKnown(const Dims& dims) const {
  return absl::c_all_of(dims, [&](const Dim& dim) {
    return absl::c_all_of(dim.Symbols(), [&](const std::string& symbol) { return known_.contains(symbol); });
  });
}

void SizeRules::AddReshape(const Node& node) {
  const Dims &from = node.operands[0]->type.shape, &to = node.results[0]->type.shape;
  const bool is_told = Is<Reshape>(&node) || (node.operands[1]->contents.has_value() && AreKnown(to));
  if (!is_told) {
    const bool allow_zero = View<ReshapeTo>(node).allow_zero;
    const std::optional<SizeList> shape = small_.ContentsOf(node.operands[1]);
    if (!shape.has_value()) return;
    const auto copied = [&](size_t i) { return !allow_zero && i < from.size() ? Size(from[i]) : Size(0); };
    Size rest = 1;  // of the sizes that are given
    for (size_t i = 0; i < shape->size(); ++i) rest = rest * Size::Call("select", {(*shape)[i], copied(i), Size(1)});
    const Size all = ProductOf(ToSizes(from));
    const Size inferred =
        Size::Text(absl::StrCat("(", all.ToString(), ")/", Size::Call("max", {rest, Size(1)}).ToString()));
    for (size_t i = 0; i < shape->size(); ++i) {
      Equate(node, Size::Call("select", {(*shape)[i], copied(i), inferred}), Size(to[i]));
    }
  }
  Equate(node, ElementsOf(from), ElementsOf(to));
}

void SizeRules::AddSliceBy(const Node& node) {
  const auto op = View<SliceBy>(node);
  const Dims &from = node.operands[0]->type.shape, &to = node.results[0]->type.shape;
  const std::optional<SizeList> starts = small_.ContentsOf(op.starts), ends = small_.ContentsOf(op.ends);
  if (!starts.has_value() || !ends.has_value()) return;
  const std::optional<SizeList> axes = op.axes == nullptr ? std::nullopt : small_.ContentsOf(op.axes);
  const std::optional<SizeList> steps = op.steps == nullptr ? std::nullopt : small_.ContentsOf(op.steps);
  SizeList sizes = ToSizes(from);
  for (size_t i = 0; i < starts->size(); ++i) {
    const Size axis = axes.has_value() ? (*axes)[i] : Size(static_cast<int64_t>(i));
    if (!axis.is_number() || (op.axes != nullptr && !axes.has_value()) || (op.steps != nullptr && !steps.has_value())) {
      return;
    }
    Size& size = sizes[static_cast<size_t>(axis.number() < 0 ? axis.number() + static_cast<int64_t>(from.size())
                                                             : axis.number())];
    const Size step = steps.has_value() ? (*steps)[i] : Size(1);
    const bool numbers = (*starts)[i].is_number() && (*ends)[i].is_number() && step.is_number() && size.is_number();
    size = numbers ? Size(0) : Size::Call("slice_size", {(*starts)[i], (*ends)[i], step, size});
  }
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (!to[d].is_constant() || !sizes[d].is_number()) Equate(node, sizes[d], Size(to[d]));
  }
}

void SizeRules::AddRange(const Node& node) {
  const Size out = node.results[0]->type.shape[0];
  const std::optional<SizeList> start = small_.ContentsOf(node.operands[0]),
                                limit = small_.ContentsOf(node.operands[1]),
                                delta = small_.ContentsOf(node.operands[2]);
  if (!start.has_value() || !limit.has_value() || !delta.has_value() || out.is_number()) return;
  const bool is_real = IsFloat(node.results[0]->type.dtype);
  if (!is_real && (*delta)[0].Is(1) && (*limit)[0] - (*start)[0] == out) return;
  Equate(node, Size::Call(is_real ? "real_range_size" : "range_size", {(*start)[0], (*limit)[0], (*delta)[0]}), out);
}

void SizeRules::AddMovement(const Node& node) {
  const Dims& out = node.results[0]->type.shape;
  if (Is<Expand>(&node)) {
    Broadcast(node, {node.operands[0]->type.shape, View<Expand>(node).shape}, out);
  } else if (Is<ExpandTo>(&node)) {
    const std::optional<SizeList> shape = small_.ContentsOf(node.operands[1]);
    if (!shape.has_value()) return;
    const Dims& from = node.operands[0]->type.shape;
    for (size_t i = 0; i < out.size(); ++i) {
      const Size a = i < from.size() ? Size(from[from.size() - 1 - i]) : Size(1);
      const Size b = i < shape->size() ? (*shape)[shape->size() - 1 - i] : Size(1);
      Equate(node,
             a == b || b.Is(1) ? a
             : a.Is(1)         ? b
                               : Size::Call("broadcast", {a, b}),
             Size(out[out.size() - 1 - i]));
    }
  } else if (Is<Slice>(&node)) {
    const auto op = View<Slice>(node);
    const Size start = op.start[0], end = op.end[0], size = op.x->type.shape[static_cast<size_t>(op.axis)];
    const bool numbers = start.is_number() && end.is_number() && size.is_number();
    if (numbers || (start.Is(0) && end == size)) return;
    Equate(node, Size::Call("within", {start, end, size}), Size(out[static_cast<size_t>(op.axis)]));
  } else if (Is<Choose>(&node)) {
    for (const Value* side : {node.operands[1], node.operands[2]}) EquateShapes(node, side->type.shape, out);
  } else if (Is<Concat>(&node)) {
    const auto op = View<Concat>(node);
    for (const Value* part : op.parts) {
      for (size_t d = 0; d < out.size(); ++d) {
        if (static_cast<int64_t>(d) != op.axis) Equate(node, Size(part->type.shape[d]), Size(out[d]));
      }
    }
  }
}

void SizeRules::AddIndexed(const Node& node) {
  if (Is<GatherElements>(&node)) {
    const auto op = View<GatherElements>(node);
    for (size_t d = 0; d < op.x->type.shape.size(); ++d) {
      const Size size = op.x->type.shape[d], index = op.indices->type.shape[d];
      if (static_cast<int64_t>(d) == op.axis || index == size) continue;
      Equate(node, Size::Call("within", {Size(0), index, size}), index);
    }
  } else if (Is<GatherNd>(&node)) {
    const auto op = View<GatherNd>(node);
    const size_t batch_dims = static_cast<size_t>(op.batch_dims);
    EquateShapes(node, Head(op.indices->type.shape, batch_dims), Head(op.x->type.shape, batch_dims));
  } else if (Is<ScatterNd>(&node)) {
    const auto op = View<ScatterNd>(node);
    const Dims& list = op.indices->type.shape;
    Dims want = Head(list, list.size() - 1);
    const Dims slice = Tail(op.x->type.shape, op.x->type.shape.size() - static_cast<size_t>(list.back().value()));
    want.insert(want.end(), slice.begin(), slice.end());
    EquateShapes(node, op.updates->type.shape, want);
  }
}

void SizeRules::AddProducts(const Node& node) {
  const Dims& out = node.results[0]->type.shape;
  if (Is<MatMul>(&node)) {
    const auto op = View<MatMul>(node);
    const Dims &a = op.lhs->type.shape, &b = op.rhs->type.shape;
    Equate(node, Size(a.back()), Size(b.size() == 1 || op.transpose_rhs ? b.back() : b[b.size() - 2]));
    const auto lead = [](const Dims& dims) { return Head(dims, dims.size() - std::min<size_t>(2, dims.size())); };
    const size_t matrix = (a.size() > 1 ? 1 : 0) + (b.size() > 1 ? 1 : 0);
    Broadcast(node, {lead(a), lead(b)}, Head(out, out.size() - matrix));
  } else if (Is<QuantizedMatMul>(&node)) {
    AddQuantizedProduct(node);
  } else if (Is<Recurrence>(&node)) {
    AddRecurrence(node);
  } else if (Is<Conv>(&node)) {
    const auto op = View<Conv>(node);
    Equate(node, Size(op.x->type.shape[1]), Size(op.weight->type.shape[1] * Dim(op.groups)));
    for (const Dim& dim : Tail(out, out.size() - 2)) {
      if (!dim.is_constant()) Equate(node, Size::Call("within", {Size(0), Size(dim), Size(dim)}), Size(dim));
    }
  }
}

void SizeRules::AddQuantizedProduct(const Node& node) {
  const auto op = View<QuantizedMatMul>(node);
  const Dims &out = node.results[0]->type.shape, &a = op.lhs->type.shape, &b = op.rhs->type.shape;
  const Dim &k = op.transpose_rhs ? b.back() : b[b.size() - 2], &n = op.transpose_rhs ? b[b.size() - 2] : b.back();
  Equate(node, Size(a.back()), Size(k));
  Broadcast(node, {Head(a, a.size() - 2), Head(b, b.size() - 2)}, Head(out, out.size() - 2));
  for (const Value* part : {op.rhs_scale, op.rhs_zero}) {
    if (part == nullptr) continue;
    const Dims& shape = part->type.shape;
    if (shape.size() == 2) {
      const Dim blocks = Dim::FloorDiv(k + Dim(op.block - 1), Dim(op.block));
      EquateShapes(node, shape, op.transpose_rhs ? Dims{n, blocks} : Dims{blocks, n});
    } else if (!(Product(shape) == Dim(1))) {
      EquateShapes(node, shape, {n});
    }
  }
}

void SizeRules::AddRecurrence(const Node& node) {
  const auto op = View<Recurrence>(node);
  const Dims &x = op.x->type.shape, &weight = op.weight->type.shape;
  const Dim hidden = weight[1], rows = Dim(GatesOf(op.kind)) * hidden;
  EquateShapes(node, {weight[0], x[2]}, {rows, rows});
  for (const Value* state : {op.h, op.c}) {
    if (state != nullptr) EquateShapes(node, state->type.shape, {x[1], hidden});
  }
  if (op.lens != nullptr) EquateShapes(node, op.lens->type.shape, {x[1]});
  if (op.bias != nullptr) EquateShapes(node, op.bias->type.shape, {hidden});
}

void SizeRules::AddAttention(const Node& node) {
  if (Is<Attention>(&node)) {
    const auto op = View<Attention>(node);
    const Dims &q = op.q->type.shape, &k = op.k->type.shape, &v = op.v->type.shape;
    EquateShapes(node, {q[0], q[3], k[1], k[2]}, {k[0], k[3], v[1], v[2]});
    Equate(node, Size(q[0]), Size(v[0]));
    if (op.mask != nullptr) Broadcast(node, {op.mask->type.shape, {q[0], q[1], q[2], k[2]}}, {q[0], q[1], q[2], k[2]});
  } else if (Is<RotaryEmbedding>(&node)) {
    const auto op = View<RotaryEmbedding>(node);
    const Dims &x = op.x->type.shape, &cos = op.cos->type.shape;
    EquateShapes(node, op.sin->type.shape, cos);
    EquateShapes(node, Head(cos, 2), {x[0], x[2]});
    const Size twice = Size(2) * Size(cos[2]), dim = x[3];
    if (!twice.is_number() || !dim.is_number()) Equate(node, Size::Call("within", {Size(0), twice, dim}), twice);
  }
}

void SizeRules::AddNorms(const Node& node) {
  if (Is<LayerNorm>(&node)) {
    const auto op = View<LayerNorm>(node);
    const Dims tail = Tail(op.x->type.shape, op.x->type.shape.size() - static_cast<size_t>(op.axis));
    EquateShapes(node, op.weight->type.shape, tail);
    if (op.bias != nullptr) EquateShapes(node, op.bias->type.shape, tail);
  } else if (Is<RmsNorm>(&node)) {
    EquateShapes(node, node.operands[1]->type.shape, Tail(node.operands[0]->type.shape, 1));
  } else if (Is<AddRmsNorm>(&node)) {
    EquateShapes(node, node.operands[0]->type.shape, node.operands[1]->type.shape);
    EquateShapes(node, node.operands[2]->type.shape, Tail(node.operands[0]->type.shape, 1));
  }
}

absl::Status SizeRules::Add(const Node& node) {
  AddElements(node);
  if (IsElementwise(node)) {
    std::vector<Dims> shapes;
    for (const Value* operand : node.operands) shapes.push_back(operand->type.shape);
    Broadcast(node, shapes, node.results[0]->type.shape);
  } else if (Is<Reshape>(&node) || Is<ReshapeTo>(&node)) {
    AddReshape(node);
  } else if (Is<SliceBy>(&node)) {
    AddSliceBy(node);
  } else if (Is<Range>(&node)) {
    AddRange(node);
  } else if (!node.results.empty()) {
    AddMovement(node);
    AddIndexed(node);
    AddProducts(node);
    AddAttention(node);
    AddNorms(node);
  }
  for (const Value* result : node.results) {
    for (const Dim& dim : result->type.shape) {
      for (const std::string& symbol : dim.Symbols()) {
        if (!known_.insert(symbol).second) continue;  // said once
        return absl::UnimplementedError(absl::StrCat(node.op->info.name,
                                                     ": there is no GPU form of a result whose size ", symbol,
                                                     " depends on the contents of tensors\n  in: ", PrintNode(node)));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace llmc
