#include "frontend/huggingface/stream_graph.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"

namespace llmc::hf {
namespace {

constexpr double kLeastSquareMean = 1e-5;

Dim Rows(const Value* x) { return x->type.shape[0]; }

}  // namespace

// ---- streams ------------------------------------------------------------------------------------------------------
Value* StreamGraph::Stream(Value* streams, int64_t index, const std::string& name) {
  Value* part = b_.Add(Slice{.x = streams, .axis = 1, .start = {Dim(index)}, .end = {Dim(index + 1)}});
  return b_.Add(Reshape{.x = part, .shape = {Rows(streams), Dim(hidden_)}}, name);
}

Value* StreamGraph::AsStream(Value* x) { return b_.Add(Reshape{.x = x, .shape = {Rows(x), Dim(1), Dim(hidden_)}}); }

Value* StreamGraph::SquareMean(Value* x) {
  Value* wide = x->type.dtype == DType::kF32 ? x : b_.Add(Cast{.x = x, .to = DType::kF32});
  return b_.Add(ReduceMean{.x = b_.Add(Mul{.lhs = wide, .rhs = wide}), .axes = {1}, .keep_dims = true});
}

Value* StreamGraph::WithMagnitude(Value* x, Value* magnitude) {
  Value* square = SquareMean(x);
  Value* own = b_.Add(Sqrt{.x = b_.Add(Max{.lhs = square, .rhs = blocks_.Number(kLeastSquareMean, square)})});
  Value* wide = x->type.dtype == DType::kF32 ? x : b_.Add(Cast{.x = x, .to = DType::kF32});
  wide = b_.Add(Div{.lhs = b_.Add(Mul{.lhs = wide, .rhs = magnitude}), .rhs = own});
  return x->type.dtype == DType::kF32 ? wide : b_.Add(Cast{.x = wide, .to = x->type.dtype});
}

Value* StreamGraph::Begin(Value* x, Value* ids) {
  inputs_ = LayerInputs(x, ids);
  b_.set_loc(streams_.projections);
  Value* magnitude = b_.Add(Sqrt{.x = SquareMean(x)});
  std::vector<Value*> parts = {AsStream(x)};
  for (int64_t i = 0; i + 1 < streams_.count; ++i) {
    const LinearSpec projection = {absl::StrCat(streams_.projections, ".", i)};
    Value* stream = blocks_.Linear(projection, x, hidden_, hidden_, "@", absl::StrCat("stream", i + 1),
                                   absl::StrCat("%stream", i + 1));
    parts.push_back(AsStream(WithMagnitude(stream, magnitude)));
  }
  return b_.Add(Concat{.parts = parts, .axis = 1}, "%x0");
}

Value* StreamGraph::End(Value* streams) {
  b_.set_loc(streams_.unembed_projections);
  Value* first = Stream(streams, 0, "%out0");
  Value* magnitude = b_.Add(Sqrt{.x = SquareMean(first)});
  Value* sum = first;
  for (int64_t i = 0; i + 1 < streams_.count; ++i) {
    const LinearSpec projection = {absl::StrCat(streams_.unembed_projections, ".", i)};
    Value* stream = Stream(streams, i + 1, "");
    stream = blocks_.Linear(projection, stream, hidden_, hidden_, "@", absl::StrCat("unembed", i + 1),
                            absl::StrCat("%out", i + 1));
    sum = b_.Add(Add{.lhs = sum, .rhs = WithMagnitude(stream, magnitude)});
  }
  return blocks_.Scaled(sum, 1 / static_cast<double>(streams_.count), "%out");
}

// ---- embeddings of layers -----------------------------------------------------------------------------------------
Value* StreamGraph::LayerInputs(Value* x, Value* ids) {
  const int64_t layers = static_cast<int64_t>(spec_.layers.size()), size = streams_.input_size, width = layers * size;
  const Dims shape = {Rows(x), Dim(layers), Dim(size)};
  b_.set_loc(streams_.input_table);
  Value* table = blocks_.Weight("@layer_inputs", streams_.input_table + ".weight", {streams_.input_vocab, width});
  if (streams_.input_vocab < spec_.vocab_size) {
    Value* has_row = b_.Add(Less{.lhs = ids, .rhs = blocks_.Number(static_cast<double>(streams_.input_vocab), ids)});
    ids = b_.Add(Where{.condition = has_row, .x = ids, .y = blocks_.Number(0, ids)});
  }
  Value* embedded = b_.Add(Gather{.x = table, .indices = ids});
  const double scale = std::sqrt(static_cast<double>(size));
  embedded = b_.Add(Mul{.lhs = embedded, .rhs = blocks_.Number(scale, embedded)});
  embedded = b_.Add(Reshape{.x = embedded, .shape = shape}, "%inputs.embedded");
  Value* projected =
      blocks_.Linear(streams_.input_projection, x, hidden_, width, "@", "layer_inputs", "%inputs.projected");
  projected =
      b_.Add(Mul{.lhs = projected, .rhs = blocks_.Number(1 / std::sqrt(static_cast<double>(hidden_)), projected)});
  projected = b_.Add(Reshape{.x = projected, .shape = shape});
  projected = blocks_.Norm(streams_.input_norm, projected, size, "@layer_inputs_norm", "%inputs.norm");
  Value* sum = b_.Add(Add{.lhs = projected, .rhs = embedded});
  return b_.Add(Mul{.lhs = sum, .rhs = blocks_.Number(std::sqrt(0.5), sum)}, "%inputs");
}

Value* StreamGraph::AddLayerInput(const StreamLayerSpec& spec, int64_t layer, Value* streams,
                                  const std::string& prefix) {
  const std::string i = absl::StrCat(layer);
  const int64_t size = streams_.input_size;
  Value* x = Stream(streams, streams_.active, "%first" + i);
  if (!spec.output_scale.empty()) {
    x = b_.Add(Mul{.lhs = x, .rhs = blocks_.Weight(prefix + "output_scale", spec.output_scale, {hidden_})});
  }
  Value* gate = blocks_.Linear(spec.input_gate, x, hidden_, size, prefix, "input_gate", "%ig" + i);
  Value* own = b_.Add(Slice{.x = inputs_, .axis = 1, .start = {Dim(layer)}, .end = {Dim(layer + 1)}});
  own = b_.Add(Reshape{.x = own, .shape = {Rows(x), Dim(size)}}, "%input" + i);
  Value* gated = b_.Add(Mul{.lhs = blocks_.Act(spec.activation, gate, "%ia" + i), .rhs = own});
  x = blocks_.Linear(spec.input_projection, gated, size, hidden_, prefix, "input", "%ip" + i);
  x = blocks_.Norm(spec.input_norm, x, hidden_, prefix + "input_norm", "%in" + i);
  std::vector<double> others(static_cast<size_t>(streams_.count), 1);
  others[0] = 0;
  Value* takes = b_.Add(Constant{.value = Tensor::FromValues(DType::kBool, {streams_.count, 1}, others)});
  Value* added = b_.Add(Where{.condition = takes, .x = AsStream(x), .y = blocks_.Number(0, x)});
  return b_.Add(Add{.lhs = streams, .rhs = added}, absl::StrCat("%x", layer + 1));
}

// ---- layers -------------------------------------------------------------------------------------------------------
Value* StreamGraph::Coefficients(const StreamLayerSpec& spec, const LinearSpec& of, int64_t count, Value* x,
                                 const std::string& prefix, const std::string& name) {
  Value* in = blocks_.Norm(spec.router_norm, x, hidden_, prefix + "router_norm", name + ".norm");
  in = b_.Add(Mul{.lhs = in, .rhs = blocks_.Number(1 / static_cast<double>(hidden_), in)});
  Value* routed = blocks_.Linear(spec.router, in, hidden_, streams_.count, prefix, "router", name + ".routed");
  routed = b_.Add(Tanh{.x = routed});
  const std::string weight = of.module.substr(of.module.rfind('.') + 1);
  return blocks_.Linear(of, routed, streams_.count, count, prefix, weight, name);
}

Value* StreamGraph::Predict(const StreamLayerSpec& spec, Value* streams, const std::string& prefix,
                            const std::string& index) {
  const int64_t n = streams_.count;
  Value* active = Stream(streams, streams_.active, "%active" + index);
  Value* parts = Coefficients(spec, spec.prediction, n * n, active, prefix, "%predict" + index);
  parts = b_.Add(Reshape{.x = parts, .shape = {Rows(streams), Dim(n), Dim(n)}});
  return b_.Add(Add{.lhs = b_.Add(MatMul{.lhs = parts, .rhs = streams}), .rhs = streams}, "%predicted" + index);
}

Value* StreamGraph::Correct(const StreamLayerSpec& spec, Value* predictions, Value* active, Value* activated,
                            const std::string& prefix, const std::string& index) {
  const int64_t n = streams_.count;
  Value* parts = Coefficients(spec, spec.correction, n, activated, prefix, "%correct" + index);
  parts = b_.Add(Add{.lhs = parts, .rhs = blocks_.Number(1, parts)});
  parts = b_.Add(Reshape{.x = parts, .shape = {Rows(predictions), Dim(n), Dim(1)}});
  Value* innovation = AsStream(b_.Add(Sub{.lhs = activated, .rhs = active}));
  return b_.Add(Add{.lhs = b_.Add(Mul{.lhs = innovation, .rhs = parts}), .rhs = predictions}, "%corrected" + index);
}

Value* StreamGraph::Laurel(const StreamLayerSpec& spec, Value* x, const std::string& prefix, const std::string& index) {
  Value* left = blocks_.Linear(spec.laurel_left, x, hidden_, spec.laurel_rank, prefix, "laurel_left", "%ll" + index);
  Value* right =
      blocks_.Linear(spec.laurel_right, left, spec.laurel_rank, hidden_, prefix, "laurel_right", "%lr" + index);
  right = blocks_.Norm(spec.laurel_norm, right, hidden_, prefix + "laurel_norm", "%ln" + index);
  return b_.Add(Add{.lhs = x, .rhs = right}, "%laurel" + index);
}

Value* StreamGraph::Layer(const LayerSpec& layer, int64_t index, Value* streams, const BlockGraph::Attend& attend) {
  const StreamLayerSpec& spec = *layer.streams;
  const std::string i = absl::StrCat(index), p = absl::StrCat("@l", index, ".");
  Value* predictions = Predict(spec, streams, p, i);
  Value* active = Stream(predictions, streams_.active, "%p" + i);
  Value* in = blocks_.Norm(*layer.attention_norm, active, hidden_, p + "norm1", absl::StrCat("%n", index, "a"));
  Value* laurel = Laurel(spec, in, p, i);
  Value* a =
      blocks_.Norm(*layer.attention_out_norm, attend(in, p), hidden_, p + "norm1.out", absl::StrCat("%n", index, "ao"));
  b_.set_loc(layer.module);
  a = b_.Add(Add{.lhs = b_.Add(Add{.lhs = active, .rhs = a}), .rhs = laurel});
  a = b_.Add(Mul{.lhs = a, .rhs = blocks_.Number(std::sqrt(0.5), a)}, "%h" + i);
  Value* m = blocks_.Norm(*layer.mlp_norm, a, hidden_, p + "norm2", absl::StrCat("%n", index, "b"));
  m = blocks_.FeedForward(layer, m, hidden_, p, i);
  m = blocks_.Norm(*layer.mlp_out_norm, m, hidden_, p + "norm2.out", absl::StrCat("%n", index, "bo"));
  Value* activated = b_.Add(Add{.lhs = a, .rhs = m}, "%activated" + i);
  return AddLayerInput(spec, index, Correct(spec, predictions, active, activated, p, i), p);
}

}  // namespace llmc::hf
