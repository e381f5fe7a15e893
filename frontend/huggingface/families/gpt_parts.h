// What families with layer norms and plain MLPs share.
#pragma once

#include <string>

#include "frontend/huggingface/family.h"

namespace llmc::hf {

// Names of keys that differ from one configuration class to the next, with its defaults.
struct GptKeys {
  std::string hidden = "hidden_size", layers = "num_hidden_layers", heads = "num_attention_heads";
  std::string activation = "hidden_act", eps = "layer_norm_epsilon";
  std::string positions = "max_position_embeddings";
  int64_t vocab_size = 50257, hidden_size = 768, layer_count = 12, head_count = 12, max_positions = 1024;
  std::string act = "gelu_new";
  bool tied = true;
};

// The sizes, with as many layers without weights: families name those.
DecoderSpec ReadGpt(ConfigReader& config, const GptKeys& keys, const std::string& layers_module);
double ReadEps(ConfigReader& config, const std::string& key = "layer_norm_epsilon");
// 4 * hidden_size, unless the key says otherwise.
int64_t InnerSize(ConfigReader& config, const std::string& key, const DecoderSpec& spec);
// Rotates queries and keys in all layers.
void Rotate(ConfigReader& config, const HfRopeDefaults& defaults, DecoderSpec* spec);

}  // namespace llmc::hf
