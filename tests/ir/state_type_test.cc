#include "ir/state_type.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "ir/component_view.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

StateType ParseState(absl::string_view text) {
  const absl::StatusOr<StateType> type = StateType::Parse(text);
  EXPECT_TRUE(type.ok()) << type.status();
  return type.ok() ? *type : StateType();
}

std::string ParseError(absl::string_view text) {
  const absl::StatusOr<StateType> type = StateType::Parse(text);
  return type.ok() ? "no error" : std::string(type.status().message());
}

TEST(StateTypeTest, IsPrintedAsItIsRead) {
  for (const char* text : {"paged[N, 16] {k: bf16[8, 128], v: bf16[8, 64]}", "paged[7, 1] {latent: f32[512]}",
                           "per_sequence[M] {conv: f32[4, 8], ssm: f16[16, 8, 2]}"}) {
    EXPECT_EQ(ParseState(text).ToString(), text);
  }
  EXPECT_EQ(ParseState(" paged[ N ,16 ]{k:f32[ 2 ] ,\n v: f32[2]}").ToString(), "paged[N, 16] {k: f32[2], v: f32[2]}");
}

// 16 tokens of 8 heads: keys of 16 * 8 * 128 * 2 bytes, then values.
TEST(StateTypeTest, ComponentsLieInARecord) {
  const StateType kv = ParseState("paged[N, 16] {k: bf16[8, 128], v: bf16[8, 64]}");
  EXPECT_EQ(kv.OffsetOf(kv.components[0]), 0);
  EXPECT_EQ(kv.OffsetOf(kv.components[1]), 32768);
  EXPECT_EQ(kv.ComponentBytes(kv.components[1]), 16384);
  EXPECT_EQ(kv.RecordBytes(), 49152);
  EXPECT_EQ(kv.Memory().ToString(), "u8[N, 49152]");
  // Aligned: 3 bytes, then 12, then 2.
  const StateType odd = ParseState("per_sequence[M] {a: i8[3], b: f32[3], c: bf16[1]}");
  EXPECT_EQ(odd.OffsetOf(odd.components[1]), 16);
  EXPECT_EQ(odd.OffsetOf(odd.components[2]), 32);
  EXPECT_EQ(odd.RecordBytes(), 48);
}

// Two pages of 4 tokens with two heads of 3 keys: a head's tokens lie together, behind them the next head's.
TEST(StateTypeTest, HeadsLieTogetherInAPage) {
  const StateType kv = ParseState("paged[N, 4] {v: f32[2, 1], k: f32[2, 3]}");
  const Tensor memory(DType::kU8, {2, kv.RecordBytes()});
  const ComponentView keys(kv, kv.components[1], memory), values(kv, kv.components[0], memory);
  EXPECT_EQ(keys.slots(), 8);
  EXPECT_EQ(keys.row(), 6);
  EXPECT_EQ(values.At(0, 1, 2), 6);
  EXPECT_EQ(keys.At(0, 0, 0), 8);  // behind 8 values
  EXPECT_EQ(keys.At(0, 0, 1), 11);
  EXPECT_EQ(keys.At(0, 1, 0), 20);
  EXPECT_EQ(keys.At(1, 0, 0), 40);
  EXPECT_EQ(keys.AtSlot(6, 1), keys.At(1, 1, 2));
}

TEST(StateTypeTest, ContentsAreThoseOfAComponent) {
  for (const char* dtype : {"f32", "i4"}) {
    const StateType state = ParseState(absl::StrCat("per_sequence[2] {a: f32[3], b: ", dtype, "[2, 3]}"));
    Tensor memory(DType::kU8, {2, state.RecordBytes()});
    ComponentView b(state, state.components[1], memory);
    for (int64_t i = 0; i < 12; ++i) b.elements().SetInt(b.At(i / 6, i % 6 / 3, 0) + i % 3, i % 7);
    const Tensor contents = b.Contents();
    EXPECT_EQ(contents.shape(), (Shape{2, 2, 1, 3}));
    EXPECT_EQ(contents.ToInts(), (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4}));
    ComponentView a(state, state.components[0], memory);
    EXPECT_EQ(a.Contents(), Tensor(DType::kF32, {2, 1, 1, 3}));
  }
}

TEST(StateTypeTest, SaysWhatIsNoState) {
  EXPECT_THAT(ParseError("f32[5, 2, 4, 2, 3]"),
              HasSubstr("'f32' is no kind of a state; there are paged, per_sequence"));
  EXPECT_THAT(ParseError("paged {k: f32[1]}"), HasSubstr("is no kind of a state"));
  EXPECT_THAT(ParseError("paged[N] {k: f32[1]}"), HasSubstr("does not count pages and the tokens of a page"));
  EXPECT_THAT(ParseError("paged[N, P] {k: f32[1]}"), HasSubstr("does not count pages and the tokens of a page"));
  for (const char* size : {"0", "-1", "4097"}) {
    EXPECT_THAT(ParseError(absl::StrCat("paged[N, ", size, "] {k: f32[1]}")), HasSubstr("there may be 1 to 4096"));
  }
  EXPECT_THAT(ParseError("paged[N, 16] {}"), HasSubstr("has 0 components, must have 1 to 16"));
  for (const char* components : {"", "{k: f32[1]", "{k f32[1]}", "{k: f32}", "{k: f32[1] v: f32[1]}", "{k: f32[1],}",
                                 "{k: f32[1]} x", "{, k: f32[1]}"}) {
    EXPECT_NE(ParseError(absl::StrCat("paged[N, 16] ", components)), "no error") << components;
  }
  EXPECT_THAT(ParseError("paged[N, 16] {k: f99[1]}"), HasSubstr("unknown element type"));
  EXPECT_THAT(ParseError("paged[N, 16] {k: f32[1], k: f32[1]}"), HasSubstr("component k stands twice"));
  EXPECT_THAT(ParseError("paged[N, 16] {4k: f32[1]}"), HasSubstr("'4k' is no name of a component"));
  EXPECT_THAT(ParseError("paged[N, 16] {k: f32[]}"), HasSubstr("component k: f32[] has not 1 to 8 axes"));
  for (const char* size : {"0", "T", "-3"}) {
    EXPECT_THAT(ParseError(absl::StrCat("paged[N, 16] {k: f32[2, ", size, "]}")),
                HasSubstr("has a size that is no number above 0"));
  }
  EXPECT_THAT(ParseError("paged[N, 16] {k: f32[4000000000, 4000000000]}"), HasSubstr("k: f32[4000000000, 4000000000]"));
  EXPECT_THAT(ParseError("paged[N, 4096] {a: f64[30000000], b: f64[30000000]}"), HasSubstr("a record with it is too"));
}

// However many components a text has, few are looked at.
TEST(StateTypeTest, TextOfAnyLengthIsRefusedAtOnce) {
  std::string text = "paged[N, 16] {c: f32[1]";
  for (int i = 0; i < 200000; ++i) absl::StrAppend(&text, ", c", i, ": f32[1]");
  EXPECT_THAT(ParseError(absl::StrCat(text, "}")), HasSubstr("has 17 components"));
  EXPECT_LT(ParseError(std::string(1 << 20, 'x')).size(), 300u);
}

}  // namespace
}  // namespace llmc
