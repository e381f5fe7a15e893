#include "frontend/huggingface/decoder_graph.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/rotation_graph.h"
#include "frontend/huggingface/sequence_graph.h"
#include "frontend/huggingface/stream_graph.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"

namespace llmc::hf {
namespace {

constexpr int64_t kMaxTokens = 8192;
constexpr int64_t kMaxSequences = 256;
constexpr int64_t kMaxLogits = 1024;  // rows of logits in a step: their memory grows with the vocabulary
constexpr int64_t kMaxPages = 1 << 20;

// The slopes of each head's biases (arXiv:2108.12409, section 3): a geometric sequence, and for numbers of heads that
// are no power of 2 the odd members of the next one. `max` is 8 in the paper.
std::vector<float> AlibiSlopes(int64_t heads, double max) {
  const int64_t power = int64_t{1} << static_cast<int>(std::floor(std::log2(static_cast<double>(heads))));
  std::vector<float> slopes;
  for (int64_t i = 0; i < heads; ++i) {
    const bool is_extra = i >= power;
    const double of = static_cast<double>(is_extra ? 2 * power : power);
    const double member = static_cast<double>(is_extra ? 2 * (i - power) + 1 : i + 1);
    slopes.push_back(static_cast<float>(std::pow(2.0, -max * member / of)));
  }
  return slopes;
}

// As the attention has them: rounded and scaled.
Tensor SlopesOf(const AttentionSpec& a) {
  std::vector<float> slopes = AlibiSlopes(a.heads, a.alibi_max);
  if (a.alibi_in_bf16) slopes = Tensor::FromValues(DType::kBF16, {a.heads}, slopes).ToFloats();
  for (float& slope : slopes) slope *= static_cast<float>(a.alibi_scale);
  return Tensor::FromValues(DType::kF32, {a.heads}, slopes);
}

StateType CacheOf(const AttentionSpec& a, DType dtype, const Encoding* encoding) {
  const TensorType head = {dtype, {Dim(a.kv_heads), Dim(a.head_dim)}, encoding};
  return StateType::Paged(Dim::Symbol("N"), kDefaultPageSize, {{"k", head}, {"v", head}});
}
// One head of keys for all; its first part is their values, too.
StateType CacheOf(const LatentAttentionSpec& a, DType dtype, const Encoding*) {
  const TensorType latent = {dtype, {Dim(1), Dim(a.latent_dim + a.rope_dim)}};
  return StateType::Paged(Dim::Symbol("N"), kDefaultPageSize, {{"latent", latent}});
}

// Over 250 lines: all parts of a decoder, which share its inputs, caches and rotations.
class DecoderGraph {
 public:
  DecoderGraph(const DecoderSpec& spec, DecoderForm form, HfWeights* weights, Model* model, Step* step)
      : spec_(spec), model_(model), step_(step), b_(model, &step->block), blocks_(weights, &b_) {
    if (form != DecoderForm::kServed) sequences_.emplace(spec, form, model, step, &blocks_);
  }

  absl::Status Build() {
    const int64_t width = spec_.embedding_size == 0 ? spec_.hidden_size : spec_.embedding_size;
    embed_ = blocks_.Embedding("@embed", spec_.embedding, spec_.vocab_size, width, spec_.dtype);
    blocks_.set_dtype(embed_->type.dtype);
    if (IsServed()) {
      AddInputs();
    } else {
      inputs_ = sequences_->AddInputs();
    }
    rotations_ = std::make_unique<RotationGraph>(spec_.ropes, inputs_, &blocks_);
    Value* x = Embed(width);
    if (spec_.streams.has_value()) {
      streams_ = std::make_unique<StreamGraph>(spec_, &blocks_);
      x = streams_->Begin(x, Input(StepRole::kTokenIds));
    }
    if (!IsServed()) x = sequences_->Begin(x);
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      const int64_t index = static_cast<int64_t>(i);
      const auto attend = [&](Value* in, const std::string& prefix) {
        const auto of = [&](const auto& a) { return Attend(a, index, in, prefix, layer.module + ".self_attn"); };
        return std::visit(of, layer.attention);
      };
      x = streams_ != nullptr ? streams_->Layer(layer, index, x, attend)
                              : blocks_.Layer(layer, index, x, spec_.hidden_size, attend);
    }
    AddHead(x, width);
    return b_.status();
  }

 private:
  Value* Input(StepRole role) { return inputs_.at(role); }
  bool IsServed() const { return !sequences_.has_value(); }

  void AddInputs() {
    const int64_t pages = (spec_.max_context + kDefaultPageSize - 1) / kDefaultPageSize;
    model_->dims = {{"T", kMaxTokens}, {"S", kMaxSequences}, {"R", kMaxLogits}, {"P", pages}, {"N", kMaxPages}};
    inputs_ = AddPagedInputs(model_, step_);
    kv_encoding_ = blocks_.quantized().KvEncoding();
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const auto& attention = spec_.layers[i].attention;
      const auto* a = std::get_if<AttentionSpec>(&attention);
      if (a != nullptr && a->kv_layer.has_value()) {
        kv_.push_back(kv_[*a->kv_layer]);
        continue;
      }
      kv_.push_back(model_->AddState(
          absl::StrCat("@kv", i),
          std::visit([&](const auto& own) { return CacheOf(own, blocks_.dtype(), kv_encoding_); }, attention)));
      if (a == nullptr && kv_encoding_ != nullptr) {
        blocks_.weights().Note(absl::StrCat(spec_.layers[i].module, ": latents are cached as they are"));
      }
    }
  }

  Value* Embed(int64_t width) {
    b_.set_loc(spec_.embedding);
    Value* x = blocks_.Rows(embed_, Input(StepRole::kTokenIds), IsPlain() ? "%x0" : "%embedded");
    if (spec_.embedding_size != 0) {
      x = blocks_.Linear(spec_.embedding_in, x, width, spec_.hidden_size, "@", "embed_in", "%embedded.in");
    }
    if (spec_.embedding_scale_rounds) {
      x = b_.Add(Mul{.lhs = x, .rhs = blocks_.Number(spec_.embedding_scale, x)}, "%embedded.scaled");
    } else {
      x = blocks_.Scaled(x, spec_.embedding_scale, "%embedded.scaled");
    }
    if (!spec_.positions.empty()) {
      b_.set_loc(spec_.positions);
      Value* table =
          blocks_.Weight("@positions", spec_.positions + ".weight", {spec_.position_rows, spec_.hidden_size});
      Value* at = Input(StepRole::kPositions);
      if (spec_.position_offset != 0) {
        at = b_.Add(Add{.lhs = at, .rhs = blocks_.Number(static_cast<double>(spec_.position_offset), at)}, "%at");
      }
      x = b_.Add(Add{.lhs = x, .rhs = b_.Add(Gather{.x = table, .indices = at}, "%placed")}, "%positioned");
    }
    if (spec_.embedding_norm.has_value()) {
      x = blocks_.Norm(*spec_.embedding_norm, x, spec_.hidden_size, "@embed_norm", "%embedded.norm");
    }
    return x;
  }

  bool IsPlain() const {
    return spec_.embedding_size == 0 && spec_.embedding_scale == 1 && spec_.positions.empty() &&
           !spec_.embedding_norm.has_value() && !spec_.streams.has_value();
  }

  // ---- attention ------------------------------------------------------------------------------------------------
  Value* Attend(const AttentionSpec& a, int64_t index, Value* x, const std::string& prefix, const std::string& module) {
    const std::string i = absl::StrCat(index);
    BlockGraph::Qkv p = blocks_.Project(a, x, spec_.hidden_size, prefix, i);
    kv_scales_[index] = a.kv_layer.has_value()
                            ? kv_scales_[*a.kv_layer]
                            : blocks_.quantized().ReadKvScales(kv_encoding_, prefix.substr(0, prefix.size() - 1),
                                                               module, a.k.module, a.v.module);
    const KvScales& scales = kv_scales_[index];
    b_.set_loc(module);
    p.q = rotations_->Rotate(p.q, a.rope, a.head_dim, "%qr" + i);
    p.q = rotations_->Tempered(p.q, a.temperature, a.temperature_length, "%qt" + i);
    if (p.k != nullptr) {
      p.k = rotations_->Rotate(p.k, a.rope, a.head_dim, "%kr" + i);
      WriteCache({.k = p.k, .v = p.v, .k_scale = scales.k, .v_scale = scales.v}, index);
    }
    const double scale = a.scale == 0 ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : a.scale;
    Value* attended = IsServed()
                          ? ReadCache({.q = p.q,
                                       .sinks = Sinks(a, prefix),
                                       .slopes = Slopes(a),
                                       .k_scale = scales.k,
                                       .v_scale = scales.v,
                                       .scale = scale,
                                       .window = a.window,
                                       .softcap = a.softcap,
                                       .chunk = a.chunk},
                                      index)
                          : sequences_->Attend({.q = p.q, .k = p.k, .v = p.v, .scale = scale, .softcap = a.softcap},
                                               a.head_dim, "%a" + i);
    return blocks_.Linear(a.o, attended, a.heads * a.head_dim, spec_.hidden_size, prefix, "o", "%o" + i);
  }

  void WriteCache(KvWrite op, int64_t index) {
    if (!IsServed()) return;
    op.kv = kv_[static_cast<size_t>(index)];
    op.slots = Input(StepRole::kSlots);
    b_.AddNode(op);
  }

  Value* ReadCache(PagedAttention op, int64_t index) {
    op.kv = kv_[static_cast<size_t>(index)];
    op.pages = Input(StepRole::kPageTable);
    op.lens = Input(StepRole::kLengths);
    op.starts = Input(StepRole::kStarts);
    return b_.Add(op, absl::StrCat("%a", index));
  }

  Value* Sinks(const AttentionSpec& a, const std::string& prefix) {
    if (a.sinks.empty()) return nullptr;
    Value* sinks = blocks_.Stored(prefix + "sinks", a.sinks, {a.heads});
    return sinks->type.dtype == DType::kF32 ? sinks : b_.Add(Cast{.x = sinks, .to = DType::kF32});
  }

  Value* Slopes(const AttentionSpec& a) {
    if (!a.has_alibi) return nullptr;
    if (slopes_ == nullptr) slopes_ = b_.Add(Constant{.value = SlopesOf(a)}, "%slopes");
    return slopes_;
  }

  // In the absorbed form (arXiv:2405.04434, after equation 19): queries go through the up-projection of keys, and what
  // is attended through that of values, so that the cache is read as it is.
  Value* Attend(const LatentAttentionSpec& a, int64_t index, Value* x, const std::string& prefix,
                const std::string& module) {
    const std::string i = absl::StrCat(index);
    const Dim t = x->type.shape[0];
    const int64_t q_dim = a.nope_dim + a.rope_dim, latent = a.latent_dim, width = latent + a.rope_dim;
    int64_t in = spec_.hidden_size;
    Value* from = x;
    if (a.q_a.has_value()) {
      from = blocks_.Linear(*a.q_a, x, in, a.q_a_dim, prefix, "q_a", "%qa" + i);
      from = blocks_.Norm(a.q_a_norm, from, a.q_a_dim, prefix + "q_a_norm", "%qan" + i);
      in = a.q_a_dim;
    }
    Value* q = blocks_.Linear(a.q, from, in, a.heads * q_dim, prefix, "q", "%q" + i);
    Value* kv = blocks_.Linear(a.kv_a, x, spec_.hidden_size, width, prefix, "kv_a", "%kv" + i);
    Value* c =
        blocks_.Norm(a.kv_a_norm, blocks_.Part(kv, 0, latent, "%c" + i), latent, prefix + "kv_a_norm", "%cn" + i);
    b_.set_loc(module);
    Value* key = rotations_->Rotate(blocks_.Part(kv, latent, width, "%kr.in" + i), a.rope, a.rope_dim, "%kr" + i);
    key = b_.Add(Concat{.parts = {c, key}, .axis = 1}, "%k" + i);

    // kv_b has for each head the rows of its keys, then those of its values.
    Value* up = blocks_.PlainWeight(prefix + "wkv_b",
                                    {.name = a.kv_b, .out = a.heads * (a.nope_dim + a.value_dim), .in = latent});
    up = b_.Add(Reshape{.x = up, .shape = {Dim(a.heads), Dim(a.nope_dim + a.value_dim), Dim(latent)}});
    const auto rows = [&](int64_t begin, int64_t end) {
      return b_.Add(Slice{.x = up, .axis = 1, .start = {Dim(begin)}, .end = {Dim(end)}});
    };
    Value* heads = b_.Add(Reshape{.x = q, .shape = {t, Dim(a.heads), Dim(q_dim)}}, "%qh" + i);
    Value* nope = b_.Add(Transpose{.x = blocks_.Part(heads, 0, a.nope_dim, "%qn" + i), .perm = {1, 0, 2}});
    Value* absorbed = b_.Add(MatMul{.lhs = nope, .rhs = rows(0, a.nope_dim)}, "%ql" + i);  // [heads, T, latent]
    Value* pe = b_.Add(
        Reshape{.x = blocks_.Part(heads, a.nope_dim, q_dim, "%qp" + i), .shape = {t, Dim(a.heads * a.rope_dim)}});
    pe = rotations_->Rotate(pe, a.rope, a.rope_dim, "%qr" + i);
    pe = b_.Add(Reshape{.x = pe, .shape = {t, Dim(a.heads), Dim(a.rope_dim)}});
    Value* query = b_.Add(Concat{.parts = {b_.Add(Transpose{.x = absorbed, .perm = {1, 0, 2}}), pe}, .axis = 2});
    query = b_.Add(Reshape{.x = query, .shape = {t, Dim(a.heads * width)}}, "%qq" + i);

    WriteCache({.k = key, .v = key, .keys = "latent", .values = "latent"}, index);
    Value* seen = IsServed() ? ReadCache({.q = query, .scale = a.scale, .keys = "latent", .values = "latent"}, index)
                             : sequences_->Attend({.q = query, .k = key, .v = key, .scale = a.scale}, width, "%a" + i);
    seen = b_.Add(Reshape{.x = seen, .shape = {t, Dim(a.heads), Dim(width)}});
    seen = b_.Add(Transpose{.x = blocks_.Part(seen, 0, latent, "%al" + i), .perm = {1, 0, 2}});
    Value* values =
        b_.Add(MatMul{.lhs = seen, .rhs = rows(a.nope_dim, a.nope_dim + a.value_dim), .transpose_rhs = true});
    values = b_.Add(Transpose{.x = values, .perm = {1, 0, 2}});
    values = b_.Add(Reshape{.x = values, .shape = {t, Dim(a.heads * a.value_dim)}}, "%av" + i);
    return blocks_.Linear(a.o, values, a.heads * a.value_dim, spec_.hidden_size, prefix, "o", "%o" + i);
  }

  void AddHead(Value* x, int64_t width) {
    b_.set_loc(spec_.norm.has_value() ? spec_.norm->module : spec_.head.module);
    Value* rows = IsServed() ? b_.Add(Gather{.x = x, .indices = Input(StepRole::kRows)}, "%last") : x;
    if (streams_ != nullptr) rows = streams_->End(rows);
    Value* normed = spec_.norm.has_value() ? blocks_.Norm(*spec_.norm, rows, spec_.hidden_size, "@norm", "%n") : rows;
    if (spec_.embedding_size != 0) {
      normed = blocks_.Linear(spec_.embedding_out, normed, spec_.hidden_size, width, "@", "embed_out", "%n.out");
    }
    const DType dtype = blocks_.dtype();
    const bool is_plain =
        IsServed() && dtype == DType::kF32 && spec_.logit_scale == 1 && spec_.logit_softcap == 0 && !spec_.head.bias;
    b_.set_loc(spec_.head.module);
    Value* logits = Head(normed, width, is_plain ? "%logits" : "%logits.mm");
    if (spec_.head.bias) {
      logits = b_.Add(
          Add{.lhs = logits, .rhs = blocks_.Weight("@lm_head.bias", spec_.head.module + ".bias", {spec_.vocab_size})},
          "%logits.biased");
    }
    logits = blocks_.Scaled(logits, spec_.logit_scale, "%logits.scaled");
    logits = blocks_.Softcapped(logits, spec_.logit_softcap, "%logits.capped");
    if (dtype != DType::kF32) logits = b_.Add(Cast{.x = logits, .to = DType::kF32}, IsServed() ? "%logits" : "%rows");
    if (!IsServed()) return sequences_->AddOutputs(logits, rows, normed);
    step_->outputs.push_back({"logits", logits});
  }

  Value* Head(Value* x, int64_t width, const std::string& name) {
    HfWeights& weights = blocks_.weights();
    const std::string head = spec_.head.module + ".weight", embedding = spec_.embedding + ".weight";
    if (!spec_.is_tied) {
      return blocks_.LinearOf({.name = spec_.head.module, .out = spec_.vocab_size, .in = width, .is_head = true}, x,
                              "@lm_head", name);
    }
    if (weights.SameContents(head, embedding)) {
      weights.Ignore(head, "the same as the embedding, to which it is tied");
    } else {
      weights.Refuse(head, "differs from the embedding, but tie_word_embeddings is true; set it to false to use both");
    }
    return b_.Add(llmc::Linear{.lhs = x, .rhs = embed_, .transpose_rhs = true}, name);
  }

  const DecoderSpec& spec_;
  Model* model_;
  Step* step_;
  Builder b_;
  BlockGraph blocks_;
  Value* embed_ = nullptr;
  std::map<StepRole, Value*> inputs_;
  std::unique_ptr<RotationGraph> rotations_;
  std::unique_ptr<StreamGraph> streams_;
  std::vector<Value*> kv_;
  const Encoding* kv_encoding_ = nullptr;   // of keys and values in caches; nullptr: they are floats
  std::map<int64_t, KvScales> kv_scales_;   // of layers with keys and values
  std::optional<SequenceGraph> sequences_;  // where there is no cache
  Value* slopes_ = nullptr;
};

}  // namespace

absl::Status BuildDecoder(const DecoderSpec& spec, DecoderForm form, HfWeights* weights, Model* model) {
  model->name = spec.model;
  model->steps.push_back(std::make_unique<Step>());
  const DecoderSpec own = form == DecoderForm::kPredictor ? PredictorAlone(spec, *weights) : spec;
  weights->Ignore(own.unused, own.layers);
  return DecoderGraph(own, form, weights, model, model->steps.back().get()).Build();
}

}  // namespace llmc::hf
