// The public header: plans loaded and run as a program does it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "codegen/plan_writer.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "runtime/llmc.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kFolder = LLMC_TEST_DATA "/tale-7m";

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
  const auto model = ImportHuggingFace(kFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  std::stringstream json;
  json << std::ifstream(kFolder + "/tokenizer.json").rdbuf();
  PlanOptions options{.compiler_version = "test", .tokenizer_json = json.str()};
  options.language_model.emplace();
  options.language_model->set_vocab_size(4096);
  options.language_model->set_page_size(16);
  options.language_model->set_max_context(100);
  options.language_model->set_num_layers(8);
  for (const Value* state : (*model)->states) options.language_model->add_kv_states(state->name);
  options.language_model->add_eos_ids(1);
  const auto plan = WriteAndLoad(**model, options);
  EXPECT_THAT(plan->eos_token_ids(), ElementsAre(1));
  EXPECT_EQ((*plan->executor())->limits().max_context, 100);

  const auto ids = plan->tokenizer()->Encode("Once upon a time there was", true);
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
}

TEST(LoadedPlan, SaysThatAPlanOfTheHostHasNoCodeForAGpu) {
  const auto model = ImportHuggingFace(kFolder);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto plan = WriteAndLoad(**model, {.compiler_version = "test"}, {.device = "cuda"});
  const absl::Status status = plan->executor().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--target"));
}

TEST(LoadedPlan, RefusesOtherDevicesAndMissingFiles) {
  EXPECT_EQ(LoadedPlan::Load("x", {.device = "tpu"}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadedPlan::Load("/no/such/file", {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace llmc
