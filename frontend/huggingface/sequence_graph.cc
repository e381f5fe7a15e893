#include "frontend/huggingface/sequence_graph.h"

#include "absl/strings/str_cat.h"

namespace llmc::hf {
namespace {

constexpr int64_t kMaxBatch = 256;

}  // namespace

std::map<StepRole, Value*> SequenceGraph::AddInputs() {
  const Dim batch = Dim::Symbol("B"), length = Dim::Symbol("S"), tokens = batch * length;
  model_->dims = {{"B", kMaxBatch}, {"S", spec_.max_context}};
  Value* ids = model_->AddParam(step_, "%input_ids", {DType::kI64, {batch, length}});
  std::map<StepRole, Value*> inputs;
  inputs[StepRole::kTokenIds] = b_.Add(Reshape{.x = ids, .shape = {tokens}}, "%ids");
  const auto whole = [&](int64_t number) {
    Tensor one(DType::kI64, Shape{});
    one.SetInt(0, number);
    return b_.Add(Constant{.value = std::move(one)});
  };
  Value* end = b_.Add(DimsOf{.values = {length}, .scalar = true});
  Value* at = b_.Add(Cast{.x = b_.Add(Range{.start = whole(0), .limit = end, .delta = whole(1)}), .to = DType::kI32});
  at = b_.Add(Expand{.x = b_.Add(Reshape{.x = at, .shape = {Dim(1), length}}), .shape = {batch, length}});
  inputs[StepRole::kPositions] = b_.Add(Reshape{.x = at, .shape = {tokens}}, "%positions");
  if (form_ == DecoderForm::kPredictor) {
    hidden_ = model_->AddParam(step_, "%hidden_states", {blocks_.dtype(), {batch, length, Dim(spec_.hidden_size)}});
  }
  return inputs;
}

Value* SequenceGraph::Begin(Value* embedded) {
  if (form_ != DecoderForm::kPredictor) return embedded;
  const PredictorSpec& p = spec_.predictors[0];
  const int64_t hidden = spec_.hidden_size;
  Value* rows = b_.Add(Reshape{.x = hidden_, .shape = {embedded->type.shape[0], Dim(hidden)}});
  Value* e = blocks_.Norm(p.embedding_norm, embedded, hidden, "@enorm", "%e");
  Value* h = blocks_.Norm(p.hidden_norm, rows, hidden, "@hnorm", "%h");
  b_.set_loc(p.projection.module);
  Value* both = b_.Add(Concat{.parts = {e, h}, .axis = 1}, "%eh");
  return blocks_.Linear(p.projection, both, 2 * hidden, hidden, "@", "eh_proj", "%joined");
}

Value* SequenceGraph::Attend(Attention op, int64_t head_dim, const std::string& name) {
  const Dim batch = Dim::Symbol("B"), length = Dim::Symbol("S");
  for (Value** x : {&op.q, &op.k, &op.v}) {
    const Dim heads = Dim::FloorDiv((*x)->type.shape[1], Dim(head_dim));
    *x = b_.Add(Reshape{.x = *x, .shape = {batch, length, heads, Dim(head_dim)}});
    *x = b_.Add(Transpose{.x = *x, .perm = {0, 2, 1, 3}});
  }
  op.causal = true;
  Value* seen = b_.Add(Transpose{.x = b_.Add(op), .perm = {0, 2, 1, 3}});
  return b_.Add(Reshape{.x = seen, .shape = {batch * length, op.q->type.shape[1] * Dim(head_dim)}}, name);
}

Value* SequenceGraph::Apart(Value* rows, const std::string& name) {
  return b_.Add(Reshape{.x = rows, .shape = {Dim::Symbol("B"), Dim::Symbol("S"), rows->type.shape[1]}}, name);
}

void SequenceGraph::AddOutputs(Value* logits, Value* before_norm, Value* normed) {
  Value* hidden = form_ == DecoderForm::kPredictor ? before_norm : normed;
  step_->outputs.push_back({"logits", Apart(logits, "%logits")});
  step_->outputs.push_back({"hidden_states", Apart(hidden, "%hidden")});
}

absl::Status CheckForm(const DecoderSpec& spec, const HfWeights& weights, DecoderForm form) {
  if (form == DecoderForm::kServed) return absl::OkStatus();
  for (const RopeSpec& rope : spec.ropes) {
    if (rope.parameters.type != HfRopeType::kDynamic && rope.parameters.type != HfRopeType::kLongRope) continue;
    return absl::UnimplementedError("--form: a rotation by the length of the sequence has no form without a cache");
  }
  for (const LayerSpec& layer : spec.layers) {
    const auto* a = std::get_if<AttentionSpec>(&layer.attention);
    const bool has_form = a == nullptr || (a->window == 0 && a->chunk == 0 && !a->has_alibi && a->sinks.empty() &&
                                           a->temperature == 0 && !a->kv_layer.has_value());
    if (!has_form || layer.streams.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat("--form: ", layer.module,
                       " has a window, a chunk, sinks, biases or temperatures of positions, keys of another layer or "
                       "several streams, which have no form without a cache"));
    }
  }
  if (form != DecoderForm::kPredictor) return absl::OkStatus();
  if (spec.predictors.empty()) {
    return absl::UnimplementedError("--form=predictor: config.json tells of no layer that predicts further tokens");
  }
  const std::string tensor = spec.predictors[0].projection.module + ".weight";
  if (!weights.has_checkpoint() || weights.Has(tensor)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--form=predictor: the checkpoint has no ", tensor,
                                          "; it was saved without the layer that predicts further tokens"));
}

DecoderSpec PredictorAlone(const DecoderSpec& spec, const HfWeights& weights) {
  DecoderSpec alone = spec;
  const PredictorSpec& p = spec.predictors[0];
  for (const LayerSpec& layer : spec.layers) {
    alone.unused.beginnings.push_back({layer.module + ".", "a layer of the model itself"});
  }
  alone.unused.beginnings.push_back({spec.norm->module + ".", "the norm behind the layers of the model itself"});
  alone.layers = {p.layer};
  alone.norm = p.norm;
  if (weights.Has(p.embedding + ".weight")) {
    alone.unused.beginnings.push_back({spec.embedding + ".", "the predictor has an embedding of its own"});
    alone.embedding = p.embedding;
  }
  if (weights.Has(p.head + ".weight")) {
    alone.unused.beginnings.push_back({spec.head.module + ".", "the predictor has a head of its own"});
    alone.head.module = p.head;
    alone.is_tied = false;
  }
  return alone;
}

}  // namespace llmc::hf
