// Quantized Hugging Face folders that are refused, each with one error that names the place; and models of a
// configuration alone.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "ir/encoding.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "tests/frontend/packed_model.h"
#include "tests/frontend/test_folder.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

// ---- what is refused ----------------------------------------------------------------------------------------------

absl::Status ImportWith(const json& quantization) {
  const TestFolder folder;
  json config = SmallConfig();
  config["quantization_config"] = quantization;
  NamedTensors tensors;
  AddUnquantized(&tensors);
  WriteFolder(folder, config, tensors);
  return ImportHuggingFace(folder.path()).status();
}

// Over 60 lines: a table.
TEST(QuantizedRefusals, ConfigurationsAreNamed) {
  const json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}};
  const auto with = [](json config, const std::string& key, const json& value) {
    config[key] = value;
    return config;
  };
  const std::pair<json, const char*> cases[] = {
      {"fancy", "\"quantization_config\""},
      {json::object(), "supported: gptq, auto-round, awq, compressed-tensors"},
      {{{"quant_method", "fancyq"}}, "quant_method \"fancyq\" is not supported; supported: gptq"},
      {{{"quant_method", 3}}, "quant_method"},
      {with(gptq, "bits", 5), "GPTQ bits 5 is not supported (2, 3, 4, 8)"},
      {with(gptq, "dynamic", json{{".*k_proj", {{"desc_act", "no"}}}}), "desc_act"},
      {with(gptq, "bits", -4), "bits"},
      {with(gptq, "bits", "four"), "bits"},
      {with(gptq, "group_size", 0), "group_size 0"},
      {with(gptq, "group_size", int64_t{1} << 60), "group_size"},
      {with(gptq, "checkpoint_format", "marlin"), "checkpoint_format \"marlin\" is not supported"},
      {with(gptq, "rotation", "hadamard"), "\"rotation\" with the value \"hadamard\" is not known"},
      {with(gptq, "dynamic", json{{"-:(?<=x)", json::object()}}), "dynamic: the pattern \"(?<=x)\" is not supported"},
      {with(gptq, "modules_in_block_to_quantize", 3), "modules_in_block_to_quantize"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"version", "gemv"}}, "AWQ version \"gemv\""},
      {{{"quant_method", "awq"}, {"bits", 3}}, "AWQ bits 3"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"checkpoint_format", "marlin"}}, "AWQ checkpoint_format \"marlin\""},
      {{{"quant_method", "awq"}, {"bits", 4}, {"dynamic", {{"+:.*k_proj", {{"bits", 8}}}}}}, "dynamic: other settings"},
      {{{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}}, "config_groups"},
      {with(PackQuantized(4, 32, true, ""), "sparsity_config", json{{"format", "sparse-24-bitmask"}}),
       "sparsity_config"},
      {with(PackQuantized(4, 32, true, ""), "format", "marlin-24"),
       "format \"marlin-24\" is not supported; supported: pack-quantized"},
      {PackQuantized(9, 32, true, ""), "9 bits"},
      {PackQuantized(4, -1, true, ""), "group_size -1"},
      {PackQuantized(4, 32, true, "spiral"), "actorder \"spiral\""},
      {with(PackQuantized(4, 32, true, ""), "kv_cache_scheme", 7), "kv_cache_scheme"},
      {with(PackQuantized(4, 32, true, ""), "transform_config",
            json{{"config_groups", {{"R3", {{"apply", {{{"location", "q_attn"}}}}}}}}}),
       "transform_config: rotations at \"q_attn\" are not supported"},
      {with(PackQuantized(4, 32, true, ""), "transform_config", 3), "transform_config"},
      {with(PackQuantized(4, 32, true, ""), "config_groups",
            json{{"g",
                  {{"targets", {"Linear"}},
                   {"weights", {{"num_bits", 4}, {"type", "int"}, {"strategy", "channel"}, {"group_size", 32}}}}}}),
       "strategy channel with group_size 32"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {128, 0}}}, "weight_block_size"},
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt \"e5m2\""},
      {{{"quant_method", "fp8"}, {"kv_cache_scheme", "int8"}}, "kv_cache_scheme"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8_PB_WO"}, {"group_size", 64}},
       "FP8_PB_WO with group_size 64 is not supported (128)"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}, {"group_size", 128}},
       "FP8 with group_size 128 is not supported"},
      {{{"quant_method", "modelopt"},
        {"quant_algo", "MIXED_PRECISION"},
        {"quantized_layers", json::object()},
        {"has_zero_point", true}},
       "has_zero_point true is not supported"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4_SVD"}},
       "quant_algo \"NVFP4_SVD\" is not supported; supported: FP8"},
      {{{"quant_method", "bitsandbytes"}}, "one of load_in_8bit and load_in_4bit"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_storage", "int4"}},
       "bnb_4bit_quant_storage"},
      {{{"quant_method", "hqq"},
        {"quant_config", {{"weight_quant_params", {{"nbits", 4}, {"group_size", 64}, {"axis", 0}}}}}},
       "axis 0"},
  };
  for (const auto& [quantization, message] : cases) {
    EXPECT_TRUE(Says(ImportWith(quantization), message)) << quantization;
    EXPECT_TRUE(Says(ImportWith(quantization), "quantization_config")) << quantization;
  }
}

TEST(QuantizedRefusals, SettingsOfTorchao) {
  const auto torchao = [](const char* name, const json& data) {
    const json type = {{"_type", name}, {"_data", data}};
    return json{{"quant_method", "torchao"}, {"quant_type", {{"default", type}}}};
  };
  const std::pair<json, const char*> cases[] = {
      {{{"quant_method", "torchao"},
        {"quant_type", {{"default", {{"_type", "Float8DynamicActivationInt4WeightConfig"}}}}}},
       "\"Float8DynamicActivationInt4WeightConfig\" is not supported; supported: Int8WeightOnlyConfig"},
      {{{"quant_method", "torchao"},
        {"quant_type",
         {{"default",
           {{"_type", "Int4WeightOnlyConfig"}, {"_data", {{"int4_packing_format", "TILE_PACKED_TO_4D"}}}}}}}},
       "int4_packing_format \"TILE_PACKED_TO_4D\" is not supported; supported: PLAIN"},
      {torchao("IntxWeightOnlyConfig", {{"granularity", {{"_type", "PerGroup"}}}}), "a PerGroup with a group_size"},
      {torchao("Float8WeightOnlyConfig", {{"granularity", {{"_type", "PerBlock"}}}}), "a PerBlock with a block_size"},
      {torchao("Float8WeightOnlyConfig", {{"granularity", {1, 2}}}), "granularity [1,2] is not supported"},
      {torchao("Int8DynamicActivationInt8WeightConfig", {{"act_mapping_type", 5}}), "act_mapping_type 5"},
      {torchao("Int8WeightOnlyConfig", json::array({1})), "with an object _data"},
  };
  for (const auto& [quantization, message] : cases) {
    EXPECT_TRUE(Says(ImportWith(quantization), message)) << quantization;
    EXPECT_TRUE(Says(ImportWith(quantization), "quantization_config")) << quantization;
  }
}

// Each module is held against all patterns, of which few bytes can stand for many instructions.
TEST(QuantizedRefusals, PatternsThatAreTooMany) {
  json rules, names, types, layers;
  for (int i = 0; i < 2000; ++i) {
    const std::string pattern = absl::StrCat("(.{64}){64}", i);
    rules[pattern] = json::object();
    layers["re:" + pattern] = json::object();
    names.push_back("re:" + pattern);
    types["re:" + pattern] = nullptr;
  }
  const json extra = [&] {
    json all;
    for (const auto& [pattern, value] : rules.items()) all[pattern] = {{"bits", 8}};
    return all;
  }();
  json ignoring = PackQuantized(4, 32, true, "");
  ignoring["ignore"] = names;
  const json fqn = {{"_type", "FqnToConfig"}, {"_data", {{"fqn_to_config", types}}}};
  const std::pair<json, const char*> cases[] = {
      {{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"dynamic", rules}}, "dynamic"},
      {{{"quant_method", "auto-round"}, {"bits", 4}, {"packing_format", "auto_round"}, {"extra_config", extra}},
       "extra_config"},
      {ignoring, "ignore"},
      {{{"quant_method", "quark"}, {"exclude", names}}, "exclude"},
      {{{"quant_method", "quark"}, {"layer_quant_config", layers}}, "layer_quant_config"},
      {{{"quant_method", "torchao"}, {"quant_type", {{"default", fqn}}}}, "fqn_to_config"},
  };
  for (const auto& [quantization, field] : cases) {
    const absl::Status status = ImportWith(quantization);
    EXPECT_TRUE(Says(status, absl::StrCat(field, ": patterns of more than 65536 instructions in all"))) << field;
  }
}

// Methods that others have, and what of AutoRound is not read.
TEST(QuantizedRefusals, MethodsAreNamed) {
  const json eight = {{"dtype", "fp8_e4m3"}, {"qscheme", "per_tensor"}}, other = {{"dtype", "int8"}};
  const std::pair<json, const char*> cases[] = {
      {{{"quant_method", "exl2"}}, "mixed bits"},
      {{{"quant_method", "quark"},
        {"global_quant_config", {{"weight", {{"dtype", "fp8_e4m3"}, {"qscheme", "per_channel"}, {"ch_axis", 1}}}}}},
       "weight: dtype \"fp8_e4m3\" with ch_axis 1 is not supported"},
      {{{"quant_method", "quark"},
        {"global_quant_config",
         {{"weight", {{"dtype", "int4"}, {"qscheme", "per_group"}, {"group_size", 32}, {"ch_axis", 0}}}}}},
       "weight: dtype \"int4\" with ch_axis 0 is not supported"},
      {{{"quant_method", "quark"},
        {"kv_cache_quant_config",
         {{"*k_proj", {{"output_tensors", eight}}}, {"*v_proj", {{"output_tensors", other}}}}}},
       "output_tensors of \"*v_proj\" differ from those of other caches"},
      {{{"quant_method", "quark"}, {"algo_config", {{{"name", "fancy"}}}}},
       "algo_config: the algorithm \"fancy\" is not supported; supported: smooth"},
      {{{"quant_method", "auto-round"}, {"bits", 5}, {"packing_format", "auto_round"}},
       "bits 5 of AutoRound is not supported (2, 3, 4, 8)"},
      {{{"quant_method", "auto-round"},
        {"bits", 8},
        {"data_type", "fp"},
        {"act_group_size", {0, 128}},
        {"packing_format", "auto_round:fp8"}},
       "act_group_size"},
      {{{"quant_method", "quark"}, {"global_quant_config", {{"weight", {{"dtype", "mx6"}}}}}},
       "global_quant_config: weight: dtype \"mx6\" is not supported"},
      {{{"quant_method", "quark"},
        {"global_quant_config", {{"weight", {{{"dtype", "int4"}}, {{"dtype", "fp8_e4m3"}}}}}}},
       "weight: quantization in several steps is not supported"},
      {{{"quant_method", "quark"}, {"softmax_quant_spec", {{"dtype", "fp8_e4m3"}}}}, "\"softmax_quant_spec\""},
      {{{"quant_method", "quark"}, {"algo_config", {{{"name", "rotation"}}}}}, "rotations are not supported"},
      {{{"quant_method", "auto-round"}, {"bits", 4}, {"packing_format", "auto_round:marlin"}},
       "packing_format \"auto_round:marlin\" of auto-round is not supported"},
      {{{"quant_method", "auto-round"},
        {"bits", 4},
        {"packing_format", "auto_round:auto_awq"},
        {"extra_config", {{"lm_head", {{"bits", 8}}}}}},
       "extra_config.lm_head: bits 8 of auto_awq is not supported (4)"},
      {{{"quant_method", "auto-round"}, {"bits", 8}, {"act_bits", 8}, {"packing_format", "auto_round"}},
       "act_bits: inputs of layers in integers are not supported"},
      {{{"quant_method", "auto-round"}, {"bits", 8}, {"data_type", "fp8_e5m2"}, {"packing_format", "auto_round:fp8"}},
       "data_type \"fp8_e5m2\" with 8 bits is not supported"},
      {{{"quant_method", "auto-round"},
        {"bits", 4},
        {"packing_format", "auto_round"},
        {"extra_config", {{".*(?<=x)", {{"bits", 8}}}}}},
       "is not supported: of groups"},
  };
  for (const auto& [quantization, message] : cases) EXPECT_TRUE(Says(ImportWith(quantization), message));
}

// Damaged checkpoints of the shared data, and what a user reads.
TEST(QuantizedRefusals, DamagedCheckpoints) {
  const std::string data = SharedData("quant");
  if (data.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"bad-bits-5",
       {"GPTQ bits 5 is not supported (2, 3, 4, 8)",
        "; also qweight of model.layers.0.mlp.down_proj has 64 rows, 5 bits would need 80"}},
      {"bad-group-size",
       {"group_size 96 does not divide in_features 256 of model.layers.0.self_attn.q_proj (scales hold 2 groups, 96 "
        "would need 3)"}},
      {"bad-missing-scale",
       {"model.layers.1.mlp.up_proj is quantized, but has no", "model.layers.1.mlp.up_proj.weight_scale"}},
      {"bad-qzeros-shape",
       {"model.layers.0.mlp.gate_proj.qzeros is i32[2, 56]", "[2, 64] = [in 256 / group 128, out 512 / 8]"}},
      {"bad-scale-inf", {"model.layers.0.self_attn.q_proj.scales[1, 7] is infinite"}},
      {"bad-scale-nan", {"model.layers.0.self_attn.q_proj.scales[1, 7] is NaN"}},
      {"bad-truncated", {"model.safetensors"}},
      {"bad-unknown-method", {"quant_method \"fancyq\" is not supported", "gptq"}},
  };
  for (const auto& [name, messages] : cases) {
    const absl::Status status = ImportHuggingFace(absl::StrCat(data, "/", name)).status();
    for (const char* message : messages) EXPECT_TRUE(Says(status, message)) << name;
  }
  std::unique_ptr<Model> model;
  const HfReport report = CheckHuggingFace(data + "/bad-scale-zero", &model);
  EXPECT_TRUE(report.status.ok()) << report.status;
  ASSERT_EQ(report.warnings.size(), 1);
  EXPECT_TRUE(absl::StrContains(report.warnings[0].reason, "model.layers.0.self_attn.q_proj.scales[1, 7] is 0"));
}

// Symmetric weights tell which of the two versions stored their zero points.
TEST(QuantizedRefusals, ZeroPointsOfTheOtherVersion) {
  for (const bool is_v2 : {false, true}) {
    for (const bool says_v2 : {false, true}) {
      const TestFolder folder;
      WritePacked(
          {{"quant_method", "gptq"},
           {"bits", 4},
           {"group_size", 32},
           {"sym", true},
           {"checkpoint_format", says_v2 ? "gptq_v2" : "gptq"}},
          [&](const Matrix& m, Draw& draw, NamedTensors* t) {
            return PackGptq({.symmetric = true, .v2 = is_v2}, m, draw, t);
          },
          folder);
      std::unique_ptr<Model> model;
      const HfReport report = CheckHuggingFace(folder.path(), &model);
      EXPECT_TRUE(report.status.ok()) << report.status;
      ASSERT_EQ(report.warnings.size(), is_v2 == says_v2 ? 0 : 1);
      if (is_v2 == says_v2) continue;
      EXPECT_TRUE(absl::StrContains(report.warnings[0].reason, is_v2 ? "as they are (gptq_v2)" : "less one (gptq)"))
          << report.warnings[0].reason;
    }
  }
}

// A folder whose config.json does not say that it is quantized.
TEST(QuantizedRefusals, PackedTensorsWithoutConfiguration) {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(3);
  for (const Matrix& m : kMatrices) PackGptq({}, m, draw, &tensors);
  const TestFolder folder;
  WriteFolder(folder, SmallConfig(), tensors);
  const absl::Status status = ImportHuggingFace(folder.path()).status();
  EXPECT_TRUE(Says(status, "missing tensors (7)"));
  EXPECT_TRUE(Says(status, "q_proj.qweight"));
}

// Sizes that do not fill words, and sizes that are none.
TEST(QuantizedRefusals, SizesThatDoNotFillWords) {
  const std::pair<json, const char*> cases[] = {
      {{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}, "qweight: 100 codes"},
      {{{"quant_method", "gptq"}, {"bits", 3}, {"group_size", 1 << 20}}, "do not fill words of 32"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}}, "qweight: 99 codes"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "weight: 99 codes"},
      {{{"quant_method", "hqq"}, {"quant_config", {{"weight_quant_params", {{"nbits", 4}, {"group_size", 64}}}}}},
       "group_size 64 does not divide in_features 100"},
      {PackQuantized(4, 1 << 20, false, ""), "weight_scale"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}}, "weight"},
  };
  for (const auto& [quantization, message] : cases) {
    const TestFolder folder;
    json config = SmallConfig();
    config["hidden_size"] = 100;
    config["intermediate_size"] = 99;
    config["quantization_config"] = quantization;
    WriteFolder(folder, config, {{"model.embed_tokens.weight", Tensor(DType::kF32, {12, 100})}});
    EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(), message)) << quantization;
  }
}

// What a tensor of a state says against config.json.
TEST(QuantizedRefusals, ScalesThatNobodyNeeds) {
  NamedTensors tensors;
  AddUnquantized(&tensors);
  Draw draw(3);
  for (const Matrix& m : kMatrices) PackGptq({}, m, draw, &tensors);
  tensors["model.layers.0.mlp.up_proj.weight_scale"] = Tensor(DType::kF32, {1});
  const TestFolder folder;
  json config = SmallConfig();
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
  WriteFolder(folder, config, tensors);
  EXPECT_TRUE(Says(ImportHuggingFace(folder.path()).status(),
                   "does not use (1): model.safetensors: \"model.layers.0.mlp.up_proj.weight_scale\""));
}

// Numbers beside the codes that cannot be meant.
TEST(QuantizedRefusals, NumbersThatCannotBeMeant) {
  const std::string up = "model.layers.0.mlp.up_proj";
  const auto of_gptq = [&](float number, bool all) {
    NamedTensors tensors;
    AddUnquantized(&tensors);
    Draw draw(3);
    for (const Matrix& m : kMatrices) PackGptq({}, m, draw, &tensors);
    Tensor& scales = tensors[up + ".scales"];
    for (int64_t i = 0; i < (all ? scales.size() : 1); ++i) scales.SetFloat(i, number);
    const TestFolder folder;
    json config = SmallConfig();
    config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};
    WriteFolder(folder, config, tensors);
    return ImportHuggingFace(folder.path()).status();
  };
  EXPECT_TRUE(of_gptq(0, false).ok());
  EXPECT_TRUE(Says(of_gptq(0, true), up + ".scales: all of it is 0"));
  EXPECT_TRUE(Says(of_gptq(NAN, false), up + ".scales[0, 0] is NaN"));
}

// ---- without a checkpoint -----------------------------------------------------------------------------------------

// Models of a configuration alone have weights of about the size of others, and as many bytes as a checkpoint's.
TEST(QuantizedRandomWeights, AreEncoded) {
  const std::pair<json, const char*> cases[] = {
      {{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}}, "int4 group=32 scale=bf16"},
      {{{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}, {"sym", false}},
       "uint4 group=32 scale=bf16 zero=u4"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"group_size", 32}}, "uint4 group=32 scale=bf16 zero=u4"},
      {PackQuantized(4, 32, true, ""), "int4 group=32 scale=bf16"},
      {{{"quant_method", "fp8"}, {"weight_block_size", {32, 32}}}, "f8e4m3 block=32x32 scale=f32"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "nvfp4"},
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}, "f8e4m3 per=tensor scale=f32"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}},
       "nf4 group=64 scale=f32"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}, "int8 per=channel scale=f32"},
  };
  for (const auto& [quantization, encoding] : cases) {
    const TestFolder folder;
    json config = SmallConfig();
    config["quantization_config"] = quantization;
    folder.Write("config.json", config.dump());
    const auto model = ImportHuggingFaceConfig(folder.path(), {.dtype = DType::kBF16});
    ASSERT_TRUE(model.ok()) << model.status() << quantization;
    int count = 0;
    for (const auto& node : (*model)->steps[0]->block.nodes) {
      if (!Is<Encode>(node.get())) continue;
      ++count;
      const bool is_down = absl::EndsWith(node->loc, "down_proj");  // 96 columns are no blocks of 64
      if (!is_down) {
        EXPECT_EQ(node->results[0]->type.encoding->text, encoding) << quantization;
      }
    }
    EXPECT_EQ(count, 7) << quantization;
    EXPECT_TRUE(ParseModel(PrintModel(**model), "printed").ok());
  }
}

}  // namespace
}  // namespace llmc
