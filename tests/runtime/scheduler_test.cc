#include "runtime/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr SchedulerOptions kOptions = {.max_step_tokens = 8, .max_sequences = 3, .page_size = 4, .max_context = 32};

// One step: "1[0,5) 2[3,4)+" where + marks a chunk after which a token is sampled.
std::string Step(Scheduler* scheduler) {
  const auto plan = scheduler->Plan();
  EXPECT_TRUE(plan.ok()) << plan.status();
  std::vector<std::string> parts;
  for (const Scheduled& s : *plan) {
    parts.push_back(absl::StrCat(s.sequence, "[", s.position, ",", s.position + s.count, ")", s.samples ? "+" : ""));
    if (s.samples) scheduler->Append(s.sequence, 0);
  }
  return absl::StrJoin(parts, " ");
}

std::vector<int32_t> Prompt(int64_t length) { return std::vector<int32_t>(length, 1); }

TEST(Scheduler, MixesNewTokensWithChunksOfPrompts) {
  KvPages pages(20);
  Scheduler scheduler(kOptions, &pages);
  ASSERT_TRUE(scheduler.Add(1, Prompt(3), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Prompt(12), 100).ok());
  EXPECT_EQ(Step(&scheduler), "1[0,3)+ 2[0,5)");
  EXPECT_EQ(Step(&scheduler), "1[3,4)+ 2[5,12)+");
  ASSERT_TRUE(scheduler.Add(3, Prompt(2), 100).ok());
  ASSERT_TRUE(scheduler.Add(4, Prompt(2), 100).ok());
  EXPECT_EQ(Step(&scheduler), "1[4,5)+ 2[12,13)+ 3[0,2)+");
  EXPECT_EQ(Step(&scheduler), "1[5,6)+ 2[13,14)+ 3[2,3)+") << "three sequences at most";
  ASSERT_TRUE(scheduler.Remove(2).ok());
  EXPECT_EQ(Step(&scheduler), "1[6,7)+ 3[3,4)+ 4[0,2)+");
  for (int64_t s : {1, 3, 4}) ASSERT_TRUE(scheduler.Remove(s).ok());
  EXPECT_EQ(pages.num_free(), 20);
  EXPECT_TRUE(scheduler.empty());
  EXPECT_EQ(Step(&scheduler), "");
}

TEST(Scheduler, AdmitsInOrderWhenPagesFit) {
  KvPages pages(4);
  Scheduler scheduler(kOptions, &pages);
  ASSERT_TRUE(scheduler.Add(1, Prompt(7), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Prompt(9), 100).ok());
  ASSERT_TRUE(scheduler.Add(3, Prompt(1), 100).ok());
  EXPECT_EQ(Step(&scheduler), "1[0,7)+") << "2 needs three pages, and 3 does not overtake it";
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_EQ(Step(&scheduler), "2[0,8)");
  EXPECT_EQ(Step(&scheduler), "2[8,9)+") << "3 would take the page that 2 needs next";
}

TEST(Scheduler, PreemptsTheYoungestAndComputesItAgain) {
  KvPages pages(4);
  Scheduler scheduler(kOptions, &pages);
  ASSERT_TRUE(scheduler.Add(1, Prompt(4), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Prompt(4), 100).ok());
  EXPECT_EQ(Step(&scheduler), "1[0,4)+ 2[0,4)+");
  for (int i = 0; i < 4; ++i) Step(&scheduler);
  EXPECT_EQ(pages.num_free(), 0);
  ASSERT_TRUE(scheduler.Add(3, Prompt(4), 100).ok());
  std::vector<int64_t> preempted;
  const auto plan = scheduler.Plan(&preempted);
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(preempted, ElementsAre(2));
  ASSERT_EQ(plan->size(), 1u);
  EXPECT_EQ((*plan)[0].sequence, 1);
  EXPECT_EQ(scheduler.num_preemptions(), 1);
  EXPECT_EQ(scheduler.tokens(2).size(), 9u);
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_EQ(Step(&scheduler), "2[0,8)") << "before 3, which never ran";
  EXPECT_EQ(Step(&scheduler), "2[8,9)+");
}

TEST(Scheduler, PlansBeyondTokensThatAreNotKnown) {
  KvPages pages(20);
  Scheduler scheduler(kOptions, &pages);
  ASSERT_TRUE(scheduler.Add(1, Prompt(3), 3).ok());
  const auto position = [&] {
    const auto plan = scheduler.Plan();
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan->empty() ? -1 : (*plan)[0].position;
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
  KvPages pages(4);
  Scheduler scheduler(kOptions, &pages);
  ASSERT_TRUE(scheduler.Add(1, Prompt(4), 100).ok());
  ASSERT_TRUE(scheduler.Add(2, Prompt(4), 100).ok());
  for (int i = 0; i < 4; ++i) Step(&scheduler);
  ASSERT_EQ(scheduler.Plan()->size(), 2u);
  std::vector<int64_t> preempted;
  ASSERT_EQ(scheduler.Plan(&preempted)->size(), 1u);
  EXPECT_THAT(preempted, ElementsAre(2));
  ASSERT_TRUE(scheduler.Remove(1).ok());
  EXPECT_TRUE(scheduler.Plan()->empty());
  scheduler.Append(2, 5);
  EXPECT_EQ(Step(&scheduler), "2[0,8)");
}

TEST(Scheduler, RefusesPromptsThatCannotRun) {
  KvPages pages(4);
  Scheduler scheduler(kOptions, &pages);
  EXPECT_THAT(std::string(scheduler.Add(1, {}, 100).message()), HasSubstr("no tokens"));
  EXPECT_THAT(std::string(scheduler.Add(1, Prompt(32), 100).message()), HasSubstr("exceeds the context of 32 tokens"));
  EXPECT_THAT(std::string(scheduler.Add(1, Prompt(16), 100).message()), HasSubstr("exceeds the KV cache of 16 tokens"));
  EXPECT_TRUE(scheduler.empty());
  ASSERT_TRUE(scheduler.Add(1, Prompt(15), 100).ok());
  EXPECT_FALSE(scheduler.IsFull(1));
  EXPECT_EQ(Step(&scheduler), "1[0,8)");
  EXPECT_EQ(Step(&scheduler), "1[8,15)+");
  EXPECT_TRUE(scheduler.IsFull(1));
  EXPECT_EQ(scheduler.Remove(7).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace llmc
