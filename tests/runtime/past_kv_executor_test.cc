// Language models of ONNX form: every exporter's file of one model says the same, with and without a cache.
#include "runtime/engine/past_kv_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/score.h"
#include "runtime/host/host_executor.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> Prompt(int32_t length) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < length; ++i) ids.push_back((i * 37 + length) % 500);
  return ids;
}

// The tokens of two requests that run together, their prompts in pieces.
std::vector<std::vector<int32_t>> Continuations(const std::string& name) {
  const auto model = ImportOnnx(SharedData("onnx-exports") + "/" + name + "/model.onnx");
  EXPECT_TRUE(model.ok()) << model.status();
  const auto executor = NewHostExecutor(model->get(), {});
  EXPECT_TRUE(executor.ok()) << executor.status();
  const auto engine = Engine::Create(executor->get(), nullptr, {.max_tokens_per_step = 7, .max_sequences = 3});
  EXPECT_TRUE(engine.ok()) << engine.status();
  const auto completions = Generate(
      engine->get(), {{.prompt_ids = Prompt(5), .max_new_tokens = 6}, {.prompt_ids = Prompt(11), .max_new_tokens = 6}});
  EXPECT_TRUE(completions.ok()) << completions.status();
  return {(*completions)[0].tokens, (*completions)[1].tokens};
}

TEST(PastKvExecutor, EveryExportOfAModelSaysTheSame) {
  if (SharedData("onnx-exports").empty()) GTEST_SKIP() << "the shared test data is not there";
  for (const std::string family : {"llama-gqa", "qwen3", "gpt2"}) {
    const auto expected = Continuations(family + "-nocache-dynamo18");
    for (const std::string form : {"-nocache-dynamo23", "-cache-dynamo18", "-cache-dynamo23", "-cache-legacy17"}) {
      EXPECT_EQ(Continuations(family + form), expected) << family << form;
    }
  }
}

TEST(PastKvExecutor, ScoresAsTheExporterDid) {
  if (SharedData("onnx-exports").empty()) GTEST_SKIP() << "the shared test data is not there";
  const std::string folder = SharedData("onnx-exports") + "/gemma2-nocache-dynamo18";
  const auto model = ImportOnnx(folder + "/model.onnx");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto executor = NewHostExecutor(model->get(), {});
  ASSERT_TRUE(executor.ok()) << executor.status();
  const auto inputs = ReadSafetensors(folder + "/inputs.safetensors");
  const auto outputs = ReadSafetensors(folder + "/outputs.safetensors");
  ASSERT_TRUE(inputs.ok() && outputs.ok());
  const Tensor& ids = inputs->at("input_ids");
  const auto logits = ScoreBatch(executor->get(), *HostTensor::FromInts(ids.ToInts(), ids.shape()));
  ASSERT_TRUE(logits.ok()) << logits.status();
  const std::vector<float> expected = outputs->at("logits").ToFloats();
  ASSERT_EQ(logits->size(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(logits->values<float>()[i], expected[i], 1e-4) << i;
}

// A model whose input names decide; what it computes does not matter.
absl::Status CreateStatus(const std::string& params, const std::string& outputs) {
  const auto model = ParseModel(
      "model m\ndim B <= 8\ndim S <= 64\ndim P <= 64\nstep main (" + params + ") {\n" + "  return " + outputs + "\n}\n",
      "test.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  return NewHostExecutor(model->get(), {}).status();
}

TEST(PastKvExecutor, SaysWhyAModelIsNoLanguageModel) {
  auto message = [](const std::string& params, const std::string& outputs) {
    const absl::Status status = CreateStatus(params, outputs);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    return std::string(status.message());
  };
  EXPECT_THAT(message("%pixels: f32[B, 3]", "\"pixels\" = %pixels"), HasSubstr("feed to the input pixels"));
  EXPECT_THAT(message("%attention_mask: i64[B, S]", "\"logits\" = %attention_mask"), HasSubstr("no input input_ids"));
  EXPECT_THAT(message("%input_ids: i64[B, S]", "\"logits\" = %input_ids"), HasSubstr("no output logits [B, S, V]"));
  EXPECT_THAT(message("%input_ids: f32[B, S]", "\"logits\" = %input_ids"), HasSubstr("not integers [B, S]"));
  EXPECT_THAT(message("%input_ids: i64[B, S], %past.0: f32[B, P, S]", "\"present.0\" = %past.0"),
              HasSubstr("one axis of variable length"));
  EXPECT_THAT(message("%input_ids: i64[B, S], %past.0: i64[B, P]", "\"other\" = %past.0"), HasSubstr("past.0"));
}

}  // namespace
}  // namespace llmc
