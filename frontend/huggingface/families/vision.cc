// Encoders of images, and those of text and images whose vectors are compared.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/huggingface/family.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

struct TowerKeys {
  absl::string_view activation = "gelu";
  double eps = 1e-12;
  int64_t hidden = 768, layers = 12, heads = 12, inner = 3072, size = 224, patch = 16;
  bool qkv_bias = true;
};

TowerSpec ReadImageTower(ConfigReader& c, const TowerKeys& k, const std::string& layers_module) {
  TowerSpec tower;
  tower.hidden_size = c.Int("hidden_size", k.hidden);
  const int64_t layers = c.Int("num_hidden_layers", k.layers, 1, kMaxLayers);
  const int64_t heads = c.Int("num_attention_heads", k.heads);
  if (tower.hidden_size % heads != 0) {
    c.Contradicts(absl::StrCat("hidden_size ", tower.hidden_size, " is no multiple of num_attention_heads ", heads));
  }
  const int64_t head_dim = std::max<int64_t>(tower.hidden_size / heads, 1);
  const Activation activation = ReadActivation(c, "hidden_act", k.activation);
  const int64_t inner = c.Int("intermediate_size", k.inner);
  for (int64_t i = 0; i < layers; ++i) {
    LayerSpec layer{.module = absl::StrCat(layers_module, ".", i)};
    layer.attention = AttentionSpec{.heads = heads, .kv_heads = heads, .head_dim = head_dim};
    layer.mlp = MlpSpec{.size = inner, .activation = activation};
    tower.layers.push_back(std::move(layer));
  }
  return tower;
}

ImageInput ReadImage(ConfigReader& c, const TowerKeys& k) {
  ImageInput in;
  in.channels = c.Int("num_channels", 3, 1, 64);
  in.size = c.Int("image_size", k.size, 1, 65536);
  in.patch = c.Int("patch_size", k.patch, 1, 65536);
  if (in.patch > in.size) {
    c.Contradicts(absl::StrCat("patch_size ", in.patch, " is over image_size ", in.size));
    in.patch = in.size;
  }
  return in;
}

// query, key and value of ViT and DINOv2.
void NameAttentionAsVit(bool qkv_bias, TowerSpec* tower) {
  for (LayerSpec& layer : tower->layers) {
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {layer.module + ".attention.attention.query", qkv_bias};
    a.k = {layer.module + ".attention.attention.key", qkv_bias};
    a.v = {layer.module + ".attention.attention.value", qkv_bias};
    a.o = {layer.module + ".attention.output.dense", true};
  }
}

void PutClassToken(const std::string& embeddings, int64_t hidden, ImageInput* in) {
  in->projection = {embeddings + ".patch_embeddings.projection", true};
  in->class_token = embeddings + ".cls_token";
  in->class_shape = {1, 1, hidden};
  in->positions = embeddings + ".position_embeddings";
  in->position_shape = {1, in->patches() + 1, hidden};
}

EncoderSpec Vit(ConfigReader& c, absl::string_view architecture) {
  EncoderSpec spec;
  spec.prefix = "vit.";
  TowerSpec tower = ReadImageTower(c, {}, "vit.encoder.layer");
  const double eps = c.Number("layer_norm_eps", 1e-12, 0, 1);
  NameAttentionAsVit(c.Flag("qkv_bias", true), &tower);
  for (LayerSpec& layer : tower.layers) {
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.up = {layer.module + ".intermediate.dense", true};
    mlp.down = {layer.module + ".output.dense", true};
    layer.attention_norm = LayerNormOf(layer.module + ".layernorm_before", eps);
    layer.mlp_norm = LayerNormOf(layer.module + ".layernorm_after", eps);
  }
  ImageInput in = ReadImage(c, {});
  PutClassToken("vit.embeddings", tower.hidden_size, &in);
  tower.input = in;
  tower.norm = LayerNormOf("vit.layernorm", eps);
  spec.image = std::move(tower);
  const int64_t hidden = spec.image->hidden_size;
  if (absl::EndsWith(architecture, "ForImageClassification")) {
    c.Ignore({"pooler_act", "pooler_output_size"});  // of the other classes
    spec.gives_hidden = false;
    spec.classifier = ClassifierSpec{.out = {"classifier", true}, .classes = Labels(c)};
    spec.unused.names = {{"vit.pooler.dense.weight", "this class has no pooler"},
                         {"vit.pooler.dense.bias", "this class has no pooler"}};
  } else {
    spec.image_pool = PoolSpec{.dense = LinearSpec{"vit.pooler.dense", true},
                               .size = c.Int("pooler_output_size", hidden),
                               .activation = ReadActivation(c, "pooler_act", "tanh")};
    spec.unused.beginnings = {{"classifier.", "the head of another task"}};
  }
  return spec;
}

EncoderSpec Dinov2(ConfigReader& c, absl::string_view architecture) {
  EncoderSpec spec;
  spec.prefix = "dinov2.";
  const TowerKeys keys = {.eps = 1e-6, .patch = 14};
  TowerSpec tower = ReadImageTower(c, keys, "dinov2.encoder.layer");
  const double eps = c.Number("layer_norm_eps", 1e-6, 0, 1);
  const int64_t hidden = tower.hidden_size, wide = hidden * c.Int("mlp_ratio", 4, 1, 64);
  const bool gated = c.Flag("use_swiglu_ffn", false);
  c.Ignore({"apply_layernorm", "layerscale_value"});  // of a backbone; of training
  NameAttentionAsVit(c.Flag("qkv_bias", true), &tower);
  for (LayerSpec& layer : tower.layers) {
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    if (gated) {
      mlp.size = (wide * 2 / 3 + 7) / 8 * 8;
      mlp.activation = Activation::kSilu;
      mlp.is_fused = true;
      mlp.up = {layer.module + ".mlp.weights_in", true};
      mlp.down = {layer.module + ".mlp.weights_out", true};
    } else {
      mlp.size = wide;
      mlp.up = {layer.module + ".mlp.fc1", true};
      mlp.down = {layer.module + ".mlp.fc2", true};
    }
    layer.attention_norm = LayerNormOf(layer.module + ".norm1", eps);
    layer.mlp_norm = LayerNormOf(layer.module + ".norm2", eps);
    layer.attention_factor = layer.module + ".layer_scale1.lambda1";
    layer.mlp_factor = layer.module + ".layer_scale2.lambda1";
  }
  ImageInput in = ReadImage(c, keys);
  PutClassToken("dinov2.embeddings", hidden, &in);
  tower.input = in;
  tower.norm = LayerNormOf("dinov2.layernorm", eps);
  spec.image = std::move(tower);
  spec.image_pool = PoolSpec{};
  spec.unused.names = {{"dinov2.embeddings.mask_token", "of training"}};
  if (!absl::EndsWith(architecture, "Model")) c.Refuse(absl::StrCat(architecture, ": only Dinov2Model is supported"));
  return spec;
}

// ---- two towers ---------------------------------------------------------------------------------------------------
// Names of CLIP's and SigLIP's layers.
void NameAsClip(double eps, TowerSpec* tower) {
  for (LayerSpec& layer : tower->layers) {
    const std::string& m = layer.module;
    auto& a = std::get<AttentionSpec>(layer.attention);
    a.q = {m + ".self_attn.q_proj", true};
    a.k = {m + ".self_attn.k_proj", true};
    a.v = {m + ".self_attn.v_proj", true};
    a.o = {m + ".self_attn.out_proj", true};
    auto& mlp = std::get<MlpSpec>(layer.mlp);
    mlp.up = {m + ".mlp.fc1", true};
    mlp.down = {m + ".mlp.fc2", true};
    layer.attention_norm = LayerNormOf(m + ".layer_norm1", eps);
    layer.mlp_norm = LayerNormOf(m + ".layer_norm2", eps);
  }
}

TowerSpec ReadTextTower(ConfigReader& c, const TowerKeys& keys, int64_t vocab, int64_t max_positions) {
  TowerSpec tower = ReadImageTower(c, keys, "text_model.encoder.layers");
  const double eps = c.Number("layer_norm_eps", keys.eps, 0, 1);
  NameAsClip(eps, &tower);
  TextInput in;
  in.vocab_size = c.Int("vocab_size", vocab, 1, kMaxVocab);
  in.max_positions = in.position_rows = c.Int("max_position_embeddings", max_positions, 1, kMaxPositions);
  in.word_size = tower.hidden_size;
  in.words = "text_model.embeddings.token_embedding";
  in.positions = "text_model.embeddings.position_embedding";
  tower.input = in;
  tower.norm = LayerNormOf("text_model.final_layer_norm", eps);
  return tower;
}

TowerSpec ReadClipImages(ConfigReader& c, const TowerKeys& keys, bool is_clip) {
  TowerSpec tower = ReadImageTower(c, keys, "vision_model.encoder.layers");
  const double eps = c.Number("layer_norm_eps", keys.eps, 0, 1);
  NameAsClip(eps, &tower);
  ImageInput in = ReadImage(c, keys);
  in.projection = {"vision_model.embeddings.patch_embedding", !is_clip};
  in.positions = "vision_model.embeddings.position_embedding.weight";
  in.position_shape = {in.patches() + (is_clip ? 1 : 0), tower.hidden_size};
  if (is_clip) {
    in.class_token = "vision_model.embeddings.class_embedding";
    in.class_shape = {tower.hidden_size};
    in.norm = LayerNormOf("vision_model.pre_layrnorm", eps);  // so it is spelled
  } else {
    tower.norm = LayerNormOf("vision_model.post_layernorm", eps);
  }
  tower.input = in;
  return tower;
}

// An object of config.json with a tower's own keys.
ConfigReader PartOf(ConfigReader& c, const std::string& key) {
  static const json* const kNone = new json(json::object());
  const json* part = c.Find(key);
  if (part != nullptr && part->is_object()) return ConfigReader(part, absl::StrCat(c.file(), ": ", key));
  c.Wrong(key, "an object");
  return ConfigReader(kNone, c.file());
}

constexpr TowerKeys kClipText = {.activation = "quick_gelu", .eps = 1e-5, .hidden = 512, .heads = 8, .inner = 2048};
constexpr TowerKeys kClipImages = {.activation = "quick_gelu", .eps = 1e-5, .patch = 32};
constexpr TowerKeys kSiglip = {.activation = "gelu_pytorch_tanh", .eps = 1e-6};

PoolSpec EndOfText(ConfigReader& c) {
  return {.kind = PoolKind::kEndOfText, .end_id = c.Int("eos_token_id", 49407, 0, kMaxVocab)};
}

EncoderSpec Clip(ConfigReader& c, absl::string_view architecture) {
  EncoderSpec spec;
  spec.unused.names = {{"text_model.embeddings.position_ids", "a buffer of 0, 1, …"},
                       {"vision_model.embeddings.position_ids", "a buffer of 0, 1, …"}};
  const int64_t size = c.Int("projection_dim", 512);
  if (absl::StrContains(architecture, "Text")) {
    spec.text = ReadTextTower(c, kClipText, 49408, 77);
    spec.text->is_causal = true;
    spec.text_pool = EndOfText(c);
    if (absl::EndsWith(architecture, "WithProjection")) {
      spec.text_projection = LinearSpec{"text_projection"};
      spec.projection_size = size;
      spec.pools_to_output = false;
    }
    return spec;
  }
  if (architecture != "CLIPModel") c.Refuse(absl::StrCat(architecture, " is not supported"));
  ConfigReader text = PartOf(c, "text_config"), image = PartOf(c, "vision_config");
  spec.text = ReadTextTower(text, kClipText, 49408, 77);
  spec.text->name = "t.";
  spec.text->is_causal = true;
  spec.text_pool = EndOfText(text);
  spec.image = ReadClipImages(image, kClipImages, true);
  spec.image->name = "v.";
  spec.image_pool =
      PoolSpec{.norm = LayerNormOf("vision_model.post_layernorm", image.Number("layer_norm_eps", 1e-5, 0, 1))};
  c.Keep(text.Finish());
  c.Keep(image.Finish());
  spec.gives_hidden = spec.pools_to_output = false;
  spec.contrast = ContrastSpec{.text_projection = LinearSpec{"text_projection"},
                               .image_projection = LinearSpec{"visual_projection"},
                               .size = size,
                               .scale = "logit_scale"};
  return spec;
}

PoolSpec Probe(ConfigReader& c, const TowerSpec& tower) {
  const auto& a = std::get<AttentionSpec>(tower.layers[0].attention);
  const auto& mlp = std::get<MlpSpec>(tower.layers[0].mlp);
  return {.kind = PoolKind::kAttention,
          .module = "vision_model.head",
          .heads = a.heads,
          .mlp = {.size = mlp.size,
                  .activation = mlp.activation,
                  .up = {"vision_model.head.mlp.fc1", true},
                  .down = {"vision_model.head.mlp.fc2", true}},
          .mlp_eps = c.Number("layer_norm_eps", 1e-6, 0, 1)};
}

EncoderSpec Siglip(ConfigReader& c, absl::string_view architecture) {
  EncoderSpec spec;
  spec.unused.names = {{"text_model.embeddings.position_ids", "a buffer of 0, 1, …"},
                       {"vision_model.embeddings.position_ids", "a buffer of 0, 1, …"}};
  if (architecture == "SiglipVisionModel") {
    spec.prefix = "vision_model.";
    spec.image = ReadClipImages(c, kSiglip, false);
    if (c.Flag("vision_use_head", true)) spec.image_pool = Probe(c, *spec.image);
    return spec;
  }
  if (architecture != "SiglipModel") c.Refuse(absl::StrCat(architecture, " is not supported"));
  ConfigReader text = PartOf(c, "text_config"), image = PartOf(c, "vision_config");
  spec.text = ReadTextTower(text, kSiglip, 32000, 64);
  spec.text->name = "t.";
  spec.image = ReadClipImages(image, kSiglip, false);
  spec.image->name = "v.";
  const int64_t size = text.Int("projection_size", spec.text->hidden_size);
  spec.text_pool = PoolSpec{.kind = PoolKind::kLast, .dense = LinearSpec{"text_model.head", true}, .size = size};
  spec.image_pool = Probe(image, *spec.image);
  c.Keep(text.Finish());
  c.Keep(image.Finish());
  spec.gives_hidden = spec.pools_to_output = false;
  spec.contrast = ContrastSpec{.size = size, .scale = "logit_scale", .bias = "logit_bias", .scale_shape = {1}};
  return spec;
}

constexpr EncoderFamily kImageFamilies[] = {
    {"ViT", "vit", Vit},
    {"Dinov2", "dinov2", Dinov2},
    {"CLIP", "clip", Clip},
    {"Siglip", "siglip", Siglip},
};

}  // namespace

absl::Span<const EncoderFamily> ImageEncoders() { return kImageFamilies; }

}  // namespace llmc::hf
