#include "runtime/text/tokenizer.h"

#include <chrono>
#include <thread>

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
        const auto ids = tokenizer->Encode(text, true);
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
