// Layers with a window get pages of their own: what one window sees lies in one pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/state_type.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/pipeline.h"

namespace llmc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Layers of attention, each with its window and its state; 0: without one.
std::unique_ptr<Model> Layers(const std::vector<int64_t>& windows) {
  std::string text = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 32
dim S <= 4
dim T <= 32
weight @w: f32[100, 8] = "f#w"
)";
  for (size_t i = 0; i < windows.size(); ++i)
    absl::StrAppend(&text, "state @kv", i, ": paged[N, 16] {k: f32[2, 4], v: f32[2, 4]}\n");
  absl::StrAppend(&text, R"(step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, )",
                  "%pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, ",
                  "%rows: i32[R] = rows) {\n  %x0 = gather @w, %ids {axis = 0}\n");
  for (size_t i = 0; i < windows.size(); ++i) {
    absl::StrAppend(&text, "  kv_write @kv", i, ", %x", i, ", %x", i, ", %slots\n  %x", i + 1, " = paged_attention %x",
                    i, ", @kv", i, ", %pages, %lens, %starts {window = ", windows[i], "}\n");
  }
  absl::StrAppend(&text, "  %y = gather %x", windows.size(), ", %rows {axis = 0}\n",
                  "  %logits = matmul %y, @w {transpose_rhs = true}\n  return \"logits\" = %logits\n}\n");
  auto model = ParseModel(text, "m.lir");
  EXPECT_TRUE(model.ok()) << model.status() << text;
  return *std::move(model);
}

std::string Split(Model* model, const PageSizeWishes& sizes = {}) {
  Ledger ledger;
  const absl::Status status =
      RunPipeline(model, {.from = "paginate", .stop_after = "paginate", .page_sizes = sizes}, &ledger);
  EXPECT_TRUE(status.ok()) << status;
  return absl::StrCat(ledger.CountFired("split-pools"));
}

std::vector<std::string> DimsOfStates(const Model& model) {
  std::vector<std::string> dims;
  for (const Value* state : model.states) dims.push_back(state->type.shape[0].ToString());
  return dims;
}

TEST(SplitPools, GroupsLayersByTheirWindows) {
  const auto model = Layers({20, 0, 20, 30});
  EXPECT_EQ(Split(model.get()), "1");
  EXPECT_THAT(DimsOfStates(*model), ElementsAre("N20", "N", "N20", "N30"));
  const std::string text = PrintModel(*model);
  EXPECT_THAT(text, HasSubstr("dim N20 <= 64\n"));
  EXPECT_THAT(text, HasSubstr("%slots: i32[T] = slots(N)"));
  EXPECT_THAT(text, HasSubstr("%slots.N30: i32[T] = slots(N30)"));
  EXPECT_THAT(text, HasSubstr("%pages.N20: i32[S, P] = page_table(N20)"));
  EXPECT_THAT(text, HasSubstr("kv_write @kv2, %x2, %x2, %slots.N20"));
  EXPECT_THAT(text, HasSubstr("paged_attention %x1, @kv1, %pages, %lens"));
  EXPECT_THAT(text, HasSubstr("paged_attention %x3, @kv3, %pages.N30, %lens"));
  EXPECT_EQ(Split(model.get()), "0") << "it is done";
  EXPECT_EQ(PrintModel(*model), text);
}

// No token looks further back than its chunk is long.
TEST(SplitPools, TakesChunksForWindows) {
  const auto windows = Layers({20, 0, 20, 30});
  auto chunks = ParseModel(absl::StrReplaceAll(PrintModel(*windows), {{"{window = ", "{chunk = "}}), "m.lir");
  ASSERT_TRUE(chunks.ok()) << chunks.status();
  EXPECT_EQ(Split(chunks->get()), "1");
  EXPECT_THAT(DimsOfStates(**chunks), ElementsAre("N20", "N", "N20", "N30"));
}

TEST(SplitPools, LeavesOtherModelsAsTheyAre) {
  for (const std::vector<int64_t>& windows : {std::vector<int64_t>{0, 0}, {20, 20}, {1, 2, 3, 4, 5}}) {
    const auto model = Layers(windows);
    const std::string before = PrintModel(*model);
    EXPECT_EQ(Split(model.get()), "0");
    EXPECT_EQ(PrintModel(*model), before);
  }
}

// States that are no caches, and slots that are computed: nobody could tell which pool they are for.
TEST(SplitPools, LeavesWhatItCannotTellApart) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"state @kv0", "state @c: per_sequence[S] {c: f32[1]}\nstate @kv0"},
           {"state @kv0", "state @c: per_sequence[4] {c: f32[1]}\nstate @kv0"},
           {"  kv_write @kv1, %x1, %x1, %slots\n", "  %s = add %slots, %slots\n  kv_write @kv1, %x1, %x1, %s\n"}}) {
    const std::string text = absl::StrReplaceAll(PrintModel(*Layers({20, 0})), {{from, to}});
    auto model = ParseModel(text, "m.lir");
    ASSERT_TRUE(model.ok()) << model.status() << text;
    EXPECT_EQ(Split(model->get()), "0") << text;
  }
}

// Also where the pools have pages of other sizes, which the pass gives them once they are there.
TEST(SplitPools, KeepsNumbers) {
  for (const PageSizeWishes& sizes : {PageSizeWishes{}, {.all = 32, .of_pools = {{"N3", 8}, {"N20", 64}}}}) {
    const auto one = Layers({20, 0, 3}), several = Layers({20, 0, 3});
    for (Model* model : {one.get(), several.get()}) ASSERT_TRUE(FillRandomWeights(model, 1).ok());
    EXPECT_EQ(Split(several.get(), sizes), "1");
    EXPECT_EQ(several->states[2]->state->page_size, sizes.empty() ? 16 : 8);
    const auto expected = RunSmall(*one, 1), actual = RunSmall(*several, 1);
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_TRUE(actual.ok()) << actual.status();
    EXPECT_EQ(actual->outputs.at("main/logits").ToFloats(), expected->outputs.at("main/logits").ToFloats());
  }
}

}  // namespace
}  // namespace llmc
