// A real model on the host: what a request gives does not depend on what runs beside it, and is what transformers
// gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "frontend/import.h"
#include "frontend/safetensors.h"
#include "ir/text.h"
#include "nlohmann/json.hpp"
#include "passes/pipeline.h"
#include "runtime/engine.h"
#include "runtime/host/host_executor.h"
#include "runtime/perplexity.h"
#include "runtime/score.h"
#include "tests/runtime/fake_executor.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

const std::string kFolder = LLMC_TEST_DATA "/tale-7m";

// The program that users run: in f32, after all passes.
const Model& TaleModel() {
  static const Model* model = [] {
    auto imported = ImportHuggingFace(kFolder);
    EXPECT_TRUE(imported.ok()) << imported.status();
    const absl::Status status = RunPipeline(imported->get(), {.dtype = DType::kF32}, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(PrintModel(**imported), HasSubstr("= add_rms_norm ")) << "nothing was fused";
    return imported->release();
  }();
  return *model;
}

std::unique_ptr<Executor> NewExecutor(int64_t num_pages) {
  auto executor = NewHostExecutor(&TaleModel(), {.num_pages = num_pages});
  EXPECT_TRUE(executor.ok()) << executor.status();
  return *std::move(executor);
}

std::unique_ptr<Engine> NewEngine(Executor* executor, EngineOptions options) {
  auto engine = Engine::Create(executor, nullptr, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

nlohmann::json GreedySamples() { return nlohmann::json::parse(std::ifstream(kFolder + "/reference.json"))["greedy"]; }

// Prompts of 1 to 43 tokens, greedy and sampled.
std::vector<Request> EightRequests() {
  std::vector<int32_t> text;
  for (const auto& sample : GreedySamples()) {
    for (const char* part : {"prompt_ids", "output_ids"}) {
      for (int32_t id : sample[part]) text.push_back(id);
    }
  }
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    requests.push_back({.prompt_ids = {text.begin() + 20 * i, text.begin() + 20 * i + 1 + 6 * i},
                        .max_new_tokens = 24 - 2 * i,
                        .sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.8, .top_p = 0.9, .seed = 11u + i}});
  }
  return requests;
}

std::vector<std::vector<int32_t>> EachAlone(const std::vector<Request>& requests) {
  std::vector<std::vector<int32_t>> tokens;
  auto executor = NewExecutor(64);
  for (const Request& request : requests) {
    auto engine = NewEngine(executor.get(), {.max_tokens_per_step = 64});
    const auto completions = Generate(engine.get(), {request});
    EXPECT_TRUE(completions.ok()) << completions.status();
    tokens.push_back((*completions)[0].tokens);
  }
  return tokens;
}

TEST(Batch, EightRequestsGiveWhatEachGivesAlone) {
  const std::vector<Request> requests = EightRequests();
  const auto alone = EachAlone(requests);
  struct Case {
    int64_t pages, budget, depth;
    bool preempts;
  };
  for (const Case& c : {Case{64, 40, 1, false}, Case{5, 16, 1, true}, Case{5, 16, 2, true}}) {
    auto executor = NewExecutor(c.pages);
    LateExecutor late(executor.get(), c.depth);
    auto engine = NewEngine(&late, {.max_tokens_per_step = c.budget, .max_sequences = 6});
    std::vector<Completion> completions(requests.size());
    // A new request every third step, the others running; and one that is cancelled on the way.
    RequestId cancelled = 0;
    for (size_t step = 0; step < 3 * requests.size() || !engine->idle(); ++step) {
      const size_t i = step / 3;
      if (step % 3 == 0 && i < requests.size()) {
        const auto id = engine->AddRequest(requests[i], [&, i](const TokenEvent& event) { completions[i].Add(event); });
        ASSERT_TRUE(id.ok()) << id.status();
      }
      if (step == 4) cancelled = *engine->AddRequest(requests[2], nullptr);
      EXPECT_TRUE(step != 9 || engine->Cancel(cancelled).ok());
      const absl::Status status = engine->Step();
      ASSERT_TRUE(status.ok()) << status;
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(completions[i].tokens, alone[i]) << "request " << i << " of " << c.pages << " pages";
    }
    EXPECT_EQ(engine->stats().preemptions > 0, c.preempts);
    EXPECT_EQ(engine->stats().pages_in_use, 0);
  }
}

// Where the reference's margin to the second best is large enough for another rounding not to matter.
void ExpectGreedyTokens(Executor* executor, double min_margin) {
  auto engine = NewEngine(executor, {});
  int64_t compared = 0;
  for (const auto& sample : GreedySamples()) {
    const std::vector<double> margins = sample["margin_to_second"];
    const auto end = std::find_if(margins.begin(), margins.end(), [&](double m) { return m < min_margin; });
    const int64_t sure = end - margins.begin();
    if (sure == 0) continue;
    const auto completions =
        Generate(engine.get(), {{.prompt_ids = sample["prompt_ids"], .max_new_tokens = sure, .ignore_eos = true}});
    ASSERT_TRUE(completions.ok()) << completions.status();
    std::vector<int32_t> expected = sample["output_ids"];
    expected.resize(sure);
    EXPECT_EQ((*completions)[0].tokens, expected) << sample["prompt"];
    compared += sure;
  }
  EXPECT_GT(compared, 10);
}

TEST(Reference, PagedModelContinuesAsTransformersDoes) { ExpectGreedyTokens(NewExecutor(64).get(), 0); }

TEST(Reference, OnnxModelContinuesAsTransformersDoes) {
  const auto model = ImportOnnx(kFolder + "/model.onnx");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto executor = NewHostExecutor(model->get(), {});
  ASSERT_TRUE(executor.ok()) << executor.status();
  ExpectGreedyTokens(executor->get(), 0.03);
}

TEST(Reference, LogitsAreThoseOfTransformers) {
  const auto reference = ReadSafetensors(kFolder + "/reference_logits.safetensors");
  ASSERT_TRUE(reference.ok()) << reference.status();
  auto executor = NewExecutor(64);
  for (const char* n : {"0", "1", "2", "3"}) {
    const std::vector<int64_t> ids = reference->at(std::string("input_ids_") + n).ToInts();
    const std::vector<float> expected = reference->at(std::string("logits_") + n).ToFloats();
    const auto logits = ScoreBatch(executor.get(), *HostTensor::FromInts(ids, {1, static_cast<int64_t>(ids.size())}));
    ASSERT_TRUE(logits.ok()) << logits.status();
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(logits->values<float>()[i]) - expected[i]));
    }
    // The reference's inverse frequencies were rounded to bfloat16; tests/tools/compare_test.cc does so too.
    EXPECT_LT(worst, 5e-3);
  }
}

// The whole text takes minutes; three windows tell apart a wrong join of documents. float32 gives 19.984.
TEST(Reference, PerplexityOfThreeWindows) {
  const std::string shared = LLMC_SHARED_DATA;
  if (shared.empty()) GTEST_SKIP() << "LLMC_SHARED_DATA is not set";
  std::stringstream text, json;
  text << std::ifstream(shared + "/text/books-valid.txt").rdbuf();
  json << std::ifstream(kFolder + "/tokenizer.json").rdbuf();
  const auto tokenizer = Tokenizer::FromJson(json.str(), "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = EncodeCorpus(**tokenizer, text.str());
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size() / 512 * 511, 96579u);
  EXPECT_EQ(ids->size(), 97064u);
  auto executor = NewExecutor(128);
  const auto result = Perplexity(executor.get(), *ids, {.max_windows = 3});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->perplexity, 19.984, 0.001);
}

}  // namespace
}  // namespace llmc
