#include "passes/paginate/page_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ir/text.h"
#include "ir/verify.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Model> Parsed(const std::string& states) {
  auto model = ParseModel("model \"m\"\ndim N <= 100 dim M <= 100 dim S <= 4 dim T <= 32 dim P <= 9\n" + states +
                              "step main(%pages: i32[S, P] = page_table(N), %windows: i32[S, P] = page_table(M)) {\n  "
                              "return \"p\" = %pages\n}\n",
                          "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// 9 pages of 16 tokens are 144 tokens, which 3 pages of 64 hold, and 18 of 8.
TEST(PageSize, IsThatOfAllPools) {
  for (const auto& [size, pages] : {std::pair<int64_t, int64_t>{64, 3}, {8, 18}, {16, 9}}) {
    const auto model = Parsed(
        "state @a: paged[N, 16] {k: f32[2, 4], v: f32[2, 2]}\nstate @b: paged[M, 16] {k: f32[4]}\n"
        "state @c: per_sequence[S] {c: f32[4]}\n");
    ASSERT_TRUE(pagination::SetPageSizes({.all = size}, model.get()).ok());
    EXPECT_TRUE(Verify(*model, Phase::kImported).ok());
    const std::string text = PrintModel(*model);
    EXPECT_THAT(text, HasSubstr("paged[N, " + std::to_string(size) + "] {k: f32[2, 4], v: f32[2, 2]}"));
    EXPECT_THAT(text, HasSubstr("paged[M, " + std::to_string(size) + "] {k: f32[4]}"));
    EXPECT_EQ(model->dims.at("P"), pages);
  }
}

constexpr char kTwoPools[] = "state @a: paged[N, 16] {k: f32[4]}\nstate @b: paged[M, 16] {k: f32[4]}\n";

// The tables of both have room for 144 tokens where pages are smallest.
TEST(PageSize, MayBeOfOnePool) {
  struct Case {
    PageSizeWishes sizes;
    int64_t n, m, pages;
  };
  for (const Case& c :
       {Case{{.all = 64, .of_pools = {{"M", 16}}}, 64, 16, 9}, Case{{.of_pools = {{"M", 64}}}, 16, 64, 9},
        Case{{.of_pools = {{"N", 8}}}, 8, 16, 18}, Case{{.of_pools = {{"N", 32}, {"M", 64}}}, 32, 64, 5}}) {
    const auto model = Parsed(kTwoPools);
    ASSERT_TRUE(pagination::SetPageSizes(c.sizes, model.get()).ok());
    const std::string text = PrintModel(*model);
    EXPECT_THAT(text, HasSubstr("paged[N, " + std::to_string(c.n) + "]"));
    EXPECT_THAT(text, HasSubstr("paged[M, " + std::to_string(c.m) + "]"));
    EXPECT_EQ(model->dims.at("P"), c.pages);
    // Back again: the context is rounded up to whole pages of the smallest size.
    ASSERT_TRUE(pagination::SetPageSizes({.all = 16}, model.get()).ok());
    EXPECT_EQ(model->dims.at("P"), c.pages * std::min(c.n, c.m) / 16);
  }
}

TEST(PageSize, NamesThePoolsThatThereAre) {
  EXPECT_EQ(pagination::SetPageSizes({.of_pools = {{"K", 16}}}, Parsed(kTwoPools).get()).message(),
            "--page-size: the model has no pool K; it has M, N");
  EXPECT_EQ(PageSizeWishes({.all = 64, .of_pools = {{"K", 16}}}).Flags(),
            (std::vector<std::string>{"--page-size=64", "--page-size=K=16"}));
}

TEST(PageSize, RefusesWhatHasNone) {
  const auto error = [](const std::string& states, int64_t size) {
    return std::string(pagination::SetPageSizes({.of_pools = {{"N", size}}}, Parsed(states).get()).message());
  };
  EXPECT_EQ(error("", 64), "--page-size: the model has no states with pages");
  EXPECT_EQ(error("state @c: per_sequence[S] {c: f32[4]}\n", 64), "--page-size: the model has no states with pages");
  EXPECT_THAT(error("state @a: paged[N, 16] {k: f32[4]}\n", 0), HasSubstr("there may be 1 to 4096"));
}

}  // namespace
}  // namespace llmc
