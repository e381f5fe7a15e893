// What is taken apart to be fast gives what the whole gives: words between white space, one by one and from a cache,
// and graphemes of ASCII.
#include <random>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using nlohmann::json;

// A step that cuts nothing, and hides from the tokenizer that white space comes next.
const json kNothing = {{"type", "Split"}, {"pattern", {{"Regex", "\\x{10FFFF}"}}}, {"behavior", "Isolated"}};

// The file with the pre-tokenizers, with `first` before them.
std::unique_ptr<Tokenizer> WithSteps(json file, json steps, const json& first = nullptr) {
  if (!first.is_null()) steps.insert(steps.begin(), first);
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  return NewTokenizer(file.dump());
}

json WordPieceFile() {
  json vocab = json::object();
  for (const char* token : {"[UNK]", "a", "b", "ab", "##a", "##b", "##ba", "é", "##é", ",", "!", "##,", "▁", "中"}) {
    vocab[token] = vocab.size();
  }
  return TokenizerJson(
      {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", vocab}, {"max_input_chars_per_word", 9}});
}

json UnigramFile() {
  json vocab = json::array({{"<unk>", 0}});
  double score = -1;
  for (const char* token : {"▁", "▁a", "▁ab", "a", "b", "ba", "é", ",", "a,", "中", "▁b"}) {
    vocab.push_back({token, score -= 0.37});
  }
  return TokenizerJson({{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}});
}

// Words of few letters, so that many come again, with white space of all kinds between and at the ends.
std::string RandomText(std::mt19937* random, int characters) {
  const char* const kCharacters[] = {"a",  "b",    "ab",     "a",      "b",      "é",      ",",    "!",
                                     "中", "▁",    "x",      " ",      " ",      " ",      "  ",   "\n",
                                     "\t", "\r\n", "\u00A0", "\u3000", "\u2028", "\u0085", "\x1C", "\0"};
  std::string text;
  for (int i = 0; i < characters; ++i) text += kCharacters[(*random)() % std::size(kCharacters)];
  return text;
}

TEST(TokenizerWords, OneByOneGiveTheIdsOfTheWholeText) {
  const json spaces = {{"type", "WhitespaceSplit"}}, bert = {{"type", "BertPreTokenizer"}};
  const json punctuation = {{"type", "Punctuation"}, {"behavior", "MergedWithPrevious"}};
  const auto metaspace = [](const char* scheme) { return json{{"type", "Metaspace"}, {"prepend_scheme", scheme}}; };
  const struct {
    json file, steps;
  } cases[] = {{WordPieceFile(), {bert}},
               {WordPieceFile(), {spaces, punctuation}},
               {WordPieceFile(), {{{"type", "Sequence"}, {"pretokenizers", {spaces}}}, punctuation}},
               {UnigramFile(), {spaces, metaspace("always")}},
               {UnigramFile(), {spaces, metaspace("first")}},
               {UnigramFile(), {spaces, metaspace("never")}},
               {UnigramFile(), {spaces, {{"type", "Digits"}}, metaspace("first")}}};
  std::mt19937 random(5);
  for (const auto& c : cases) {
    SCOPED_TRACE(c.steps.dump());
    const auto words = WithSteps(c.file, c.steps), whole = WithSteps(c.file, c.steps, kNothing);
    ASSERT_NE(words, nullptr);
    ASSERT_NE(whole, nullptr);
    size_t ids = 0;
    for (const int characters : {0, 1, 2, 3, 5, 9, 40, 40, 40, 300, 3000}) {
      const std::string text = RandomText(&random, characters);
      const std::vector<int32_t> expected = EncodeOrFail(*whole, text, false);
      EXPECT_EQ(EncodeOrFail(*words, text, false), expected) << json(text);
      ids += expected.size();
    }
    EXPECT_GT(ids, 1000u);
  }
}

// Words longer than the cache takes, and of more ids.
TEST(TokenizerWords, LongWordsToo) {
  const json steps = {{{"type", "WhitespaceSplit"}}, {{"type", "Metaspace"}}};
  const auto words = WithSteps(UnigramFile(), steps), whole = WithSteps(UnigramFile(), steps, kNothing);
  std::string text;
  for (int length = 1; length < 70; ++length) {
    for (int i = 0; i < 3; ++i) text += std::string(static_cast<size_t>(length), "ab,"[i]) + " ";
  }
  text += text;
  EXPECT_EQ(EncodeOrFail(*words, text, false), EncodeOrFail(*whole, text, false));
}

// A charsmap that makes "x" of "\r": a trie of one key, then the replacement.
std::string MapOfReturns() {
  std::vector<uint32_t> units(32);
  units[0] = 16 << 10;                         // its children lie at 16 ^ byte
  units[16 ^ '\r'] = '\r' | 1 << 8 | 1 << 10;  // a key ends here; its value lies at the place ^ 1
  std::string bytes(4 + 4 * units.size(), '\0');
  bytes[0] = static_cast<char>(4 * units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    for (size_t b = 0; b < 4; ++b) bytes[4 + 4 * i + b] = static_cast<char>(units[i] >> 8 * b);
  }
  return absl::Base64Escape(bytes + std::string("x\0", 2));
}

// The package tokenizers takes "\r\n" as one grapheme, which "\r" begins, so that both become "x".
TEST(TokenizerWords, ReturnsAndLineFeedsAreOneGrapheme) {
  json file = TokenizerJson(BpeModelJson({{"a", 0}, {"b", 1}, {"x", 2}, {"\n", 3}, {"é", 4}}, json::array()));
  file["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", MapOfReturns()}};
  const auto tokenizer = NewTokenizer(file.dump());
  ASSERT_NE(tokenizer, nullptr);
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(EncodeOrFail(*tokenizer, "a\r\nb", false), (Ids{0, 2, 1}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "a\rb\n", false), (Ids{0, 2, 1, 3}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "\ré\r\n", false), (Ids{2, 4, 2}));
  EXPECT_EQ(EncodeOrFail(*tokenizer, "é\r\r\n\n", false), (Ids{4, 2, 2, 3}));
}

}  // namespace
}  // namespace llmc
