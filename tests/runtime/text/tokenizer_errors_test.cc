// Files that are wrong, hostile or not supported: each is one clear error.
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json GoodFile() {
  json file = TokenizerJson(BpeModelJson({{"a", 0}, {"b", 1}, {"ab", 2}}, {"a b"}));
  file["added_tokens"] = {{{"id", 3}, {"content", "<s>"}, {"special", true}}};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "Prepend"}, {"prepend", "a"}}}}};
  file["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Isolated"}};
  file["post_processor"] = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 3}}, {"sep", {"<s>", 3}}};
  file["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  return file;
}

struct WrongFile {
  const char* pointer;  // JSON pointer of what is replaced
  const char* value;    // by this; "" removes it
  absl::StatusCode code;
  const char* message;  // part of the error
};

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

const WrongFile kWrongFiles[] = {
    {"", "[]", kInvalid, "top level: must be an object"},
    {"/model", "", kInvalid, "needs a key \"model\""},
    {"/model", "3", kInvalid, "model: must be an object"},
    {"/model/type", "\"Bigram\"", kUnimplemented, "\"Bigram\""},
    {"/model/type", "\"Unigram\"", kInvalid, "model.vocab: must be an array"},
    {"/model/type", "\"WordPiece\"", kInvalid, "the unknown token \"[UNK]\" is not in the vocabulary"},
    {"/model", R"({"type":"Unigram","vocab":[["a"]]})", kInvalid, "model.vocab[0]: must be [\"token\", score]"},
    {"/model", R"({"type":"Unigram","vocab":[["a",null]]})", kInvalid, "model.vocab[0]: must be [\"token\", score]"},
    {"/model", R"({"type":"Unigram","vocab":[["a",1e300]]})", kInvalid, "model: the score of token 0 is not a finite"},
    {"/model", R"({"type":"Unigram","vocab":[["a",0]],"unk_id":1})", kInvalid, "unk_id is 1, but vocab holds 1 tokens"},
    {"/model", R"({"type":"Unigram","vocab":[["a",0]],"unk_id":-1})", kInvalid, "model.unk_id: must be from 0"},
    {"/model", R"({"type":"WordLevel","vocab":[]})", kInvalid, "model.vocab: must be an object"},
    {"/model/type", "5", kInvalid, "model.type: must be a string"},
    {"/model/vocab", "[]", kInvalid, "model.vocab: must be an object"},
    {"/model/vocab/a", "-1", kInvalid, "the id of token \"a\""},
    {"/model/vocab/a", "1.5", kInvalid, "the id of token \"a\""},
    {"/model/vocab/a", "\"0\"", kInvalid, "the id of token \"a\""},
    {"/model/vocab/a", "4294967296", kInvalid, "the id of token \"a\""},
    {"/model/vocab/a", "18446744073709551615", kInvalid, "the id of token \"a\""},
    {"/model/vocab/a", "2000000000", kInvalid, "the id of token \"a\""},
    {"/model/vocab/a", "1", kInvalid, "have the same id 1"},
    {"/model/merges", "{}", kInvalid, "model.merges: must be an array"},
    {"/model/merges/0", "7", kInvalid, "model.merges[0]"},
    {"/model/merges/0", "\"ab\"", kInvalid, "model.merges[0]: must be two tokens"},
    {"/model/merges/0", "\"a c\"", kInvalid, "token \"c\" is not in model.vocab"},
    {"/model/merges/0", "\"b a\"", kInvalid, "merged token \"ba\" is not in model.vocab"},
    {"/model/merges/0", "[\"a\"]", kInvalid, "model.merges[0]"},
    {"/model/merges/0", "[\"a\",1]", kInvalid, "model.merges[0]"},
    {"/model/unk_token", "\"<unk>\"", kInvalid, "model.unk_token: token \"<unk>\" is not in model.vocab"},
    {"/model/dropout", "0.1", kUnimplemented, "dropout"},
    {"/model/byte_fallback", "\"yes\"", kInvalid, "model.byte_fallback: must be a bool"},
    {"/added_tokens", "{}", kInvalid, "added_tokens: must be an array"},
    {"/added_tokens/0", "7", kInvalid, "added_tokens[0]"},
    {"/added_tokens/0/id", "-1", kInvalid, "added_tokens[0].id: must be from 0"},
    {"/added_tokens/0/id", "99999999999999999999", kInvalid, "added_tokens[0].id"},
    {"/added_tokens/0/id", "18446744073709551615", kInvalid, "added_tokens[0].id: must be from 0"},
    {"/added_tokens/0/id", "1", kInvalid, "tokens \"<s>\" and \"b\" have the same id 1"},
    {"/added_tokens/0/content", "\"a\"", kInvalid, "has id 3 here and 0 in model.vocab"},
    {"/added_tokens/0/lstrip", "1", kInvalid, "added_tokens[0].lstrip: must be a bool"},
    {"/added_tokens/1", "{\"id\":3,\"content\":\"<s>\"}", kInvalid, "listed twice"},
    {"/normalizer", "[]", kInvalid, "normalizer: must be an object"},
    {"/normalizer/type", "\"Unknown\"", kUnimplemented, "normalizer \"Unknown\""},
    {"/normalizer", R"({"type":"Precompiled","precompiled_charsmap":"!"})", kInvalid,
     "normalizer: precompiled_charsmap is"},
    {"/normalizer", R"({"type":"Precompiled","precompiled_charsmap":"AAA="})", kInvalid, "does not hold the trie"},
    {"/normalizer", R"({"type":"Precompiled","precompiled_charsmap":"AAAAgAAAAAA="})", kInvalid,
     "does not hold the trie"},
    {"/normalizer", R"({"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAD/"})", kInvalid, "are not UTF-8"},
    {"/normalizer/normalizers/0/prepend", "", kInvalid, "normalizer.normalizers[0]: needs a key \"prepend\""},
    {"/pre_tokenizer/type", "\"Unknown\"", kUnimplemented, "pre-tokenizer \"Unknown\""},
    {"/pre_tokenizer", R"({"type":"FixedLength","length":0})", kInvalid, "pre_tokenizer.length: must be from 1"},
    {"/pre_tokenizer/behavior", "\"Merged\"", kInvalid, "behavior must be"},
    {"/pre_tokenizer/pattern", "{\"Regex\":\"(\"}", kInvalid, "pre_tokenizer.pattern: bad regular expression"},
    {"/pre_tokenizer/pattern", "{\"Regex\":\"a\",\"String\":\"a\"}", kInvalid, "needs one key"},
    {"/pre_tokenizer/pattern", "{\"Regex\":3}", kInvalid, "pre_tokenizer.pattern.Regex: must be a string"},
    {"/post_processor/type", "\"Other\"", kUnimplemented, "post-processor \"Other\""},
    {"/post_processor/cls", "[\"<s>\"]", kInvalid, "must be [\"token\", id]"},
    {"/post_processor/cls/1", "4", kInvalid, "post_processor: adds id 4, which no token has"},
    {"/post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[]}", kInvalid, "exactly once"},
    {"/post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}", kInvalid,
     "needs a key \"special_tokens\""},
    {"/decoder/type", "\"Unknown\"", kUnimplemented, "decoder \"Unknown\""},
    {"/decoder", R"({"type":"CTC","pad_token":""})", kInvalid, "decoder: pad_token and word_delimiter_token"},
    {"/decoder", R"({"type":"BPEDecoder","suffix":""})", kInvalid, "decoder: suffix must not be empty"},
    {"/decoder/content", "\"\"", kInvalid, "content must be one character"},
    {"/decoder", "{\"type\":\"Metaspace\",\"replacement\":\"__\"}", kInvalid, "replacement must be one character"},
    {"/decoder/start", "-1", kInvalid, "decoder.start: must be from 0"},
};

TEST(TokenizerErrors, EachNamesTheFileAndTheKey) {
  ASSERT_TRUE(Tokenizer::FromJson(GoodFile().dump(), "x.json").ok());
  for (const WrongFile& wrong : kWrongFiles) {
    SCOPED_TRACE(std::string(wrong.pointer) + " = " + wrong.value);
    json file = GoodFile();
    if (*wrong.value != '\0') {
      file[json::json_pointer(wrong.pointer)] = json::parse(wrong.value);
    } else {
      file = file.patch({{{"op", "remove"}, {"path", wrong.pointer}}});
    }
    const auto tokenizer = Tokenizer::FromJson(file.dump(), "x.json");
    EXPECT_EQ(tokenizer.status().code(), wrong.code);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("x.json"));
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(wrong.message));
  }
}

TEST(TokenizerErrors, NotJson) {
  const std::string deep(100'000, '[');
  const std::string deep_objects = [] {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
    return text;
  }();
  for (const std::string& text : {std::string(), std::string("{"), std::string("\xFF\xFE"), std::string("{} x"), deep,
                                  std::string("{}\0", 3), std::string("{\"model\": {}, \"model\": {}}"), deep_objects,
                                  std::string("{\"model\": \"\\ud800\"}"), std::string(1, '\0')}) {
    const auto tokenizer = Tokenizer::FromJson(text, "x.json");
    EXPECT_EQ(tokenizer.status().code(), kInvalid);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("x.json"));
    EXPECT_LT(tokenizer.status().message().size(), 1000u);
  }
}

TEST(TokenizerErrors, NestingIsCapped) {
  json step = {{"type", "NFC"}};
  for (int i = 0; i < 40; ++i) step = {{"type", "Sequence"}, {"normalizers", {step}}};
  json file = GoodFile();
  file["normalizer"] = step;
  const auto tokenizer = Tokenizer::FromJson(file.dump(), "x.json");
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("nested deeper than 64 levels"));
}

// No change of a byte may crash: it is read, or it is an error; what was read must encode and decode.
TEST(TokenizerErrors, ChangedBytes) {
  const std::string good = GoodFile().dump();
  std::mt19937 random(1);
  int read = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int change = 0; change < 1 + i % 3; ++change) {
      const size_t at = random() % text.size();
      if (i % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.erase(at, 1 + random() % 8);
        if (text.empty()) text = " ";
      }
    }
    const auto tokenizer = Tokenizer::FromJson(text, "x.json");
    if (!tokenizer.ok()) continue;
    ++read;
    const auto ids = (*tokenizer)->Encode("a b<s>ab \xFF", {.parse_special_tokens = true});
    if (ids.ok()) DecodeByPieces(**tokenizer, *ids, false);
  }
  EXPECT_GT(read, 10);
  EXPECT_LT(read, 2500);
}

TEST(TokenizerErrors, CutOffAtEveryByte) {
  const std::string good = GoodFile().dump();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_EQ(Tokenizer::FromJson(good.substr(0, size), "x.json").status().code(), kInvalid) << size;
  }
}

}  // namespace
}  // namespace llmc
