// Encoders of text: BERT and its kin, each with the heads of transformers' classes.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "frontend/huggingface/family.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

struct TextKeys {
  std::string hidden = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads";
  std::string inner = "intermediate_size", activation = "hidden_act", eps = "layer_norm_eps";
  double eps_absent = 1e-12;
  int64_t vocab_size = 30522, hidden_size = 768, layer_count = 12, head_count = 12, inner_size = 3072;
  int64_t max_positions = 512;
};

// A tower with attention and MLP of one size in every layer; families name the weights.
TowerSpec ReadTower(ConfigReader& c, const TextKeys& k, const std::string& layers_module) {
  TowerSpec tower;
  tower.hidden_size = c.Int(k.hidden, k.hidden_size);
  const int64_t layers = c.Int(k.layers, k.layer_count, 1, kMaxLayers), heads = c.Int(k.heads, k.head_count);
  if (tower.hidden_size % heads != 0) {
    c.Contradicts(absl::StrCat(k.hidden, " ", tower.hidden_size, " is no multiple of ", k.heads, " ", heads));
  }
  const int64_t head_dim = std::max<int64_t>(tower.hidden_size / heads, 1);
  const Activation activation = ReadActivation(c, k.activation, "gelu");
  const int64_t inner = c.Int(k.inner, k.inner_size);
  for (int64_t i = 0; i < layers; ++i) {
    LayerSpec layer{.module = absl::StrCat(layers_module, ".", i)};
    layer.attention = AttentionSpec{.heads = heads, .kv_heads = heads, .head_dim = head_dim};
    layer.mlp = MlpSpec{.size = inner, .activation = activation};
    tower.layers.push_back(std::move(layer));
  }
  return tower;
}

TextInput ReadText(ConfigReader& c, const TextKeys& k, const TowerSpec& tower, const std::string& embeddings) {
  TextInput in;
  in.vocab_size = c.Int("vocab_size", k.vocab_size, 1, kMaxVocab);
  in.max_positions = in.position_rows = c.Int("max_position_embeddings", k.max_positions, 1, kMaxPositions);
  in.word_size = tower.hidden_size;
  in.words = embeddings + ".word_embeddings";
  in.positions = embeddings + ".position_embeddings";
  in.norm = LayerNormOf(embeddings + ".LayerNorm", c.Number(k.eps, k.eps_absent, 0, 1));
  return in;
}

// BERT's names of weights in its layers.
void NameAsBert(double eps, const std::string& q, const std::string& k, const std::string& v, TowerSpec* tower) {
  for (LayerSpec& layer : tower->layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {m + ".attention.self." + q, true};
    a.k = {m + ".attention.self." + k, true};
    a.v = {m + ".attention.self." + v, true};
    a.o = {m + ".attention.output.dense", true};
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.up = {m + ".intermediate.dense", true};
    mlp.down = {m + ".output.dense", true};
    layer.attention_sum_norm = LayerNormOf(m + ".attention.output.LayerNorm", eps);
    layer.mlp_sum_norm = LayerNormOf(m + ".output.LayerNorm", eps);
  }
}

std::vector<std::pair<std::string, std::string>> Buffers(const std::string& prefix) {
  return {{prefix + "embeddings.position_ids", "a buffer of 0, 1, …"},
          {prefix + "embeddings.token_type_ids", "a buffer of zeros"}};
}

// What the name of a class adds to its family's.
bool IsTask(absl::string_view architecture, absl::string_view task) { return absl::EndsWith(architecture, task); }

PoolSpec DensePool(const std::string& module, int64_t size, Activation activation = Activation::kTanh) {
  return {.dense = LinearSpec{module, true}, .size = size, .activation = activation};
}

// A base model has more than the head of a task needs.
void IgnorePooler(EncoderSpec* spec) {
  spec->unused.names.push_back({spec->prefix + "pooler.dense.weight", "this class has no pooler"});
  spec->unused.names.push_back({spec->prefix + "pooler.dense.bias", "this class has no pooler"});
}

void IgnoreHeads(std::initializer_list<const char*> heads, EncoderSpec* spec) {
  for (const char* head : heads) spec->unused.beginnings.push_back({head, "the head of another task"});
}

// One product for each token.
void ClassifyTokens(ConfigReader& c, EncoderSpec* spec) {
  spec->gives_hidden = spec->pools_to_output = false;
  spec->classifier = ClassifierSpec{.out = {"classifier", true}, .classes = Labels(c), .of_all = true};
}

// Two products of the first token, as RoBERTa has them.
void ClassifyFirst(ConfigReader& c, Activation activation, EncoderSpec* spec) {
  spec->gives_hidden = spec->pools_to_output = false;
  spec->classifier = ClassifierSpec{.dense = LinearSpec{"classifier.dense", true},
                                    .activation = activation,
                                    .out = {"classifier.out_proj", true},
                                    .classes = Labels(c)};
}

// RoBERTa's head of masked words.
MaskedLmSpec RobertaWords(double eps) {
  return {.dense = {"lm_head.dense", true},
          .activation = Activation::kGelu,
          .norm = LayerNormOf("lm_head.layer_norm", eps),
          .bias = "lm_head.bias",
          .decoder = "lm_head.decoder"};
}

constexpr absl::string_view kAllTasks = "the model, ForMaskedLM, ForSequenceClassification and ForTokenClassification";

void RefuseTask(ConfigReader& c, absl::string_view architecture, absl::string_view supported) {
  c.Refuse(absl::StrCat("the head of ", architecture, " is not supported; supported are ", supported,
                        "; without a head: name the model's class in \"architectures\""));
}

// Over 60 lines: the heads of its classes.
EncoderSpec ReadBert(ConfigReader& c, absl::string_view architecture, const std::string& prefix, TextKeys keys,
                     bool by_count) {
  EncoderSpec spec;
  spec.prefix = prefix;
  c.Needs("is_decoder", false);
  c.Needs("add_cross_attention", false);
  if (c.Text("position_embedding_type", "absolute") != "absolute") {
    c.Refuse("position_embedding_type other than absolute is not supported");
  }
  TowerSpec tower = ReadTower(c, keys, prefix + "encoder.layer");
  const double eps = c.Number(keys.eps, keys.eps_absent, 0, 1);
  NameAsBert(eps, "query", "key", "value", &tower);
  TextInput in = ReadText(c, keys, tower, prefix + "embeddings");
  in.type_count = c.Int("type_vocab_size", by_count ? 1 : 2);
  in.types = prefix + "embeddings.token_type_embeddings";
  if (by_count) {
    in.position_kind = PositionKind::kCounted;
    in.padding_id = c.Int("pad_token_id", 1, 0, kMaxVocab);
    in.max_positions = std::max<int64_t>(in.position_rows - in.padding_id - 1, 1);
  }
  tower.input = in;
  spec.text = std::move(tower);
  spec.unused.names = Buffers(spec.prefix);
  const int64_t hidden = spec.text->hidden_size;
  const Activation activation = ReadActivation(c, "hidden_act", "gelu");
  if (IsTask(architecture, "ForMaskedLM")) {
    spec.gives_hidden = false;
    if (by_count) {
      spec.masked_lm = RobertaWords(eps);
    } else {
      spec.masked_lm = MaskedLmSpec{.dense = {"cls.predictions.transform.dense", true},
                                    .activation = activation,
                                    .norm = LayerNormOf("cls.predictions.transform.LayerNorm", eps),
                                    .bias = "cls.predictions.bias",
                                    .decoder = "cls.predictions.decoder"};
    }
    IgnorePooler(&spec);
    IgnoreHeads({"cls.seq_relationship."}, &spec);
  } else if (IsTask(architecture, "ForSequenceClassification") && !by_count) {
    spec.gives_hidden = spec.pools_to_output = false;
    spec.text_pool = DensePool(prefix + "pooler.dense", hidden);
    spec.classifier = ClassifierSpec{.out = {"classifier", true}, .classes = Labels(c), .of_pooled = true};
    IgnoreHeads({"cls.", "lm_head."}, &spec);
  } else if (IsTask(architecture, "ForSequenceClassification") || IsTask(architecture, "ForTokenClassification")) {
    if (IsTask(architecture, "ForTokenClassification")) {
      ClassifyTokens(c, &spec);
    } else {
      ClassifyFirst(c, Activation::kTanh, &spec);
    }
    IgnorePooler(&spec);
    IgnoreHeads({"cls.", "lm_head."}, &spec);
  } else {
    if (IsTask(architecture, "ForQuestionAnswering") || IsTask(architecture, "ForMultipleChoice")) {
      RefuseTask(c, architecture, kAllTasks);
    }
    spec.text_pool = DensePool(prefix + "pooler.dense", hidden);
    IgnoreHeads({"cls.", "lm_head."}, &spec);
  }
  return spec;
}

EncoderSpec Bert(ConfigReader& c, absl::string_view architecture) {
  return ReadBert(c, architecture, "bert.", {}, false);
}

EncoderSpec Roberta(ConfigReader& c, absl::string_view architecture) {
  return ReadBert(c, architecture, "roberta.", {.vocab_size = 50265}, true);
}

EncoderSpec Electra(ConfigReader& c, absl::string_view architecture) {
  EncoderSpec spec = ReadBert(c, "", "electra.", {.hidden_size = 256, .head_count = 4, .inner_size = 1024}, false);
  auto& in = std::get<TextInput>(spec.text->input);
  in.word_size = c.Int("embedding_size", 128);
  if (in.word_size != spec.text->hidden_size) in.projection = LinearSpec{"electra.embeddings_project", true};
  spec.text_pool.reset();
  if (IsTask(architecture, "ForSequenceClassification")) {
    ClassifyFirst(c, Activation::kGelu, &spec);
  } else if (IsTask(architecture, "ForTokenClassification")) {
    ClassifyTokens(c, &spec);
  } else if (IsTask(architecture, "ForMaskedLM")) {
    spec.gives_hidden = false;
    spec.masked_lm = MaskedLmSpec{.dense = {"generator_predictions.dense", true},
                                  .activation = Activation::kGelu,
                                  .norm = LayerNormOf("generator_predictions.LayerNorm", in.norm->eps),
                                  .bias = "generator_lm_head.bias",
                                  .decoder = "generator_lm_head"};
    return spec;
  } else if (!IsTask(architecture, "Model") && !IsTask(architecture, "ForPreTraining")) {
    RefuseTask(c, architecture, kAllTasks);
  }
  IgnoreHeads({"discriminator_predictions.", "generator_"}, &spec);
  return spec;
}

EncoderSpec DistilBert(ConfigReader& c, absl::string_view architecture) {
  const TextKeys keys = {.hidden = "dim",
                         .layers = "n_layers",
                         .heads = "n_heads",
                         .inner = "hidden_dim",
                         .activation = "activation",
                         .eps = "",
                         .layer_count = 6};
  EncoderSpec spec;
  spec.prefix = "distilbert.";
  TowerSpec tower = ReadTower(c, keys, "distilbert.transformer.layer");
  for (LayerSpec& layer : tower.layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {m + ".attention.q_lin", true};
    a.k = {m + ".attention.k_lin", true};
    a.v = {m + ".attention.v_lin", true};
    a.o = {m + ".attention.out_lin", true};
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.up = {m + ".ffn.lin1", true};
    mlp.down = {m + ".ffn.lin2", true};
    layer.attention_sum_norm = LayerNormOf(m + ".sa_layer_norm", 1e-12);
    layer.mlp_sum_norm = LayerNormOf(m + ".output_layer_norm", 1e-12);
  }
  tower.input = ReadText(c, keys, tower, "distilbert.embeddings");
  const Activation activation = ReadActivation(c, "activation", "gelu");
  spec.text = std::move(tower);
  spec.unused.names = Buffers(spec.prefix);
  if (IsTask(architecture, "ForSequenceClassification")) {
    spec.gives_hidden = false;
    spec.classifier = ClassifierSpec{.dense = LinearSpec{"pre_classifier", true},
                                     .activation = Activation::kRelu,
                                     .out = {"classifier", true},
                                     .classes = Labels(c)};
  } else if (IsTask(architecture, "ForMaskedLM")) {
    spec.gives_hidden = false;
    spec.masked_lm = MaskedLmSpec{.dense = {"vocab_transform", true},
                                  .activation = activation,
                                  .norm = LayerNormOf("vocab_layer_norm", 1e-12),
                                  .bias = "vocab_projector.bias",
                                  .decoder = "vocab_projector"};
  } else if (IsTask(architecture, "ForTokenClassification")) {
    ClassifyTokens(c, &spec);
  } else if (IsTask(architecture, "Model")) {
    IgnoreHeads({"vocab_"}, &spec);
  } else {
    RefuseTask(c, architecture, kAllTasks);
  }
  return spec;
}

EncoderSpec MpNet(ConfigReader& c, absl::string_view architecture) {
  EncoderSpec spec = ReadBert(c, "", "mpnet.", {.vocab_size = 30527}, true);
  auto& in = std::get<TextInput>(spec.text->input);
  in.types = "";
  in.padding_id = 1;  // whatever pad_token_id says
  in.max_positions = std::max<int64_t>(in.position_rows - 2, 1);
  for (LayerSpec& layer : spec.text->layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q.module = layer.module + ".attention.attn.q";
    a.k.module = layer.module + ".attention.attn.k";
    a.v.module = layer.module + ".attention.attn.v";
    a.o.module = layer.module + ".attention.attn.o";
    layer.attention_sum_norm->module = layer.module + ".attention.LayerNorm";
  }
  // Its buckets are fixed, whatever relative_attention_num_buckets says of the table.
  spec.text->relative_bias = RelativeBias{.module = "mpnet.encoder.relative_attention_bias",
                                          .buckets = c.Int("relative_attention_num_buckets", 32, 4, 65536)};
  if (spec.text->relative_bias->buckets != 32)
    c.Refuse("relative_attention_num_buckets other than 32 is not supported");
  if (IsTask(architecture, "Model")) return spec;
  spec.text_pool.reset();
  IgnorePooler(&spec);
  if (IsTask(architecture, "ForSequenceClassification")) {
    ClassifyFirst(c, Activation::kTanh, &spec);
  } else if (IsTask(architecture, "ForTokenClassification")) {
    ClassifyTokens(c, &spec);
  } else if (IsTask(architecture, "ForMaskedLM")) {
    spec.gives_hidden = false;
    spec.masked_lm = RobertaWords(in.norm->eps);
    return spec;
  } else {
    RefuseTask(c, architecture, kAllTasks);
  }
  IgnoreHeads({"lm_head."}, &spec);
  return spec;
}

Disentangled ReadDisentangled(ConfigReader& c, int64_t max_positions, double eps) {
  Disentangled d{.table = "deberta.encoder.rel_embeddings"};
  const int64_t given = c.Int("max_relative_positions", -1, -1, kMaxPositions);
  d.max_distance = given < 1 ? max_positions : given;
  const int64_t buckets = c.Int("position_buckets", -1, -1, kMaxPositions);
  d.buckets = std::max<int64_t>(buckets, 0);
  d.span = d.buckets > 0 ? d.buckets : d.max_distance;
  const json* types = c.Find("pos_att_type");
  const std::string text = types == nullptr ? "" : types->is_string() ? types->get<std::string>() : types->dump();
  d.content_to_position = absl::StrContains(text, "c2p");
  d.position_to_content = absl::StrContains(text, "p2c");
  d.shares_keys = c.Flag("share_att_key", false);
  if (absl::StrContains(c.Text("norm_rel_ebd", "none"), "layer_norm"))
    d.norm = LayerNormOf("deberta.encoder.LayerNorm", eps);
  return d;
}

EncoderSpec DebertaV2(ConfigReader& c, absl::string_view architecture) {
  const TextKeys keys = {.eps_absent = 1e-7,
                         .vocab_size = 128100,
                         .hidden_size = 1536,
                         .layer_count = 24,
                         .head_count = 24,
                         .inner_size = 6144};
  EncoderSpec spec;
  spec.prefix = "deberta.";
  TowerSpec tower = ReadTower(c, keys, "deberta.encoder.layer");
  const double eps = c.Number("layer_norm_eps", 1e-7, 0, 1);
  NameAsBert(eps, "query_proj", "key_proj", "value_proj", &tower);
  TextInput in = ReadText(c, keys, tower, "deberta.embeddings");
  if (!c.Flag("position_biased_input", true)) {
    in.position_kind = PositionKind::kNone;
    spec.unused.names.push_back({in.positions + ".weight", "position_biased_input is false"});
  }
  in.type_count = c.Int("type_vocab_size", 0, 0);
  if (in.type_count > 0) in.types = "deberta.embeddings.token_type_embeddings";
  in.word_size = c.Int("embedding_size", tower.hidden_size);
  if (in.word_size != tower.hidden_size) in.projection = LinearSpec{"deberta.embeddings.embed_proj"};
  in.projects_before_norm = true;
  in.zeroes_padding = true;
  if (c.Flag("relative_attention", false)) tower.disentangled = ReadDisentangled(c, in.max_positions, eps);
  const int64_t kernel = c.Int("conv_kernel_size", 0, 0, 64);
  if (kernel > 0) {
    tower.convolution = TowerSpec::Convolution{.module = "deberta.encoder.conv.conv",
                                               .kernel = kernel,
                                               .groups = c.Int("conv_groups", 1),
                                               .activation = ReadActivation(c, "conv_act", "tanh"),
                                               .norm = LayerNormOf("deberta.encoder.conv.LayerNorm", eps)};
    if (kernel % 2 == 0) c.Refuse("conv_kernel_size has to be odd");
  }
  tower.input = in;
  spec.text = std::move(tower);
  for (const auto& buffer : Buffers(spec.prefix)) spec.unused.names.push_back(buffer);
  if (IsTask(architecture, "ForSequenceClassification")) {
    spec.gives_hidden = spec.pools_to_output = false;
    spec.text_pool = DensePool("pooler.dense", c.Int("pooler_hidden_size", spec.text->hidden_size),
                               ReadActivation(c, "pooler_hidden_act", "gelu"));
    spec.classifier = ClassifierSpec{.out = {"classifier", true}, .classes = Labels(c), .of_pooled = true};
  } else if (IsTask(architecture, "ForTokenClassification")) {
    ClassifyTokens(c, &spec);
  } else if (!IsTask(architecture, "Model")) {
    RefuseTask(c, architecture, "the model, ForSequenceClassification and ForTokenClassification");
  }
  c.Ignore({"pooler_hidden_act", "pooler_hidden_size"});  // of heads
  IgnoreHeads({"lm_predictions.", "mask_predictions.", "cls."}, &spec);
  return spec;
}

// All heads begin with a product, an activation and a norm.
void SetModernBertHead(ConfigReader& c, absl::string_view architecture, double eps, bool norm_bias, EncoderSpec* spec) {
  const LinearSpec dense = {"head.dense", c.Flag("classifier_bias", false)};
  const Activation activation = ReadActivation(c, "classifier_activation", "gelu");
  const NormSpec norm = LayerNormOf("head.norm", eps, norm_bias);
  const std::string pooling = c.Text("classifier_pooling", "cls");
  if (IsTask(architecture, "ForMaskedLM")) {
    spec->gives_hidden = false;
    spec->masked_lm = MaskedLmSpec{.dense = dense,
                                   .activation = activation,
                                   .norm = norm,
                                   .bias = c.Flag("decoder_bias", true) ? "decoder.bias" : "",
                                   .decoder = "decoder"};
    return;
  }
  ClassifyTokens(c, spec);
  spec->classifier->dense = dense;
  spec->classifier->activation = activation;
  spec->classifier->norm = norm;
  if (IsTask(architecture, "ForSequenceClassification")) {
    if (pooling != "cls" && pooling != "mean") c.Wrong("classifier_pooling", "\"cls\" or \"mean\"");
    spec->classifier->of_all = false;
    spec->classifier->of_mean = pooling == "mean";
  } else if (!IsTask(architecture, "ForTokenClassification")) {
    RefuseTask(c, architecture, kAllTasks);
  }
  IgnoreHeads({"decoder."}, spec);
}

// Over 60 lines: its keys, then what they say of each layer.
EncoderSpec ModernBert(ConfigReader& c, absl::string_view architecture) {
  const TextKeys keys = {.activation = "hidden_activation",
                         .eps = "norm_eps",
                         .eps_absent = 1e-5,
                         .vocab_size = 50368,
                         .layer_count = 22,
                         .inner_size = 1152,
                         .max_positions = 8192};
  EncoderSpec spec;
  spec.prefix = "model.";
  TowerSpec tower = ReadTower(c, keys, "model.layers");
  const double eps = c.Number("norm_eps", 1e-5, 0, 1);
  const bool norm_bias = c.Flag("norm_bias", false), bias = c.Flag("attention_bias", false);
  const bool mlp_bias = c.Flag("mlp_bias", false);
  const int64_t every = c.Int("global_attn_every_n_layers", 3, 1),
                window = c.Int("local_attention", 128, 2, kMaxPositions);
  TextInput in = ReadText(c, keys, tower, "model.embeddings");
  in.position_kind = PositionKind::kNone;
  in.words = "model.embeddings.tok_embeddings";
  in.norm = LayerNormOf("model.embeddings.norm", eps, norm_bias);
  const int64_t head_dim = std::get<AttentionSpec>(tower.layers[0].attention).head_dim;
  tower.ropes = {
      ReadRope(c, in.max_positions, head_dim,
               {.theta = c.Number("global_rope_theta", 160000, 1.0001, 1e15), .layer_type = "full_attention"}),
      ReadRope(c, in.max_positions, head_dim,
               {.theta = c.Number("local_rope_theta", 10000, 1.0001, 1e15), .layer_type = "sliding_attention"})};
  for (const RopeSpec& rope : tower.ropes) {
    const HfRopeType type = rope.parameters.type;
    if (type != HfRopeType::kLongRope && type != HfRopeType::kDynamic) continue;
    c.Refuse("rope types that depend on the length of the text are not supported for encoders");
  }
  std::vector<bool> otherwise;
  for (size_t i = 0; i < tower.layers.size(); ++i) otherwise.push_back(static_cast<int64_t>(i) % every != 0);
  const std::vector<bool> windowed = WindowedLayers(c, tower.layers.size(), otherwise);
  for (size_t i = 0; i < tower.layers.size(); ++i) {
    LayerSpec& layer = tower.layers[i];
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.layout = QkvLayout::kInTurn;
    a.q = {m + ".attn.Wqkv", bias};
    a.o = {m + ".attn.Wo", bias};
    a.window = windowed[i] ? window / 2 : 0;
    a.rope = windowed[i] ? 1 : 0;
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.is_fused = true;
    mlp.up = {m + ".mlp.Wi", mlp_bias};
    mlp.down = {m + ".mlp.Wo", mlp_bias};
    if (i > 0) layer.attention_norm = LayerNormOf(m + ".attn_norm", eps, norm_bias);
    layer.mlp_norm = LayerNormOf(m + ".mlp_norm", eps, norm_bias);
  }
  tower.norm = LayerNormOf("model.final_norm", eps, norm_bias);
  tower.input = in;
  spec.text = std::move(tower);
  if (IsTask(architecture, "Model")) {
    IgnoreHeads({"head.", "decoder.", "classifier."}, &spec);
  } else {
    SetModernBertHead(c, architecture, eps, norm_bias, &spec);
  }
  c.Ignore({"classifier_activation", "classifier_bias", "classifier_pooling", "decoder_bias"});  // of heads
  return spec;
}

constexpr EncoderFamily kTextFamilies[] = {
    {"Bert", "bert", Bert},
    {"Roberta", "roberta", Roberta},
    {"XLMRoberta", "xlm-roberta", Roberta},
    {"Camembert", "camembert", Roberta},
    {"DistilBert", "distilbert", DistilBert},
    {"MPNet", "mpnet", MpNet},
    {"DebertaV2", "deberta-v2", DebertaV2},
    {"ModernBert", "modernbert", ModernBert},
    {"Electra", "electra", Electra},
};

}  // namespace

absl::Span<const EncoderFamily> TextEncoders() { return kTextFamilies; }

}  // namespace llmc::hf
