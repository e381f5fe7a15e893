// A real model on the host: what a request gives does not depend on what runs beside it, and is what transformers
// gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "files/temporary_folder.h"
#include "frontend/formats/safetensors.h"
#include "frontend/import.h"
#include "ir/text.h"
#include "nlohmann/json.hpp"
#include "passes/pipeline.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/perplexity.h"
#include "runtime/engine/score.h"
#include "runtime/host/host_executor.h"
#include "tests/runtime/fake_executor.h"
#include "tests/shared_data.h"
#include "tests/window_folder.h"

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
    EXPECT_THAT(PrintModel(**imported), HasSubstr("= silu_mul ")) << "nothing was fused";
    return imported->release();
  }();
  return *model;
}

std::unique_ptr<Executor> NewExecutor(int64_t num_pages) {
  auto executor = NewHostExecutor(&TaleModel(), {.num_pages = num_pages});
  EXPECT_TRUE(executor.ok()) << executor.status();
  return *std::move(executor);
}

std::unique_ptr<Engine> NewBatchEngine(Executor* executor, EngineOptions options) {
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
    auto engine = NewBatchEngine(executor.get(), {.max_tokens_per_step = 64, .prefix_cache = false});
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
    auto engine = NewBatchEngine(&late, {.max_tokens_per_step = c.budget, .max_sequences = 6});
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

// Six requests that share their first 40 tokens, of which two pages can be shared: together, and once more.
TEST(Batch, CachedPrefixesGiveTheSameTokens) {
  std::vector<Request> requests = EightRequests();
  requests.resize(6);
  const nlohmann::json sample = GreedySamples()[0];
  std::vector<int32_t> common = sample["prompt_ids"];
  for (int32_t id : sample["output_ids"]) common.push_back(id);
  common.resize(40);
  for (Request& request : requests) {
    request.max_new_tokens = 12;
    request.prompt_ids.insert(request.prompt_ids.begin(), common.begin(), common.end());
  }
  const auto alone = EachAlone(requests);
  for (const int64_t depth : {1, 2}) {
    auto executor = NewExecutor(64);
    LateExecutor late(executor.get(), depth);
    auto engine = NewBatchEngine(&late, {.max_tokens_per_step = 48, .max_sequences = 6});
    int64_t found = 5 * 32;
    for (int time = 0; time < 2; ++time) {
      const auto completions = Generate(engine.get(), requests);
      ASSERT_TRUE(completions.ok()) << completions.status();
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*completions)[i].tokens, alone[i]) << i;
      EXPECT_EQ(engine->stats().cached_prompt_tokens, found);
      for (const Request& request : requests) found += (static_cast<int64_t>(request.prompt_ids.size()) - 1) / 16 * 16;
    }
  }
}

// A model of windows of 8 tokens lets go of pages while it generates, and says what it says with all of them.
TEST(Batch, WindowsLetGoOfPages) {
  const std::string folder = SharedData("tiny-models/mistral-sliding");
  if (folder.empty()) GTEST_SKIP() << "the shared test data is not there";
  const auto model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status optimized = RunPipeline(model->get(), {.dtype = DType::kF32}, nullptr);
  ASSERT_TRUE(optimized.ok()) << optimized;
  const auto executor = HostExecutor::Create(model->get(), {.num_pages = 16});
  ASSERT_TRUE(executor.ok()) << executor.status();
  EXPECT_EQ((*executor)->limits().pools[0].window, 8);
  std::vector<Request> requests(4);
  for (int32_t i = 0; i < 4; ++i) {
    for (int32_t t = 0; t < 20 + i; ++t) requests[i].prompt_ids.push_back((t * 7 + i * 3) % 512);
    requests[i].max_new_tokens = 60;
    requests[i].ignore_eos = true;
  }
  LateExecutor late(executor->get(), 2);
  auto engine = NewBatchEngine(&late, {.max_tokens_per_step = 64, .max_sequences = 4});
  std::vector<Completion> completions(4);
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(engine->AddRequest(requests[i], [&, i](const TokenEvent& event) { completions[i].Add(event); }).ok());
  }
  int64_t most = 0;
  while (!engine->idle()) {
    ASSERT_TRUE(engine->Step().ok());
    most = std::max(most, engine->stats().pages_in_use);
  }
  EXPECT_LE(most, 8) << "two of each";
  EXPECT_EQ(engine->stats().preemptions, 0);
  engine.reset();
  // The likeliest token after each position, by one step over the whole sequence.
  std::vector<std::vector<int32_t>> whole;
  for (size_t i = 0; i < 4; ++i) {
    whole.push_back(requests[i].prompt_ids);
    whole[i].insert(whole[i].end(), completions[i].tokens.begin(), completions[i].tokens.end());
  }
  int64_t compared = 0;
  const auto compare = [&](size_t i, int64_t position, absl::Span<const float> logits) {
    if (position + 1 < static_cast<int64_t>(requests[i].prompt_ids.size())) return absl::OkStatus();
    if (position + 1 == static_cast<int64_t>(whole[i].size())) return absl::OkStatus();
    const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(whole[i][position + 1], likeliest) << "request " << i << " after " << position;
    ++compared;
    return absl::OkStatus();
  };
  ASSERT_TRUE(VisitLogits(executor->get(), whole, compare).ok());
  EXPECT_EQ(compared, 4 * 60);
}

// The first of two layers has a window of 8 tokens, and pages of its own, of which few are needed; what it says is what
// the same layers say that keep all of their pages.
TEST(Batch, LayersWithAWindowHavePagesOfTheirOwn) {
  const auto temporary = TemporaryFolder::Create();
  ASSERT_TRUE(temporary.ok()) << temporary.status();
  const std::string& folder = temporary->path();
  if (!MakeFolderWithAWindow(folder)) GTEST_SKIP() << "the shared test data is not there";
  const auto one_pool = ImportHuggingFace(folder), model = ImportHuggingFace(folder);
  ASSERT_TRUE(model.ok()) << model.status();
  absl::Status optimized = RunPipeline(model->get(), {.dtype = DType::kF32}, nullptr);
  optimized.Update(RunPipeline(one_pool->get(), {.dtype = DType::kF32, .skip = {"paginate"}}, nullptr));
  ASSERT_TRUE(optimized.ok()) << optimized;
  const auto whole = HostExecutor::Create(one_pool->get(), {.num_pages = 40});
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ((*whole)->limits().pools.size(), 1u);
  const auto executor = HostExecutor::Create(model->get(), {.num_pages = 40});
  ASSERT_TRUE(executor.ok()) << executor.status();
  ASSERT_EQ((*executor)->limits().pools.size(), 2u);
  EXPECT_EQ((*executor)->limits().pools[0].window, 0);
  EXPECT_EQ((*executor)->limits().pools[1].window, 8);

  std::vector<Request> requests(4);
  for (int32_t i = 0; i < 4; ++i) {
    for (int32_t t = 0; t < 20 + i; ++t) requests[i].prompt_ids.push_back((t * 7 + i / 2 * 3) % 512);
    requests[i].max_new_tokens = 60;
    requests[i].ignore_eos = true;
  }
  const auto answers = [&](Executor* of, int64_t* most) {
    LateExecutor late(of, 2);
    auto engine = NewBatchEngine(&late, {.max_tokens_per_step = 64, .max_sequences = 4});
    std::vector<Completion> completions(4);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(engine->AddRequest(requests[i], [&, i](const TokenEvent& event) { completions[i].Add(event); }).ok());
    }
    while (!engine->idle()) {
      EXPECT_TRUE(engine->Step().ok());
      *most = std::max(*most, engine->stats().pages_in_use);
    }
    std::vector<std::vector<int32_t>> tokens;
    for (const Completion& completion : completions) tokens.push_back(completion.tokens);
    return tokens;
  };
  int64_t most_whole = 0, most = 0;
  EXPECT_EQ(answers(executor->get(), &most), answers(whole->get(), &most_whole));
  EXPECT_LE(most, most_whole + 4 * 3) << "three of each in the window's pool";

  // Sequences as long as the cache, through few pages of the window.
  const std::vector<std::vector<int32_t>> sequences(2, std::vector<int32_t>(100, 5));
  std::vector<float> expected, actual;
  const auto keep = [](std::vector<float>* to) {
    return [to](size_t, int64_t, absl::Span<const float> logits) {
      to->insert(to->end(), logits.begin(), logits.end());
      return absl::OkStatus();
    };
  };
  ASSERT_TRUE(VisitLogits(whole->get(), sequences, keep(&expected)).ok());
  ASSERT_TRUE(VisitLogits(executor->get(), sequences, keep(&actual)).ok());
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], 1e-4) << i;
}

// Where the reference's margin to the second best is large enough for another rounding not to matter.
void ExpectGreedyTokens(Executor* executor, double min_margin) {
  auto engine = NewBatchEngine(executor, {});
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
    EXPECT_LT(worst, 2e-4);
  }
}

// The whole text takes minutes; three windows tell apart a wrong join of documents. float32 gives 19.984.
TEST(Reference, PerplexityOfThreeWindows) {
  const std::string book = SharedData("text/books-valid.txt");
  if (book.empty()) GTEST_SKIP() << "the shared test data is not there";
  std::stringstream text, json;
  text << std::ifstream(book).rdbuf();
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
