// Decode steps whose tasks are one persistent launch give what launches of each task give: of models with weights of
// their own the same tokens, of those with random weights, whose likeliest tokens are ties as bf16 goes, the same
// logits but for rounding.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <regex>
#include <string>
#include <tuple>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "ir/encoding.h"
#include "nlohmann/json.hpp"
#include "runtime/device/cuda_executor.h"
#include "runtime/plan/plan.h"
#include "tests/frontend/gguf_bytes.h"
#include "tests/gpu/device_check.h"
#include "tests/gpu/logits.h"
#include "tests/gpu/op_case_parts.h"
#include "tests/shared_data.h"
#include "tests/small_config.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

// For one sequence: a plan for more has programs for them, whose runs would be compiled, too.
std::string Compile(const std::string& model, const std::string& steps, const std::vector<std::string>& more = {}) {
  const std::string path = TempFolder() + "/persistent-" + steps + ".bin";
  std::vector<std::string> command = {"compile",   model,     "-o",    path,      "--target", TargetHere().name,
                                      "--no-tune", "--steps", steps,   "--bound", "S=1",      "--bound",
                                      "R=8",       "--bound", "T=1024"};
  command.insert(command.end(), more.begin(), more.end());
  const CommandResult compiled = RunLlmc(command);
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
  return path;
}

std::string Tokens(const std::string& plan, const std::string& prompt, const std::vector<std::string>& more = {}) {
  std::vector<std::string> command = {"generate",         plan, "--device=cuda", "--prompt-ids",  prompt,
                                      "--max-new-tokens", "48", "--ignore-eos",  "--temperature", "0"};
  command.insert(command.end(), more.begin(), more.end());
  const CommandResult result = RunLlmc(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

// Of all programs of a plan.
struct Runs {
  int count = 0, tasks = 0;
};
Runs RunsOf(const std::string& path) {
  const auto plan = Plan::Load(path);
  EXPECT_TRUE(plan.ok()) << plan.status();
  Runs runs;
  if (!plan.ok()) return runs;
  for (const plan::Program& program : (*plan)->manifest().programs()) {
    for (const plan::Run& run : program.runs()) {
      ++runs.count;
      runs.tasks += static_cast<int>(run.count());
    }
  }
  return runs;
}

class Persistent : public testing::TestWithParam<const char*> {};

TEST_P(Persistent, TokensAreThoseOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  const std::string models = SharedData("tiny-models");
  if (models.empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string model = models + "/" + GetParam();
  const std::string launches = Compile(model, "launches"), persistent = Compile(model, "persistent");
  EXPECT_EQ(RunsOf(launches).count, 0);
  EXPECT_GE(RunsOf(persistent).tasks, 6) << "in two layers, a product, attention and a product follow each other";
  for (const char* prompt : {"1", "1,5,9,2,7", "3,1,4,1,5,9,2,6,5,3,5,8,9,7,9,3,2,3,8,4,6,2,6,4,3,3,8,3,2,7"}) {
    EXPECT_EQ(Tokens(persistent, prompt), Tokens(launches, prompt)) << prompt;
  }
  // Each task by itself, from the same plan.
  EXPECT_EQ(Tokens(persistent, "1,5,9,2,7", {"--check-kernels"}), Tokens(launches, "1,5,9,2,7"));
}

INSTANTIATE_TEST_SUITE_P(Models, Persistent,
                         testing::Values("llama-gqa", "llama-tied-bias", "qwen2-bias", "qwen3", "phi3", "gemma2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// ---- models whose attention has fewer warps than their products ----------------------------------------------------

nlohmann::json ConfigOf(const char* changes) { return SmallConfig(/*layers=*/3, changes); }

// Of the kernel of a run: what its constants say.
struct Warps {
  int of_products = 0, of_attention = 0;
};
Warps WarpsOf(const std::string& dump) {
  Warps warps;
  for (const auto& file : std::filesystem::directory_iterator(dump + "/kernels")) {
    const std::string text = ReadFile(file.path().string());
    std::smatch found;
    if (!std::regex_search(text, found, std::regex("kMathWarps = (\\d+);"))) continue;
    warps.of_products = std::stoi(found[1]);
    const size_t attention = text.find("struct BeforeHeads");  // its configuration comes next
    const std::string rest = text.substr(text.find("static constexpr int kTile = ", attention));
    if (std::regex_search(rest, found, std::regex("kThreads = (\\d+);"))) warps.of_attention = std::stoi(found[1]) / 32;
  }
  return warps;
}

struct NarrowCase {
  const char* name;
  const char* changes;  // to the configuration
};

class NarrowAttention : public testing::TestWithParam<NarrowCase> {};

// Of steps of one token each, after a prompt of `prompt` tokens: the tokens are the same whatever the logits are.
std::vector<std::vector<float>> LogitsOfSteps(const std::string& path, int prompt, int steps) {
  std::vector<std::vector<float>> logits;
  const auto plan = Plan::Load(path);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return logits;
  const auto executor = CudaExecutor::Create(plan->get(), {.num_pages = 64});
  EXPECT_TRUE(executor.ok()) << executor.status();
  if (!executor.ok()) return logits;
  std::vector<int32_t> ids, pages(64);
  for (int i = 0; i < prompt + steps; ++i) ids.push_back(i == 0 ? 1 : 3 + i * 37 % 501);
  std::iota(pages.begin(), pages.end(), 0);
  for (int position = 0; position < prompt + steps;) {
    const int count = position == 0 ? prompt : 1;
    StepInput input;
    input.chunks.push_back({.sequence = 1,
                            .begins = position == 0,
                            .ids = absl::MakeConstSpan(ids).subspan(position, count),
                            .position = position,
                            .pages = {absl::MakeConstSpan(pages)},
                            .logits = WantedLogits::kLast});
    const auto result = (*executor)->RunStep(input);
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return logits;
    if (position > 0) logits.push_back(result->logits.values);
    position += count;
  }
  return logits;
}

// In one launch and in many. With 48 steps after each prompt, past the ends of pages, of windows, and of what one block
// attends to.
void ExpectLogitsOfLaunches(const std::string& name, const std::string& model, const std::vector<std::string>& options,
                            const std::string& dump, const std::vector<int>& prompts = {1, 5, 60, 300}) {
  const std::string launches = Compile(model, "launches", options);
  std::vector<std::string> more = options;
  more.push_back("--dump-ir=" + dump);
  const std::string persistent = Compile(model, "persistent", more);
  EXPECT_EQ(RunsOf(persistent).count, 1);
  EXPECT_GE(RunsOf(persistent).tasks, 14) << "five tasks a layer, or four";
  double most = 0;
  for (const int length : prompts) {
    const auto ours = LogitsOfSteps(persistent, length, 48), theirs = LogitsOfSteps(launches, length, 48);
    ASSERT_EQ(theirs.size(), 48);
    ASSERT_EQ(ours.size(), 48);
    for (size_t step = 0; step < ours.size(); ++step) {
      ASSERT_EQ(ours[step].size(), theirs[step].size());
      const double difference = DifferenceOf(ours[step], theirs[step]);
      EXPECT_LT(difference, kMostDifference) << "step " << step << " after a prompt of " << length;
      most = std::max(most, difference);
    }
  }
  std::cout << name << ": logits differ by " << most << " at the most\n";
}

// With random weights. What the kernel of the run has is in `dump`.
void ExpectLogitsOfLaunches(const std::string& name, const nlohmann::json& config, const std::string& dump,
                            const std::vector<int>& prompts = {1, 5, 60, 300}) {
  const std::string model = TempFolder() + "/" + name;
  std::filesystem::create_directories(model);
  std::ofstream(model + "/config.json") << config;
  ExpectLogitsOfLaunches(name, model, {"--random-weights"}, dump, prompts);
}

// Threads without part in a task count its rows all the same: else they wait for numbers of another row from the second
// layer on.
TEST_P(NarrowAttention, LogitsAreThoseOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  const std::string dump = TempFolder() + "/" + GetParam().name + "-dump";
  ExpectLogitsOfLaunches(GetParam().name, ConfigOf(GetParam().changes), dump);
  const Warps warps = WarpsOf(dump);
  EXPECT_GT(warps.of_attention, 0);
  EXPECT_LT(warps.of_attention, warps.of_products);
}

INSTANTIATE_TEST_SUITE_P(
    Models, NarrowAttention,
    testing::Values(
        NarrowCase{"heads_of_256", R"({"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256})"},
        NarrowCase{"groups_of_6_of_256", R"({"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 256})"},
        // Beside four stages of 1,024 columns.
        NarrowCase{"groups_of_7", R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1024,
            "intermediate_size": 1024, "num_attention_heads": 14, "head_dim": 128})"},
        // Rows of which warps beyond attention's take a part.
        NarrowCase{
            "nf4",
            R"({"intermediate_size": 4096, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true,
            "load_in_8bit": false, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": false,
            "bnb_4bit_compute_dtype": "bfloat16", "bnb_4bit_quant_storage": "uint8",
            "llm_int8_skip_modules": ["lm_head"]}})"},
        NarrowCase{"mxfp4", R"({"intermediate_size": 4096, "quantization_config": {"quant_method": "compressed-tensors",
            "format": "mxfp4-pack-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "format": "mxfp4-pack-quantized",
            "weights": {"num_bits": 4, "type": "float", "symmetric": true, "strategy": "group", "group_size": 32,
            "dynamic": false, "scale_dtype": "torch.uint8"}}}}})"}),
    [](const auto& info) { return info.param.name; });

// ---- attention that finds rows of a tile by the page that it lies in -----------------------------------------------

TEST(AttentionInPages, OfAWindowGivesTheLogitsOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  ExpectLogitsOfLaunches("window", ConfigOf(R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
      "sliding_window": 40, "torch_dtype": "float16", "hidden_size": 512, "num_attention_heads": 8, "head_dim": 128})"),
                         TempFolder() + "/window-dump");
}

TEST(AttentionInPages, BehindNormsOfHeadsGivesTheLogitsOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  ExpectLogitsOfLaunches("norms-of-heads", ConfigOf(R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
      "num_attention_heads": 8, "head_dim": 128, "attention_bias": false})"),
                         TempFolder() + "/norms-of-heads-dump");
}

// ---- shapes of models that are one launch without being asked for --------------------------------------------------

struct ModelShape {
  const char* name;
  const char* changes;
};
struct WeightScheme {
  const char* name;
  const char* config;
};
class OfShapes : public testing::TestWithParam<std::tuple<ModelShape, WeightScheme>> {};

TEST_P(OfShapes, LogitsAreThoseOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  const auto& [shape, scheme] = GetParam();
  nlohmann::json config = ConfigOf(shape.changes);
  config.merge_patch(nlohmann::json::parse(scheme.config));
  const std::string name = absl::StrCat(shape.name, "-", scheme.name);
  ExpectLogitsOfLaunches(name, config, TempFolder() + "/" + name + "-dump", {5, 700});
}

INSTANTIATE_TEST_SUITE_P(
    Models, OfShapes,
    testing::Combine(
        testing::Values(
            ModelShape{"llama_2_7b", R"({"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
                "num_key_value_heads": 32, "head_dim": 128})"},
            ModelShape{"tinyllama", R"({"hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
                "num_key_value_heads": 4})"},
            ModelShape{"qwen2_5_3b",
                       R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 2048,
                "intermediate_size": 11008, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 128})"},
            ModelShape{"qwen2_5_7b",
                       R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
                "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128})"},
            ModelShape{"qwen3_4b",
                       R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560,
                "intermediate_size": 9728, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128})"},
            ModelShape{"qwen3_14b",
                       R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 5120,
                "intermediate_size": 17408, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128})"},
            ModelShape{"mistral_7b", R"({"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                "sliding_window": 512, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
                "num_key_value_heads": 8, "head_dim": 128, "torch_dtype": "float16"})"},
            ModelShape{"phi_3_mini",
                       R"({"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
                "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 96})"}),
        testing::Values(
            WeightScheme{"floats", "{}"},
            WeightScheme{"int4", R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
                "sym": true, "desc_act": false}})"},
            WeightScheme{"fp8",
                         R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
                "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "format": "float-quantized", "weights": {"num_bits": 8, "type": "float",
                "symmetric": true, "strategy": "channel", "dynamic": false}}}}})"},
            WeightScheme{"int8",
                         R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
                "quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": {
                "targets": ["Linear"], "format": "int-quantized", "weights": {"num_bits": 8, "type": "int",
                "symmetric": true, "strategy": "channel", "dynamic": false}}}}})"})),
    [](const auto& info) { return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param).name); });

// ---- products side by side whose weights are encoded in different ways ----------------------------------------------

// A type of GGUF, and what llmc calls it.
struct GgufType {
  uint32_t number;
  const char* format;
};
constexpr GgufType kQ4K = {12, "q4_k"}, kQ5K = {13, "q5_k"}, kQ6K = {14, "q6_k"}, kQ8 = {8, "q8_0"},
                   kIq4 = {23, "iq4_xs"};
// Of queries, keys, and values and downs of every second layer.
struct Mixture {
  const char* name;
  GgufType q, k, wide;
};

// Numbers of some 0.1.
Tensor BlocksOf(const char* name, int64_t n, int64_t k, uint64_t seed) {
  const absl::Span<const EncodingFormat> formats = EncodingFormats();
  const auto format = absl::c_find_if(formats, [&](const EncodingFormat& one) { return one.name == name; });
  Tensor blocks = RandomSuperblocks(*format, {n, k / format->superblock * format->superblock_bytes}, seed);
  for (int64_t block = 0; block < blocks.size(); block += format->superblock_bytes) {
    for (const int at : format->halves_at) {
      if (at < 0) continue;
      const uint16_t half = FloatToHalf(format->superblock == 32 ? 0.002f : 0.0004f);
      blocks.SetInt(block + at, half & 255);
      blocks.SetInt(block + at + 1, half >> 8);
    }
  }
  return blocks;
}

// Llama of three layers with random weights.
std::string MixedFile(const Mixture& types) {
  constexpr uint64_t kHidden = 1024, kMiddle = 2048, kOfKeys = 256, kVocabulary = 512;
  GgufBytes infos;
  std::string data;
  uint64_t count = 0;
  const auto add = [&](const std::string& name, uint64_t rows, uint64_t columns, const GgufType* type) {
    ++count;
    infos.Info(name, rows == 0 ? std::vector<uint64_t>{columns} : std::vector<uint64_t>{columns, rows},
               type == nullptr ? 0 : type->number, data.size());
    const auto n = static_cast<int64_t>(std::max<uint64_t>(rows, 1)), k = static_cast<int64_t>(columns);
    const Tensor made =
        type == nullptr ? RandomFloats(DType::kF32, {n, k}, count) : BlocksOf(type->format, n, k, count);
    data.append(made.raw(), static_cast<size_t>(made.bytes()));
    data.resize((data.size() + 31) / 32 * 32);
  };
  add("token_embd.weight", kVocabulary, kHidden, &types.q);
  add("output.weight", kVocabulary, kHidden, &types.wide);
  add("output_norm.weight", 0, kHidden, nullptr);
  for (int i = 0; i < 3; ++i) {
    const std::string layer = absl::StrCat("blk.", i, ".");
    const bool is_mixed = i % 2 == 0;
    add(layer + "attn_norm.weight", 0, kHidden, nullptr);
    add(layer + "ffn_norm.weight", 0, kHidden, nullptr);
    add(layer + "attn_q.weight", kHidden, kHidden, &types.q);
    add(layer + "attn_k.weight", kOfKeys, kHidden, is_mixed ? &types.k : &types.q);
    add(layer + "attn_v.weight", kOfKeys, kHidden, is_mixed ? &types.wide : &types.q);
    add(layer + "attn_output.weight", kHidden, kHidden, &types.q);
    add(layer + "ffn_gate.weight", kMiddle, kHidden, &types.q);
    add(layer + "ffn_up.weight", kMiddle, kHidden, &types.q);
    add(layer + "ffn_down.weight", kHidden, kMiddle, is_mixed ? &types.wide : &types.q);
  }
  GgufBytes file;
  file.Header(count, 10).Text("general.architecture").Put<uint32_t>(8).Text("llama");
  for (const auto& [key, value] : {std::pair("block_count", 3u),
                                   {"context_length", 1024u},
                                   {"embedding_length", 1024u},
                                   {"feed_forward_length", 2048u},
                                   {"attention.head_count", 8u},
                                   {"attention.head_count_kv", 2u},
                                   {"rope.dimension_count", 128u},
                                   {"vocab_size", 512u}}) {
    file.Text(absl::StrCat("llama.", key)).Put<uint32_t>(4).Put<uint32_t>(value);
  }
  file.Text("llama.attention.layer_norm_rms_epsilon").Put<uint32_t>(6).Put<float>(1e-5f);
  std::string head = file.str() + infos.str();
  head.resize((head.size() + 31) / 32 * 32);
  const std::string path = TempFolder() + "/" + types.name + ".gguf";
  std::ofstream(path, std::ios::binary) << head << data;
  return path;
}

class Mixtures : public testing::TestWithParam<Mixture> {};

TEST_P(Mixtures, LogitsAreThoseOfLaunches) {
  LLMC_NEEDS_GPU();
  if (!FindTarget(TargetHere().name)->bulk_copies) GTEST_SKIP() << "persistent launches need bulk copies";
  const std::string dump = TempFolder() + "/" + GetParam().name + "-dump";
  ExpectLogitsOfLaunches(GetParam().name, MixedFile(GetParam()), {"--dtype=bf16"}, dump, {1, 60});
}

INSTANTIATE_TEST_SUITE_P(Models, Mixtures,
                         testing::Values(Mixture{"q4_k_m", kQ4K, kQ4K, kQ6K}, Mixture{"of_three", kQ5K, kQ8, kIq4}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace llmc
