#include "runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include "tests/runtime/fake_executor.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::unique_ptr<Engine> NewEngine(Executor* executor, EngineOptions options, const Tokenizer* tokenizer = nullptr) {
  auto engine = Engine::Create(executor, tokenizer, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<int32_t> Prompt(int64_t length, int32_t first) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>((first * 7 + i * 3) % FakeExecutor::kVocabulary));
  return ids;
}

// Greedy if `first` is even; every third one has penalties.
Request MakeRequest(int64_t length, int32_t first, int64_t max_new_tokens) {
  SamplingParams sampling{.temperature = first % 2 == 0 ? 0.0 : 0.9, .seed = static_cast<uint64_t>(first)};
  if (first % 3 == 0) {
    sampling.repetition_penalty = 1.2;
    sampling.presence_penalty = 0.5;
    sampling.frequency_penalty = 0.3;
  }
  if (first % 5 == 0) sampling.top_p = 0.8;
  return {.prompt_ids = Prompt(length, first), .max_new_tokens = max_new_tokens, .sampling = sampling};
}

// What the request must give, computed without an engine.
std::vector<int32_t> Expected(const Request& request, const std::vector<int32_t>& eos = {}, int64_t limit = 256) {
  std::vector<int32_t> tokens = request.prompt_ids, out;
  TokenCounts counts;
  counts.AddPrompt(tokens);
  while (static_cast<int64_t>(out.size()) < request.max_new_tokens && static_cast<int64_t>(tokens.size()) < limit) {
    std::vector<float> logits = FakeExecutor::LogitsAfter(tokens);
    ApplyPenalties(request.sampling, counts, absl::MakeSpan(logits));
    tokens.push_back(*SampleToken(logits, request.sampling, out.size()));
    counts.AddGenerated(tokens.back());
    out.push_back(tokens.back());
    if (std::count(eos.begin(), eos.end(), out.back()) > 0) break;
  }
  return out;
}

// With executors that take one step at a time and more.
class EngineDepth : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(, EngineDepth, testing::Values(1, 2, 3));

TEST_P(EngineDepth, EachRequestGivesWhatItGivesAlone) {
  for (int64_t num_pages : {100, 30, 14}) {
    for (int64_t budget : {4, 13, 64}) {
      FakeExecutor fake(num_pages);
      LateExecutor executor(&fake, GetParam());
      auto engine = NewEngine(&executor, {.max_tokens_per_step = budget, .max_sequences = 4});
      std::vector<Request> requests;
      for (int32_t i = 0; i < 8; ++i) requests.push_back(MakeRequest(1 + 5 * i, i, 20 - i));
      const auto completions = Generate(engine.get(), requests);
      ASSERT_TRUE(completions.ok()) << completions.status();
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ((*completions)[i].tokens, Expected(requests[i])) << num_pages << " pages, request " << i;
        EXPECT_EQ((*completions)[i].finish, FinishReason::kLength);
      }
      EXPECT_EQ(engine->stats().pages_in_use, 0);
      EXPECT_TRUE(num_pages > 14 || engine->stats().preemptions > 0);
      EXPECT_TRUE(num_pages < 100 || engine->stats().preemptions == 0);
    }
  }
}

// Requests come and are cancelled at random; each gives a prefix of what it gives alone, and all of it if not
// cancelled.
TEST_P(EngineDepth, RandomRequestsAndCancels) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    FakeExecutor fake(/*num_pages=*/12 + random() % 30);
    LateExecutor executor(&fake, GetParam());
    const std::vector<int32_t> eos = {3};
    auto engine = NewEngine(&executor, {.max_tokens_per_step = 6 + static_cast<int64_t>(random() % 20),
                                        .max_sequences = 1 + static_cast<int64_t>(random() % 6),
                                        .eos_token_ids = eos});
    std::vector<Request> requests;
    std::vector<Completion> completions(60);
    std::vector<RequestId> ids;
    int64_t finished = 0;
    while (requests.size() < completions.size() || !engine->idle()) {
      const size_t i = requests.size();
      if (i < completions.size() && random() % 3 == 0) {
        requests.push_back(MakeRequest(1 + random() % 40, static_cast<int32_t>(random() % 100), 1 + random() % 30));
        const auto id = engine->AddRequest(requests[i], [&, i](const TokenEvent& event) {
          ASSERT_FALSE(completions[i].finish.has_value()) << "an event after the last";
          completions[i].Add(event);
          finished += completions[i].finish.has_value() ? 1 : 0;
        });
        ASSERT_TRUE(id.ok()) << id.status();
        ids.push_back(*id);
      }
      if (!ids.empty() && random() % 20 == 0) {
        const size_t victim = random() % ids.size();
        const bool is_live = !completions[victim].finish.has_value();
        EXPECT_EQ(engine->Cancel(ids[victim]).ok(), is_live);
      }
      ASSERT_TRUE(engine->Step().ok());
      ASSERT_LT(fake.steps, 20000) << "no progress";
    }
    EXPECT_EQ(finished, 60);
    EXPECT_EQ(engine->stats().pages_in_use, 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> expected = Expected(requests[i], eos, executor.limits().num_pages * 4);
      ASSERT_TRUE(completions[i].status.ok()) << completions[i].status;
      if (completions[i].finish == FinishReason::kCancelled) expected.resize(completions[i].tokens.size());
      EXPECT_EQ(completions[i].tokens, expected) << "seed " << seed << ", request " << i;
      EXPECT_NE(completions[i].finish, FinishReason::kError);
    }
  }
}

// Requests leave nothing behind: the heap is as large after 1,000 as after 100.
TEST_P(EngineDepth, ManyRequestsLeaveNothing) {
  FakeExecutor fake(/*num_pages=*/40);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 40, .max_sequences = 16, .eos_token_ids = {3}});
  std::mt19937 random(1);
  // The heap when `count` requests have come and gone, 64 at a time.
  const auto heap_after = [&](int64_t count) {
    int64_t added = 0, finished = 0;
    while (finished < count) {
      for (; added - finished < 64 && added < count; ++added) {
        const auto on_event = [&](const TokenEvent& event) { finished += event.finish.has_value() ? 1 : 0; };
        const auto request = MakeRequest(1 + random() % 60, static_cast<int32_t>(random() % 100), 1 + random() % 30);
        const auto id = engine->AddRequest(request, on_event);
        EXPECT_TRUE(id.ok()) << id.status();
        if (random() % 10 == 0) engine->Cancel(*id - static_cast<int64_t>(random() % 5)).IgnoreError();
      }
      EXPECT_TRUE(engine->Step().ok());
    }
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    EXPECT_EQ(engine->stats().pages_in_use, 0);
    fake.ended = {};
    return mallinfo2().uordblks;
  };
  const size_t after_100 = heap_after(100);
  EXPECT_LE(heap_after(900), after_100 + 16384) << "more than what tables and queues keep for later";
  EXPECT_GT(engine->stats().preemptions, 0);
}

TEST(Engine, EndsAtTheContextAndAtThePool) {
  for (const auto& [pages, context, tokens] : {std::tuple(100, 20, 10), std::tuple(4, 256, 6)}) {
    FakeExecutor executor(pages, context);
    auto engine = NewEngine(&executor, {.max_tokens_per_step = 64});
    const auto completions = Generate(engine.get(), {MakeRequest(10, 2, 1000)});
    ASSERT_TRUE(completions.ok()) << completions.status();
    EXPECT_EQ((*completions)[0].tokens.size(), static_cast<size_t>(tokens));
    EXPECT_EQ((*completions)[0].finish, FinishReason::kLength);
  }
}

TEST(Engine, RefusesWrongRequests) {
  FakeExecutor executor(8);
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64});
  auto message = [&](Request request) {
    const auto id = engine->AddRequest(std::move(request), nullptr);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(id.status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("the prompt has no tokens"));
  EXPECT_THAT(message({.prompt_ids = {1, 50}}), HasSubstr("prompt token 1 is 50, the vocabulary has [0, 50)"));
  EXPECT_THAT(message({.prompt_ids = {-1}}), HasSubstr("prompt token 0 is -1"));
  EXPECT_THAT(message({.prompt_ids = {1}, .max_new_tokens = 0}), HasSubstr("max_new_tokens is 0"));
  EXPECT_THAT(message({.prompt_ids = {1}, .sampling = {.top_p = 0}}), HasSubstr("top_p is 0"));
  EXPECT_THAT(message({.prompt_ids = {1}, .stop_strings = {"x"}}), HasSubstr("need a tokenizer"));
  EXPECT_THAT(message({.prompt_ids = {1}, .log_probs = -1}), HasSubstr("log_probs is -1"));
  EXPECT_THAT(message({.prompt_ids = Prompt(32, 1)}), HasSubstr("exceeds the KV cache of 32 tokens"));
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(engine->Cancel(1).code(), absl::StatusCode::kNotFound);
}

TEST(Engine, RefusesWrongOptions) {
  FakeExecutor executor(8);
  for (const EngineOptions& wrong : {EngineOptions{.max_tokens_per_step = 0}, EngineOptions{.max_tokens_per_step = 65},
                                     EngineOptions{.max_tokens_per_step = 4, .max_sequences = 5},
                                     EngineOptions{.max_tokens_per_step = 9, .max_sequences = 0},
                                     EngineOptions{.max_tokens_per_step = 64, .num_pages = 9}}) {
    EXPECT_EQ(Engine::Create(&executor, nullptr, wrong).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(EngineDepth, StopsAtStopTokens) {
  FakeExecutor fake(50);
  LateExecutor executor(&fake, GetParam());
  const Request request = MakeRequest(5, 2, 40);
  const std::vector<int32_t> all = Expected(request);
  const int32_t stop = all[3];
  const size_t first = std::find(all.begin(), all.end(), stop) - all.begin();
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64, .eos_token_ids = {stop}});
  Request ignoring = request, own = request;
  ignoring.ignore_eos = own.ignore_eos = true;
  own.stop_token_ids = {stop};
  const auto completions = Generate(engine.get(), {request, ignoring, own});
  ASSERT_TRUE(completions.ok()) << completions.status();
  EXPECT_EQ((*completions)[0].tokens, std::vector<int32_t>(all.begin(), all.begin() + first + 1));
  EXPECT_EQ((*completions)[0].finish, FinishReason::kStop);
  EXPECT_EQ((*completions)[1].tokens, all);
  EXPECT_EQ((*completions)[2].tokens, (*completions)[0].tokens);
}

TEST_P(EngineDepth, ASequenceThatFailsEndsAlone) {
  FakeExecutor fake(100);
  LateExecutor executor(&fake, GetParam());
  fake.fail_sequence = 2;
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 16, .max_sequences = 4});
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) requests.push_back(MakeRequest(5 + i, i, 10));
  const auto completions = Generate(engine.get(), requests);
  ASSERT_TRUE(completions.ok()) << completions.status();
  for (size_t i : {0, 2, 3}) EXPECT_EQ((*completions)[i].tokens, Expected(requests[i])) << i;
  EXPECT_EQ((*completions)[1].finish, FinishReason::kError);
  EXPECT_THAT(std::string((*completions)[1].status.message()), HasSubstr("this sequence is on fire"));
  EXPECT_THAT((*completions)[1].tokens, IsEmpty());
  EXPECT_EQ(engine->stats().pages_in_use, 0);
}

TEST(Engine, GenerateInACallbackIsRefused) {
  FakeExecutor executor(100);
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 16});
  int refused = 0;
  ASSERT_TRUE(engine
                  ->AddRequest(MakeRequest(3, 1, 4),
                               [&](const TokenEvent&) {
                                 const auto inner = Generate(engine.get(), {MakeRequest(2, 2, 2)});
                                 refused += inner.status().code() == absl::StatusCode::kFailedPrecondition;
                               })
                  .ok());
  ASSERT_TRUE(engine->RunUntilIdle().ok());
  EXPECT_EQ(refused, 4);
}

TEST_P(EngineDepth, CallbacksMayAddAndCancel) {
  FakeExecutor fake(50);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64});
  Completion a, b, c;
  RequestId b_id = 0;
  const auto a_id = engine->AddRequest(MakeRequest(4, 2, 5), [&](const TokenEvent& event) {
    a.Add(event);
    EXPECT_EQ(engine->Step().code(), absl::StatusCode::kFailedPrecondition);
    if (a.tokens.size() != 2) return;
    EXPECT_TRUE(engine->Cancel(b_id).ok());
    EXPECT_TRUE(engine->AddRequest(MakeRequest(3, 4, 2), [&](const TokenEvent& e) { c.Add(e); }).ok());
  });
  ASSERT_TRUE(a_id.ok());
  b_id = *engine->AddRequest(MakeRequest(4, 6, 50), [&](const TokenEvent& event) { b.Add(event); });
  ASSERT_TRUE(engine->RunUntilIdle().ok());
  EXPECT_EQ(a.tokens, Expected(MakeRequest(4, 2, 5)));
  EXPECT_EQ(b.finish, FinishReason::kCancelled);
  EXPECT_EQ(b.tokens.size(), 2u);
  EXPECT_EQ(c.tokens, Expected(MakeRequest(3, 4, 2)));
}

// What is measured is the engine: 64 sequences generate, each token with its event, and the model takes no time.
TEST(Engine, HostTimeOfADecodeStepIsShort) {
  constexpr int64_t kSequences = 64, kSteps = 400;
  NullExecutor executor(kSequences);
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 4096, .max_sequences = kSequences});
  int64_t events = 0;
  for (int64_t i = 0; i < kSequences; ++i) {
    ASSERT_TRUE(engine
                    ->AddRequest({.prompt_ids = std::vector<int32_t>(1000, 1), .max_new_tokens = 1000},
                                 [&](const TokenEvent&) { ++events; })
                    .ok());
  }
  while (events == 0) ASSERT_TRUE(engine->Step().ok());
  const int64_t before = engine->stats().generated_tokens;
  const std::clock_t start = std::clock();
  for (int64_t i = 0; i < kSteps; ++i) ASSERT_TRUE(engine->Step().ok());
  const double us = 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / kSteps;
  RecordProperty("us_per_step", std::to_string(us));
  std::printf("%.1f us of host time a step of %d sequences\n", us, static_cast<int>(kSequences));
  EXPECT_GT(engine->stats().generated_tokens - before, kSequences * kSteps * 9 / 10);
  EXPECT_LT(us, 2000) << "wide: for builds without optimization and loaded machines";
}

TEST_P(EngineDepth, AFailingExecutorEndsTheRequestsOfTheStep) {
  FakeExecutor fake(50);
  LateExecutor executor(&fake, GetParam());
  fake.fail_at_step = 3;
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 8, .max_sequences = 1});
  Completion first, second;
  ASSERT_TRUE(engine->AddRequest(MakeRequest(4, 2, 9), [&](const TokenEvent& e) { first.Add(e); }).ok());
  ASSERT_TRUE(engine->AddRequest(MakeRequest(4, 4, 9), [&](const TokenEvent& e) { second.Add(e); }).ok());
  EXPECT_EQ(engine->RunUntilIdle().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(first.finish, FinishReason::kError);
  EXPECT_THAT(std::string(first.status.message()), HasSubstr("on fire"));
  EXPECT_EQ(first.tokens.size(), 2u);
  EXPECT_TRUE(engine->RunUntilIdle().ok());
  EXPECT_EQ(second.tokens, Expected(MakeRequest(4, 4, 9)));
  EXPECT_EQ(engine->stats().pages_in_use, 0);
  EXPECT_THAT(fake.ended, ElementsAre(1, 2));
}

TEST(Engine, WrongLogitsEndTheirRequestOnly) {
  ScriptedExecutor executor(/*prompt_length=*/4, {1, 2, 3}, /*vocab_size=*/10);
  executor.filler = std::numeric_limits<float>::quiet_NaN();
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64, .max_sequences = 4});
  const auto completions = Generate(engine.get(), {{.prompt_ids = {1, 2, 3, 4}, .max_new_tokens = 3}});
  ASSERT_TRUE(completions.ok()) << completions.status();
  EXPECT_EQ((*completions)[0].finish, FinishReason::kError);
  EXPECT_EQ((*completions)[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT((*completions)[0].tokens, IsEmpty());
}

TEST_P(EngineDepth, GivesLogProbabilities) {
  FakeExecutor fake(50);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64});
  Request request = MakeRequest(5, 3, 6);
  request.log_probs = 4;
  std::vector<TokenEvent> events;
  ASSERT_TRUE(engine->AddRequest(request, [&](const TokenEvent& e) { events.push_back(e); }).ok());
  ASSERT_TRUE(engine->RunUntilIdle().ok());
  std::vector<int32_t> tokens = request.prompt_ids;
  ASSERT_EQ(events.size(), 6u);
  for (const TokenEvent& event : events) {
    const std::vector<float> logits = FakeExecutor::LogitsAfter(tokens);
    double sum = 0;
    for (float l : logits) sum += std::exp(l);
    EXPECT_NEAR(*event.log_prob, logits[*event.token] - std::log(sum), 1e-6);
    ASSERT_EQ(event.top_log_probs.size(), 4u);
    EXPECT_NEAR(event.top_log_probs[0].log_prob, *std::max_element(logits.begin(), logits.end()) - std::log(sum), 1e-6);
    tokens.push_back(*event.token);
  }
}

class EngineText : public ::testing::Test {
 protected:
  void SetUp() override {
    std::stringstream json;
    json << std::ifstream(LLMC_TEST_DATA "/tale-7m/tokenizer.json").rdbuf();
    auto tokenizer = Tokenizer::FromJson(json.str(), "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // The events of a request for which the model says `ids`.
  std::vector<TokenEvent> Say(const std::vector<int32_t>& ids, std::vector<std::string> stops, bool to_the_end = true) {
    ScriptedExecutor executor(1, ids, 4096);
    auto engine = NewEngine(&executor, {.max_sequences = 2}, tokenizer_.get());
    std::vector<TokenEvent> events;
    const int64_t count = static_cast<int64_t>(ids.size()) - (to_the_end ? 0 : 1);
    const auto id = engine->AddRequest({.prompt_ids = {7}, .max_new_tokens = count, .stop_strings = std::move(stops)},
                                       [&](const TokenEvent& e) { events.push_back(e); });
    EXPECT_TRUE(id.ok()) << id.status();
    EXPECT_TRUE(engine->RunUntilIdle().ok());
    return events;
  }
  std::vector<int32_t> Ids(const std::string& text) { return *tokenizer_->Encode(text, false); }
  static std::string Text(const std::vector<TokenEvent>& events) {
    Completion completion;
    for (const TokenEvent& event : events) completion.Add(event);
    return completion.text;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(EngineText, StreamsWholeCharacters) {
  const std::string text = "naïve 日本語 🙂 end";
  const auto events = Say(Ids(text), {});
  EXPECT_GT(events.size(), 10u);
  EXPECT_EQ(Text(events), text);
  for (const TokenEvent& event : events) {
    EXPECT_EQ(tokenizer_->Decode(Ids(event.text), false), event.text) << "not valid UTF-8";
    EXPECT_THAT(event.text, testing::Not(HasSubstr("\xEF\xBF\xBD")));
  }
  const auto cut = Say(Ids("日"), {}, /*to_the_end=*/false);
  EXPECT_EQ(Text(cut), "\xEF\xBF\xBD") << "a character that never became whole";
}

TEST_F(EngineText, FindsStopStringsAcrossTokens) {
  const std::string text = "The house was dark, and the night was long.";
  for (const std::string stop : {"k, an", "house w", ".", "long.", "The", "night was long."}) {
    const auto events = Say(Ids(text), {"never here", stop});
    EXPECT_EQ(Text(events), text.substr(0, text.find(stop))) << stop;
    EXPECT_EQ(events.back().finish, FinishReason::kStop);
  }
  const auto events = Say(Ids(text), {"long. And"});
  EXPECT_EQ(Text(events), text) << "what was held back comes at the end";
  EXPECT_EQ(events.back().finish, FinishReason::kLength);
}

TEST_F(EngineText, RefusesWrongStopStrings) {
  ScriptedExecutor executor(1, {}, 4096);
  auto engine = NewEngine(&executor, {.max_sequences = 2}, tokenizer_.get());
  for (const std::vector<std::string>& stops :
       {std::vector<std::string>{""}, {"\xC3"}, {std::string(5000, 'x')}, std::vector<std::string>(300, "x")}) {
    EXPECT_FALSE(engine->AddRequest({.prompt_ids = {7}, .stop_strings = stops}, nullptr).ok());
  }
}

}  // namespace
}  // namespace llmc
