#include "frontend/huggingface/encoder_graph.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/embedding_graph.h"
#include "frontend/huggingface/tower_graph.h"
#include "ir/ops.h"

namespace llmc::hf {
namespace {

constexpr int64_t kMaxBatch = 256;
constexpr int64_t kMaxPackedTokens = int64_t{1} << 18;  // of packed texts

// Towers, and what is made of them.
class EncoderGraph {
 public:
  EncoderGraph(const EncoderSpec& spec, HfWeights* weights, Model* model, Step* step)
      : spec_(spec), model_(model), step_(step), b_(model, &step->block), blocks_(weights, &b_) {}

  absl::Status Build() {
    model_->dims = {{"B", kMaxBatch}};
    Value *text_vector = nullptr, *image_vector = nullptr;
    if (spec_.text.has_value()) {
      model_->dims["L"] = std::get<TextInput>(spec_.text->input).max_positions;
      if (spec_.packed) model_->dims["T"] = std::min(kMaxPackedTokens, kMaxBatch * model_->dims["L"]);
      const auto [x, ids, words, mask] = BuildTower(*spec_.text, spec_.packed, &blocks_, model_, step_);
      if (spec_.gives_hidden) Output("last_hidden_state", x);
      if (spec_.text_pool.has_value()) text_vector = Pooled(*spec_.text_pool, *spec_.text, x, ids);
      if (spec_.text_projection.has_value()) {
        Output("text_embeds", blocks_.Linear(*spec_.text_projection, text_vector, spec_.text->hidden_size,
                                             spec_.projection_size, "@", "text", "%text_embeds"));
      }
      if (spec_.masked_lm.has_value()) MaskedLm(*spec_.masked_lm, *spec_.text, x, words);
      if (spec_.classifier.has_value())
        Classify(*spec_.classifier, *spec_.text, OfTokens(*spec_.classifier, x, mask, text_vector));
      if (spec_.embedding.has_value()) {
        Value* counted = mask;
        if (!spec_.embedding->include_prompt) {
          counted = model_->AddParam(step_, "%pooling_mask", mask->type);
        }
        Output("embeddings", BuildEmbeddings(*spec_.embedding, x, counted, &blocks_));
      }
    }
    if (spec_.image.has_value()) {
      Value* x = BuildTower(*spec_.image, /*packed=*/false, &blocks_, model_, step_).hidden;
      if (spec_.gives_hidden) Output("last_hidden_state", x);
      if (spec_.image_pool.has_value()) image_vector = Pooled(*spec_.image_pool, *spec_.image, x, nullptr);
      if (spec_.classifier.has_value())
        Classify(*spec_.classifier, *spec_.image, OfTokens(*spec_.classifier, x, nullptr, image_vector));
    }
    if (spec_.contrast.has_value()) Contrast(*spec_.contrast, text_vector, image_vector);
    if (spec_.pools_to_output) {
      for (Value* vector : {text_vector, image_vector}) {
        if (vector != nullptr) Output("pooler_output", vector);
      }
    }
    return b_.status();
  }

 private:
  void Output(const std::string& name, Value* x) {
    if (x != nullptr && x->type.dtype != DType::kF32) x = b_.Add(Cast{.x = x, .to = DType::kF32}, "%" + name);
    step_->outputs.push_back({name, x});
  }

  Value* Row(Value* x, const Dim& begin, const Dim& end) {
    Value* row = b_.Add(Slice{.x = x, .axis = 1, .start = {begin}, .end = {end}});
    return b_.Add(Reshape{.x = row, .shape = {Dim::Symbol("B"), x->type.shape.back()}});
  }

  Value* First(Value* x) { return Row(x, Dim(0), Dim(1)); }

  // The row of the first end-of-text token; by argmax, which takes the first of equal ones.
  Value* EndOfText(const PoolSpec& pool, Value* x, Value* ids) {
    Value* of = ids;
    if (pool.end_id != 2) {
      Value* end = b_.Add(Constant{.value = Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{pool.end_id})});
      of = b_.Add(Cast{.x = b_.Add(Equal{.lhs = ids, .rhs = end}), .to = DType::kI32});
    }
    Value* at = b_.Add(Reshape{.x = b_.Add(ArgMax{.x = of, .axis = 1}), .shape = {Dim::Symbol("B"), Dim(1)}});
    return b_.Add(GatherNd{.x = x, .indices = at, .batch_dims = 1});
  }

  Value* Pooled(const PoolSpec& pool, const TowerSpec& tower, Value* x, Value* ids) {
    const int64_t hidden = tower.hidden_size;
    b_.set_loc(pool.module);
    Value* y = nullptr;
    switch (pool.kind) {
      case PoolKind::kFirst:
        y = First(x);
        break;
      case PoolKind::kLast:
        y = Row(x, x->type.shape[1] - Dim(1), x->type.shape[1]);
        break;
      case PoolKind::kEndOfText:
        y = EndOfText(pool, x, ids);
        break;
      case PoolKind::kAttention:
        y = AttendedByProbe(pool, tower, x);
        break;
    }
    const std::string prefix = absl::StrCat("@", tower.name, "pool.");
    if (pool.norm.has_value()) y = blocks_.Norm(*pool.norm, y, hidden, prefix + "norm", "%pooled.norm" + tower.name);
    if (pool.dense.has_value())
      y = blocks_.Linear(*pool.dense, y, hidden, pool.size, prefix, "dense", "%pooled" + tower.name);
    if (pool.activation.has_value()) y = blocks_.Act(*pool.activation, y, "%pooled.act" + tower.name);
    return y;
  }

  // PyTorch's MultiheadAttention of a learned query over all rows, then y + mlp(norm(y)).
  Value* AttendedByProbe(const PoolSpec& pool, const TowerSpec& tower, Value* x) {
    const int64_t h = tower.hidden_size, head_dim = h / pool.heads;
    const std::string p = absl::StrCat("@", tower.name, "pool.");
    Value* probe = blocks_.Weight(p + "probe", pool.module + ".probe", {1, 1, h});
    Value* weight = blocks_.Weight(p + "wqkv", pool.module + ".attention.in_proj_weight", {3 * h, h});
    Value* bias = blocks_.Weight(p + "bqkv", pool.module + ".attention.in_proj_bias", {3 * h});
    const auto project = [&](Value* of, int64_t part) {
      Value* w = b_.Add(Slice{.x = weight, .axis = 0, .start = {Dim(part * h)}, .end = {Dim((part + 1) * h)}});
      Value* b = b_.Add(Slice{.x = bias, .axis = 0, .start = {Dim(part * h)}, .end = {Dim((part + 1) * h)}});
      Value* y = b_.Add(llmc::Linear{.lhs = of, .rhs = w, .transpose_rhs = true});
      y = b_.Add(Add{.lhs = y, .rhs = b});
      y = b_.Add(Reshape{.x = y, .shape = {y->type.shape[0], y->type.shape[1], Dim(pool.heads), Dim(head_dim)}});
      return b_.Add(Transpose{.x = y, .perm = {0, 2, 1, 3}});
    };
    const Dim batch = Dim::Symbol("B");
    Value* query = b_.Add(Expand{.x = probe, .shape = {batch, Dim(1), Dim(h)}});
    Value* y = b_.Add(Attention{.q = project(query, 0),
                                .k = project(x, 1),
                                .v = project(x, 2),
                                .scale = 1 / std::sqrt(static_cast<double>(head_dim))});
    y = b_.Add(Reshape{.x = b_.Add(Transpose{.x = y, .perm = {0, 2, 1, 3}}), .shape = {batch, Dim(h)}});
    y = blocks_.Linear({pool.module + ".attention.out_proj", true}, y, h, h, p, "o", "%probed");
    const NormSpec norm = {
        .module = pool.module + ".layernorm", .kind = NormKind::kLayer, .eps = pool.mlp_eps, .bias = true};
    Value* m = blocks_.Mlp(pool.mlp, blocks_.Norm(norm, y, h, p + "mlp_norm", "%probed.norm"), h, p, "pool");
    return b_.Add(Add{.lhs = y, .rhs = m});
  }

  // What is classified: the hidden states `x`, or a vector that is made of them.
  Value* OfTokens(const ClassifierSpec& c, Value* x, Value* mask, Value* pooled) {
    if (c.of_mean) return BuildEmbeddings({.pools = {TokenPool::kMean}}, x, mask, &blocks_);
    return c.of_all ? x : c.of_pooled ? pooled : First(x);
  }

  void Classify(const ClassifierSpec& c, const TowerSpec& tower, Value* y) {
    const int64_t hidden = tower.hidden_size;
    if (c.dense.has_value()) y = blocks_.Linear(*c.dense, y, hidden, hidden, "@classifier.", "dense", "%classifier.in");
    if (c.activation.has_value()) y = blocks_.Act(*c.activation, y, "%classifier.act");
    if (c.norm.has_value()) y = blocks_.Norm(*c.norm, y, hidden, "@classifier.norm", "%classifier.norm");
    Output("logits", blocks_.Linear(c.out, y, hidden, c.classes, "@classifier.", "out", "%classes"));
  }

  void MaskedLm(const MaskedLmSpec& m, const TowerSpec& tower, Value* x, Value* words) {
    const auto& in = std::get<TextInput>(tower.input);
    Value* y = blocks_.Linear(m.dense, x, tower.hidden_size, in.word_size, "@lm.", "dense", "%lm.in");
    y = blocks_.Norm(m.norm, blocks_.Act(m.activation, y, "%lm.act"), in.word_size, "@lm.norm", "%lm.norm");
    Value* weight = words;
    HfWeights& weights = blocks_.weights();
    if (weights.Has(m.decoder + ".weight") && !weights.SameContents(m.decoder + ".weight", in.words + ".weight")) {
      weight = blocks_.Weight("@lm.decoder", m.decoder + ".weight", {in.vocab_size, in.word_size});
    } else {
      weights.Ignore(m.decoder + ".weight", "the same as the embedding, to which it is tied");
    }
    b_.set_loc(m.decoder);
    y = b_.Add(llmc::Linear{.lhs = y, .rhs = weight, .transpose_rhs = true}, "%lm");
    if (!m.bias.empty()) {
      // The bias is one of the decoder, to which the head's is tied; files may have either, or both.
      const std::string own = m.decoder + ".bias";
      const bool has_own = own != m.bias && weights.Has(own);
      y = b_.Add(Add{.lhs = y, .rhs = blocks_.Weight("@lm.bias", has_own ? own : m.bias, {in.vocab_size})});
      if (has_own) weights.Ignore(m.bias, "the bias of the decoder stands for it");
    }
    Output("logits", y);
  }

  Value* Unit(Value* x) {
    Value* squares = b_.Add(ReduceSum{.x = b_.Add(Mul{.lhs = x, .rhs = x}), .axes = {1}, .keep_dims = true});
    return b_.Add(Div{.lhs = x, .rhs = b_.Add(Sqrt{.x = squares})});
  }

  void Contrast(const ContrastSpec& c, Value* text, Value* image) {
    const auto vector = [&](Value* x, const std::optional<LinearSpec>& projection, int64_t in,
                            const std::string& name) {
      if (projection.has_value()) x = blocks_.Linear(*projection, x, in, c.size, "@", name, "%" + name);
      return Unit(x);
    };
    text = vector(text, c.text_projection, spec_.text->hidden_size, "text");
    image = vector(image, c.image_projection, spec_.image->hidden_size, "image");
    // The two batches are of any sizes; here of the same.
    Value* logits = b_.Add(MatMul{.lhs = text, .rhs = image, .transpose_rhs = true});
    Value* scale = blocks_.Weight("@scale", c.scale, c.scale_shape);
    logits = b_.Add(Mul{.lhs = logits, .rhs = b_.Add(Exp{.x = b_.Add(Reshape{.x = scale, .shape = {}})})});
    if (!c.bias.empty()) {
      Value* bias = blocks_.Weight("@bias", c.bias, c.scale_shape);
      logits = b_.Add(Add{.lhs = logits, .rhs = b_.Add(Reshape{.x = bias, .shape = {}})});
    }
    Output("text_embeds", text);
    Output("image_embeds", image);
    Output("logits_per_text", logits);
    Output("logits_per_image", b_.Add(Transpose{.x = logits, .perm = {1, 0}}));
  }

  const EncoderSpec& spec_;
  Model* model_;
  Step* step_;
  Builder b_;
  BlockGraph blocks_;
};

}  // namespace

absl::Status BuildEncoder(const EncoderSpec& spec, HfWeights* weights, Model* model) {
  model->name = spec.model;
  weights->SetPrefix(spec.prefix);
  weights->Ignore(spec.unused, spec.text.has_value() ? spec.text->layers : std::vector<LayerSpec>());
  model->steps.push_back(std::make_unique<Step>());
  return EncoderGraph(spec, weights, model, model->steps.back().get()).Build();
}

}  // namespace llmc::hf
