// Real tokenizers that cannot be shipped: published vectors, and hashes of the ids of a whole book.
#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/runtime/text/test_util.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;
using nlohmann::json;

// The tokenizer of a folder, built from its vocab.json and merges.txt where there is no tokenizer.json.
std::unique_ptr<Tokenizer> SharedTokenizer(const std::string& name) {
  const std::string folder = std::string(LLMC_SHARED_DATA) + "/tokenizers/" + name;
  if (std::filesystem::exists(folder + "/tokenizer.json")) return NewTokenizer(ReadFile(folder + "/tokenizer.json"));
  json file = ReadGolden("from_vocab.json")[name];
  file["model"]["vocab"] = json::parse(ReadFile(folder + "/vocab.json"));
  for (const auto& line : absl::StrSplit(ReadFile(folder + "/merges.txt"), '\n')) {
    if (!line.empty() && line.substr(0, 8) != "#version") file["model"]["merges"].push_back(std::string(line));
  }
  return NewTokenizer(file.dump());
}

uint64_t Fnv(uint64_t hash, int32_t id) {
  for (int shift = 0; shift < 32; shift += 8) {
    hash = (hash ^ (static_cast<uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3;
  }
  return hash;
}

class SharedTokenizerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::string(LLMC_SHARED_DATA) + "/tokenizers")) {
      GTEST_SKIP() << "needs the folders tokenizers and text in LLMC_SHARED_DATA";
    }
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
    const auto tokenizer = SharedTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    const std::string base = std::string(LLMC_SHARED_DATA) + "/tokenizers/vectors/ggml-vocab-" + vector + ".gguf";
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
  const auto tokenizer = SharedTokenizer("gpt2");
  ASSERT_NE(tokenizer, nullptr);
  const json vector =
      json::parse(ReadFile(std::string(LLMC_SHARED_DATA) + "/tokenizers/vectors/gpt2_encoded_tokens.json"));
  const Ids ids = vector["token_ids"];
  EXPECT_EQ(EncodeOrFail(*tokenizer, vector["text"], false), ids);
  EXPECT_EQ(tokenizer->Decode(ids, false), vector["decoded_text"]);
}

TEST_F(SharedTokenizerTest, EveryLineOfABook) {
  const std::vector<std::string> lines =
      absl::StrSplit(ReadFile(std::string(LLMC_SHARED_DATA) + "/text/books-valid.txt"), '\n');
  ASSERT_GT(lines.size(), 2000u);
  const json hashes = ReadGolden("hashes.json");
  ASSERT_FALSE(hashes.empty());
  for (const auto& [name, expected] : hashes.items()) {
    SCOPED_TRACE(name);
    const auto tokenizer = SharedTokenizer(name);
    ASSERT_NE(tokenizer, nullptr);
    uint64_t hash = 0xCBF29CE484222325;
    for (const std::string& line : lines) {
      const Ids ids = EncodeOrFail(*tokenizer, line, true);
      for (const int32_t id : ids) hash = Fnv(hash, id);
      hash = Fnv(hash, -1);
      ASSERT_EQ(DecodeByPieces(*tokenizer, ids, true), tokenizer->Decode(ids, true)) << line;
      ASSERT_EQ(tokenizer->Decode(EncodeOrFail(*tokenizer, line, false), false), line);
    }
    EXPECT_EQ(absl::StrFormat("%016x", hash), expected);
  }
}

}  // namespace
}  // namespace llmc
