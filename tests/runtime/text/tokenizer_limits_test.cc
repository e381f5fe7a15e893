// Files that ask for endless work or text: refused when they are read, or when a text would need it.
#include <ctime>
#include <functional>
#include <random>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;
using testing::HasSubstr;

// A vocabulary of a, b and a space, with changes.
json SmallFile(const json& changes) {
  json file = TokenizerJson(BpeModelJson({{"a", 0}, {"b", 1}, {" ", 2}}, json::array()));
  file.update(changes);
  return file;
}

absl::Status LoadStatus(const json& file) { return Tokenizer::FromJson(file.dump(), "x.json").status(); }

// Of processor time, which other processes do not stretch.
double Seconds(const std::function<void()>& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

json Doubling() { return {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}}; }

json Chain(const char* list, const json& step, int count) {
  json steps = json::array();
  for (int i = 0; i < count; ++i) steps.push_back(step);
  return {{"type", "Sequence"}, {list, steps}};
}

json SplitAt(const std::string& regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}

TEST(TokenizerLimits, StepsAreCounted) {
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const std::tuple<const char*, const char*, json> chains[] = {
      {"normalizer", "normalizers", {{"type", "NFC"}}},
      {"pre_tokenizer", "pretokenizers", byte_level},
      {"decoder", "decoders", {{"type", "Fuse"}}},
  };
  for (const auto& [key, list, step] : chains) {
    SCOPED_TRACE(key);
    EXPECT_TRUE(LoadStatus(SmallFile({{key, Chain(list, step, 32)}})).ok());
    const json nested = Chain(list, Chain(list, step, 11), 3);
    EXPECT_THAT(std::string(LoadStatus(SmallFile({{key, nested}})).message()), HasSubstr("has 33 steps"));
  }
}

TEST(TokenizerLimits, ChainsThatDoubleTheTextAreRefused) {
  const json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const json mark = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "always"}};
  const json long_text = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100'000, 'b')}};
  const std::pair<const char*, json> chains[] = {
      {"normalizer", Chain("normalizers", Doubling(), 32)},
      {"normalizer", Chain("normalizers", long_text, 1)},
      {"normalizer", {{"type", "Prepend"}, {"prepend", std::string(8 << 20, 'b')}}},
      {"pre_tokenizer", Chain("pretokenizers", byte_level, 32)},
  };
  std::string text = "aaaa";
  for (int i = 0; i < 4; ++i) text += text + "\u00E9";
  for (const auto& [key, chain] : chains) {
    const auto tokenizer = NewTokenizer(SmallFile({{key, chain}}).dump());
    ASSERT_NE(tokenizer, nullptr);
    const auto ids = tokenizer->Encode(text, {.add_special_tokens = false});
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kResourceExhausted) << key;
    EXPECT_THAT(std::string(ids.status().message()), HasSubstr(std::string("tokenizer.json: ") + key));
  }
  // The budget is one for the whole text, in however many parts it is encoded.
  json file = SmallFile({{"normalizer", {{"type", "Prepend"}, {"prepend", std::string(500'000, 'b')}}}});
  file["added_tokens"] = {{{"id", 3}, {"content", "x"}, {"normalized", false}}};
  const auto tokenizer = NewTokenizer(file.dump());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(tokenizer->Encode("axa", {.add_special_tokens = false}).ok());
  EXPECT_EQ(tokenizer->Encode("axaxaxaxa", {.add_special_tokens = false}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(TokenizerLimits, AddedTokensThatGrowAreRefused) {
  json file = SmallFile({{"normalizer", Chain("normalizers", Doubling(), 30)}});
  file["added_tokens"] = {{{"id", 3}, {"content", "aaa"}, {"normalized", true}}};
  const absl::Status status = LoadStatus(file);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.json: normalizer"));
}

TEST(TokenizerLimits, DecodersThatGrowAreRefused) {
  const json regex = {{"type", "Replace"}, {"pattern", {{"Regex", ""}}}, {"content", "aa"}};
  EXPECT_TRUE(LoadStatus(SmallFile({{"decoder", Chain("decoders", Doubling(), 6)}})).ok());
  for (const json& chain : {Chain("decoders", Doubling(), 7), Chain("decoders", regex, 3)}) {
    EXPECT_THAT(std::string(LoadStatus(SmallFile({{"decoder", chain}})).message()),
                HasSubstr("x.json: decoder: can make a text more than 64 times as long"));
  }
}

TEST(TokenizerLimits, PatternCallsAreRefused) {
  std::string bomb;
  for (int i = 0; i < 40; ++i) {
    const std::string next = std::to_string(i + 1);
    bomb += "(?<g" + std::to_string(i) + ">\\g<g" + next + ">\\g<g" + next + ">)";
  }
  for (const std::string& regex : {bomb + "(?<g40>a)", std::string(R"((?<x>a\g<x>?b)|a)"), std::string(R"(\\\g'1')")}) {
    EXPECT_THAT(std::string(LoadStatus(SmallFile({{"pre_tokenizer", SplitAt(regex)}})).message()),
                HasSubstr("pre_tokenizer.pattern: regular expressions with calls"));
  }
  EXPECT_TRUE(LoadStatus(SmallFile({{"pre_tokenizer", SplitAt(R"(\\g)")}})).ok());  // a backslash and a g
}

// About half a second on a processor of 2025; slow ones, and sanitizers, may take several times that. Without a budget
// each of these patterns takes 5e9 steps or more on 100,000 letters.
constexpr double kSoon = 6;

// Both kinds: retries that explode, and a long look ahead from every position.
TEST(TokenizerLimits, SlowPatternsAreRefusedSoon) {
  const std::string text(100'000, 'a');
  for (const char* regex : {"(a+)+c", "(a+)+c|a", "a[^c]*c|a", "a[^c]*c", "a(?=.*c)|a", "(a|aa)+c|a", "a.*a.*a.*c|a"}) {
    const auto tokenizer = NewTokenizer(SmallFile({{"pre_tokenizer", SplitAt(regex)}}).dump());
    ASSERT_NE(tokenizer, nullptr);
    absl::Status status;
    EXPECT_LT(Seconds([&] { status = tokenizer->Encode(text, {.add_special_tokens = false}).status(); }), kSoon)
        << regex;
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << regex;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tokenizer.json: pre_tokenizer: a pattern"));
    EXPECT_TRUE(tokenizer->Encode(std::string(10, 'a'), {.add_special_tokens = false}).ok()) << regex;
  }
}

// The budget is one for all the pieces that a text is cut into.
TEST(TokenizerLimits, SlowPatternsOnManyPiecesAreRefusedSoon) {
  const json steps = {{{"type", "WhitespaceSplit"}}, SplitAt("(a+)+c|a")};
  const json file = SmallFile({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}}});
  const auto tokenizer = NewTokenizer(file.dump());
  ASSERT_NE(tokenizer, nullptr);
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "aaaaaaaaaaaaaaa ";
  absl::Status status;
  EXPECT_LT(Seconds([&] { status = tokenizer->Encode(text, {.add_special_tokens = false}).status(); }), kSoon);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

std::unique_ptr<Tokenizer> WithAddedToken(const std::string& content, const json& flags) {
  json file = SmallFile(json::object());
  json token = {{"id", 3}, {"content", content}, {"normalized", false}};
  token.update(flags);
  file["added_tokens"] = {token};
  return NewTokenizer(file.dump());
}

// Four times the text takes about four times as long; quadratic work took over ten seconds.
TEST(TokenizerLimits, AddedTokensAreFoundInLinearTime) {
  const auto long_token = WithAddedToken(std::string(70'000, 'a') + "b", json::object());
  const auto lstrip = WithAddedToken("  ", {{"lstrip", true}});
  const auto rstrip = WithAddedToken("  ", {{"rstrip", true}});
  for (const auto& [tokenizer, c] : {std::pair(&long_token, 'a'), std::pair(&lstrip, ' '), std::pair(&rstrip, ' ')}) {
    ASSERT_NE(*tokenizer, nullptr);
    const auto encode = [&, &tokenizer = *tokenizer, c = c](size_t bytes) {
      return Seconds(
          [&] { EXPECT_TRUE(tokenizer->Encode(std::string(bytes, c), {.add_special_tokens = false}).ok()); });
    };
    EXPECT_LT(encode(400'000), 10 * encode(100'000) + 0.5);
  }
  EXPECT_EQ(EncodeOrFail(*long_token, "b" + std::string(70'001, 'a') + "ba", false), (Ids{1, 0, 3, 0}));
}

// What the matcher finds is the leftmost of the longest, however the tokens overlap.
TEST(TokenizerLimits, AddedTokensThatOverlap) {
  json file = SmallFile(json::object());
  const std::vector<std::string> tokens = {"ab", "aba", "babab", "bb", "abbbba", "aa"};
  file["added_tokens"] = json::array();
  for (size_t i = 0; i < tokens.size(); ++i) {
    file["added_tokens"].push_back({{"id", 3 + i}, {"content", tokens[i]}, {"normalized", false}});
  }
  const auto tokenizer = NewTokenizer(file.dump());
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 24, 'a');
    for (char& c : text) c = random() % 2 == 0 ? 'a' : 'b';
    Ids expected;
    for (size_t at = 0; at < text.size();) {
      size_t length = 0;
      int32_t id = text[at] - 'a';
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i].size() <= length || text.compare(at, tokens[i].size(), tokens[i]) != 0) continue;
        length = tokens[i].size();
        id = static_cast<int32_t>(3 + i);
      }
      expected.push_back(id);
      at += std::max<size_t>(length, 1);
    }
    ASSERT_EQ(EncodeOrFail(*tokenizer, text, false), expected) << text;
  }
}

TEST(TokenizerLimits, TooMuchOfSomethingIsRefused) {
  json merge = SmallFile(json::object());
  merge["model"]["merges"] = {std::string(100'000, ' ')};
  json affix = SmallFile(json::object());
  affix["model"]["continuing_subword_prefix"] = std::string(100'000, 'b');
  json added = SmallFile(json::object());
  added["added_tokens"] = {{{"id", 3}, {"content", std::string(5 << 20, 'a')}, {"normalized", false}}};
  const json piece = {{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}};
  const json special = {{"id", "x"}, {"ids", json(std::vector<int>(1000))}, {"tokens", json::array()}};
  const json post = {{"type", "TemplateProcessing"},
                     {"single", {piece, piece, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                     {"special_tokens", {{"x", special}}}};
  const json literal = {{"type", "Replace"}, {"pattern", {{"String", std::string(2000, 'a')}}}, {"content", ""}};
  const std::pair<json, const char*> files[] = {
      {merge, "model.merges[0]: is too long"},
      {affix, "model: a subword prefix or suffix"},
      {added, "added_tokens hold more than 4194304 bytes"},
      {SmallFile({{"post_processor", post}}), "the template adds more than 1024 ids"},
      {SmallFile({{"normalizer", literal}}), "normalizer.pattern: string to look for longer than 1 KiB"},
  };
  for (const auto& [file, message] : files) {
    EXPECT_THAT(std::string(LoadStatus(file).message()), HasSubstr(message));
  }
}

TEST(TokenizerLimits, LargeFilesAreRefusedBeforeTheyTakeMemory) {
  const std::string head = "{\"model\": [";
  std::string values = head;
  for (int i = 0; i < (8 << 20) + 10; ++i) values += "0,";
  const std::pair<std::string, const char*> files[] = {
      {head + std::string(65 << 20, ' '), "x.json: larger than 67108864 bytes"},
      {values + "0]}", "x.json: more than 8388608 JSON values"},
  };
  for (const auto& [text, message] : files) {
    EXPECT_THAT(std::string(Tokenizer::FromJson(text, "x.json").status().message()), HasSubstr(message));
  }
}

// Pointers to the values of a file: all of its steps and options, and as many tokens and merges.
std::vector<std::string> Places(const json& file) {
  std::vector<std::string> options, entries;
  const json flat = file.flatten();
  for (const auto& [path, unused] : flat.items()) {
    const bool is_entry = path.starts_with("/model/vocab") || path.starts_with("/model/merges");
    (is_entry ? entries : options).push_back(path);
  }
  const size_t stride = std::max<size_t>(1, entries.size() / options.size());
  for (size_t i = 0; i < entries.size(); i += stride) options.push_back(entries[i]);
  return options;
}

std::string ChangeValue(json file, const std::string& place, std::mt19937* random) {
  const char* values[] = {"null",
                          "[]",
                          "{}",
                          "-1",
                          "0",
                          "7",
                          "1e300",
                          "true",
                          R"("")",
                          R"("a")",
                          R"("Sequence")",
                          R"("(")",
                          R"("a*")",
                          R"("\u0120")",
                          R"("ByteLevel")",
                          R"([["a"]])",
                          R"({"type":"Fuse"})",
                          "4194303",
                          "18446744073709551615"};
  json::json_pointer pointer(place);
  while (!pointer.empty() && (*random)() % 4 == 0) pointer.pop_back();
  file[pointer] = json::parse(values[(*random)() % std::size(values)]);
  return file.dump();
}

std::string ChangeBytes(std::string text, std::mt19937* random) {
  // The steps stand at the front, before the vocabulary.
  const size_t at = (*random)() % ((*random)() % 2 == 0 ? 4000 : text.size());
  if ((*random)() % 4 == 0) {
    text.erase(at, 1 + (*random)() % 8);
  } else {
    text[at] = static_cast<char>((*random)() % 4 == 0 ? (*random)() : 'a' + (*random)() % 26);
  }
  return text;
}

TEST(TokenizerLimits, ChangedFilesLoadOrFailSoon) {
  const std::string good_text = ReadFile(std::string(LLMC_TEST_DATA) + "/tale-7m/tokenizer.json");
  const json good = json::parse(good_text);
  const std::vector<std::string> places = Places(good);
  std::mt19937 random(11);
  int read = 0;
  for (int i = 0; i < 500; ++i) {
    const std::string text =
        i % 2 == 0 ? ChangeBytes(good_text, &random) : ChangeValue(good, places[random() % places.size()], &random);
    const double seconds = Seconds([&] {
      const auto tokenizer = Tokenizer::FromJson(text, "x.json");
      if (!tokenizer.ok()) {
        EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("x.json: "));
        return;
      }
      ++read;
      const auto ids = (*tokenizer)
                           ->Encode("Once upon a time,  42 caf\u00E9s \U0001F600<|end_of_text|>\xFF",
                                    {.parse_special_tokens = true});
      if (ids.ok()) DecodeByPieces(**tokenizer, *ids, false);
    });
    EXPECT_LT(seconds, 5) << "change " << i;
  }
  EXPECT_GT(read, 50);
  EXPECT_LT(read, 450);
}

}  // namespace
}  // namespace llmc
