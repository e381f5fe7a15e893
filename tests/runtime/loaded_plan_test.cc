// The public header: plans loaded and run as a program does it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <tuple>

#include "codegen/plan_writer.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "runtime/llmc.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kShippedFolder = LLMC_TEST_DATA "/tale-7m";

std::unique_ptr<LoadedPlan> WriteAndLoad(const Model& model, const PlanOptions& options, const LoadOptions& load = {}) {
  const std::string path = testing::TempDir() + "/loaded_plan_test.plan";
  const absl::Status status = WritePlan(model, options, path);
  EXPECT_TRUE(status.ok()) << status;
  auto plan = LoadedPlan::Load(path, load);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(LoadedPlan, RunsAPlainModel) {
  const auto model = ParseModel(
      "model twice\ndim B <= 8\nstep main (%x: f32[B, 2]) {\n  %y = add %x, %x : f32[B, 2]\n  return \"y\" = %y\n}\n",
      "twice.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto plan = WriteAndLoad(**model, {.compiler_version = "test"});
  EXPECT_EQ(plan->name(), "twice");
  ASSERT_EQ(plan->inputs().size(), 1u);
  EXPECT_EQ(plan->inputs()[0].name, "x");
  EXPECT_THAT(plan->inputs()[0].shape, ElementsAre("B", "2"));
  const auto outputs = plan->Run({{"x", *HostTensor::FromFloats({1, 2, 3, 4}, {2, 2})}});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT(outputs->at("y").values<float>(), ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(outputs->at("y").shape, ElementsAre(2, 2));

  EXPECT_THAT(std::string(plan->Run({{"z", *HostTensor::FromFloats({1}, {1})}}).status().message()),
              HasSubstr("no input z"));
  EXPECT_FALSE(plan->Run({}).ok());
  EXPECT_FALSE(plan->Run({{"x", *HostTensor::FromFloats({1, 2, 3}, {1, 3})}}).ok());
  EXPECT_FALSE(plan->Run({{"x", HostTensor{.shape = {1, 2}}}}).ok()) << "no bytes";
  EXPECT_EQ(plan->executor().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(plan->tokenizer(), nullptr);
}

TEST(LoadedPlan, GeneratesAndScores) {
  const auto model = ImportHuggingFace(kShippedFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  std::stringstream json;
  json << std::ifstream(kShippedFolder + "/tokenizer.json").rdbuf();
  PlanOptions options{.compiler_version = "test", .tokenizer = {{"tokenizer.json", json.str()}}};
  options.language_model.emplace();
  options.language_model->set_vocab_size(4096);
  plan::LanguageModel::Pool* pool = options.language_model->add_pools();
  pool->set_dim("N");
  pool->set_page_size(16);
  options.language_model->set_max_context(100);
  options.language_model->set_num_layers(8);
  for (const Value* state : (*model)->states) options.language_model->add_kv_states(state->name);
  options.language_model->add_eos_ids(1);
  const auto plan = WriteAndLoad(**model, options);
  EXPECT_THAT(plan->generation()->eos_token_ids, ElementsAre(1));
  EXPECT_EQ((*plan->executor())->limits().max_context, 100);

  const auto ids = plan->tokenizer()->Encode("Once upon a time there was", {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  const auto engine = plan->NewEngine({});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto completions = Generate(engine->get(), {{.prompt_ids = *ids, .max_new_tokens = 3}});
  ASSERT_TRUE(completions.ok()) << completions.status();
  EXPECT_EQ((*completions)[0].text, " a great deal");

  const auto outputs = plan->Run({{"input_ids", *HostTensor::FromInts({0, 51, 1302}, {1, 3})}});
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_THAT(outputs->at("logits").shape, ElementsAre(1, 3, 4096));
  EXPECT_FALSE(plan->Run({}).ok());

  // Whoever else wrote to the cache would change what the engine's requests give.
  const absl::Status second = plan->NewEngine({}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("destroy it first"));
  Completion completion;
  const auto on_event = [&](const TokenEvent& event) { completion.Add(event); };
  ASSERT_TRUE((*engine)->AddRequest({.prompt_ids = *ids, .max_new_tokens = 3}, on_event).ok());
  while (!(*engine)->idle()) {
    const absl::Status run = plan->Run({{"input_ids", *HostTensor::FromInts({0, 51, 1302}, {1, 3})}}).status();
    EXPECT_EQ(run.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(run.message()), HasSubstr("the engine has 1 live request"));
    ASSERT_TRUE((*engine)->Step().ok());
  }
  EXPECT_EQ(completion.text, " a great deal");
}

absl::StatusOr<GenerationConfig> Generation(const std::string& generation, const std::string& config,
                                            const Tokenizer* tokenizer = nullptr) {
  const SideFiles files{.prefix = "m/", .config = config, .generation_config = generation};
  return ReadGenerationConfig(files, [=] { return tokenizer; });
}

TEST(GenerationConfig, EndTokens) {
  const std::string two = R"({"eos_token_id": 2, "bos_token_id": 1})";
  const std::tuple<std::string, std::string, std::vector<int32_t>> cases[] = {
      {"", two, {2}},
      {R"({"eos_token_id": [5, 6], "bos_token_id": null})", two, {5, 6}},
      {R"({"eos_token_id": null})", two, {2}},
      {R"({"temperature": 1})", two, {2}},
      // transformers only warns that such a generation does not stop.
      {R"({"eos_token_id": -1})", two, {}},
      {R"({"eos_token_id": [7, -1, 4294967296]})", two, {7}},
      {R"({"eos_token_id": []})", two, {}},
      {"", "", {}}};
  for (const auto& [generation, config, ids] : cases) {
    const auto read = Generation(generation, config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->eos_token_ids, ids) << generation;
    EXPECT_EQ(read->bos_token_id, config == two ? std::optional<int32_t>(1) : std::nullopt) << generation;
  }
  EXPECT_EQ(Generation(R"({"bos_token_id": -1})", two)->bos_token_id, std::nullopt);
  for (const char* text : {R"({"eos_token_id": "x"})", R"({"eos_token_id": [1.5]})", "[]", "{", R"({"top_p": "x"})",
                           R"({"do_sample": 1})", R"({"top_k": 1.5})"}) {
    const auto read = Generation(text, two);
    ASSERT_TRUE(read.ok()) << "config.json names the end token: " << read.status();
    EXPECT_EQ(read->eos_token_ids, std::vector<int32_t>{2}) << text;
    EXPECT_EQ(SamplingText(read->sampling), "greedy") << text;
    EXPECT_THAT(std::string(read->left_out.message()), HasSubstr("m/generation_config.json: ")) << text;
    const absl::Status alone = Generation(text, "{}").status();
    EXPECT_EQ(alone, read->left_out) << text;
    EXPECT_EQ(alone.code(), absl::StatusCode::kInvalidArgument) << text;
  }
  // What can be read of a file is taken.
  EXPECT_THAT(Generation(R"({"eos_token_id": 9, "do_sample": true, "top_p": "x"})", two)->eos_token_ids,
              ElementsAre(9));
}

TEST(GenerationConfig, EndTokenOfTheTokenizerConfigOnly) {
  std::stringstream json;
  json << std::ifstream(kShippedFolder + "/tokenizer.json").rdbuf();
  for (const char* config : {R"({"eos_token": "<|im_end|>"})", R"({"eos_token": {"content": "<|im_end|>"}})"}) {
    const auto tokenizer = Tokenizer::FromJson(json.str(), "t", config, "c");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_THAT(Generation("{}", "{}", tokenizer->get())->eos_token_ids,
                ElementsAre(*(*tokenizer)->TokenId("<|im_end|>")));
    EXPECT_THAT(Generation("{}", R"({"eos_token_id": 2})", tokenizer->get())->eos_token_ids, ElementsAre(2));
  }
}

// As transformers 5.17's GenerationConfig fills what a file lacks.
TEST(GenerationConfig, Sampling) {
  const auto text = [](const char* generation, const char* config = "") {
    return SamplingText(Generation(generation, config)->sampling);
  };
  EXPECT_EQ(text(""), "greedy");
  EXPECT_EQ(text(R"({"temperature": 0.6, "top_p": 0.9})"), "greedy");
  EXPECT_EQ(text(R"({"do_sample": false, "repetition_penalty": 1.1})"), "repetition_penalty 1.1");
  EXPECT_EQ(text(R"({"do_sample": true})"), "temperature 1, top_k 50");
  EXPECT_EQ(text(R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": null})"),
            "temperature 0.6, top_p 0.9");
  EXPECT_EQ(text(R"({"do_sample": true, "top_k": 20, "min_p": 0.05})"), "temperature 1, top_k 20, min_p 0.05");
  EXPECT_EQ(text(R"({"do_sample": true, "top_k": -1})"), "temperature 1");
  EXPECT_EQ(text("", R"({"do_sample": true, "top_k": 7})"), "temperature 1, top_k 7") << "of config.json";
  EXPECT_EQ(text("{}", R"({"do_sample": true, "top_k": 7})"), "greedy");
  // For requests that only ask for a temperature.
  EXPECT_EQ(Generation(R"({"top_k": 9})", "")->sampling.top_k, 9);
}

// What a run does not need does not stop it.
TEST(LoadedPlan, ReadsItsTextFilesWhenAsked) {
  const auto model = ImportHuggingFace(kShippedFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  PlanOptions options{.compiler_version = "test",
                      .tokenizer = {{"tokenizer.json", R"({"model": {"type": "Lattice", "vocab": []}})"}},
                      .generation_config = R"({"do_sample": true, "top_k": 3})"};
  options.language_model.emplace();
  options.language_model->set_vocab_size(4096);
  plan::LanguageModel::Pool* pool = options.language_model->add_pools();
  pool->set_dim("N");
  pool->set_page_size(16);
  options.language_model->set_max_context(64);
  options.language_model->add_eos_ids(7);
  for (const Value* state : (*model)->states) options.language_model->add_kv_states(state->name);
  const auto plan = WriteAndLoad(**model, options);
  EXPECT_EQ(plan->tokenizer(), nullptr);
  EXPECT_EQ(plan->tokenizer_status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(plan->tokenizer_status().message()), HasSubstr("\"Lattice\" is not supported"));
  ASSERT_TRUE(plan->generation().ok()) << plan->generation().status();
  EXPECT_THAT(plan->generation()->eos_token_ids, ElementsAre(7));
  EXPECT_EQ(plan->generation()->sampling.top_k, 3);
  const auto engine = plan->NewEngine({});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto completions = Generate(engine->get(), {{.prompt_ids = {0, 51}, .max_new_tokens = 2}});
  ASSERT_TRUE(completions.ok()) << completions.status();
  EXPECT_EQ((*completions)[0].tokens.size(), 2u);
  EXPECT_EQ((*completions)[0].text, "");

  options.generation_config = "{";
  const auto damaged = WriteAndLoad(**model, options);
  ASSERT_TRUE(damaged->generation().ok()) << "the plan itself has the end tokens";
  EXPECT_THAT(damaged->generation()->eos_token_ids, ElementsAre(7));
  EXPECT_THAT(std::string(damaged->generation()->left_out.message()), HasSubstr(": generation_config.json: not JSON"));
}

TEST(LoadedPlan, SaysThatAPlanOfTheHostHasNoCodeForAGpu) {
  const auto model = ImportHuggingFace(kShippedFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto plan = WriteAndLoad(**model, {.compiler_version = "test"}, {.device = "cuda"});
  const absl::Status status = plan->executor().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--target"));
}

TEST(LoadedPlan, SaysWhereThereAreNoTensorsOfAGpu) {
  const auto model = ImportHuggingFace(kShippedFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  const HostTensor ids = *HostTensor::FromInts({1}, {1, 1});
  const auto host = WriteAndLoad(**model, {.compiler_version = "test"}, {});
  EXPECT_THAT(std::string(host->RunOnDevice({{"input_ids", ids}}).status().message()),
              HasSubstr("the model runs on the host"));
  EXPECT_FALSE(host->ToDevice(ids).ok());
  EXPECT_FALSE(host->ToHost({}).ok());
  const auto zeros = host->NewHostTensor(DType::kI32, {3});
  ASSERT_TRUE(zeros.ok()) << zeros.status();
  EXPECT_THAT(zeros->values<int32_t>(), ElementsAre(0, 0, 0));

  const auto paged = WriteAndLoad(**model, {.compiler_version = "test"}, {.device = "cuda"});
  const absl::Status status = paged->RunOnDevice({{"input_ids", ids}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--no-paginate"));
}

TEST(LoadedPlan, RefusesOtherDevicesAndMissingFiles) {
  for (const char* device : {"tpu", "cuda:", "cuda:-1"}) {
    EXPECT_EQ(LoadedPlan::Load("x", {.device = device}).status().code(), absl::StatusCode::kInvalidArgument) << device;
  }
  for (const double fraction : {0.0, 1.5}) {
    const absl::Status status = LoadedPlan::Load("x", {.memory_fraction = fraction}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("must be above 0 and at most 1"));
  }
  EXPECT_EQ(LoadedPlan::Load("/no/such/file", {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace llmc
