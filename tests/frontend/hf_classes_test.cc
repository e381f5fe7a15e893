// What classes of transformers read of config.json that their kin do not, or take another default for.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/family.h"
#include "tests/frontend/test_folder.h"

namespace llmc {
namespace {

using nlohmann::json;

// A config of the given architecture with the keys of `patch` changed; null removes nothing, it is written as null.
json ClassConfig(const char* architecture, const json& patch = json::object()) {
  json config = {{"architectures", {architecture}}, {"hidden_size", 64},        {"intermediate_size", 160},
                 {"num_hidden_layers", 4},          {"num_attention_heads", 4}, {"vocab_size", 512}};
  config.update(patch);
  return config;
}

struct DecoderFacts {
  std::vector<int64_t> windows;
  HfRope rope;
};

absl::StatusOr<DecoderFacts> ReadFacts(const json& config) {
  absl::StatusOr<hf::ModelSpec> model = hf::ReadModel(config, "config.json");
  if (!model.ok()) return model.status();
  const auto& spec = std::get<hf::DecoderSpec>(*model);
  DecoderFacts read;
  for (const hf::LayerSpec& layer : spec.layers) {
    read.windows.push_back(std::get<hf::AttentionSpec>(layer.attention).window);
  }
  if (!spec.ropes.empty()) read.rope = spec.ropes[0].parameters;
  return read;
}

TEST(HfClasses, DefaultsOfCohere2AndPhi3) {
  const json sizes = {{"num_key_value_heads", 2}, {"sliding_window", 8}};
  const auto cohere = ReadFacts(ClassConfig("CohereForCausalLM", {{"num_key_value_heads", 2}}));
  const auto cohere2 = ReadFacts(ClassConfig("Cohere2ForCausalLM", sizes));
  ASSERT_TRUE(cohere.ok() && cohere2.ok()) << cohere.status() << cohere2.status();
  EXPECT_EQ(cohere->rope.theta, 5e5);
  EXPECT_EQ(cohere2->rope.theta, 1e4);

  const json factors = {1, 1, 1, 1, 1, 1, 1, 1};
  json rope = {{"rope_type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
  json patch = {{"max_position_embeddings", 131072}, {"rope_scaling", rope}};
  const auto phi3 = ReadFacts(ClassConfig("Phi3ForCausalLM", patch));
  ASSERT_TRUE(phi3.ok()) << phi3.status();
  EXPECT_EQ(phi3->rope.original_max_positions, 4096);
  EXPECT_EQ(phi3->rope.factor, 32);
  patch["rope_scaling"]["original_max_position_embeddings"] = 8192;
  EXPECT_EQ(ReadFacts(ClassConfig("Phi3ForCausalLM", patch))->rope.original_max_positions, 8192);
}

TEST(HfClasses, AttentionTypesOfGptNeo) {
  const auto windows = [](const json& patch) {
    json config = {{"num_layers", 4}, {"num_heads", 4}, {"window_size", 8}};
    config.update(patch);
    const auto read = ReadFacts(ClassConfig("GPTNeoForCausalLM", config));
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->windows : std::vector<int64_t>{};
  };
  const json types = {{{"global", "local"}, 2}};
  EXPECT_EQ(windows(json::object()), (std::vector<int64_t>{0, 8, 0, 8}));
  const json each = {"local", "global", "global", "local"};
  EXPECT_EQ(windows({{"attention_layers", each}}), (std::vector<int64_t>{8, 0, 0, 8}));
  EXPECT_EQ(windows({{"attention_layers", each}, {"attention_types", types}}), (std::vector<int64_t>{8, 0, 0, 8}));
  EXPECT_TRUE(Says(
      ReadFacts(
          ClassConfig("GPTNeoForCausalLM",
                      {{"num_layers", 4}, {"num_heads", 4}, {"attention_layers", {"local", "far", "global", "local"}}}))
          .status(),
      "\"attention_layers\" must be a list of \"global\" and \"local\""));
}

TEST(HfClasses, WindowsOfQwen2Moe) {
  const auto windows = [](const json& patch) {
    json config = {{"num_key_value_heads", 2}, {"num_experts", 4}, {"num_experts_per_tok", 2}};
    config.update(patch);
    const auto read = ReadFacts(ClassConfig("Qwen2MoeForCausalLM", config));
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->windows : std::vector<int64_t>{};
  };
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"sliding_window", 8}, {"max_window_layers", 2}}),
            (std::vector<int64_t>{8, 0, 0, 0}));
  EXPECT_EQ(windows({{"use_sliding_window", true}, {"sliding_window", 8}}), (std::vector<int64_t>{8, 0, 8, 0}));
  EXPECT_EQ(windows({{"use_sliding_window", false}, {"sliding_window", 0}}), (std::vector<int64_t>(4, 0)));
}

// Keys of experts stand in configurations whose layers have none.
TEST(HfClasses, MixturesOfDenseLayers) {
  std::vector<std::string> unread;
  const json common = {{"num_key_value_heads", 2}, {"num_experts_per_tok", 1}};
  const auto status = [&](const char* architecture, json keys) {
    keys.update(common);
    return hf::ReadModel(ClassConfig(architecture, keys), "config.json", hf::EncoderClass::kNamed, &unread).status();
  };
  for (const char* architecture : {"Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"}) {
    const absl::Status read = status(architecture, {{"num_experts", 4},
                                                    {"moe_intermediate_size", 32},
                                                    {"norm_topk_prob", true},
                                                    {"mlp_only_layers", {0, 1, 2, 3}}});
    EXPECT_TRUE(read.ok()) << read;
  }
  const absl::Status read = status("Llama4ForCausalLM", {{"num_local_experts", 4}, {"moe_layers", json::array()}});
  EXPECT_TRUE(read.ok()) << read;
  EXPECT_TRUE(unread.empty()) << unread[0];
}

TEST(HfClasses, GateOfGptOss) {
  const json rope = {{"rope_type", "default"}};
  const auto model = hf::ReadModel(
      ClassConfig(
          "GptOssForCausalLM",
          {{"num_key_value_heads", 2}, {"num_local_experts", 4}, {"rope_parameters", rope}, {"swiglu_alpha", 2.5}}),
      "config.json");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(std::get<hf::ExpertsSpec>(std::get<hf::DecoderSpec>(*model).layers[0].mlp).alpha, 2.5);
}

TEST(HfClasses, GroupsOfExpertsFit) {
  const auto status = [](const json& patch) {
    json config = {{"n_routed_experts", 6},
                   {"num_key_value_heads", 4},
                   {"num_experts_per_tok", 3},
                   {"first_k_dense_replace", 1},
                   {"moe_intermediate_size", 32},
                   {"n_group", 3},
                   {"topk_group", 2},
                   {"topk_method", "group_limited_greedy"}};
    config.update(patch);
    const absl::Status v3 = hf::ReadModel(ClassConfig("DeepseekV3ForCausalLM", config), "config.json").status();
    const absl::Status v2 = hf::ReadModel(ClassConfig("DeepseekV2ForCausalLM", config), "config.json").status();
    EXPECT_EQ(v2, v3);
    return v2;
  };
  EXPECT_TRUE(status(json::object()).ok()) << status(json::object());
  EXPECT_TRUE(Says(status({{"n_group", 4}}), "config.json: n_routed_experts 6 is no multiple of n_group 4"));
  EXPECT_TRUE(Says(status({{"topk_group", 4}}), "topk_group 4 is more than n_group 3"));
  EXPECT_TRUE(
      Says(status({{"n_group", 6}}), "num_experts_per_tok 3 is more than the 2 experts of topk_group 2 groups"));
}

// The table of positions stands in files of models that do not add it.
TEST(HfClasses, PositionsOfDebertaV2) {
  const auto model = hf::ReadModel(ClassConfig("DebertaV2Model", {{"position_biased_input", false}}), "config.json");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto& names = std::get<hf::EncoderSpec>(*model).unused.names;
  EXPECT_TRUE(std::any_of(names.begin(), names.end(), [](const auto& unused) {
    return unused.first == "deberta.embeddings.position_embeddings.weight";
  }));
}

TEST(HfClasses, HeadsThatAreNotSupported) {
  for (const char* architecture :
       {"BertForQuestionAnswering", "RobertaForMultipleChoice", "DistilBertForMultipleChoice",
        "ElectraForQuestionAnswering", "MPNetForQuestionAnswering", "DebertaV2ForQuestionAnswering",
        "ModernBertForQuestionAnswering"}) {
    EXPECT_TRUE(Says(hf::ReadModel(ClassConfig(architecture), "config.json").status(),
                     absl::StrCat("config.json: the head of ", architecture, " is not supported; supported are")));
  }
}

TEST(HfClasses, ContextOfParametersByTypeOfLayer) {
  const auto read = ReadContextLength(R"({"max_position_embeddings": 128, "rope_parameters": {
      "sliding_attention": {"rope_type": "default"},
      "full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}})",
                                      "config.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, 64);
  const auto falcon = ReadContextLength(
      R"({"max_position_embeddings": 128, "alibi": true, "rope_scaling": {"rope_type": "linear", "factor": 4.0}})",
      "config.json");
  ASSERT_TRUE(falcon.ok()) << falcon.status();
  EXPECT_EQ(*falcon, 128);
}

}  // namespace
}  // namespace llmc
