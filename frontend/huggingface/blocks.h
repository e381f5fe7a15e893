// What a Hugging Face model consists of: blocks with their sizes and the names of their weights in the checkpoint. A
// family (family.h) is a function from config.json to such a description; graphs are built from descriptions alone
// (decoder_graph.cc), so that every block may stand in every family. What is absent is not computed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "frontend/huggingface/rope.h"
#include "ir/tensor.h"

namespace llmc::hf {

// Weights are MODULE.weight and MODULE.bias.
struct LinearSpec {
  std::string module;
  bool bias = false;
  bool is_transposed = false;  // the checkpoint has [in, out] (transformers' Conv1D), else [out, in]
  bool is_router = false;      // of experts: quantized checkpoints leave it as it is
};

enum class NormKind {
  kRms,    // arXiv:1910.07467
  kLayer,  // arXiv:1607.06450
};
struct NormSpec {
  std::string module;
  NormKind kind = NormKind::kRms;
  double eps = 1e-6;
  bool plus_one = false;   // the checkpoint has weight - 1 (Gemma, Nemotron)
  bool has_weight = true;  // else all ones
  bool bias = false;       // of kLayer
};

enum class Activation { kSilu, kGelu, kGeluTanh, kQuickGelu, kRelu, kRelu2, kTanh };

// How the rows of one weight for queries, keys and values lie.
enum class QkvLayout {
  kApart,   // three weights
  kInTurn,  // all queries, all keys, all values
  kGroups,  // for each KV head: its query heads, its key, its value
};

// What norms of queries and keys run over.
enum class HeadNorm {
  kHead,   // each head, with one weight [head_dim]
  kHeads,  // each head, with weights of its own [heads, head_dim]
  kWidth,  // all heads as one row
};

// Softmax attention with a KV cache; query head h reads KV head h / (heads / kv_heads).
struct AttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  QkvLayout layout = QkvLayout::kApart;
  LinearSpec q, k, v;  // of kApart; else q is the one weight
  LinearSpec o;
  std::optional<NormSpec> q_norm, k_norm;
  std::optional<NormSpec> v_norm;  // of each head
  std::optional<size_t> kv_layer;  // the layer whose keys and values it reads, in place of its own
  HeadNorm head_norm = HeadNorm::kHead;
  std::optional<size_t> rope;  // which of the model's; none: positions are not rotated
  double scale = 0;            // of scores; 0: 1 / sqrt(head_dim)
  int64_t window = 0;          // keys that a query sees, its own among them; 0: all before it
  int64_t chunk = 0;           // or: a query sees keys of its own chunk of so many positions only; 0: not
  double softcap = 0;
  double clip = 0;  // queries, keys and values are clamped to [-clip, clip]; 0: not
  bool clip_after_norm = false;
  bool has_alibi = false;      // arXiv:2108.12409
  double alibi_max = 8;        // 2^-alibi_max is the slope of the last head
  double alibi_scale = 1;      // of the biases
  bool alibi_in_bf16 = false;  // slopes are rounded to bf16
  std::string sinks;           // tensor [heads]: a score with no value; empty: none
  // A query at position p is multiplied by 1 + temperature * ln(1 + floor((p + 1) / temperature_length))
  // (arXiv:2501.19399); 0: not.
  double temperature = 0;
  int64_t temperature_length = 1;
};

// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): the cache holds `latent_dim` numbers and
// one rotated key of `rope_dim` for all heads.
struct LatentAttentionSpec {
  int64_t heads = 0, nope_dim = 0, rope_dim = 0, value_dim = 0, latent_dim = 0;
  LinearSpec q;                   // of hidden states, or of the normalized q_a
  std::optional<LinearSpec> q_a;  // with q_a_dim results
  int64_t q_a_dim = 0;
  NormSpec q_a_norm;
  LinearSpec kv_a;  // [latent_dim + rope_dim, hidden]
  NormSpec kv_a_norm;
  std::string kv_b;  // module of [heads * (nope_dim + value_dim), latent_dim]
  LinearSpec o;
  std::optional<size_t> rope;
  double scale = 1;
};

// act(gate) * up, or act(up) where there is no gate, then down.
struct MlpSpec {
  int64_t size = 0;
  Activation activation = Activation::kSilu;
  std::optional<LinearSpec> gate;
  LinearSpec up, down;
  bool is_fused = false;  // `up` holds the rows of gate, then those of up
  // Of a gate's elements about this part, the smallest, becomes 0, as if they were normally distributed: the activation
  // is of max(gate - mean - quantile(sparsity) * deviation, 0) (Spark Transformer, arXiv:2506.06644). 0: not.
  double sparsity = 0;
};

inline constexpr absl::string_view kStackedExperts = "stacked";

// A mixture of experts: each token goes to `top_k` of them.
struct ExpertsSpec {
  int64_t experts = 0, top_k = 0, size = 0;
  LinearSpec router;  // [experts, hidden]
  std::string score = "softmax";
  std::string correction;  // tensor [experts], added to scores for the choice alone; empty: none
  int64_t groups = 1, top_groups = 1, group_best = 1;
  bool normalize = false;    // the weights of the chosen sum to 1
  double scale = 1;          // of the weights
  bool scale_input = false;  // the weights multiply what goes into experts, not what comes out (Llama 4)

  // One weight for each expert: MODULE.N.gate.weight; or one of each kind for all: MODULE.stacked.gate.weight [experts,
  // size, hidden], as in GGUF.
  std::string module;  // "model.layers.0.mlp.experts"
  // Where the experts and their router are in checkpoints that name them otherwise; empty: there are none.
  std::string other_module, other_router;
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  // Or all in one: MODULE.gate_up_proj [experts, 2 * size, hidden], MODULE.down_proj [experts, hidden, size].
  std::string fused_gate_up = "gate_up_proj", fused_down = "down_proj";
  bool fused_is_transposed = false;   // [experts, in, out]
  bool fused_is_interleaved = false;  // gate and up by turns
  // Or the fused ones of each expert, MODULE.NAME.N.weight [2 * size, hidden] and [hidden, size]: pairs of such names,
  // of which a checkpoint has at most one.
  std::vector<std::pair<std::string, std::string>> lists;
  // MODULE.gate_up_proj_bias [experts, 2 * size] and MODULE.down_proj_bias, or one beside each weight.
  bool bias = false;
  Activation activation = Activation::kSilu;
  // gpt-oss: min(gate, limit) * sigmoid(alpha * gate) * (clamp(up, ±limit) + 1); 0: none
  double limit = 0, alpha = 0;
  std::optional<MlpSpec> shared;          // is added
  std::optional<LinearSpec> shared_gate;  // [1, hidden]: its sigmoid multiplies what is added
};

// A layer of a model with StreamsSpec.
struct StreamLayerSpec {
  // How much each stream is predicted of each, and then corrected by what the layer computed, is a linear function of
  // tanh(router(router_norm(x) / hidden)).
  NormSpec router_norm;
  LinearSpec router, prediction, correction;
  std::string output_scale;  // tensor [hidden], of the active stream before input_gate; empty: none
  // Beside attention: x + norm(right(left(x))) (LAuReL, arXiv:2411.07501).
  LinearSpec laurel_left, laurel_right;
  int64_t laurel_rank = 0;
  NormSpec laurel_norm;
  // norm(projection(act(gate(x)) * the layer's own embedding of the token)) is added to all streams but the first.
  LinearSpec input_gate, input_projection;
  NormSpec input_norm;
  Activation activation = Activation::kGeluTanh;
};

// x is a token's hidden state. Sequential: h = x + a, out = h + m; parallel: out = x + a + m.
struct LayerSpec {
  std::string module;  // for messages
  std::variant<AttentionSpec, LatentAttentionSpec> attention;
  std::variant<MlpSpec, ExpertsSpec> mlp;
  std::optional<NormSpec> attention_norm, mlp_norm;          // of what goes in
  std::optional<NormSpec> attention_out_norm, mlp_out_norm;  // of what comes out
  std::optional<NormSpec> attention_sum_norm, mlp_sum_norm;  // of the sum with x or h
  bool is_parallel = false;                                  // without an mlp_norm the MLP reads what attention does
  double residual_scale = 1;                                 // of a and m
  std::string attention_factor, mlp_factor;                  // tensors [hidden] that multiply a and m; empty: none
  bool adds_to_normed = false;                               // h = attention_norm(x) + a, out = mlp_norm(h) + m
  std::optional<StreamLayerSpec> streams;
};

// A layer behind the last one that predicts one token further (arXiv:2412.19437, section 2.2): of a token's hidden
// state h and the next token, layer(projection([embedding_norm(embedding), hidden_norm(h)])), from which norm and head
// make logits.
struct PredictorSpec {
  LayerSpec layer;
  NormSpec embedding_norm, hidden_norm, norm;
  LinearSpec projection;
  std::string embedding, head;  // modules that checkpoints may have in place of the model's
};

// A token has several hidden states, of which layers compute one and predict and correct the others (AltUp,
// arXiv:2301.13310), and an embedding for each layer (Gemma 3n).
struct StreamsSpec {
  int64_t count = 0, active = 0;
  std::string projections, unembed_projections;  // modules of matrices .0, .1, …: to all but the first, and back
  std::string input_table;                       // module of the embeddings [input_vocab, layers * input_size]
  int64_t input_size = 0, input_vocab = 0;
  LinearSpec input_projection;  // of hidden states, added to them
  NormSpec input_norm;          // of input_size
};

// Tensors that checkpoints may hold and the model does not need, each with the reason.
struct UnusedTensors {
  using List = std::vector<std::pair<std::string, std::string>>;
  List names;
  List of_layers;   // behind the module of each layer
  List beginnings;  // all whose names begin so
};

class QuantizedScheme;  // quantized/scheme.h

struct DecoderSpec {
  std::string model;                                 // its name
  std::shared_ptr<const QuantizedScheme> quantized;  // how weights of linear layers are stored; null: as they are
  int64_t vocab_size = 0, hidden_size = 0;
  int64_t max_context = 0;    // tokens of a sequence that it is made for
  DType dtype = DType::kF32;  // that weights should have; those of a checkpoint say it themselves

  // What names of weights begin with, but for those of the head; checkpoints of the model without its head lack it.
  std::string prefix = "model.";
  std::string embedding = "model.embed_tokens";
  int64_t embedding_size = 0;  // 0: hidden_size; else the embedding is multiplied by `embedding_in`
  LinearSpec embedding_in, embedding_out;
  double embedding_scale = 1;
  bool embedding_scale_rounds = false;  // to the type of the model, before it multiplies
  std::string positions;                // module of a table of learned positions; empty: none
  int64_t position_rows = 0, position_offset = 0;
  std::optional<NormSpec> embedding_norm;

  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
  std::optional<StreamsSpec> streams;
  std::vector<PredictorSpec> predictors;

  std::optional<NormSpec> norm;
  LinearSpec head = {.module = "lm_head"};
  bool is_tied = false;   // the head is the embedding
  bool is_causal = true;  // else tokens see those behind them too, so that vectors of texts can be made, and no text
  double logit_scale = 1;
  double logit_softcap = 0;  // of softcap * tanh(logits / softcap); 0: none

  UnusedTensors unused;
};

// ---- encoders -----------------------------------------------------------------------------------------------------
// Which rows of a table of learned positions tokens take.
enum class PositionKind {
  kNone,
  kPlace,    // the token's place
  kCounted,  // the count of tokens that are no padding, up to it; padding takes the row before the first (RoBERTa)
};

// Of texts: input_ids [B, L].
struct TextInput {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // tokens of a text
  std::string words;          // module of the table
  int64_t word_size = 0;      // of a row of all these tables
  double scale = 1;           // of rows of `words`
  bool scale_rounds = false;  // as DecoderSpec::embedding_scale_rounds
  PositionKind position_kind = PositionKind::kPlace;
  std::string positions;
  int64_t position_rows = 0, padding_id = 0;
  std::string types;  // of token_type_ids; empty: there are none
  int64_t type_count = 0;
  std::optional<NormSpec> norm;
  std::optional<LinearSpec> projection;  // from word_size to the hidden size
  bool projects_before_norm = false;
  bool zeroes_padding = false;
};

// Of images: pixel_values [B, channels, size, size], cut into patches.
struct ImageInput {
  int64_t channels = 3, size = 224, patch = 16;
  LinearSpec projection;    // a convolution [hidden, channels, patch, patch]
  std::string class_token;  // tensor; empty: there is none
  Shape class_shape;
  std::string positions;  // tensor
  Shape position_shape;
  std::optional<NormSpec> norm;

  int64_t patches() const { return (size / patch) * (size / patch); }
};

// A bias of scores by the distance of key and query, from a table [buckets, heads] (arXiv:1910.10683, section 2.1).
struct RelativeBias {
  std::string module;
  int64_t buckets = 32, max_distance = 128;
};

// Disentangled attention (DeBERTa, arXiv:2006.03654, section 3.1): scores by content, and by content and distance.
struct Disentangled {
  std::string table;  // module of embeddings of distances [2 * span, hidden]
  std::optional<NormSpec> norm;
  int64_t span = 0, buckets = 0, max_distance = 0;
  bool content_to_position = false, position_to_content = false;
  bool shares_keys = false;  // distances go through the projections of queries and keys
};

// One stack of layers.
struct TowerSpec {
  int64_t hidden_size = 0;
  std::string name;  // what names of its weights and values begin with, where there are two
  std::variant<TextInput, ImageInput> input;
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
  std::optional<RelativeBias> relative_bias;
  std::optional<Disentangled> disentangled;
  bool is_causal = false;
  // After the first layer, in place of its output x: norm(x + act(conv(what went into it))).
  struct Convolution {
    std::string module;
    int64_t kernel = 0, groups = 1;
    Activation activation = Activation::kTanh;
    NormSpec norm;
  };
  std::optional<Convolution> convolution;
  std::optional<NormSpec> norm;
};

// What of all tokens becomes one vector.
enum class PoolKind { kFirst, kLast, kEndOfText, kAttention };
struct PoolSpec {
  PoolKind kind = PoolKind::kFirst;
  int64_t end_id = 0;               // of kEndOfText: the first such token; 2: the one with the largest id
  std::optional<NormSpec> norm;     // of the vector
  std::optional<LinearSpec> dense;  // [size, hidden]
  int64_t size = 0;
  std::optional<Activation> activation;
  // Of kAttention (SigLIP): a learned query attends to all, then an MLP.
  std::string module;
  int64_t heads = 0;
  MlpSpec mlp;
  double mlp_eps = 1e-6;  // of its norm
};

// What is computed of a tower, in order; each is an output, if it has a name.
struct ClassifierSpec {
  std::optional<LinearSpec> dense;  // before it, with an activation and a norm
  std::optional<Activation> activation;
  std::optional<NormSpec> norm;
  LinearSpec out;
  int64_t classes = 0;
  // Of the first token's hidden state, unless one of these is set.
  bool of_pooled = false;
  bool of_all = false;   // a result for each token
  bool of_mean = false;  // of the tokens that are no padding
};
struct MaskedLmSpec {
  LinearSpec dense;
  Activation activation = Activation::kGelu;
  NormSpec norm;
  std::string bias;     // tensor [vocab]; empty: none
  std::string decoder;  // module; empty: the table of words
};
// Text and image vectors compared (CLIP, arXiv:2103.00020).
struct ContrastSpec {
  std::optional<LinearSpec> text_projection, image_projection;
  int64_t size = 0;
  std::string scale, bias;  // tensors; the scale's exponential multiplies
  Shape scale_shape;
};

// One vector for each text, as the modules of sentence-transformers behind its Transformer make it of the hidden states
// (arXiv:1908.10084, section 3).
enum class TokenPool {
  kFirst,
  kMax,
  kMean,
  kMeanSqrt,      // the sum over the square root of the count
  kWeightedMean,  // the first token counts once, the second twice, …
  kLast,
};
struct DenseStep {
  LinearSpec linear;
  int64_t in = 0, out = 0;
  std::optional<Activation> activation;
};
struct UnitStep {};  // x / max(|x|, 1e-12)
struct EmbeddingSpec {
  std::vector<TokenPool> pools;  // one behind the other
  int64_t pooled_size = 0;       // of what each gives, as the folder says; 0: it does not
  bool include_prompt = true;    // else the input "pooling_mask" says which tokens count
  std::vector<std::variant<DenseStep, UnitStep>> steps;
  int64_t max_tokens = 0;  // of a text; 0: those that the model has positions for
};

struct EncoderSpec {
  std::string model;
  std::shared_ptr<const QuantizedScheme> quantized;
  std::string prefix;  // as in DecoderSpec
  DType dtype = DType::kF32;
  std::optional<TowerSpec> text, image;
  std::optional<PoolSpec> text_pool, image_pool;
  bool pools_to_output = true;  // "pooler_output"
  bool gives_hidden = true;     // "last_hidden_state"
  std::optional<ClassifierSpec> classifier;
  std::optional<MaskedLmSpec> masked_lm;
  std::optional<ContrastSpec> contrast;
  std::optional<LinearSpec> text_projection;  // of the pooled text: "text_embeds"
  int64_t projection_size = 0;
  std::optional<EmbeddingSpec> embedding;  // of the text: "embeddings"
  bool packed = false;                     // texts are not padded: see tower_graph.h
  UnusedTensors unused;
};

using ModelSpec = std::variant<DecoderSpec, EncoderSpec>;

}  // namespace llmc::hf
