// Requests that begin alike, through the engine: each gives what it gives alone, and what they share is computed once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/test_requests.h"

namespace llmc {
namespace {

// With executors that take one step at a time and more.
class PrefixCache : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(, PrefixCache, testing::Values(1, 2, 3));

// A request whose prompt begins as many others do.
Request RandomRequest(std::mt19937* random) {
  const int32_t family = static_cast<int32_t>((*random)() % 4);
  Request request = MakeRequest(1 + (*random)() % 40, static_cast<int32_t>((*random)() % 100), 1 + (*random)() % 30);
  if ((*random)() % 3 > 0) {
    const std::vector<int32_t> common = Prompt((*random)() % 40, family);
    const size_t count = std::min(common.size(), request.prompt_ids.size());
    std::copy_n(common.begin(), count, request.prompt_ids.begin());
  }
  return request;
}

// Another sample of an earlier request, or a request that says so and is not.
std::pair<Request, std::optional<size_t>> RandomSample(const std::vector<Request>& requests, std::mt19937* random) {
  const size_t parent = (*random)() % requests.size();
  Request request = (*random)() % 5 == 0 ? RandomRequest(random) : requests[parent];
  request.sampling.seed = (*random)();
  return {request, parent};
}

// Requests with common prefixes and samples of one prompt come and are cancelled at random, are preempted, and in some
// runs a step fails, or one request does, or tokens see a window only. Each gives a prefix of what it gives alone, and
// all of it if it is not cancelled and does not fail.
// Over 60 lines: one run, whose checks look at all that it did.
TEST_P(PrefixCache, RandomRequestsAndCancels) {
  int64_t found = 0, forked = 0, copies = 0, evictions = 0, preemptions = 0, errors = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    FakeExecutor fake(/*num_pages=*/12 + random() % (seed % 3 == 0 ? 100 : 20));
    if (seed % 4 == 1) fake.fail_at_step = 5 + static_cast<int64_t>(random() % 60);
    if (seed % 4 == 2) fake.fail_sequence = 1 + static_cast<int64_t>(random() % 20);
    const int64_t window = seed % 5 == 3 ? 1 + static_cast<int64_t>(random() % 20) : 0;
    fake.set_window(window);
    if (seed % 3 == 1) {
      // Its pages are as large as the others', or larger, or smaller.
      const int64_t size = seed % 9 == 1 ? 4 : seed % 9 == 4 ? 8 : 2;
      fake.AddWindow((size == 2 ? 2 : 1) * (16 + random() % 60), 1 + static_cast<int64_t>(random() % 20), size);
    }
    LateExecutor executor(&fake, GetParam());
    const std::vector<int32_t> eos = {3};
    ExecutorLimits limits = executor.limits();
    limits.max_step_tokens = 6 + static_cast<int64_t>(random() % 20);
    const int64_t most = MaxCachedTokens(limits);
    auto engine = NewEngine(&executor, {.max_tokens_per_step = limits.max_step_tokens,
                                        .max_sequences = 1 + static_cast<int64_t>(random() % 6),
                                        .eos_token_ids = eos,
                                        .prefix_cache = seed % 10 != 0});
    std::vector<Request> requests;
    std::vector<Completion> completions(60);
    std::vector<RequestId> ids;
    int64_t finished = 0;
    while (requests.size() < completions.size() || !engine->idle()) {
      const size_t i = requests.size();
      if (i < completions.size() && random() % 3 == 0) {
        const bool is_sample = i > 0 && random() % 3 == 0;
        const auto [request, parent] =
            is_sample ? RandomSample(requests, &random) : std::pair(RandomRequest(&random), std::optional<size_t>());
        requests.push_back(request);
        const auto id = engine->AddRequest(
            requests[i],
            [&, i](const TokenEvent& event) {
              ASSERT_FALSE(completions[i].finish.has_value()) << "an event after the last";
              completions[i].Add(event);
              finished += completions[i].finish.has_value() ? 1 : 0;
            },
            parent.has_value() ? std::optional(ids[*parent]) : std::nullopt);
        ASSERT_TRUE(id.ok()) << id.status();
        ids.push_back(*id);
      }
      if (!ids.empty() && random() % 20 == 0) {
        const size_t victim = random() % ids.size();
        const bool is_live = !completions[victim].finish.has_value();
        EXPECT_EQ(engine->Cancel(ids[victim]).ok(), is_live);
      }
      const absl::Status status = engine->Step();
      ASSERT_TRUE(status.ok() || seed % 4 == 1) << "seed " << seed << ": " << status;
      ASSERT_LT(fake.steps, 20000) << "no progress";
    }
    EXPECT_EQ(finished, 60);
    const EngineStats stats = engine->stats();
    EXPECT_EQ(stats.pages_in_use, 0);
    EXPECT_TRUE(seed % 10 != 0 || stats.pages_cached == 0);
    (seed % 10 != 0 ? found : forked) += stats.cached_prompt_tokens;
    copies += fake.num_copies;
    evictions += stats.evictions;
    preemptions += stats.preemptions;
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<int32_t> expected = Expected(requests[i], eos, most, window);
      const bool fails = completions[i].finish == FinishReason::kError;
      if (fails || completions[i].finish == FinishReason::kCancelled) expected.resize(completions[i].tokens.size());
      EXPECT_EQ(completions[i].tokens, expected) << "seed " << seed << ", request " << i;
      ASSERT_TRUE(!fails || absl::StrContains(completions[i].status.message(), "on fire")) << completions[i].status;
      errors += fails ? 1 : 0;
    }
  }
  EXPECT_GT(found, 2000);
  EXPECT_GT(forked, 100);
  EXPECT_GT(copies, 20);
  EXPECT_GT(evictions, 500);
  EXPECT_GT(preemptions, 50);
  EXPECT_GT(errors, 15);
}

// Sixteen requests come together and begin alike: what they have in common is computed once, also when they come while
// the first one runs.
TEST_P(PrefixCache, ACommonPrefixIsComputedOnce) {
  constexpr int64_t kRequests = 16, kCommon = 180, kOwn = 20;
  for (const bool prefix_cache : {true, false}) {
    for (const int64_t budget : {16, 37, 64}) {
      FakeExecutor fake(/*num_pages=*/1000);
      LateExecutor executor(&fake, GetParam());
      auto engine = NewEngine(
          &executor, {.max_tokens_per_step = budget, .max_sequences = kRequests, .prefix_cache = prefix_cache});
      std::vector<Request> requests;
      for (int32_t i = 0; i < kRequests; ++i) {
        Request request{.prompt_ids = Prompt(kCommon, 7), .max_new_tokens = 5, .sampling = {.temperature = 0}};
        for (int32_t own = 0; own < kOwn; ++own) request.prompt_ids.push_back((i + own * own) % 50);
        requests.push_back(request);
      }
      const auto completions = Generate(engine.get(), requests);
      ASSERT_TRUE(completions.ok()) << completions.status();
      for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ((*completions)[i].tokens, Expected(requests[i])) << i;
      const EngineStats stats = engine->stats();
      EXPECT_EQ(stats.prompt_tokens, prefix_cache ? kCommon + kRequests * kOwn : kRequests * (kCommon + kOwn));
      EXPECT_EQ(stats.cached_prompt_tokens, prefix_cache ? (kRequests - 1) * kCommon : 0);
      EXPECT_EQ(stats.evictions, 0);
      // Prompts and new tokens, in whole pages, of which the last new token is never computed.
      EXPECT_EQ(stats.pages_cached, prefix_cache ? (kCommon + kRequests * (kOwn + 4)) / 4 : 0);
    }
  }
}

// A request that comes again finds all but its last page, with whatever it generated.
TEST_P(PrefixCache, ConversationsGoOn) {
  FakeExecutor fake(/*num_pages=*/60);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 16, .max_sequences = 2});
  std::vector<int32_t> talk = Prompt(10, 1);
  int64_t found = 0;
  for (int turn = 0; turn < 6; ++turn) {
    const Request request{.prompt_ids = talk, .max_new_tokens = 11, .sampling = {.temperature = 0}};
    const auto completions = Generate(engine.get(), {request});
    ASSERT_TRUE(completions.ok()) << completions.status();
    EXPECT_EQ((*completions)[0].tokens, Expected(request));
    // Of the last turn all but the token that ended it was computed.
    if (turn > 0) found += (static_cast<int64_t>(talk.size()) - 4) / 4 * 4;
    EXPECT_EQ(engine->stats().cached_prompt_tokens, found);
    talk.insert(talk.end(), (*completions)[0].tokens.begin(), (*completions)[0].tokens.end());
    talk.insert(talk.end(), {1, 2, 3});
  }
}

// Samples of one prompt compute it once, also where no prefix is kept; each draws by its own seed.
TEST_P(PrefixCache, SamplesShareTheirPrompt) {
  constexpr int64_t kSamples = 5, kPrompt = 30;
  FakeExecutor fake(/*num_pages=*/100);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 16, .max_sequences = kSamples, .prefix_cache = false});
  std::vector<Completion> completions(kSamples);
  std::optional<RequestId> parent;
  Request request{.prompt_ids = Prompt(kPrompt, 1), .max_new_tokens = 12, .sampling = {.temperature = 0.9}};
  for (int64_t i = 0; i < kSamples; ++i) {
    request.sampling.seed = static_cast<uint64_t>(i);
    const auto id = engine->AddRequest(
        request, [&, i](const TokenEvent& event) { completions[i].Add(event); }, parent);
    ASSERT_TRUE(id.ok()) << id.status();
    if (i == 0) parent = *id;
  }
  ASSERT_TRUE(engine->RunUntilIdle().ok());
  for (int64_t i = 0; i < kSamples; ++i) {
    request.sampling.seed = static_cast<uint64_t>(i);
    EXPECT_EQ(completions[i].tokens, Expected(request)) << i;
  }
  EXPECT_EQ(engine->stats().prompt_tokens, kPrompt + kSamples - 1) << "the last token, once a sample";
  EXPECT_EQ(engine->stats().cached_prompt_tokens, (kSamples - 1) * (kPrompt - 1));
  EXPECT_EQ(fake.num_copies, kSamples - 1) << "each has the page of the last tokens for itself, the parent as it was";
}

// With a window of 9 tokens and pages of 4, a request keeps the pages of its last 9 tokens and of those under way.
TEST_P(PrefixCache, AWindowLetsGoOfPages) {
  FakeExecutor fake(/*num_pages=*/60);
  fake.set_window(9);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64, .max_sequences = 2});
  const Request request{.prompt_ids = Prompt(30, 1), .max_new_tokens = 100, .sampling = {.temperature = 0}};
  Completion completion;
  ASSERT_TRUE(engine->AddRequest(request, [&](const TokenEvent& event) { completion.Add(event); }).ok());
  while (!completion.finish.has_value()) {
    ASSERT_TRUE(engine->Step().ok());
    EXPECT_LE(engine->stats().pages_in_use, completion.tokens.empty() ? 8 : 4);
  }
  EXPECT_EQ(completion.tokens, Expected(request, {}, 256, /*window=*/9));
  EXPECT_EQ(engine->stats().pages_cached, 32) << "they can be found until others need them";
}

// Sixteen requests run together through a window's pool of the size that such pools get.
TEST_P(PrefixCache, AWindowsPoolHoldsAllThatRun) {
  FakeExecutor fake(/*num_pages=*/1000);
  LateExecutor late(&fake, GetParam());
  fake.AddWindow(PagesOfWindow({.page_size = 4, .window = 9}, late.limits()), 9);
  LateExecutor executor(&fake, GetParam());
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 64, .max_sequences = 16});
  int64_t most = 0, finished = 0;
  for (int32_t i = 0; i < 16; ++i) {
    const Request request = MakeRequest(30, 2 * i, 60);
    ASSERT_TRUE(
        engine->AddRequest(request, [&](const TokenEvent& event) { finished += event.finish.has_value(); }).ok());
  }
  while (!engine->idle()) {
    ASSERT_TRUE(engine->Step().ok());
    most = std::max(most, engine->stats().running);
  }
  EXPECT_EQ(most, 16);
  EXPECT_EQ(finished, 16);
  EXPECT_EQ(engine->stats().preemptions, 0);
}

// The second step fails, which computes the rest of the prompt and leaves wrong keys and values: nobody finds them.
TEST_P(PrefixCache, WhatAFailedStepWroteIsNotFound) {
  FakeExecutor fake(/*num_pages=*/60);
  LateExecutor executor(&fake, GetParam());
  fake.fail_at_step = 2;
  auto engine = NewEngine(&executor, {.max_tokens_per_step = 16, .max_sequences = 2});
  const Request request{.prompt_ids = Prompt(30, 1), .max_new_tokens = 5, .sampling = {.temperature = 0}};
  EXPECT_EQ(Generate(engine.get(), {request}).status().code(), absl::StatusCode::kInternal);
  const auto completions = Generate(engine.get(), {request});
  ASSERT_TRUE(completions.ok()) << completions.status();
  EXPECT_EQ((*completions)[0].tokens, Expected(request));
  EXPECT_EQ(engine->stats().cached_prompt_tokens, 16) << "what the first step computed";
}

}  // namespace
}  // namespace llmc
