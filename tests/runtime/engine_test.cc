#include "runtime/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <thread>

#include "runtime/engine/score.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/test_requests.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

// Several threads add requests and cancel some, while this one steps; callbacks come on this one.
TEST_P(EngineDepth, OtherThreadsAddAndCancel) {
  constexpr int kThreads = 4, kRequests = 50;
  FakeExecutor fake(/*num_pages=*/40);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 24, .max_sequences = 8});
  const std::thread::id stepping = std::this_thread::get_id();
  std::vector<Request> requests;
  for (int i = 0; i < kThreads * kRequests; ++i) requests.push_back(MakeRequest(1 + i % 30, i % 100, 1 + i % 20));
  std::vector<Completion> completions(requests.size());  // of this thread
  std::atomic<int> threads_left = kThreads;
  const auto add = [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread));
    std::vector<RequestId> ids;
    for (int i = 0; i < kRequests; ++i) {
      const size_t index = static_cast<size_t>(thread * kRequests + i);
      const auto id = engine->AddRequest(requests[index], [&, index](const TokenEvent& event) {
        EXPECT_EQ(std::this_thread::get_id(), stepping);
        EXPECT_FALSE(engine->idle()) << "its events are still delivered";
        EXPECT_FALSE(completions[index].finish.has_value()) << "an event after the last";
        completions[index].Add(event);
      });
      EXPECT_TRUE(id.ok()) << id.status();
      ids.push_back(*id);
      EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
      if (random() % 5 == 0) engine->Cancel(ids[random() % ids.size()]).IgnoreError();
      if (random() % 3 == 0) std::this_thread::yield();
    }
    --threads_left;
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(add, thread);
  while (threads_left > 0 || !engine->idle()) EXPECT_TRUE(engine->Step().ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(engine->stats().pages_in_use, 0);
  int cancelled = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> expected = Expected(requests[i], {}, executor.limits().pools[0].num_pages * 4);
    const bool is_cancelled = completions[i].finish == FinishReason::kCancelled;
    cancelled += is_cancelled ? 1 : 0;
    if (is_cancelled) expected.resize(completions[i].tokens.size());
    EXPECT_EQ(completions[i].tokens, expected) << i;
    EXPECT_TRUE(is_cancelled || completions[i].finish == FinishReason::kLength) << i;
  }
  EXPECT_GT(cancelled, 0);
}

TEST(Engine, CancelledRequestsEndInTheNextStep) {
  FakeExecutor executor(50);
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64});
  Completion waiting, running;
  const auto first = engine->AddRequest(MakeRequest(3, 2, 50), [&](const TokenEvent& event) { running.Add(event); });
  ASSERT_TRUE(engine->Step().ok());
  const auto second = engine->AddRequest(MakeRequest(3, 4, 50), [&](const TokenEvent& event) { waiting.Add(event); });
  EXPECT_TRUE(engine->Cancel(*first).ok());
  EXPECT_TRUE(engine->Cancel(*second).ok());
  EXPECT_EQ(engine->Cancel(*second).code(), absl::StatusCode::kNotFound) << "once is enough";
  EXPECT_FALSE(running.finish.has_value()) << "callbacks are Step's";
  EXPECT_FALSE(engine->idle());
  const int64_t steps = executor.steps;
  ASSERT_TRUE(engine->Step().ok());
  EXPECT_EQ(running.finish, FinishReason::kCancelled);
  EXPECT_EQ(waiting.finish, FinishReason::kCancelled);
  EXPECT_THAT(waiting.tokens, IsEmpty());
  EXPECT_EQ(executor.steps, steps) << "nothing is left to compute";
  EXPECT_TRUE(engine->idle());
}

TEST(Engine, IsTheOnlyOneOfItsExecutor) {
  FakeExecutor executor(50);
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64});
  const absl::Status second = Engine::Create(&executor, nullptr, {.max_tokens_per_step = 64}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("there is an engine"));
  EXPECT_EQ(Engine::Create(&executor, nullptr, {.max_tokens_per_step = 64}).status(), second) << "the first one stays";

  // Scores may be computed beside an engine that has nothing to do.
  const std::vector<std::vector<int32_t>> texts = {Prompt(5, 1)};
  int64_t rows = 0;
  const auto count = [&](size_t, int64_t, absl::Span<const float>) {
    ++rows;
    return absl::OkStatus();
  };
  EXPECT_TRUE(VisitLogits(&executor, texts, count).ok());
  EXPECT_EQ(rows, 5);
  ASSERT_TRUE(engine->AddRequest(MakeRequest(3, 2, 5), nullptr).ok());
  for (int step = 0; step < 2; ++step) {
    const absl::Status status = VisitLogits(&executor, texts, count);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the engine has 1 live request,"));
    ASSERT_TRUE(engine->Step().ok());
  }
  ASSERT_TRUE(engine->RunUntilIdle().ok());
  EXPECT_TRUE(VisitLogits(&executor, texts, count).ok());
  const Request again = MakeRequest(30, 2, 5);
  for (int i = 0; i < 2; ++i) {
    const auto completions = Generate(engine.get(), {again});
    ASSERT_TRUE(completions.ok()) << completions.status();
    EXPECT_EQ((*completions)[0].tokens, Expected(again));
    EXPECT_EQ(engine->stats().cached_prompt_tokens, 0) << "the scores were written over what the engine kept";
    EXPECT_TRUE(VisitLogits(&executor, texts, count).ok());
  }
  engine.reset();
  EXPECT_TRUE(Engine::Create(&executor, nullptr, {.max_tokens_per_step = 64}).ok());
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
  std::vector<int32_t> Ids(const std::string& text) { return *tokenizer_->Encode(text, {.add_special_tokens = false}); }
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
