#include "frontend/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

using nlohmann::json;

// A config of the given architecture with the keys of `patch` changed; null removes nothing, it is written as null.
json Config(const char* architecture, const json& patch = json::object()) {
  json config = {{"architectures", {architecture}}, {"hidden_size", 64},        {"intermediate_size", 160},
                 {"num_hidden_layers", 4},          {"num_attention_heads", 4}, {"vocab_size", 512}};
  config.update(patch);
  return config;
}

absl::StatusOr<HfConfig> Parse(const json& config) { return ParseHfConfig(config, "config.json"); }

absl::StatusOr<HfConfig> Llama(const json& patch) { return Parse(Config("LlamaForCausalLM", patch)); }

TEST(HfConfig, DefaultsOfTransformersClasses) {
  const auto llama = Llama(json::object());
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->kv_heads, 4);
  EXPECT_EQ(llama->head_dim, 16);
  EXPECT_EQ(llama->max_position_embeddings, 2048);
  EXPECT_EQ(llama->rms_norm_eps, 1e-6);
  EXPECT_FALSE(llama->tie_word_embeddings || llama->qkv_bias || llama->o_bias || llama->mlp_bias);
  EXPECT_EQ(llama->windows, std::vector<int64_t>(4, 0));
  EXPECT_EQ(llama->rope.theta, 10000);

  const auto mistral = Parse(Config("MistralForCausalLM", {{"num_attention_heads", 8}}));
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_EQ(mistral->kv_heads, 8);
  EXPECT_EQ(mistral->windows, std::vector<int64_t>(4, 4096));

  const auto qwen2 = Parse(Config("Qwen2ForCausalLM", {{"num_key_value_heads", nullptr}}));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_EQ(qwen2->kv_heads, 4);
  EXPECT_TRUE(qwen2->qkv_bias);
  EXPECT_FALSE(qwen2->o_bias);
  EXPECT_EQ(qwen2->windows, std::vector<int64_t>(4, 0));

  const auto qwen3 = Parse(Config("Qwen3ForCausalLM", {{"num_key_value_heads", 2}}));
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_EQ(qwen3->head_dim, 128);
  EXPECT_FALSE(qwen3->qkv_bias);
}

TEST(HfConfig, Windows) {
  const auto windows = [](const char* architecture, json patch) {
    patch["num_key_value_heads"] = 2;
    const auto config = Parse(Config(architecture, patch));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->windows : std::vector<int64_t>{};
  };
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(windows("MistralForCausalLM", {{"sliding_window", nullptr}}), Windows(4, 0));
  EXPECT_EQ(windows("MistralForCausalLM", {{"sliding_window", 8}}), Windows(4, 8));
  EXPECT_EQ(windows("Qwen2ForCausalLM", {{"sliding_window", 8}}), Windows(4, 0)) << "use_sliding_window is false";
  EXPECT_EQ(
      windows("Qwen2ForCausalLM", {{"sliding_window", 8}, {"use_sliding_window", true}, {"max_window_layers", 1}}),
      (Windows{0, 8, 8, 8}));
  EXPECT_EQ(windows("Qwen2ForCausalLM", {{"sliding_window", 8}, {"use_sliding_window", true}}), Windows(4, 0))
      << "max_window_layers is 28";
  const json types = {"full_attention", "sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows("Qwen3ForCausalLM", {{"sliding_window", 8}, {"use_sliding_window", true}, {"layer_types", types}}),
            (Windows{0, 8, 0, 8}));
  const auto status = [](const char* architecture, const json& patch) {
    return Parse(Config(architecture, patch)).status();
  };
  EXPECT_TRUE(Says(status("Qwen2ForCausalLM", {{"num_key_value_heads", 2}, {"layer_types", types}}), "sliding_window"));
  EXPECT_TRUE(Says(status("LlamaForCausalLM", {{"sliding_window", 8}}), "sliding_window"));
  EXPECT_TRUE(Says(status("LlamaForCausalLM", {{"layer_types", types}}), "layer_types"));
  EXPECT_TRUE(Says(status("LlamaForCausalLM", {{"layer_types", {"full_attention"}}}), "a list of 4"));
  EXPECT_TRUE(
      Says(status("LlamaForCausalLM",
                  {{"layer_types", {"full_attention", "linear_attention", "full_attention", "full_attention"}}}),
           "\"linear_attention\" is not supported"));
}

TEST(HfConfig, RefusesWhatItCannotDo) {
  const std::pair<json, const char*> cases[] = {
      {{{"architectures", {"MambaForCausalLM"}}},
       "\"MambaForCausalLM\" is not supported; supported are LlamaForCausalLM"},
      {{{"architectures", nullptr}}, "it must be a list of one of LlamaForCausalLM, MistralForCausalLM"},
      {{{"architectures", {1}}}, "architectures"},
      {{{"hidden_act", "gelu"}}, "hidden_act \"gelu\" is not supported"},
      {{{"quantization_config", {{"quant_method", "gptq"}}}}, "method \"gptq\""},
      {{{"quantization_config", 1}}, "quantized"},
      {{{"partial_rotary_factor", 0.5}}, "partial_rotary_factor 0.5"},
      {{{"num_key_value_heads", 3}}, "no multiple of num_key_value_heads 3"},
      {{{"num_attention_heads", 3}}, "no multiple of num_attention_heads 3"},
      {{{"head_dim", 15}}, "odd"},
      {{{"head_dim", nullptr}, {"num_attention_heads", 128}}, "no multiple of num_attention_heads 128"},
      {{{"hidden_size", 0}}, "hidden_size"},
      {{{"hidden_size", -64}}, "hidden_size"},
      {{{"hidden_size", 64.5}}, "hidden_size"},
      {{{"hidden_size", "64"}}, "hidden_size"},
      {{{"hidden_size", UINT64_MAX}}, "hidden_size"},
      {{{"num_hidden_layers", 1000000000}}, "num_hidden_layers"},
      {{{"tie_word_embeddings", 1}}, "tie_word_embeddings"},
      {{{"rms_norm_eps", -1}}, "rms_norm_eps"},
      {{{"rope_theta", 0}}, "rope_theta"},
      {{{"rope_scaling", 1}}, "rope_scaling"},
  };
  for (const auto& [patch, says] : cases) EXPECT_TRUE(Says(Llama(patch).status(), says)) << patch;
  EXPECT_FALSE(Parse(json::array()).ok());
}

TEST(HfConfig, NullHeadDimMustDivide) {
  const json patch = {{"head_dim", nullptr}, {"num_attention_heads", 128}, {"num_key_value_heads", 128}};
  EXPECT_TRUE(Says(Parse(Config("Qwen3ForCausalLM", patch)).status(), "no multiple of num_attention_heads 128"));
}

TEST(HfConfig, RopeOfEitherStyle) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 32}};
  json parameters = scaling;
  parameters["rope_theta"] = 500000;
  const auto older = Llama({{"rope_theta", 500000.0}, {"rope_scaling", scaling}});
  const auto newer = Llama({{"rope_parameters", parameters}});
  ASSERT_TRUE(older.ok()) << older.status();
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ(older->rope.type, HfRopeType::kLlama3);
  EXPECT_EQ(newer->rope.theta, 500000);
  EXPECT_EQ(MakeRopeTable(older->rope, 16).inv_freq, MakeRopeTable(newer->rope, 16).inv_freq);
  EXPECT_TRUE(
      Says(Llama({{"rope_parameters", parameters}, {"rope_scaling", scaling}}).status(), "both there and differ"));
  const auto oldest = Llama({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}});
  ASSERT_TRUE(oldest.ok()) << oldest.status();
  EXPECT_EQ(oldest->rope.type, HfRopeType::kLinear);
}

TEST(HfConfig, RefusesRope) {
  const std::pair<json, const char*> cases[] = {
      {{{"rope_type", "dynamic"}, {"factor", 2}}, "rope type \"dynamic\" is not supported"},
      {{{"rope_type", "longrope"}}, "rope type \"longrope\" is not supported"},
      {{{"type", "su"}}, "rope type \"su\" is not supported"},
      {{{"type", "mrope"}}, "rope type \"mrope\" is not supported"},
      {{{"rope_type", "linear"}}, "factor"},
      {{{"rope_type", "yarn"}}, "\"factor\" must be given"},
      {{{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
       "\"original_max_position_embeddings\" must be given"},
      {{{"rope_type", "default"}, {"factor", 8}}, "\"factor\" must be absent"},
      {{{"rope_type", "linear"}, {"factor", 0}}, "factor"},
      {{{"rope_type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", 4},
        {"high_freq_factor", 4},
        {"original_max_position_embeddings", 32}},
       "high_freq_factor"},
      {{{"rope_type", "yarn"}, {"factor", 4}, {"beta_fast", 1}, {"beta_slow", 2}}, "beta_fast"},
      {{{"rope_type", 3}}, "rope_type"},
      {{{"full_attention", {{"rope_type", "default"}}}}, "separate parameters"},
      {{{"partial_rotary_factor", 0.25}}, "partial_rotary_factor"},
  };
  for (const auto& [rope, says] : cases) {
    EXPECT_TRUE(Says(Llama({{"rope_parameters", rope}}).status(), says)) << rope;
    EXPECT_TRUE(Says(Llama({{"rope_scaling", rope}}).status(), says)) << rope;
  }
}

TEST(MakeRopeTable, Default) {
  const RopeTable table = MakeRopeTable({.theta = 10000}, 8);
  EXPECT_EQ(table.scale, 1);
  ASSERT_EQ(table.inv_freq.size(), 4u);
  EXPECT_EQ(table.inv_freq[0], 1.0f);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(table.inv_freq[i], std::pow(10.0, -i), 1e-7 * std::pow(10.0, -i));
}

// High frequencies stay, low ones are divided by the factor, and those between lie between.
TEST(MakeRopeTable, Llama3AndYarnKeepHighFrequencies) {
  HfRope rope{.theta = 10000, .factor = 8, .original_max_positions = 1024};
  const RopeTable plain = MakeRopeTable(rope, 128);
  for (HfRopeType type : {HfRopeType::kLlama3, HfRopeType::kYarn}) {
    rope.type = type;
    const RopeTable table = MakeRopeTable(rope, 128);
    EXPECT_EQ(table.inv_freq.front(), plain.inv_freq.front());
    EXPECT_NEAR(table.inv_freq.back(), plain.inv_freq.back() / 8, 1e-6 * plain.inv_freq.back());
    int between = 0;
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_LE(table.inv_freq[i], plain.inv_freq[i]);
      EXPECT_GE(table.inv_freq[i], plain.inv_freq[i] / 8 * (1 - 1e-6f));
      between += table.inv_freq[i] < plain.inv_freq[i] * 0.99f && table.inv_freq[i] > plain.inv_freq[i] / 8 * 1.01f;
    }
    EXPECT_GT(between, 5);
  }
}

// By hand: wavelengths are 2 pi {1, 10, 100, 1000}; only the third is between 1024 / 4 and 1024, with a weight of
// (1024 / 628.3185 - 1) / 3 = 0.2099155 on the frequency that is kept.
TEST(MakeRopeTable, Llama3Values) {
  const HfRope rope{.type = HfRopeType::kLlama3, .theta = 10000, .factor = 8, .original_max_positions = 1024};
  const std::vector<float> values = MakeRopeTable(rope, 8).inv_freq;
  const double wanted[] = {1, 0.1, 0.01 * (0.7900845 / 8 + 0.2099155), 0.001 / 8};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(values[i], wanted[i], 1e-6 * wanted[i]) << i;
}

// By hand: the ramp is from 0 = floor(0.707) to 3 = ceil(2.212).
TEST(MakeRopeTable, YarnValues) {
  const HfRope rope{.type = HfRopeType::kYarn, .theta = 10000, .factor = 4, .original_max_positions = 1024};
  const std::vector<float> values = MakeRopeTable(rope, 8).inv_freq;
  const double wanted[] = {1, 0.075, 0.005, 0.00025};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(values[i], wanted[i], 1e-6 * wanted[i]) << i;
}

TEST(MakeRopeTable, YarnScale) {
  HfRope rope{.type = HfRopeType::kYarn, .factor = 4, .original_max_positions = 64};
  EXPECT_NEAR(MakeRopeTable(rope, 16).scale, 0.1 * std::log(4.0) + 1, 1e-12);
  rope.mscale = 0.5;
  EXPECT_NEAR(MakeRopeTable(rope, 16).scale, 0.1 * std::log(4.0) + 1, 1e-12) << "mscale alone does nothing";
  rope.mscale_all_dim = 1;
  EXPECT_NEAR(MakeRopeTable(rope, 16).scale, (0.05 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1), 1e-12);
  rope.attention_factor = 1.25;
  EXPECT_EQ(MakeRopeTable(rope, 16).scale, 1.25);
  const RopeTable truncated = MakeRopeTable(rope, 16);
  rope.truncate = false;
  EXPECT_NE(MakeRopeTable(rope, 16).inv_freq, truncated.inv_freq);
}

}  // namespace
}  // namespace llmc
