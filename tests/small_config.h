// A small language model as config.json has it, for tests that change it.
#pragma once

#include "nlohmann/json.hpp"

namespace llmc {

// Llama of `layers` layers, 256 wide, in bf16, with `changes` merged in (RFC 7396).
inline nlohmann::json SmallConfig(int layers, const char* changes) {
  nlohmann::json config = nlohmann::json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "vocab_size": 512, "bos_token_id": 1, "eos_token_id": 2})");
  config["num_hidden_layers"] = layers;
  config.merge_patch(nlohmann::json::parse(changes));
  return config;
}

}  // namespace llmc
