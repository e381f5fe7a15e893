// Tokenizers of every format, against the packages that the formats come from (see make_format_golden.py); what of them
// is wrong; and the patterns of words that are matched by hand.
#include <algorithm>
#include <ctime>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/text/regex.h"
#include "runtime/text/utf8.h"
#include "runtime/text/word_matcher.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;
using testing::HasSubstr;

std::vector<TokenizerFile> FormatFiles(const json& format) {
  std::vector<TokenizerFile> files;
  for (const auto& [name, base64] : format["files"].items()) {
    std::string text;
    EXPECT_TRUE(absl::Base64Unescape(base64.get<std::string>(), &text)) << name;
    files.push_back({name, text});
  }
  return files;
}

// The files of one case of formats.json.
std::vector<TokenizerFile> FilesOfFormat(const std::string& name) {
  for (const json& format : ReadGolden("formats.json")) {
    if (format["name"] == name) return FormatFiles(format);
  }
  ADD_FAILURE() << "no format " << name;
  return {};
}

std::string ErrorOf(const std::vector<TokenizerFile>& files) {
  return std::string(Tokenizer::FromFiles(files, "m/").status().message());
}

TEST(TokenizerFormats, EachAgreesWithItsOwnPackage) {
  const json formats = ReadGolden("formats.json");
  ASSERT_GE(formats.size(), 23u);
  for (const json& format : formats) {
    SCOPED_TRACE(format["name"]);
    const std::vector<TokenizerFile> files = FormatFiles(format);
    for (const TokenizerFile& file : files) EXPECT_TRUE(Tokenizer::IsTokenizerFile(file.name)) << file.name;
    const auto tokenizer = Tokenizer::FromFiles(files, "m/");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    ASSERT_GT(format["cases"].size(), 40u);
    for (const json& c : format["cases"]) {
      const std::string text = c["text"];
      EXPECT_EQ(EncodePlain(**tokenizer, text), c["ids"].get<Ids>()) << c["text"];
      if (!c.contains("ids_with_special")) continue;
      const auto ids = (*tokenizer)->Encode(text, EncodeOptions());
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, c["ids_with_special"].get<Ids>()) << c["text"];
    }
    for (const json& c : format["decoded"]) {
      EXPECT_EQ((*tokenizer)->Decode(c["ids"].get<Ids>(), true), c["text"]) << c["ids"];
      EXPECT_EQ(DecodeByPieces(**tokenizer, c["ids"].get<Ids>(), true), c["text"]) << c["ids"];
    }
  }
}

TEST(TokenizerFormats, TheFirstOfSeveralFormatsCounts) {
  std::vector<TokenizerFile> files = FilesOfFormat("vocab.txt");
  files.push_back({"README.md", "nothing"});
  files.push_back({"tokenizer.json", TokenizerJson(BpeModelJson({{"x", 7}}, json::array())).dump()});
  const auto tokenizer = Tokenizer::FromFiles(files, "m/");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(EncodePlain(**tokenizer, "x"), Ids{7});
  EXPECT_FALSE(Tokenizer::IsTokenizerFile("README.md"));
  EXPECT_FALSE(Tokenizer::IsTokenizerFile("model.safetensors"));
  EXPECT_TRUE(absl::IsNotFound(Tokenizer::FromFiles({{"README.md", "nothing"}}, "m/").status()));
}

TEST(TokenizerFormats, FilesOfAFolderAreChosen) {
  using Names = std::vector<std::string>;
  const auto choose = [](Names names) {
    std::sort(names.begin(), names.end());
    return Tokenizer::ChooseFiles(names);
  };
  EXPECT_EQ(choose({"vocab.txt", "tokenizer.json", "merges.txt", "vocab.json"}), Names{"tokenizer.json"});
  EXPECT_EQ(choose({"tekken.json", "tokenizer.model.v3", "params.json"}), Names{"tekken.json"});
  EXPECT_EQ(choose({"consolidated.model", "tokenizer.model", "added_tokens.json"}),
            (Names{"tokenizer.model", "added_tokens.json"}));
  EXPECT_EQ(choose({"spiece.model", "merges.txt"}), Names{"spiece.model"});
  EXPECT_EQ(choose({"qwen.tiktoken", "vocab.txt"}), Names{"qwen.tiktoken"});
  EXPECT_EQ(choose({"vocab.txt", "merges.txt", "vocab.json"}), (Names{"vocab.json", "merges.txt"}));
  EXPECT_EQ(choose({"vocab.txt", "merges.txt"}), Names{"vocab.txt"});
  EXPECT_EQ(choose({"config.json", "merges.txt", "tokenizer_config.json", "added_tokens.json"}), Names{});
}

TEST(TokenizerFormats, TheClassMayComeFromTheModel) {
  const auto ids_with = [](const std::string& format, const std::string& config, const json& model) {
    std::vector<TokenizerFile> files;
    for (TokenizerFile& file : FilesOfFormat(format)) {
      if (file.name != "tokenizer_config.json") files.push_back(std::move(file));
    }
    files.push_back({"tokenizer_config.json", config});
    files.push_back({"config.json", model.is_null() ? "" : model.dump()});
    const auto tokenizer = Tokenizer::FromFiles(files, "m/");
    return tokenizer.ok() ? EncodeOrFail(**tokenizer, "the 12", true) : Ids{-1};
  };
  const Ids plain = ids_with("vocab.json", "", nullptr);
  const Ids wrapped = ids_with("RoBERTa", R"({"tokenizer_class": "RobertaTokenizer"})", nullptr);
  ASSERT_EQ(wrapped.size(), plain.size() + 2);
  EXPECT_EQ(ids_with("vocab.json", "", {{"model_type", "roberta"}}), wrapped);
  EXPECT_EQ(ids_with("vocab.json", "", {{"tokenizer_class", "RobertaTokenizerFast"}}), wrapped);
  EXPECT_EQ(ids_with("vocab.json", R"({"tokenizer_class": "PreTrainedTokenizerFast"})", {{"model_type", "roberta"}}),
            wrapped);
  EXPECT_EQ(ids_with("vocab.json", R"({"tokenizer_class": "GPT2Tokenizer"})", {{"model_type", "roberta"}}), plain);
  EXPECT_EQ(ids_with("vocab.json", "", {{"model_type", "gpt2"}}), plain);
  std::vector<TokenizerFile> files = FilesOfFormat("vocab.json");
  files.push_back({"config.json", R"({"model_type": "clip"})"});
  EXPECT_THAT(ErrorOf(files), HasSubstr("how tokenizer_class \"CLIPTokenizer\" cuts text into words is not known"));
  files.back().text = R"({"model_type": 3})";
  EXPECT_THAT(ErrorOf(files), HasSubstr("m/config.json: model_type"));
  files = FilesOfFormat("unigram with rules");
  files.push_back({"config.json", R"({"model_type": "mbart"})"});
  EXPECT_THAT(ErrorOf(files),
              HasSubstr("m/tokenizer.model: how tokenizer_class \"MBartTokenizer\" numbers the pieces"));
}

TEST(TokenizerFormats, SpecialTokensAreTextUnlessAskedFor) {
  for (const char* name : {"bpe with bytes and symbols", "unigram with bytes and symbols", "tekken"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = Tokenizer::FromFiles(FilesOfFormat(name), "m/");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    const int32_t end = (*tokenizer)->TokenId("</s>").value_or(-1);
    EXPECT_EQ((*tokenizer)->eos_token_id(), end);
    EXPECT_THAT(EncodePlain(**tokenizer, "a</s>b"), testing::Not(testing::Contains(end)));
    EXPECT_THAT(EncodeOrFail(**tokenizer, "a</s>b", false), testing::Contains(end));
    EXPECT_EQ((*tokenizer)->Decode({end}, true), "");
  }
  // Symbols of the model that the config calls special.
  for (const char* name : {"bpe with bytes and symbols", "unigram with bytes and symbols"}) {
    SCOPED_TRACE(name);
    std::vector<TokenizerFile> files = FilesOfFormat(name);
    const int32_t id = (*Tokenizer::FromFiles(files, "m/"))->TokenId("<sep>").value_or(-1);
    EXPECT_THAT(EncodePlain(**Tokenizer::FromFiles(files, "m/"), "a<sep>b"), testing::Contains(id));
    const json token = {{"content", "<sep>"}, {"special", true}, {"normalized", false}};
    files.push_back({"tokenizer_config.json", json({{"added_tokens_decoder", {{absl::StrCat(id), token}}}}).dump()});
    const auto tokenizer = Tokenizer::FromFiles(files, "m/");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_THAT(EncodePlain(**tokenizer, "a<sep>b"), testing::Not(testing::Contains(id)));
    EXPECT_THAT(EncodeOrFail(**tokenizer, "a<sep>b", false), testing::Contains(id));
  }
  // A model that could spell a special token.
  json file = TokenizerJson({{"type", "Unigram"}, {"unk_id", 0}});
  file["model"]["vocab"] = json::parse(R"([["?", 0], ["<e>", 9], ["<", 0], ["e", 0]])");
  file["added_tokens"] = {{{"id", 1}, {"content", "<e>"}, {"special", true}}};
  const auto unigram = NewTokenizer(file.dump());
  ASSERT_NE(unigram, nullptr);
  EXPECT_EQ(EncodePlain(*unigram, "<e>"), (Ids{2, 3, 0}));
  EXPECT_EQ(EncodeOrFail(*unigram, "<e>", false), Ids{1});
}

TEST(TokenizerFormats, AddedTokensOfTheConfig) {
  std::vector<TokenizerFile> files = FilesOfFormat("vocab.json");
  files.push_back({"tokenizer_config.json",
                   R"({"added_tokens_decoder": {"900": {"content": "<|x|>", "special": true, "normalized": false}},
                       "eos_token": "<|x|>", "add_eos_token": true})"});
  files.push_back({"added_tokens.json", R"({"<y>": 901})"});
  const auto tokenizer = Tokenizer::FromFiles(files, "m/");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(EncodeOrFail(**tokenizer, "<|x|><y>", true), (Ids{900, 901, 900}));
}

struct WrongFormat {
  const char* format;
  const char* file;
  std::string from, to;  // replaced in the file's bytes; an empty `from` stands for all of them
  const char* message;
};

TEST(TokenizerFormats, WrongFilesAreNamed) {
  // Messages of pieces: one with a score that is not a number, two with the same text.
  const std::string piece(
      "\x0A\x03\x0A\x01"
      "a");
  const std::string nan(
      "\x0A\x08\x0A\x01"
      "a\x15\x00\x00\xC0\x7F",
      10);
  const WrongFormat wrong_files[] = {
      {"gpt2", "gpt2.tiktoken", "AA== 0\n", "AA= 0\n", "m/gpt2.tiktoken: line 1: must begin with a token in base64"},
      {"gpt2", "gpt2.tiktoken", "AA== 0\n", "AA==\n", "line 1: must end with a rank from 0 to"},
      {"gpt2", "gpt2.tiktoken", "AQ== 1\n", "AQ== -1\n", "line 2: must end with a rank"},
      {"gpt2", "gpt2.tiktoken", "AQ== 1\n", "AQ== 99999999999\n", "line 2: must end with a rank"},
      {"gpt2", "gpt2.tiktoken", "AQ== 1\n", "AQ== 0\n", "line 2: another line has the same rank 0"},
      {"gpt2", "gpt2.tiktoken", "AQ== 1\n", "AA== 1\n", "tokens 0 and 1 have the same text"},
      {"gpt2", "gpt2.tiktoken", "AQ== 1\n", "", "m/gpt2.tiktoken: not each of the 256 bytes is a token"},
      {"own pattern", "tokenizer_config.json", "pat_str", "x", "does not say how text is cut into words"},
      {"own pattern", "tokenizer_config.json", "{1,3}+", "(", "m/tokenizer.model: the pattern of words: bad regular"},
      {"tekken", "tekken.json", "\"rank\": 5,", "\"rank\": 6,", "m/tekken.json: vocab[5]: has rank 6, not 5"},
      {"tekken", "tekken.json", "\"AQ==\"", "\"A\"", "m/tekken.json: vocab[1]: token_bytes is not base64"},
      {"tekken", "tekken.json", "\"default_vocab_size\": 376", "\"default_vocab_size\": 4000",
       "the config asks for 3960"},
      {"tekken", "tekken.json", "special_tokens\": 40", "special_tokens\": 400000000", "must be from 1 to 65536"},
      {"tekken", "tekken.json", "\"version\": \"v3\"}", "\"version\": \"v3\"}, \"special_tokens\": [{\"rank\": 40}]",
       "special_tokens[0].rank: must be from 0 to 39"},
      {"vocab.txt", "vocab.txt", "##re", "the", "m/vocab.txt: line 7: the token \"the\" is there already"},
      {"vocab.txt", "vocab.txt", "[UNK]", "x", "the unknown token \"[UNK]\" is not in the vocabulary"},
      {"vocab.txt", "vocab.txt", "##llo", "\xFF", "m/vocab.txt: is not UTF-8"},
      {"vocab.txt", "vocab.txt", "[CLS]", "x", "needs the tokens [CLS] and [SEP]"},
      {"vocab.json", "merges.txt", "a b\n", "a zz\n", "m/merges.txt: merges[3]: token \"zz\" is not in model.vocab"},
      {"vocab.json", "merges.txt", "", "", "m/vocab.json: needs merges.txt beside it"},
      {"vocab.json", "vocab.json", "\"a\": ", "\"a\": -", "the id of token \"a\" must be an integer"},
      {"RoBERTa", "tokenizer_config.json", "Roberta", "Other", "tokenizer_class \"OtherTokenizer\" cuts text"},
      {"bpe as it is", "tokenizer.model", "", nan, "the score of piece 0 is not a finite number"},
      {"bpe as it is", "tokenizer.model", "\x18\x02", "\x18\x03", "unknown pieces, not one"},
      {"bpe as it is", "tokenizer.model", "\x18\x02", "\x18\x09", "piece 0 has the unknown type 9"},
      {"bpe as it is", "tokenizer.model", "", piece + piece, "pieces 0 and 1 have the same text"},
      {"bpe as it is", "tokenizer.model", "", "\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F", "longer than what is left"},
      {"bpe as it is", "tokenizer.model", "", "\x0B", "a field of a type that is not read at byte 1 of 1"},
      {"bpe as it is", "tokenizer.model", "", std::string("\x0A\x00", 2), "piece 0 is empty or not UTF-8"},
  };
  for (const WrongFormat& wrong : wrong_files) {
    SCOPED_TRACE(absl::StrCat(wrong.format, ": ", wrong.message));
    std::vector<TokenizerFile> files = FilesOfFormat(wrong.format);
    ASSERT_EQ(ErrorOf(files), "");
    for (TokenizerFile& file : files) {
      if (file.name != wrong.file) continue;
      const size_t at = wrong.from.empty() ? 0 : file.text.find(wrong.from);
      ASSERT_NE(at, std::string::npos);
      file.text.replace(at, wrong.from.empty() ? std::string::npos : wrong.from.size(), wrong.to);
    }
    EXPECT_THAT(ErrorOf(files), HasSubstr(wrong.message));
    EXPECT_THAT(ErrorOf(files), HasSubstr("m/"));
  }
}

// Whatever a file is cut to, or a byte of it becomes, it is refused with its name or it works.
TEST(TokenizerFormats, CutAndChangedFilesLoadOrFail) {
  std::mt19937 random(3);
  int refused = 0, read = 0;
  for (const char* name : {"bpe with rules", "unigram with rules", "unigram with bytes and symbols", "gpt2", "tekken",
                           "vocab.txt", "vocab.json"}) {
    const std::vector<TokenizerFile> good = FilesOfFormat(name);
    for (int round = 0; round < 120; ++round) {
      std::vector<TokenizerFile> files = good;
      std::string& text = files[random() % files.size()].text;
      const size_t at = random() % text.size();
      if (round % 3 == 0) {
        text.resize(at);
      } else {
        text[at] = static_cast<char>(random());
      }
      const auto tokenizer = Tokenizer::FromFiles(files, "m/");
      if (!tokenizer.ok()) {
        ++refused;
        EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("m/"));
        continue;
      }
      ++read;
      const auto ids = (*tokenizer)->Encode("  the <sep>\uFB01 ab\u0301 12\n\xFF", {.parse_special_tokens = true});
      if (ids.ok()) DecodeByPieces(**tokenizer, *ids, false);
    }
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(read, 100);
}

constexpr char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::string RandomText(std::mt19937* random) {
  static const char* const kParts[] = {"'s",  "'LL",    "'Ve",        "'\u017F", "'",          "a",         "bc",
                                       "Z",   "\u00E9", "\u01C5",     "\u02B0",  "\u4E2D",     "\u0301",    "\u0903",
                                       "1",   "\u00B2", "\u2167",     "12345",   " ",          "  ",        "\t",
                                       "\r",  "\n",     "\u00A0",     "\u3000",  "\u2028",     "!",         "/",
                                       "...", "\u2019", "\U0001F600", "\u200D",  "\U0001D400", "\U0001D7D8"};
  std::string text;
  for (auto parts = (*random)() % 14; parts > 0; --parts) {
    if ((*random)() % 8 > 0) {
      text += kParts[(*random)() % std::size(kParts)];
      continue;
    }
    const char32_t c = (*random)() % ((*random)() % 2 == 0 ? 0x3000 : 0x110000);
    if (c < 0xD800 || c > 0xDFFF) AppendUtf8(c, &text);
  }
  return text;
}

// In a group the same pattern is not a known one, so the regular expression does the work.
TEST(TokenizerFormats, WordsByHandAreThoseOfTheRegularExpression) {
  const std::string qwen2 =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::string o200k = kO200k;
  const std::pair<std::string, bool> patterns[] = {
      {kGpt2WordPattern, false},
      {qwen2, false},
      {absl::StrReplaceAll(qwen2, {{R"(\p{N}|)", R"(\p{N}{1,3}|)"}}), false},
      {o200k, false},
      {o200k, true},
      {absl::StrReplaceAll(o200k, {{"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", ""}, {R"(\p{N}{1,3})", R"(\p{N})"}}), true},
      {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)", true},
      {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n])"
       R"(|\s+(?!\S)|\s)",
       true}};
  const auto compile = [](const std::string& pattern, bool rust) {
    return rust ? Pattern::FromRustRegex(pattern) : Pattern::FromRegex(pattern);
  };
  for (const auto& [pattern, rust] : patterns) {
    SCOPED_TRACE(pattern);
    const auto by_hand = compile(pattern, rust);
    const auto by_regex = compile("(?:" + pattern + ")", rust);
    ASSERT_TRUE(by_hand.ok() && by_regex.ok()) << by_regex.status();
    ASSERT_NE(by_hand->word_matcher(), nullptr);
    ASSERT_EQ(by_regex->word_matcher(), nullptr);
    std::mt19937 random(17);
    for (int round = 0; round < 4000; ++round) {
      const std::string text = RandomText(&random);
      TextBudget budget(text.size());
      const auto words = by_hand->FindAll(text, &budget), expected = by_regex->FindAll(text, &budget);
      ASSERT_TRUE(words.ok() && expected.ok()) << expected.status();
      ASSERT_EQ(words->size(), expected->size()) << absl::CHexEscape(text);
      for (size_t i = 0; i < words->size(); ++i) {
        ASSERT_EQ((*words)[i].begin, (*expected)[i].begin) << absl::CHexEscape(text);
        ASSERT_EQ((*words)[i].end, (*expected)[i].end) << absl::CHexEscape(text);
      }
    }
  }
}

// Words cut by hand, bytes without an alphabet and a cache of words, against the same tokenizer whose pattern stands in
// a group, and so takes none of these ways.
TEST(TokenizerFormats, TheFastWayAndTheSlowOneAgree) {
  const json shipped = json::parse(ReadFile(std::string(LLMC_TEST_DATA) + "/tale-7m/tokenizer.json"));
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  std::mt19937 random(23);
  std::string text;
  while (text.size() < 200'000) text += RandomText(&random);
  for (const std::string& pattern : {std::string(kGpt2WordPattern), std::string(kO200k)}) {
    std::vector<Ids> ids;
    for (const std::string& written : {pattern, "(?:" + pattern + ")"}) {
      json file = shipped;
      const json split = {{"type", "Split"}, {"pattern", {{"Regex", written}}}, {"behavior", "Isolated"}};
      file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
      const auto tokenizer = NewTokenizer(file.dump());
      ASSERT_NE(tokenizer, nullptr);
      ids.push_back(EncodePlain(*tokenizer, text));
      EXPECT_EQ(tokenizer->Decode(ids.back(), false), DecodeByPieces(*tokenizer, ids.back(), false));
    }
    EXPECT_GT(ids[0].size(), 1000u);
    EXPECT_EQ(ids[0], ids[1]);
  }
}

// A token with a mark inside forbids to cut a text before its marks; one that nothing merges into changes no ids.
TEST(TokenizerFormats, TextIsCutBeforeMarksOnlyWhereNothingMergesAcross) {
  const json merges = {"\u2581 a", "a b", "\u2581 \u2581", "\u2581a b", "b b", "\u2581\u2581 \u2581a", "ab b"};
  json vocab = {{"?", 0}, {"a", 1}, {"b", 2}, {"\u2581", 3}};
  for (const std::string merge : merges) vocab[absl::StrReplaceAll(merge, {{" ", ""}})] = vocab.size();
  json model = BpeModelJson(vocab, merges);
  model["unk_token"] = "?";
  const auto cut = NewTokenizer(TokenizerJson(model).dump());
  model["vocab"]["b\u2581"] = vocab.size();
  const auto whole = NewTokenizer(TokenizerJson(model).dump());
  model["merges"].push_back("b \u2581");
  const auto across = NewTokenizer(TokenizerJson(model).dump());
  ASSERT_TRUE(cut != nullptr && whole != nullptr && across != nullptr);
  std::mt19937 random(29);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const char* const parts[] = {"a", "b", "\u2581", "\u2581", "x"};
    for (auto count = random() % 30; count > 0; --count) text += parts[random() % std::size(parts)];
    ASSERT_EQ(EncodePlain(*cut, text), EncodePlain(*whole, text)) << text;
  }
  EXPECT_EQ(EncodePlain(*across, "bb\u2581"), (Ids{whole->TokenId("bb").value_or(-1), 3}));
  EXPECT_EQ(EncodePlain(*across, "b\u2581"), Ids{across->TokenId("b\u2581").value_or(-1)});
}

double SecondsOf(const Tokenizer& tokenizer, const std::string& text) {
  const std::clock_t start = std::clock();
  EXPECT_TRUE(tokenizer.Encode(text, EncodeOptions()).ok());
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// Four times the text takes about four times as long, of one character and of random bytes.
TEST(TokenizerFormats, TimeIsNearLinear) {
  std::mt19937 random(31);
  std::string bytes(1 << 19, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  for (const char* name :
       {"bpe with bytes and symbols", "unigram with rules", "cl100k_base", "o200k_base", "vocab.txt"}) {
    const auto tokenizer = Tokenizer::FromFiles(FilesOfFormat(name), "m/");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (const std::string& text : {std::string(bytes.size(), 'a'), std::string(bytes.size(), ' '), bytes}) {
      EXPECT_LT(SecondsOf(**tokenizer, text), 10 * SecondsOf(**tokenizer, text.substr(0, text.size() / 4)) + 0.5)
          << name;
    }
  }
}

}  // namespace
}  // namespace llmc
