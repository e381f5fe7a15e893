// Real tokenizers that cannot be shipped: published vectors, and hashes of the ids of whole texts.
#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "runtime/text/utf8.h"
#include "tests/runtime/text/test_util.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

// The tokenizer of a folder. Its files do not say that they are Qwen2's.
std::unique_ptr<Tokenizer> LoadTokenizer(const std::string& name) {
  if (name == "tale-7m") return ShippedTokenizer();
  std::vector<TokenizerFile> files;
  for (const auto& entry : std::filesystem::directory_iterator(SharedData("tokenizers/" + name))) {
    const std::string file = entry.path().filename();
    if (Tokenizer::IsTokenizerFile(file)) files.push_back({file, ReadFile(entry.path())});
  }
  if (name == "qwen2") {
    json config = {{"tokenizer_class", "Qwen2Tokenizer"}};
    const json golden = ReadGolden("from_vocab.json")[name];
    for (const json& token : golden["added_tokens"]) {
      config["added_tokens_decoder"][token["id"].dump()] = token;
    }
    files.push_back({"tokenizer_config.json", config.dump()});
  }
  auto tokenizer = Tokenizer::FromFiles(files, name + "/");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

// The same, read once for all tests: some are of megabytes.
const Tokenizer* SharedTokenizer(const std::string& name) {
  static auto* tokenizers = new std::map<std::string, std::unique_ptr<Tokenizer>>();
  const auto [tokenizer, is_new] = tokenizers->try_emplace(name);
  if (is_new) tokenizer->second = LoadTokenizer(name);
  return tokenizer->second.get();
}

uint64_t Fnv(uint64_t hash, const std::string& bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

std::string LittleEndian(const Ids& ids) {
  std::string bytes;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(static_cast<uint32_t>(id) >> shift));
  }
  return bytes;
}

// The hashes of make_golden.py.
json LineHashes(const Tokenizer& tokenizer, const std::vector<std::string>& lines) {
  constexpr uint64_t kStart = 0xCBF29CE484222325;
  uint64_t ids_hash = kStart, text_hash = kStart;
  for (const std::string& line : lines) {
    Ids ids = EncodeOrFail(tokenizer, line, true);
    text_hash = Fnv(text_hash, tokenizer.Decode(ids, true) + "\n");
    ids.push_back(-1);
    ids_hash = Fnv(ids_hash, LittleEndian(ids));
  }
  return {{"ids", absl::StrFormat("%016x", ids_hash)}, {"text", absl::StrFormat("%016x", text_hash)}};
}

// The strings of random_lines() of make_golden.py.
std::vector<std::string> RandomLines() {
  static constexpr std::pair<char32_t, char32_t> kBlocks[] = {
      {0x00, 0x24F},    {0x20, 0x7E},     {0x20, 0x20},       {0x41, 0x7A},     {0x300, 0x36F},       {0x370, 0x52F},
      {0x620, 0x64A},   {0x904, 0x94D},   {0xE01, 0xE3A},     {0x1100, 0x11FF}, {0x2000, 0x206F},     {0x2190, 0x23FF},
      {0x3041, 0x30FF}, {0x4E00, 0x9FA5}, {0xAC00, 0xD7A3},   {0xD7FB, 0xD7FF}, {0xE000, 0xE003},     {0xFB00, 0xFDFF},
      {0xFE00, 0xFE0F}, {0xFF01, 0xFFEE}, {0x1F300, 0x1F64F}, {0x200D, 0x200D}, {0x10FFFE, 0x10FFFF}, {0x0A, 0x0D}};
  uint64_t state = 1;
  const auto draw = [&state](uint64_t below) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % below;
  };
  std::vector<std::string> lines(10'000);
  for (std::string& line : lines) {
    for (uint64_t runs = draw(6); runs > 0; --runs) {
      const auto& [first, last] = kBlocks[draw(std::size(kBlocks))];
      for (uint64_t chars = 1 + draw(4); chars > 0; --chars) {
        AppendUtf8(static_cast<char32_t>(first + draw(last - first + 1)), &line);
      }
    }
  }
  return lines;
}

std::vector<std::string> SharedLines(const std::string& text) {
  if (text == "random") return RandomLines();
  return absl::StrSplit(ReadFile(SharedData("text/" + text)), '\n');
}

class SharedTokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (SharedData("tokenizers").empty() || SharedData("text").empty())
      GTEST_SKIP() << "the shared test data is not there";
  }
};

TEST_F(SharedTokenizerTest, PublishedVectors) {
  const std::pair<const char*, const char*> vectors[] = {{"gpt2", "gpt-2"},
                                                         {"qwen2", "qwen2"},
                                                         {"roberta-base", "roberta-bpe"},
                                                         {"phi-3-mini", "phi-3"},
                                                         {"llama2", "llama-spm"}};
  for (const auto& [name, vector] : vectors) {
    SCOPED_TRACE(name);
    const Tokenizer* tokenizer = SharedTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    const std::string base = SharedData("tokenizers") + "/vectors/ggml-vocab-" + vector + ".gguf";
    const std::vector<std::string> texts = absl::StrSplit(ReadFile(base + ".inp"), "\n__ggml_vocab_test__\n");
    const std::vector<std::string> answers = absl::StrSplit(ReadFile(base + ".out"), '\n');
    ASSERT_GT(texts.size(), 40u);
    ASSERT_GE(answers.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      Ids expected;
      for (const auto& number : absl::StrSplit(answers[i], ' ', absl::SkipEmpty())) {
        ASSERT_TRUE(absl::SimpleAtoi(number, &expected.emplace_back()));
      }
      EXPECT_EQ(EncodeOrFail(*tokenizer, texts[i], false), expected) << texts[i];
    }
  }
}

TEST_F(SharedTokenizerTest, PublishedGpt2Text) {
  const Tokenizer* tokenizer = SharedTokenizer("gpt2");
  ASSERT_NE(tokenizer, nullptr);
  const json vector = json::parse(ReadFile(SharedData("tokenizers/vectors/gpt2_encoded_tokens.json")));
  const Ids ids = vector["token_ids"];
  EXPECT_EQ(EncodeOrFail(*tokenizer, vector["text"], false), ids);
  EXPECT_EQ(tokenizer->Decode(ids, false), vector["decoded_text"]);
}

TEST_F(SharedTokenizerTest, EveryThirdLineOfEveryText) {
  const json hashes = ReadGolden("hashes.json");
  ASSERT_EQ(hashes.size(), 4u);
  for (const auto& [text, by_tokenizer] : hashes.items()) {
    SCOPED_TRACE(text);
    std::vector<std::string> lines;
    const std::vector<std::string> all = SharedLines(text);
    for (size_t i = 0; i < all.size(); i += text == "random" ? 1 : 3) lines.push_back(all[i]);
    ASSERT_GT(lines.size(), 900u);
    ASSERT_EQ(by_tokenizer.size(), 9u);
    for (const auto& [name, expected] : by_tokenizer.items()) {
      const Tokenizer* tokenizer = SharedTokenizer(name);
      ASSERT_NE(tokenizer, nullptr) << name;
      EXPECT_EQ(LineHashes(*tokenizer, lines), expected) << name;
    }
  }
}

TEST_F(SharedTokenizerTest, ABookThereAndBack) {
  const std::vector<std::string> lines = SharedLines("books-valid.txt");
  const json hashes = ReadGolden("hashes.json");
  for (const auto& [name, unused] : hashes["books-valid.txt"].items()) {
    if (name == "bert" || name == "t5-small") continue;  // their normalizers lose what texts have
    SCOPED_TRACE(name);
    const Tokenizer* tokenizer = SharedTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string& line : lines) {
      const Ids ids = EncodeOrFail(*tokenizer, line, false);
      ASSERT_EQ(tokenizer->Decode(ids, false), line);
      ASSERT_EQ(DecodeByPieces(*tokenizer, ids, true), tokenizer->Decode(ids, true)) << line;
    }
  }
}

// Patterns that look behind what they match, and back, must not run out of their budget.
TEST_F(SharedTokenizerTest, AMegabyteOfOneCharacter) {
  for (const char* name : {"gpt2", "qwen2", "phi-2", "phi-3-mini", "roberta-base", "llama2", "t5-small", "bert"}) {
    const Tokenizer* tokenizer = SharedTokenizer(name);
    ASSERT_NE(tokenizer, nullptr) << name;
    for (const char* part : {"a", " \n", "1", "\u0301"}) {
      std::string text;
      while (text.size() < 1 << 20) text += part;
      EXPECT_TRUE(tokenizer->Encode(text, {.add_special_tokens = false}).ok()) << name << " \"" << part << '"';
    }
  }
}

}  // namespace
}  // namespace llmc
