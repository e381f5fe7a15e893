// Compares with what the Python package `tokenizers` makes of the same files and texts (see make_golden.py).
#include "gtest/gtest.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

void ExpectCases(const Tokenizer& tokenizer, const json& cases) {
  ASSERT_FALSE(cases.empty());
  for (const json& c : cases) {
    EXPECT_EQ(EncodeOrFail(tokenizer, c["text"], /*add_special_tokens=*/true), c["ids"].get<Ids>()) << c["text"];
    if (!c.contains("ids_plain")) continue;
    EXPECT_EQ(EncodePlain(tokenizer, c["text"]), c["ids_plain"].get<Ids>()) << c["text"];
  }
}

TEST(TokenizerGolden, ShippedTokenizer) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const json cases = ReadGolden("shipped.json");
  ASSERT_FALSE(cases.empty());
  for (const json& c : cases) {
    const Ids ids = c["ids"];
    EXPECT_EQ(EncodeOrFail(*tokenizer, c["text"], false), ids) << c["text"];
    EXPECT_EQ(EncodeOrFail(*tokenizer, c["text"], true), c["ids_with_special"].get<Ids>()) << c["text"];
    EXPECT_EQ(EncodePlain(*tokenizer, c["text"]), c["ids_plain"].get<Ids>()) << c["text"];
    EXPECT_EQ(tokenizer->Decode(ids, true), c["decoded"]);
    EXPECT_EQ(DecodeByPieces(*tokenizer, ids, true), c["decoded"]);
  }
}

// The vocabulary has each character twice, plain and as the end of a word, so the ids show where words were cut.
TEST(TokenizerGolden, NormalizersPreTokenizersAndAddedTokens) {
  const json golden = ReadGolden("steps.json");
  json model = BpeModelJson(golden["vocab"], json::array());
  model["end_of_word_suffix"] = "|";
  ASSERT_FALSE(golden["specs"].empty());
  for (json spec : golden["specs"]) {
    const json cases = spec["cases"];
    spec.erase("cases");
    SCOPED_TRACE(spec.dump());
    json file = TokenizerJson(model);
    file.update(spec);
    const auto tokenizer = NewTokenizer(file.dump());
    ASSERT_NE(tokenizer, nullptr);
    ExpectCases(*tokenizer, cases);
  }
}

TEST(TokenizerGolden, ModelOptions) {
  const json specs = ReadGolden("models.json");
  ASSERT_FALSE(specs.empty());
  for (const json& spec : specs) {
    SCOPED_TRACE(spec["tokenizer"]["model"].dump().substr(0, 200));
    const auto tokenizer = NewTokenizer(spec["tokenizer"].dump());
    ASSERT_NE(tokenizer, nullptr);
    ExpectCases(*tokenizer, spec["cases"]);
  }
}

TEST(TokenizerGolden, DecodersWholeAndByPieces) {
  const json golden = ReadGolden("decoders.json");
  ASSERT_FALSE(golden["specs"].empty());
  for (const json& spec : golden["specs"]) {
    SCOPED_TRACE(spec["decoder"].dump());
    json file = TokenizerJson(BpeModelJson(golden["vocab"], json::array()));
    file["added_tokens"] = golden["added_tokens"];
    file["decoder"] = spec["decoder"];
    const auto tokenizer = NewTokenizer(file.dump());
    ASSERT_NE(tokenizer, nullptr);
    for (const json& c : spec["cases"]) {
      const Ids ids = c["ids"];
      SCOPED_TRACE(c["ids"].dump());
      EXPECT_EQ(tokenizer->Decode(ids, true), c["text"]);
      EXPECT_EQ(tokenizer->Decode(ids, false), c["text_with_special"]);
      EXPECT_EQ(DecodeByPieces(*tokenizer, ids, true), c["text"]);
      EXPECT_EQ(DecodeByPieces(*tokenizer, ids, false), c["text_with_special"]);
    }
  }
}

}  // namespace
}  // namespace llmc
