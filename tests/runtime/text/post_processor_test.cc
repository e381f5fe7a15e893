// Special tokens around two texts, as the tokenizers package puts them.
#include "runtime/text/post_processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"

namespace llmc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<PostProcessor> Read(const std::string& json) {
  const nlohmann::json parsed = nlohmann::json::parse(json);
  return PostProcessor::FromJson(JsonNode(&parsed, "tokenizer.json", "post_processor"));
}

TypedTokens Joined(const std::string& json) {
  const absl::StatusOr<PostProcessor> processor = Read(json);
  EXPECT_TRUE(processor.ok()) << processor.status();
  const std::vector<int32_t> first = {7, 8}, second = {9};
  const absl::StatusOr<TypedTokens> joined = processor->Join(first, second);
  EXPECT_TRUE(joined.ok()) << joined.status();
  return joined.value_or(TypedTokens());
}

constexpr char kBert[] = R"({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]})";

TEST(PostProcessor, TwoTextsOfBert) {
  const TypedTokens joined = Joined(kBert);
  EXPECT_THAT(joined.ids, ElementsAre(2, 7, 8, 3, 9, 3));
  EXPECT_THAT(joined.types, ElementsAre(0, 0, 0, 0, 1, 1));
}

TEST(PostProcessor, TwoTextsOfRoberta) {
  const TypedTokens joined = Joined(R"({"type": "RobertaProcessing", "sep": ["</s>", 3], "cls": ["<s>", 2]})");
  EXPECT_THAT(joined.ids, ElementsAre(2, 7, 8, 3, 3, 9, 3));
  EXPECT_THAT(joined.types, ElementsAre(0, 0, 0, 0, 0, 0, 0));
}

TEST(PostProcessor, TwoTextsOfATemplate) {
  const TypedTokens joined = Joined(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
       "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "<q>", "type_id": 2}}, {"Sequence": {"id": "A", "type_id": 0}}],
       "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                          "<q>": {"id": "<q>", "ids": [4, 5], "tokens": ["<", "q>"]}}}]})");
  EXPECT_THAT(joined.ids, ElementsAre(1, 9, 4, 5, 7, 8));
  EXPECT_THAT(joined.types, ElementsAre(0, 1, 2, 2, 0, 0));
}

TEST(PostProcessor, TwoTextsWithoutSpecialTokens) {
  for (const char* json : {R"({"type": "ByteLevel"})", R"({"type": "Sequence", "processors": []})"}) {
    const TypedTokens joined = Joined(json);
    EXPECT_THAT(joined.ids, ElementsAre(7, 8, 9));
    EXPECT_THAT(joined.types, ElementsAre(0, 0, 1));
  }
}

TEST(PostProcessor, TwoTextsOfWhichTheFileDoesNotSay) {
  const std::string bert = kBert;
  const auto twice = Read(R"({"type": "Sequence", "processors": [)" + bert + ", " + bert + "]}");
  ASSERT_TRUE(twice.ok()) << twice.status();
  EXPECT_THAT(twice->Join({}, {}).status().message(), HasSubstr("around two texts"));
  // The config of the tokenizer takes a token away that the file has.
  auto changed = Read(bert);
  ASSERT_TRUE(changed.ok()) << changed.status();
  changed->SetLast(3, true);
  EXPECT_TRUE(changed->Join({}, {}).ok()) << "it is there already";
  changed->SetLast(3, false);
  EXPECT_EQ(changed->Join({}, {}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(PostProcessor, WrongTemplatesOfTwoTexts) {
  const std::string begin = R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}], "pair": )";
  const auto error = [&](const std::string& pair) {
    return std::string(Read(begin + pair + R"(, "special_tokens": {}})").status().message());
  };
  EXPECT_THAT(error("3"), HasSubstr("pair"));
  EXPECT_THAT(error(R"([{"Sequence": {"id": "C"}}])"), HasSubstr("can only name the sequences A and B"));
  EXPECT_THAT(error(R"([{"Sequence": {"id": "A", "type_id": -1}}])"), HasSubstr("type_id"));
  EXPECT_THAT(error(R"([{"SpecialToken": {"id": "<s>"}}])"), HasSubstr("<s>"));
  EXPECT_THAT(error("null"), IsEmpty());
}

}  // namespace
}  // namespace llmc
