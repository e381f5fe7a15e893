#include <gtest/gtest.h>

#include <cmath>

#include "frontend/huggingface/family.h"
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

// What the tests look at of a decoder whose layers are alike but for their windows.
struct ParsedConfig {
  hf::DecoderSpec spec;
  hf::AttentionSpec attention;  // of the first layer
  hf::MlpSpec mlp;
  std::vector<int64_t> windows;
  HfRope rope;
};

absl::StatusOr<ParsedConfig> Parse(const json& config) {
  absl::StatusOr<hf::ModelSpec> model = hf::ReadModel(config, "config.json");
  if (!model.ok()) return model.status();
  ParsedConfig read{.spec = std::get<hf::DecoderSpec>(*model)};
  read.attention = std::get<hf::AttentionSpec>(read.spec.layers[0].attention);
  read.mlp = std::get<hf::MlpSpec>(read.spec.layers[0].mlp);
  for (const hf::LayerSpec& layer : read.spec.layers) {
    read.windows.push_back(std::get<hf::AttentionSpec>(layer.attention).window);
  }
  read.rope = read.spec.ropes[0].parameters;
  return read;
}

absl::StatusOr<ParsedConfig> Llama(const json& patch) { return Parse(Config("LlamaForCausalLM", patch)); }

TEST(HfConfig, DefaultsOfTransformersClasses) {
  const auto llama = Llama(json::object());
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->attention.kv_heads, 4);
  EXPECT_EQ(llama->attention.head_dim, 16);
  EXPECT_EQ(llama->spec.max_context, 2048);
  EXPECT_EQ(llama->spec.norm->eps, 1e-6);
  EXPECT_FALSE(llama->spec.is_tied || llama->attention.q.bias || llama->attention.o.bias || llama->mlp.up.bias);
  EXPECT_EQ(llama->windows, std::vector<int64_t>(4, 0));
  EXPECT_EQ(llama->rope.theta, 10000);

  const auto mistral = Parse(Config("MistralForCausalLM", {{"num_attention_heads", 8}}));
  ASSERT_TRUE(mistral.ok()) << mistral.status();
  EXPECT_EQ(mistral->attention.kv_heads, 8);
  EXPECT_EQ(mistral->windows, std::vector<int64_t>(4, 4096));

  const auto qwen2 = Parse(Config("Qwen2ForCausalLM", {{"num_key_value_heads", nullptr}}));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_EQ(qwen2->attention.kv_heads, 4);
  EXPECT_TRUE(qwen2->attention.q.bias);
  EXPECT_FALSE(qwen2->attention.o.bias);
  EXPECT_EQ(qwen2->windows, std::vector<int64_t>(4, 0));

  const auto qwen3 = Parse(Config("Qwen3ForCausalLM", {{"num_key_value_heads", 2}}));
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_EQ(qwen3->attention.head_dim, 128);
  EXPECT_FALSE(qwen3->attention.q.bias);
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
      {{{"hidden_act", "gelu_10"}}, "hidden_act \"gelu_10\" is not supported"},
      {{{"quantization_config", {{"quant_method", "fancyq"}}}}, "quant_method \"fancyq\""},
      {{{"quantization_config", {{"quant_method", "gptq"}}}}, "bits"},
      {{{"quantization_config", 1}}, "quantization_config"},
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

TEST(HfConfig, LatentAttentionHasItsOwnSizes) {
  const json patch = {{"hidden_size", 100}, {"num_attention_heads", 3}, {"num_key_value_heads", 3}};
  EXPECT_TRUE(hf::ReadModel(Config("DeepseekV3ForCausalLM", patch), "config.json").ok());
}

TEST(HfConfig, Llama4) {
  const auto llama4 = [](const json& patch) {
    json config = Config("Llama4ForCausalLM", {{"num_key_value_heads", 2}, {"interleave_moe_layer_step", 2}});
    config.update(patch);
    return Parse(config);
  };
  const auto chunks = [&](const json& patch) {
    const auto parsed = llama4(patch);
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    std::vector<int64_t> sizes;
    for (const hf::LayerSpec& layer : parsed->spec.layers) {
      sizes.push_back(std::get<hf::AttentionSpec>(layer.attention).chunk);
    }
    return sizes;
  };
  EXPECT_EQ(chunks(json::object()), (std::vector<int64_t>{8192, 8192, 8192, 0}));
  EXPECT_EQ(chunks({{"no_rope_layers", {0, 1, 1, 0}}}), (std::vector<int64_t>{0, 8192, 8192, 0}));
  EXPECT_EQ(chunks({{"no_rope_layers", json::array()}, {"attention_chunk_size", nullptr}}), std::vector<int64_t>(4));
  const json types = {"full_attention", "chunked_attention", "full_attention", "chunked_attention"};
  EXPECT_EQ(chunks({{"layer_types", types}, {"attention_chunk_size", 5}}), (std::vector<int64_t>{0, 5, 0, 5}));
  const auto last = [&](const json& patch) {
    return std::get<hf::AttentionSpec>(llama4(patch)->spec.layers[3].attention);
  };
  EXPECT_EQ(last({{"attn_temperature_tuning", 4}, {"attn_scale", 0.5}}).temperature, 0.5) << "as published ones say it";
  EXPECT_EQ(last({{"attn_temperature_tuning", false}}).temperature, 0);
  EXPECT_FALSE(last(json::object()).rope.has_value() || last(json::object()).q_norm.has_value());
  EXPECT_TRUE(Says(llama4({{"layer_types", types}, {"attention_chunk_size", nullptr}}).status(),
                   "layer_types has chunked_attention, but attention_chunk_size is null"));
  EXPECT_TRUE(Says(llama4({{"layer_types", {"a", "b", "c", "d"}}}).status(), "layer type \"a\" is not supported"));
  EXPECT_TRUE(Says(llama4({{"attention_chunk_size", 0}}).status(), "\"attention_chunk_size\" must be an integer"));
  EXPECT_TRUE(Says(llama4({{"no_rope_layers", {1}}}).status(), "a number for each layer"));
  EXPECT_TRUE(Says(llama4({{"moe_layers", {1, 4}}}).status(), "\"moe_layers\" must be a list of numbers of layers"));
  EXPECT_TRUE(
      Says(llama4({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}).status(), "scale queries and keys"));
}

TEST(HfConfig, Gemma3n) {
  const auto gemma3n = [](const json& patch) {
    json config = Config("Gemma3nForCausalLM", {{"num_kv_shared_layers", 2}, {"num_key_value_heads", 1}});
    config["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "sliding_attention"};
    config.update(patch);
    return Parse(config);
  };
  const auto parsed = gemma3n({{"intermediate_size", {8, 16, 24, 32}}});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  std::vector<int64_t> sizes, sources;
  for (const hf::LayerSpec& layer : parsed->spec.layers) {
    sizes.push_back(std::get<hf::MlpSpec>(layer.mlp).size);
    const auto source = std::get<hf::AttentionSpec>(layer.attention).kv_layer;
    sources.push_back(source.has_value() ? static_cast<int64_t>(*source) : -1);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{8, 16, 24, 32}));
  EXPECT_EQ(sources, (std::vector<int64_t>{-1, -1, 1, 0}));
  EXPECT_TRUE(Says(gemma3n({{"intermediate_size", {8, 16}}}).status(), "a list of 4 integers"));
  EXPECT_TRUE(Says(gemma3n({{"intermediate_size", {8, 16, 24, -1}}}).status(), "a list of 4 integers"));
  EXPECT_TRUE(Says(gemma3n({{"num_kv_shared_layers", 3}}).status(), "no layer before has the type of layer 1"));
  EXPECT_TRUE(Says(gemma3n({{"num_kv_shared_layers", 5}}).status(), "\"num_kv_shared_layers\" must be an integer"));
  EXPECT_TRUE(Says(gemma3n({{"altup_active_idx", 4}}).status(), "\"altup_active_idx\" must be an integer"));
  for (const json& wrong : {json({0.5, 0.5}), json({0.5, 0.5, 0.5, 1.0}), json({0, 0, 0, "a"}), json(0.5)}) {
    EXPECT_TRUE(Says(gemma3n({{"activation_sparsity_pattern", wrong}}).status(), "a list of 4 numbers from 0 to 1"));
  }
}

TEST(HfConfig, RefusesKeysThatMayMatter) {
  std::vector<std::string> notes;
  const auto read = [&](const char* architecture, const json& patch) {
    return hf::ReadModel(Config(architecture, patch), "config.json", hf::EncoderClass::kNamed, &notes).status();
  };
  // Another family reads them, and they are not what it takes for an absent one.
  EXPECT_TRUE(Says(read("LlamaForCausalLM", {{"attn_logit_softcapping", 20.5}}),
                   "config.json: \"attn_logit_softcapping\" must be absent or null for LlamaForCausalLM, which has no "
                   "such key (gemma2"));
  EXPECT_TRUE(Says(read("LlamaForCausalLM", {{"logit_scale", 0.3}}), "\"logit_scale\" must be absent or null"));
  EXPECT_TRUE(
      read("LlamaForCausalLM", {{"logit_scale", nullptr}, {"residual_multiplier", 1.0}, {"alibi", false}}).ok());
  EXPECT_TRUE(read("LlamaForCausalLM", {{"norm_type", "layer_norm"}}).ok()) << "MPT has it, but does not read it";
  EXPECT_TRUE(read("Gemma2ForCausalLM", {{"hidden_act", "gelu_pytorch_tanh"}, {"num_key_value_heads", 2}}).ok());
  // Misspelled.
  EXPECT_TRUE(Says(read("LlamaForCausalLM", {{"rope_thetta", 5e5}}),
                   "\"rope_thetta\" must be absent or null; \"rope_theta\" may be meant, which LlamaForCausalLM reads "
                   "and which is not there; found 500000"));
  EXPECT_TRUE(Says(read("BertModel", {{"layer_norm_epss", 1e-5}}), "\"layer_norm_eps\" may be meant"));
  EXPECT_TRUE(read("LlamaForCausalLM", {{"rope_thetta", 5e5}, {"rope_theta", 5e5}}).ok()) << "it is there";
  EXPECT_EQ(notes, std::vector<std::string>{"rope_thetta"});
  // Neither, and of no use for numbers.
  EXPECT_TRUE(read("LlamaForCausalLM", {{"surprise", 2}, {"use_cache", true}}).ok());
  EXPECT_EQ(notes, std::vector<std::string>{"surprise"});
}

TEST(HfConfig, EncodersRotateByOneTable) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4}};
  const json dynamic = {{"rope_type", "dynamic"}, {"factor", 4}};
  EXPECT_TRUE(hf::ReadModel(Config("ModernBertModel", {{"rope_scaling", yarn}}), "config.json").ok());
  EXPECT_TRUE(Says(hf::ReadModel(Config("ModernBertModel", {{"rope_scaling", dynamic}}), "config.json").status(),
                   "not supported for encoders"));
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

// The expected contexts are those that vLLM derives (_get_and_verify_max_len), where it takes the file.
TEST(HfConfig, ContextOfEachKindOfRope) {
  struct Case {
    int64_t max_positions;
    json rope;
    json beside;  // the parameters
    int64_t context;
    bool imported = true;
  };
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 8192}};
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4}};
  const json yarn_2048 = {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 2048}};
  const json longrope = {{"rope_type", "longrope"}, {"short_factor", {1}}, {"long_factor", {1}}, {"factor", 4}};
  const Case cases[] = {
      {2048, {{"rope_type", "default"}}, {}, 2048},
      {2048, yarn_2048, {}, 8192},
      {8192, yarn_2048, {}, 8192},
      {40960, yarn_2048, {}, 8192},
      {2048, yarn, {}, 8192},
      {8192, yarn, {{"original_max_position_embeddings", 2048}}, 8192},
      {4096, {{"type", "linear"}, {"factor", 2.5}}, {}, 10240},
      {10240, {{"type", "linear"}, {"factor", 2.5}, {"original_max_position_embeddings", 4096}}, {}, 10240},
      {131072, llama3, {}, 131072},
      {8192, llama3, {}, 8192},
      {4096, {{"type", "dynamic"}, {"factor", 4.0}}, {}, 16384, false},
      {131072, longrope, {{"original_max_position_embeddings", 4096}}, 131072, false},
      {4096, longrope, {}, 16384, false},
      {131072, {{"type", "su"}}, {{"original_max_position_embeddings", 4096}}, 131072, false},
      {32768, {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}}, {}, 32768, false},
  };
  for (const Case& c : cases) {
    json patch = {{"max_position_embeddings", c.max_positions}, {"rope_scaling", c.rope}};
    if (c.beside.is_object()) patch.update(c.beside);
    const auto read = ReadContextLength(patch.dump(), "config.json");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, c.context) << patch;
    if (!c.imported) continue;
    const auto config = Llama(patch);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.max_context, c.context) << patch;
    // The one beside the parameters is read, as transformers 5 does.
    if (c.rope != yarn || !c.beside.is_object()) continue;
    EXPECT_EQ(config->rope.original_max_positions, 2048);
  }
  EXPECT_TRUE(Says(
      Llama({{"max_position_embeddings", 1 << 20}, {"rope_scaling", {{"type", "linear"}, {"factor", 1e6}}}}).status(),
      "factor 1e+06 makes a context of"));
}

// Beside an ONNX file it may be of any model.
TEST(HfConfig, ContextOfOtherConfigs) {
  const auto read = [](const char* text) { return *ReadContextLength(text, "config.json"); };
  EXPECT_EQ(read(R"({"n_positions": 1024})"), 1024);
  EXPECT_EQ(read(R"({"max_position_embeddings": -1})"), std::nullopt);
  EXPECT_EQ(read(R"({"max_position_embeddings": "x"})"), std::nullopt);
  EXPECT_EQ(read(R"({"hidden_size": 64})"), std::nullopt);
  EXPECT_EQ(read(R"({"max_position_embeddings": 64, "rope_scaling": {"type": 3}})"), std::nullopt);
  EXPECT_TRUE(Says(ReadContextLength("{", "config.json").status(), "config.json"));
  EXPECT_TRUE(Says(ReadContextLength("[]", "config.json").status(), "must be a JSON object"));
}

TEST(HfConfig, RefusesRope) {
  const std::pair<json, const char*> cases[] = {
      {{{"rope_type", "dynamic"}}, "\"factor\" must be given"},
      {{{"rope_type", "longrope"}}, "\"short_factor\" must be a list of numbers"},
      {{{"type", "su"}, {"short_factor", {1}}, {"long_factor", {"a"}}}, "\"long_factor\" must be a list of numbers"},
      {{{"type", "su"}, {"short_factor", {1}}, {"long_factor", {1}}}, "short_factor and long_factor have 1 numbers"},
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
        {"high_freq_factor", 3},
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
