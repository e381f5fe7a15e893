#include "runtime/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ExecutorLimits Limits(int64_t num_pages) {
  return {
      .pools = {{.num_pages = num_pages, .page_size = 4}}, .max_context = 32, .max_step_tokens = 8, .max_sequences = 3};
}

// One step: "1[0,5) 2[3,4)+" where + marks a chunk after which a token is sampled.
std::string StepOnce(Scheduler* scheduler) {
  const StepPlan plan = scheduler->Plan();
  std::vector<std::string> parts;
  for (const Scheduled& s : plan.chunks) {
    parts.push_back(absl::StrCat(s.sequence, "[", s.position, ",", s.position + s.count, ")", s.samples ? "+" : ""));
    scheduler->Collected(s);
    if (s.samples) scheduler->Append(s.sequence, 0);
  }
  return absl::StrJoin(parts, " ");
}

std::vector<int32_t> Ones(int64_t length) { return std::vector<int32_t>(length, 1); }

TEST(Scheduler, MixesNewTokensWithChunksOfPrompts) {
  PagePool pages(Limits(20).pools, /*keeps_prefixes=*/false);
  Scheduler scheduler(Limits(20), &pages);
  ASSERT_TRUE(scheduler.Add(1, Ones(3), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Ones(12), 100).ok());
  EXPECT_EQ(StepOnce(&scheduler), "1[0,3)+ 2[0,5)");
  EXPECT_EQ(StepOnce(&scheduler), "1[3,4)+ 2[5,12)+");
  ASSERT_TRUE(scheduler.Add(3, Ones(2), 100).ok());
  ASSERT_TRUE(scheduler.Add(4, Ones(2), 100).ok());
  EXPECT_EQ(StepOnce(&scheduler), "1[4,5)+ 2[12,13)+ 3[0,2)+");
  EXPECT_EQ(StepOnce(&scheduler), "1[5,6)+ 2[13,14)+ 3[2,3)+") << "three sequences at most";
  ASSERT_TRUE(scheduler.Remove(2).ok());
  EXPECT_EQ(StepOnce(&scheduler), "1[6,7)+ 3[3,4)+ 4[0,2)+");
  for (int64_t s : {1, 3, 4}) ASSERT_TRUE(scheduler.Remove(s).ok());
  EXPECT_EQ(pages.num_available(), 20);
  EXPECT_TRUE(scheduler.empty());
  EXPECT_EQ(StepOnce(&scheduler), "");
}

TEST(Scheduler, AdmitsInOrderWhenPagesFit) {
  PagePool pages(Limits(4).pools, /*keeps_prefixes=*/false);
  Scheduler scheduler(Limits(4), &pages);
  ASSERT_TRUE(scheduler.Add(1, Ones(7), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Ones(9), 100).ok());
  ASSERT_TRUE(scheduler.Add(3, Ones(1), 100).ok());
  EXPECT_EQ(StepOnce(&scheduler), "1[0,7)+") << "2 needs three pages, and 3 does not overtake it";
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_EQ(StepOnce(&scheduler), "2[0,8)");
  EXPECT_EQ(StepOnce(&scheduler), "2[8,9)+") << "3 would take the page that 2 needs next";
}

TEST(Scheduler, PreemptsTheYoungestAndComputesItAgain) {
  PagePool pages(Limits(4).pools, /*keeps_prefixes=*/false);
  Scheduler scheduler(Limits(4), &pages);
  ASSERT_TRUE(scheduler.Add(1, Ones(4), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Ones(4), 100).ok());
  EXPECT_EQ(StepOnce(&scheduler), "1[0,4)+ 2[0,4)+");
  for (int i = 0; i < 4; ++i) StepOnce(&scheduler);
  EXPECT_EQ(pages.num_available(), 0);
  ASSERT_TRUE(scheduler.Add(3, Ones(4), 100).ok());
  const StepPlan plan = scheduler.Plan();
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].sequence, 1);
  EXPECT_EQ(scheduler.num_preemptions(), 1);
  EXPECT_EQ(scheduler.tokens(2).size(), 9u);
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_EQ(StepOnce(&scheduler), "2[0,8)") << "before 3, which never ran";
  EXPECT_EQ(StepOnce(&scheduler), "2[8,9)+");
}

TEST(Scheduler, PlansBeyondTokensThatAreNotKnown) {
  PagePool pages(Limits(20).pools, /*keeps_prefixes=*/false);
  Scheduler scheduler(Limits(20), &pages);
  ASSERT_TRUE(scheduler.Add(1, Ones(3), 3).ok());
  const auto position = [&] {
    const StepPlan plan = scheduler.Plan();
    return plan.chunks.empty() ? -1 : plan.chunks[0].position;
  };
  EXPECT_EQ(position(), 0);
  EXPECT_EQ(position(), 3);
  EXPECT_EQ(position(), 4);
  EXPECT_EQ(position(), -1) << "its third new token is the last";
  EXPECT_EQ(scheduler.tokens(1).size(), 3u);
  for (int32_t token : {7, 8}) scheduler.Append(1, token);
  EXPECT_FALSE(scheduler.IsFull(1));
  scheduler.Append(1, 9);
  EXPECT_TRUE(scheduler.IsFull(1));
  EXPECT_THAT(scheduler.tokens(1), ElementsAre(1, 1, 1, 7, 8, 9));
}

// Whoever is preempted while its token is on the way waits for it: all of its tokens are computed again.
TEST(Scheduler, AdmitsNobodyWhoseTokenIsNotKnown) {
  PagePool pages(Limits(4).pools, /*keeps_prefixes=*/false);
  Scheduler scheduler(Limits(4), &pages);
  ASSERT_TRUE(scheduler.Add(1, Ones(4), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Ones(4), 100).ok());
  for (int i = 0; i < 4; ++i) StepOnce(&scheduler);
  ASSERT_EQ(scheduler.Plan().chunks.size(), 2u);
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_TRUE(scheduler.Plan().chunks.empty());
  scheduler.Append(2, 5);
  EXPECT_EQ(StepOnce(&scheduler), "2[0,8)");
}

std::string PlanOnce(Scheduler* scheduler, StepPlan* plan) {
  *plan = scheduler->Plan();
  std::vector<std::string> parts;
  for (const Scheduled& s : plan->chunks) {
    parts.push_back(absl::StrCat(s.begins ? "*" : "", s.sequence, "[", s.position, ",", s.position + s.count, ")"));
  }
  return absl::StrJoin(parts, " ");
}

void Collect(Scheduler* scheduler, const StepPlan& plan) {
  for (const Scheduled& s : plan.chunks) {
    scheduler->Collected(s);
    if (s.samples) scheduler->Append(s.sequence, 9);
  }
}

// With two steps in flight: 2 and 4 begin as 1 does, and wait until the step is collected that computes it; 3 does not.
TEST(Scheduler, WaitsForAPrefixThatIsUnderWay) {
  const ExecutorLimits limits = {.pools = {{.num_pages = 40, .page_size = 4}},
                                 .max_context = 32,
                                 .max_step_tokens = 16,
                                 .max_sequences = 4,
                                 .max_steps_in_flight = 2};
  PagePool pages(limits.pools, /*keeps_prefixes=*/true);
  Scheduler scheduler(limits, &pages);
  ASSERT_TRUE(scheduler.Add(1, Ones(10), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Ones(9), 100).ok());
  ASSERT_TRUE(scheduler.Add(3, {5, 6}, 100).ok());
  ASSERT_TRUE(scheduler.Add(4, Ones(6), 100).ok());
  ASSERT_TRUE(scheduler.Add(5, {7, 8}, 100).ok());
  StepPlan first, second, third;
  EXPECT_EQ(PlanOnce(&scheduler, &first), "*1[0,10) *3[0,2)") << "5 has no place beside those that wait";
  EXPECT_EQ(PlanOnce(&scheduler, &second), "1[10,11) 3[2,3)");
  Collect(&scheduler, first);
  EXPECT_EQ(PlanOnce(&scheduler, &third), "1[11,12) 3[3,4) *2[8,9) *4[4,6)");
  EXPECT_EQ(scheduler.num_cached_tokens(), 12);
}

// The step fails that the others wait for: they find nothing, and one of them computes it for the rest.
TEST(Scheduler, DoesNotWaitForWhatFailed) {
  const ExecutorLimits limits = {
      .pools = {{.num_pages = 40, .page_size = 4}}, .max_context = 32, .max_step_tokens = 16, .max_sequences = 4};
  PagePool pages(limits.pools, /*keeps_prefixes=*/true);
  Scheduler scheduler(limits, &pages);
  for (int64_t s : {1, 2, 3}) ASSERT_TRUE(scheduler.Add(s, Ones(10), 100).ok());
  StepPlan plan;
  EXPECT_EQ(PlanOnce(&scheduler, &plan), "*1[0,10)");
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_EQ(PlanOnce(&scheduler, &plan), "*2[0,10) *3[0,6)") << "3 has waited for as many plans as it may";
  EXPECT_EQ(scheduler.num_cached_tokens(), 0);
}

// What a sequence computed before it was preempted it finds again, but for what others took meanwhile.
TEST(Scheduler, PreemptedSequencesFindTheirPages) {
  const ExecutorLimits limits = {
      .pools = {{.num_pages = 7, .page_size = 4}}, .max_context = 64, .max_step_tokens = 16, .max_sequences = 3};
  PagePool pages(limits.pools, /*keeps_prefixes=*/true);
  Scheduler scheduler(limits, &pages);
  ASSERT_TRUE(scheduler.Add(1, {1, 2, 3, 4}, 100).ok());
  ASSERT_TRUE(scheduler.Add(2, {5, 6, 7, 8, 5, 6, 7, 8}, 100).ok());
  StepPlan plan;
  int steps = 0;
  for (; scheduler.num_preemptions() == 0 && steps < 20; ++steps) {
    PlanOnce(&scheduler, &plan);
    if (scheduler.num_preemptions() == 0) Collect(&scheduler, plan);
  }
  EXPECT_THAT(plan.preempted, ElementsAre(2));
  EXPECT_EQ(scheduler.tokens(2).size(), 17u);
  Collect(&scheduler, plan);
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_EQ(PlanOnce(&scheduler, &plan), "*2[12,17)") << "1 took the last of its four whole pages";
  EXPECT_EQ(scheduler.num_cached_tokens(), 12);
}

TEST(Scheduler, RefusesPromptsThatCannotRun) {
  PagePool pages(Limits(4).pools, /*keeps_prefixes=*/false);
  Scheduler scheduler(Limits(4), &pages);
  EXPECT_THAT(std::string(scheduler.Add(1, {}, 100).message()), HasSubstr("no tokens"));
  EXPECT_THAT(std::string(scheduler.Add(1, Ones(32), 100).message()), HasSubstr("exceeds the context of 32 tokens"));
  EXPECT_THAT(std::string(scheduler.Add(1, Ones(16), 100).message()), HasSubstr("exceeds the KV cache of 16 tokens"));
  EXPECT_TRUE(scheduler.empty());
  ASSERT_TRUE(scheduler.Add(1, Ones(15), 100).ok());
  EXPECT_FALSE(scheduler.IsFull(1));
  EXPECT_EQ(StepOnce(&scheduler), "1[0,8)");
  EXPECT_EQ(StepOnce(&scheduler), "1[8,15)+");
  EXPECT_TRUE(scheduler.IsFull(1));
  EXPECT_EQ(scheduler.Remove(7).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace llmc
