// Pools whose pages hold other numbers of tokens: what they share, and what models say that have them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "files/temporary_folder.h"
#include "frontend/import.h"
#include "passes/pipeline.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/score.h"
#include "runtime/host/host_executor.h"
#include "tests/runtime/computed_pages.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/test_requests.h"
#include "tests/window_folder.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Prefixes are shared in stretches of 8 tokens, one page of the first pool and four of the second, which has a window
// of 5: of 16 tokens the one behind them sees those from 12 on.
TEST(PageSizes, PrefixesEndWhereAllPagesEnd) {
  PagePool pool({{.num_pages = 8, .page_size = 8}, {.num_pages = 16, .page_size = 2, .window = 5}}, true);
  PageTable table = Computed(&pool, Tokens(22, 0));
  EXPECT_THAT(table.pages(0), SizeIs(3));
  EXPECT_THAT(table.pages(1), SizeIs(11));
  const std::vector<int32_t> large = PagesOf(table, 0), small = PagesOf(table, 1);
  EXPECT_EQ(Find(&pool, Tokens(30, 0)).length, 16) << "the rest is no whole stretch";
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16);
  EXPECT_EQ(Find(&pool, Tokens(16, 0)).length, 8) << "one token is computed at least";
  std::vector<int32_t> other = Tokens(30, 0);
  other[14] = 99;
  EXPECT_EQ(Find(&pool, other).length, 8) << "though six small pages begin alike";
  {
    PageTable same(&pool);
    pool.TakePrefix(pool.FindPrefix(Tokens(17, 0), &same), &same);
    EXPECT_THAT(PagesOf(same, 0), ElementsAre(large[0], large[1]));
    EXPECT_THAT(PagesOf(same, 1), ElementsAre(0, 0, 0, 0, 0, 0, small[6], small[7]));
    EXPECT_EQ(same.num_dropped(1), 6);
    EXPECT_TRUE(pool.Holds(16, same));
    EXPECT_FALSE(pool.Holds(15, same)) << "it sees position 11";
  }
  pool.DropUnseen(22, &table);
  EXPECT_EQ(table.num_dropped(0), 0);
  EXPECT_EQ(table.num_dropped(1), 9) << "the last two hold 18 to 21";
  // Of the small pages that are published and free, these take the first four of the sequence, then the next two.
  std::vector<PageCopy> copies;
  PageTable taken(&pool);
  ASSERT_TRUE(pool.Write(0, 18, &taken, &copies));
  EXPECT_EQ(pool.num_evictions(), 4);
  EXPECT_EQ(Find(&pool, Tokens(9, 0)).length, 0) << "of what position 8 sees, the second pool has nothing";
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16);
  ASSERT_TRUE(pool.Write(18, 22, &taken, &copies));
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16) << "position 16 sees none of these";
  ASSERT_TRUE(pool.Write(22, 24, &taken, &copies));
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 0) << "one small page is gone that it sees";
}

// The windows' pages may be the larger ones, too.
TEST(PageSizes, WindowsMayHaveTheLargerPages) {
  PagePool pool({{.num_pages = 20, .page_size = 2}, {.num_pages = 4, .page_size = 8, .window = 3}}, true);
  PageTable table = Computed(&pool, Tokens(17, 0));
  pool.DropUnseen(17, &table);
  EXPECT_EQ(table.num_dropped(1), 1) << "the second page holds 15";
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16);
  std::vector<PageCopy> copies;
  PageTable taken(&pool);
  ASSERT_TRUE(pool.Write(0, 16, &taken, &copies));
  EXPECT_EQ(Find(&pool, Tokens(9, 0)).length, 0) << "the first large page was evicted";
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16);
  EXPECT_EQ(pool.num_in_use(), 9 + 2 + 8 + 2);
}

TEST(PageSizes, WhatIsUnderWayIsAStretch) {
  PagePool pool({{.num_pages = 8, .page_size = 8}, {.num_pages = 16, .page_size = 2}}, true);
  const std::vector<int32_t> tokens = Tokens(20, 0);
  std::vector<PageCopy> copies;
  PageTable table(&pool);
  ASSERT_TRUE(pool.Write(0, 20, &table, &copies));
  pool.Announce(tokens, 7, &table);
  EXPECT_FALSE(Find(&pool, tokens).next_is_under_way);
  pool.Announce(tokens, 19, &table);
  EXPECT_TRUE(Find(&pool, tokens).next_is_under_way);
  EXPECT_FALSE(Find(&pool, Tokens(8, 0)).next_is_under_way) << "it needs no whole stretch";
  pool.Publish(tokens, 7, &table);
  EXPECT_EQ(Find(&pool, tokens).length, 0);
  EXPECT_TRUE(Find(&pool, tokens).next_is_under_way);
  pool.Publish(tokens, 9, &table);
  EXPECT_EQ(Find(&pool, tokens).length, 8);
  EXPECT_TRUE(Find(&pool, tokens).next_is_under_way);
  pool.Rollback(12, &table);
  EXPECT_FALSE(Find(&pool, tokens).next_is_under_way) << "the second stretch is not computed any more";
  pool.Publish(tokens, 12, &table);
  pool.Release(&table);
  EXPECT_EQ(Find(&pool, tokens).length, 8);
  EXPECT_EQ(pool.num_cached(), 1 + 6) << "and two small pages of the next stretch";
}

// A fork goes on in the middle of a stretch with other tokens: it copies the pages that it writes to, shares those
// before them, and what both computed is found.
TEST(PageSizes, ForksCopyAPageOfEachPool) {
  PagePool pool({{.num_pages = 8, .page_size = 8}, {.num_pages = 32, .page_size = 2}}, true);
  PageTable parent = Computed(&pool, Tokens(16, 0));
  const std::vector<int32_t> large = PagesOf(parent, 0), small = PagesOf(parent, 1);
  PageTable child = pool.Fork(parent);
  pool.Rollback(13, &child);
  EXPECT_THAT(child.pages(0), SizeIs(2));
  EXPECT_THAT(child.pages(1), SizeIs(7));
  std::vector<PageCopy> copies;
  ASSERT_TRUE(pool.Write(13, 16, &child, &copies));
  ASSERT_THAT(copies, SizeIs(2));
  EXPECT_EQ(copies[0].pool, 0u);
  EXPECT_EQ(copies[0].from, large[1]);
  EXPECT_EQ(copies[1].pool, 1u);
  EXPECT_EQ(copies[1].from, small[6]);
  EXPECT_EQ(pool.owners(small[5], 1), 2);
  std::vector<int32_t> tokens = Tokens(16, 0);
  tokens[13] = 77;
  pool.Publish(tokens, 16, &child);
  tokens.push_back(1);
  EXPECT_EQ(Find(&pool, tokens).length, 16);
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16);
  pool.Release(&parent);
  ASSERT_TRUE(pool.Write(14, 16, &child, &copies)) << "other tokens come there";
  EXPECT_THAT(copies, SizeIs(2));
  EXPECT_EQ(Find(&pool, tokens).length, 8);
  EXPECT_EQ(Find(&pool, Tokens(17, 0)).length, 16);
}

// Nothing that the fork keeps is in the pages that it writes to first: they are not copied.
TEST(PageSizes, ForksCopyNoPageOfLaterTokens) {
  PagePool pool({{.num_pages = 8, .page_size = 8}, {.num_pages = 32, .page_size = 2}}, true);
  const PageTable parent = Computed(&pool, Tokens(12, 0));
  PageTable child = pool.Fork(parent);
  std::vector<PageCopy> copies;
  ASSERT_TRUE(pool.Write(8, 12, &child, &copies));
  EXPECT_THAT(copies, SizeIs(0));
  EXPECT_NE(child.pages(0)[1], parent.pages(0)[1]);
  EXPECT_EQ(child.pages(1)[3], parent.pages(1)[3]);
  EXPECT_NE(child.pages(1)[4], parent.pages(1)[4]);
}

// Of the second pool, eight pages of two tokens are left beside the first sequence, which may need one more.
TEST(PageSizes, AdmissionLeavesSparePagesOfEachPool) {
  for (const int64_t length : {14, 15}) {
    const ExecutorLimits limits = {.pools = {{.num_pages = 40, .page_size = 8}, {.num_pages = 12, .page_size = 2}},
                                   .max_context = 64,
                                   .max_step_tokens = 32,
                                   .max_sequences = 2};
    PagePool pool(limits.pools, /*keeps_prefixes=*/false);
    Scheduler scheduler(limits, &pool);
    ASSERT_TRUE(scheduler.Add(1, Tokens(8, 0), 4).ok());
    ASSERT_TRUE(scheduler.Add(2, Tokens(length, 100), 4).ok());
    EXPECT_EQ(scheduler.Plan().chunks.size(), length == 14 ? 2u : 1u);
  }
}

// 64 tokens of a step and a window of 10 lie in six pages of 16: there is room for two sequences at once.
TEST(PageSizes, ScoresTakeAsManySequencesAsHaveRoom) {
  FakeExecutor fake(/*num_pages=*/100);
  fake.AddWindow(/*num_pages=*/12, /*window=*/10, /*page_size=*/16);
  const std::vector<std::vector<int32_t>> sequences(3, std::vector<int32_t>(20, 1));
  const auto nothing = [](size_t, int64_t, absl::Span<const float>) { return absl::OkStatus(); };
  const absl::Status visited = VisitLogits(&fake, sequences, nothing);
  EXPECT_TRUE(visited.ok()) << visited;
  EXPECT_EQ(fake.steps, 2);
}

TEST(PageSizes, LimitsAreThoseOfEachPool) {
  ExecutorLimits limits = {.vocab_size = 50,
                           .pools = {{.num_pages = 10, .page_size = 16}, {.num_pages = 30, .page_size = 4}},
                           .max_context = 1000,
                           .max_step_tokens = 8,
                           .max_sequences = 2};
  EXPECT_EQ(MaxCachedTokens(limits), 120) << "the second pool is smaller";
  EXPECT_EQ(PagesInLargest(limits.pools[0], limits.pools), 1);
  EXPECT_EQ(PagesInLargest(limits.pools[1], limits.pools), 4);
  limits.pools[1].window = 20;
  EXPECT_EQ(MaxCachedTokens(limits), 160) << "28 tokens at a time go through it";
  EXPECT_EQ(PagesOfWindow(limits.pools[1], limits), 2 * (5 + 2) + 2 + 1);
  limits.pools[1] = {.num_pages = 3, .page_size = 64, .window = 20};
  EXPECT_EQ(MaxCachedTokens(limits), 160);
  EXPECT_EQ(PagesOfWindow(limits.pools[1], limits), 2 * (1 + 2) + 1 + 1);

  const std::vector<int32_t> ids(6, 1), one(1, 0), two(2, 0);
  const auto check = [&](PoolTables tables) {
    return std::string(
        CheckStepInput(limits, {.chunks = {{.begins = true, .ids = ids, .pages = std::move(tables)}}}).message());
  };
  limits.pools[1].page_size = 4;
  EXPECT_EQ(check({one, two}), "");
  EXPECT_EQ(check({one, one}), "step, sequence 0: 1 pages, 6 tokens need 2");
}

// One number of pages is that of the largest ones; other pools use as many tokens.
TEST(PageSizes, EnginesTakeAsManyTokensOfEachPool) {
  FakeExecutor fake(/*num_pages=*/100);
  fake.AddWindow(/*num_pages=*/60, /*window=*/0, /*page_size=*/16);
  EXPECT_THAT(
      std::string(Engine::Create(&fake, nullptr, {.max_tokens_per_step = 16, .num_pages = 61}).status().message()),
      ::testing::HasSubstr("num_pages is 61, must be in [0, 60]"));
  auto engine = NewEngine(&fake, {.max_tokens_per_step = 16, .num_pages = 3});
  const auto id = engine->AddRequest({.prompt_ids = Prompt(48, 0)}, nullptr);
  EXPECT_THAT(std::string(id.status().message()), ::testing::HasSubstr("exceeds the KV cache of 48 tokens"));
}

// What a model says whose first of two layers has a window of 8 tokens: tokens, and logits after each of some
// sequences.
struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<float> logits;
  int64_t cached = 0;
};

Answers AnswersOf(const std::string& folder, int64_t page_size, int64_t of_window) {
  auto model = ImportHuggingFace(folder);
  EXPECT_TRUE(model.ok()) << model.status();
  const PipelineOptions options = {.dtype = DType::kF32,
                                   .page_sizes = {.all = page_size, .of_pools = {{"N8", of_window}}}};
  const absl::Status optimized = RunPipeline(model->get(), options, nullptr);
  EXPECT_TRUE(optimized.ok()) << optimized;
  const auto executor = HostExecutor::Create(model->get(), {.num_pages = 40});
  EXPECT_TRUE(executor.ok()) << executor.status();
  const std::vector<PoolLimits>& pools = (*executor)->limits().pools;
  EXPECT_EQ(pools[0].page_size, page_size);
  EXPECT_EQ(pools[1].page_size, of_window);
  EXPECT_EQ(pools[0].num_pages * page_size, 40 * std::max(page_size, of_window));
  EXPECT_EQ(pools[1].window, 8);

  Answers answers;
  std::vector<Request> requests(6);
  for (int32_t i = 0; i < 6; ++i) {
    for (int32_t t = 0; t < 70 + i; ++t) requests[i].prompt_ids.push_back((t * 7 + i / 2 * 3) % 512);
    requests[i].max_new_tokens = 30;
    requests[i].ignore_eos = true;
  }
  LateExecutor late(executor->get(), 2);
  auto engine = NewEngine(&late, {.max_tokens_per_step = 80, .max_sequences = 3});
  const auto completions = Generate(engine.get(), requests);
  EXPECT_TRUE(completions.ok()) << completions.status();
  for (const Completion& completion : *completions) answers.tokens.push_back(completion.tokens);
  answers.cached = engine->stats().cached_prompt_tokens;
  EXPECT_EQ(engine->stats().pages_in_use, 0);
  engine.reset();

  const std::vector<std::vector<int32_t>> sequences = {Tokens(150, 1), Tokens(30, 200), Tokens(65, 7)};
  const auto keep = [&](size_t, int64_t, absl::Span<const float> logits) {
    answers.logits.insert(answers.logits.end(), logits.begin(), logits.end());
    return absl::OkStatus();
  };
  const absl::Status visited = VisitLogits(executor->get(), sequences, keep);
  EXPECT_TRUE(visited.ok()) << visited;
  return answers;
}

TEST(PageSizes, ChangeNothingThatAModelSays) {
  const auto temporary = TemporaryFolder::Create();
  ASSERT_TRUE(temporary.ok()) << temporary.status();
  if (!MakeFolderWithAWindow(temporary->path())) GTEST_SKIP() << "the shared test data is not there";
  const Answers expected = AnswersOf(temporary->path(), 16, 16);
  EXPECT_GT(expected.cached, 0);
  for (const auto& [page_size, of_window] : {std::pair(64, 16), {16, 64}, {64, 64}}) {
    const Answers actual = AnswersOf(temporary->path(), page_size, of_window);
    EXPECT_EQ(actual.tokens, expected.tokens) << page_size << " and " << of_window;
    EXPECT_EQ(actual.logits, expected.logits) << page_size << " and " << of_window;
    EXPECT_EQ(actual.cached % 64, 0) << "whole pages of both are shared";
    EXPECT_GT(actual.cached, 0);
    EXPECT_LT(actual.cached, expected.cached + 1);
  }
}

}  // namespace
}  // namespace llmc
