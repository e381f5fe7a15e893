// What is read off a paged language model before anything is allocated for it; the text is as a user may write it.
#include "runtime/host/paged_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "runtime/host/host_executor.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

constexpr char kText[] = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 32
dim S <= 4
dim T <= 32
weight @w: f32[100, 6] = "f#w"
state @kv0: paged[N, 16] {k: f16[2, 4], v: f16[2, 4]}
state @kv1: paged[N, 16] {k: f16[2, 4], v: f16[2, 4]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @w, %rows {axis = 0}
  %logits = matmul %x, @w {transpose_rhs = true}
  return "logits" = %logits
}
)";

// The text with one thing replaced.
std::unique_ptr<Model> ModelWith(const std::string& from = "", const std::string& to = "") {
  const std::string text = from.empty() ? kText : absl::StrReplaceAll(kText, {{from, to}});
  EXPECT_TRUE(from.empty() || text != kText) << from;
  auto model = ParseModel(text, "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(PagedModel, SaysItsSizes) {
  const auto model = ModelWith();
  const auto paged = DescribePagedModel(*model);
  ASSERT_TRUE(paged.ok()) << paged.status();
  ASSERT_EQ(paged->pools.size(), 1u);
  EXPECT_EQ(paged->pools[0].page_size, 16);
  EXPECT_EQ(paged->pools[0].page_bytes, 2 * 2 * 16 * 2 * 4 * 2);
  EXPECT_EQ(paged->pools[0].dim, "N");
  EXPECT_EQ(paged->vocab_size, 100);
  EXPECT_EQ(paged->max_context, 8 * 16);
  EXPECT_EQ(paged->max_step_tokens, 32);
  EXPECT_EQ(paged->max_sequences, 4);
  EXPECT_EQ(paged->max_pages, 64);
}

TEST(PagedModel, HasAWindowIfEveryLayerHas) {
  const auto window = [](int64_t first, int64_t second, const std::string& attribute = "window") {
    std::string layers = "  %q = gather @e, %ids {axis = 0}\n";
    for (const auto& [layer, size] : {std::pair(0, first), std::pair(1, second)}) {
      absl::StrAppend(&layers, "  %a", layer, " = paged_attention %q, @kv", layer, ", %pages, %lens, %starts {",
                      attribute, " = ", size, "}\n");
    }
    const std::string text = absl::StrReplaceAll(kText, {{"state @kv0", "weight @e: f16[100, 8] = \"f#e\"\nstate @kv0"},
                                                         {"  return", absl::StrCat(layers, "  return")}});
    const auto model = ParseModel(text, "m.lir");
    EXPECT_TRUE(model.ok()) << model.status();
    return DescribePagedModel(**model)->pools[0].window;
  };
  EXPECT_EQ(window(20, 30), 30);
  EXPECT_EQ(window(20, 0), 0);
  EXPECT_EQ(window(0, 20), 0);
  EXPECT_EQ(window(20, 30, "chunk"), 30) << "no token sees more than its chunk";
}

// As in the text, with the second state in a pool of its own.
TEST(PagedModel, HasPoolsThatInputsName) {
  const std::string text =
      absl::StrReplaceAll(kText, {{"dim N <= 64", "dim N <= 64\ndim M <= 32"},
                                  {"@kv1: paged[N", "@kv1: paged[M"},
                                  {"= slots,", "= slots(N), %slots1: i32[T] = slots(M),"},
                                  {"= page_table,", "= page_table(N), %pages1: i32[S, P] = page_table(M),"}});
  const auto model = ParseModel(text, "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  const auto paged = DescribePagedModel(**model);
  ASSERT_TRUE(paged.ok()) << paged.status();
  ASSERT_EQ(paged->pools.size(), 2u);
  EXPECT_EQ(paged->pools[0].dim, "N");
  EXPECT_EQ(paged->pools[1].dim, "M");
  EXPECT_EQ(paged->pools[1].page_bytes, 2 * 16 * 2 * 4 * 2);
  EXPECT_EQ(paged->max_pages, 32);
  const auto sized = [&](const std::string& pages) {
    return DescribePagedModel(**ParseModel(absl::StrReplaceAll(text, {{"paged[M, 16", "paged[M, " + pages}}), "m.lir"));
  };
  EXPECT_EQ(sized("64")->pools[0].page_size, 16);
  EXPECT_EQ(sized("64")->pools[1].page_size, 64);
  EXPECT_EQ(sized("64")->max_context, 8 * 16) << "tables have room for 8 of the smaller pages";
  EXPECT_EQ(sized("64")->max_pages, 64 / 4) << "of 64 tokens, for each of which the first pool has four";
  EXPECT_EQ(sized("4")->max_context, 8 * 4);
  EXPECT_EQ(sized("4")->max_pages, 32 / 4);
  const std::string small = absl::StrReplaceAll(text, {{"dim M <= 32", "dim M <= 3"}, {"paged[M, 16", "paged[M, 4"}});
  EXPECT_THAT(std::string(DescribePagedModel(**ParseModel(small, "m.lir")).status().message()),
              HasSubstr("M is at most 3 pages of 4 tokens, fewer than one page of 16 of another pool; compile with "
                        "--bound M=4 or more"));
  EXPECT_THAT(std::string(sized("24").status().message()),
              HasSubstr("the pool M has pages of 24 tokens and others have not, so the size must be a power of two"));
  const std::string stray = absl::StrReplaceAll(text, {{"@kv1: paged[M", "@kv1: paged[P"}});
  EXPECT_THAT(std::string(DescribePagedModel(**ParseModel(stray, "m.lir")).status().message()), HasSubstr("@kv1"));
  const std::string none = absl::StrReplaceAll(text, {{"@kv1: paged[M", "@kv1: paged[N"}});
  EXPECT_THAT(std::string(DescribePagedModel(**ParseModel(none, "m.lir")).status().message()),
              HasSubstr("the pool M has no states"));
}

TEST(PagedModel, RefusesWhatIsNoPagedModel) {
  struct Case {
    const char* from;
    const char* to;
    const char* message;
  };
  const Case cases[] = {
      {"state @kv0: paged[N, 16] {k: f16[2, 4], v: f16[2, 4]}\nstate @kv1: paged[N, 16] {k: f16[2, 4], v: f16[2, 4]}\n",
       "", "no KV cache"},
      {"@kv1: paged[N, 16]", "@kv1: paged[N, 32]", "has pages of another size than other states, of 16 tokens"},
      {"@kv1: paged[N, 16]", "@kv1: paged[P, 16]", "@kv1"},
      {"@kv1: paged[N, 16]", "@kv1: paged[64, 16]", "is no cache of as many pages as a run has room for"},
      {"@kv1: paged[N, 16]", "@kv1: per_sequence[S]", "is no cache of as many pages as a run has room for"},
      {"@kv1: paged[N, 16] {k: f16[2, 4], v", "@kv1: paged[N, 16] {k: f16[2, 4], x: f16[34359738340], v", "too large"},
      {"return \"logits\"", "return \"scores\"", "no output \"logits\""},
      {"%lens: i32[S] =", "%lens: i32[] =", "no step \"main\""},
      {"step main(", "step other(", "no step \"main\""},
  };
  for (const Case& c : cases) {
    const auto model = ModelWith(c.from, c.to);
    EXPECT_THAT(std::string(DescribePagedModel(*model).status().message()), HasSubstr(c.message)) << c.to;
    EXPECT_FALSE(NewHostExecutor(model.get(), {}).ok()) << c.to;
  }
}

}  // namespace
}  // namespace llmc
