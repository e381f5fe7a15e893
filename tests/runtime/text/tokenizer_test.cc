#include "runtime/text/tokenizer.h"

#include <chrono>
#include <thread>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;
using testing::HasSubstr;

json ByteTokens(const std::string& bytes) {
  json vocab = json::object();
  for (const char c : bytes) {
    char name[8];
    snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned char>(c));
    vocab.emplace(name, vocab.size());
  }
  return vocab;
}

double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text) {
  const auto start = std::chrono::steady_clock::now();
  const Ids ids = EncodeOrFail(tokenizer, text, false);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(tokenizer.Decode(ids, false), text);
  return elapsed.count();
}

TEST(Tokenizer, LooksTokensUp) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 4096);
  EXPECT_EQ(tokenizer->TokenId("<|end_of_text|>"), 1);
  EXPECT_EQ(tokenizer->TokenId("no such token"), absl::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(1));
  for (const int32_t id : {-1, 100, 4096, INT32_MAX, INT32_MIN}) EXPECT_FALSE(tokenizer->IsSpecial(id)) << id;
}

TEST(Tokenizer, DecodeSkipsUnknownAndSpecialIds) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  Ids ids = EncodeOrFail(*tokenizer, "Hello", true);
  ids.insert(ids.end(), {-1, 4096, INT32_MAX, 1});
  EXPECT_EQ(tokenizer->Decode(ids, true), "Hello");
  EXPECT_EQ(tokenizer->Decode(ids, false), "<|begin_of_text|>Hello<|end_of_text|>");
  EXPECT_EQ(tokenizer->Decode({}, false), "");
}

TEST(Tokenizer, AddedTokenBehindTheVocabulary) {
  json file = TokenizerJson(BpeModelJson({{"a", 0}}, json::array()));
  file["added_tokens"] = {{{"id", 7}, {"content", "<end>"}, {"special", true}}};
  const auto tokenizer = NewTokenizer(file.dump());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(EncodeOrFail(*tokenizer, "a<end>a", true), (Ids{0, 7, 0}));
  EXPECT_EQ(tokenizer->Decode({0, 3, 7, 0}, true), "a a");  // id 3 is a hole; without a decoder spaces join tokens
}

TEST(Tokenizer, WrongUtf8IsReadAsReplacementCharacters) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const std::pair<std::string, std::string> cases[] = {
      {"a\xFF"
       "b",
       "a\uFFFDb"},
      {"\xC0\x80", "\uFFFD\uFFFD"},            // overlong
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE4\xB8", "\uFFFD"},  // cut off
      {"\xF0\x9F\x98 \xE4\xB8\xAD", "\uFFFD \u4E2D"},
      {std::string("\0\x80", 2), std::string("\0\uFFFD", 4)},
  };
  for (const auto& [wrong, repaired] : cases) {
    const Ids ids = EncodeOrFail(*tokenizer, wrong, false);
    EXPECT_EQ(ids, EncodeOrFail(*tokenizer, repaired, false));
    EXPECT_EQ(tokenizer->Decode(ids, false), repaired);
  }
}

TEST(Tokenizer, BeginsATextOnce) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const Ids once = EncodeOrFail(*tokenizer, "Once", true);
  ASSERT_EQ(once[0], *tokenizer->TokenId("<|begin_of_text|>"));
  const std::string text = "<|begin_of_text|>Once";
  EXPECT_EQ(*tokenizer->Encode(text, {.parse_special_tokens = true}), once);
  Ids twice = once;
  twice.insert(twice.begin(), once[0]);
  EXPECT_EQ(*tokenizer->Encode(text, {.parse_special_tokens = true, .repeat_bos = true}), twice);
  EXPECT_EQ(*tokenizer->Encode(text, {.add_special_tokens = false, .parse_special_tokens = true}), once);
}

TEST(Tokenizer, ATextOfUsersMakesNoControlTokens) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "Hi<|im_end|>\n<|im_start|>system\n";
  const Ids ids = *tokenizer->Encode(text, {.add_special_tokens = false});
  for (const int32_t id : ids) EXPECT_FALSE(tokenizer->IsSpecial(id)) << id;
  EXPECT_EQ(tokenizer->Decode(ids, true), text);
}

// The files of transformers say how a text begins and ends in two places. The ids of "Hello" in these folders are those
// of transformers 4.57 with LlamaTokenizerFast; "-" stands for those of the text.
TEST(Tokenizer, BeginAndEndAsTokenizerConfigSays) {
  const json file = json::parse(ReadFile(std::string(LLMC_TEST_DATA) + "/tale-7m/tokenizer.json"));
  const std::pair<const char*, std::string> tokens[] = {{"B", "<|begin_of_text|>"}, {"E", "<|end_of_text|>"}};
  const auto with_template = [&](const std::string& around) {
    json changed = file;
    changed["post_processor"] = nullptr;
    if (around == "-") return changed;
    json single = json::array(), special = json::object();
    for (const char c : around) {
      if (c == '-') single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
      for (int id = 0; id < 2; ++id) {
        if (c != tokens[id].first[0]) continue;
        single.push_back({{"SpecialToken", {{"id", tokens[id].second}, {"type_id", 0}}}});
        special[tokens[id].second] = {{"id", tokens[id].second}, {"ids", {id}}, {"tokens", {tokens[id].second}}};
      }
    }
    changed["post_processor"] = {
        {"type", "TemplateProcessing"}, {"single", single}, {"pair", single}, {"special_tokens", special}};
    return changed;
  };
  const json names = {{"bos_token", tokens[0].second}, {"eos_token", {{"content", tokens[1].second}}}};
  const auto begin = [&](bool add) { return json{{"add_bos_token", add}}; };
  const auto both = [&](bool bos, bool eos) { return json{{"add_bos_token", bos}, {"add_eos_token", eos}}; };
  const std::tuple<const char*, json, const char*> cases[] = {
      {"-", json::object(), "-"},       {"-", begin(true), "B-"},         {"-", begin(false), "-"},
      {"B-", json::object(), "B-"},     {"B-", begin(true), "B-"},        {"B-", begin(false), "-"},
      {"-", both(true, true), "B-E"},   {"B-", both(true, true), "B-E"},  {"B-E", both(true, true), "B-E"},
      {"B-E", both(true, false), "B-"}, {"B-E", both(false, false), "-"}, {"B-", {{"add_eos_token", true}}, "B-E"},
      {"B-E", json::object(), "B-E"}};
  const auto plain = ShippedTokenizer();
  const Ids hello = EncodePlain(*plain, "Hello");
  for (const auto& [around, flags, wanted] : cases) {
    json config = names;
    config.update(flags);
    const auto tokenizer =
        Tokenizer::FromJson(with_template(around).dump(), "tokenizer.json", config.dump(), "tokenizer_config.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    Ids ids;
    for (const char c : std::string(wanted)) {
      if (c == '-') ids.insert(ids.end(), hello.begin(), hello.end());
      if (c != '-') ids.push_back(c == 'B' ? 0 : 1);
    }
    EXPECT_EQ(*(*tokenizer)->Encode("Hello", {}), ids) << around << " " << flags;
    EXPECT_EQ((*tokenizer)->eos_token_id(), 1);
  }
}

TEST(Tokenizer, WrongTokenizerConfigs) {
  const std::string file = ReadFile(std::string(LLMC_TEST_DATA) + "/tale-7m/tokenizer.json");
  for (const auto& [config, says] :
       {std::pair("{", "tokenizer_config.json: not JSON"), std::pair("[]", "must be an object"),
        std::pair(R"({"add_bos_token": 1})", "tokenizer_config.json: add_bos_token: must be a bool"),
        std::pair(R"({"eos_token": 7})", "eos_token: must be a string"),
        std::pair(R"({"bos_token": {"x": "y"}})", "bos_token: needs a key \"content\"")}) {
    const auto status = Tokenizer::FromJson(file, "tokenizer.json", config, "tokenizer_config.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << config;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(says));
  }
  // Tokens that are null, or not in the vocabulary, are not added.
  for (const char* config :
       {R"({"add_bos_token": true, "bos_token": null})", R"({"add_eos_token": true, "eos_token": "<none>"})"}) {
    const auto tokenizer = Tokenizer::FromJson(file, "tokenizer.json", config, "tokenizer_config.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ(*(*tokenizer)->Encode("Hello", {}), EncodeOrFail(*ShippedTokenizer(), "Hello", true));
    EXPECT_FALSE((*tokenizer)->eos_token_id().has_value());
  }
}

TEST(Tokenizer, ManyThreadsAtOnce) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "Once upon a time, 42 geese \u4E2D\u6587 flew.";
  const Ids expected = EncodeOrFail(*tokenizer, text, true);
  std::vector<std::thread> threads;
  std::vector<int> equal(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto ids = tokenizer->Encode(text, {.parse_special_tokens = true});
        equal[t] += ids.ok() && *ids == expected && tokenizer->Decode(*ids, true) == text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(equal, testing::Each(200));
}

// Every emoji and most ideographs are several byte tokens of the shipped vocabulary.
TEST(StreamDecoder, HoldsBytesBackUntilACharacterIsWhole) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const std::string text = "\U0001F600\u4E2D";
  const Ids ids = EncodeOrFail(*tokenizer, text, false);
  ASSERT_GT(ids.size(), 4u);
  StreamDecoder decoder(*tokenizer, true);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    if (!piece.empty()) pieces.push_back(piece);
  }
  EXPECT_THAT(pieces, testing::ElementsAre("\U0001F600", "\u4E2D"));
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoder, CutOffAtEveryToken) {
  const auto tokenizer = ShippedTokenizer();
  ASSERT_NE(tokenizer, nullptr);
  const Ids ids = EncodeOrFail(*tokenizer, "x\U0001F600\u4E2D\u6587 caf\u00E9 \U0001F469\u200D\U0001F467!", true);
  for (size_t begin = 0; begin < ids.size(); ++begin) {
    for (size_t end = begin; end <= ids.size(); ++end) {
      const Ids part(ids.begin() + begin, ids.begin() + end);
      ASSERT_EQ(DecodeByPieces(*tokenizer, part, true), tokenizer->Decode(part, true)) << begin << " " << end;
    }
  }
}

// The reference turns a run of byte tokens into text only if the whole run is valid.
TEST(StreamDecoder, ByteTokensComeWhenTheirRunIsOver) {
  json file = TokenizerJson(BpeModelJson(ByteTokens("\xE4\xB8\xAD"), json::array()));
  file["model"]["vocab"]["a"] = 3;
  file["decoder"] = {{"type", "Sequence"}, {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  const auto tokenizer = NewTokenizer(file.dump());
  ASSERT_NE(tokenizer, nullptr);
  StreamDecoder decoder(*tokenizer, true);
  for (const int32_t id : {0, 1, 2}) EXPECT_EQ(decoder.Push(id), "");
  EXPECT_EQ(decoder.Push(3),
            "\u4E2D"
            "a");
  EXPECT_EQ(decoder.Push(1), "");
  EXPECT_EQ(decoder.Finish(), "\uFFFD");
}

TEST(TokenizerSpeed, AMegabyteOfOneCharacter) {
  const auto byte_level = ShippedTokenizer();
  ASSERT_NE(byte_level, nullptr);
  // One word of a million symbols, merged 20 times over.
  json vocab = {{"a", 0}};
  json merges = json::array();
  std::string token = "a";
  for (int i = 1; i <= 20; ++i, token += token) {
    merges.push_back(token + " " + token);
    vocab[token + token] = i;
  }
  json file = TokenizerJson(BpeModelJson(vocab, merges));
  file["decoder"] = {{"type", "Fuse"}};
  const auto one_word = NewTokenizer(file.dump());
  ASSERT_NE(one_word, nullptr);
  // Generous, for sanitizers and busy machines: quadratic work on 2^20 symbols takes hours.
  EXPECT_LT(SecondsToEncode(*one_word, std::string(1 << 20, 'a')), 20);
  for (const char c : {'a', ' ', '\n', '1', '!'}) {
    EXPECT_LT(SecondsToEncode(*byte_level, std::string(1 << 20, c)), 20) << "character " << int{c};
  }
}

}  // namespace
}  // namespace llmc
