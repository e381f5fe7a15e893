#include "tests/runtime/text/test_util.h"

#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "runtime/text/utf8.h"

namespace llmc {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json ReadGolden(const std::string& name) {
  return nlohmann::json::parse(ReadFile("tests/runtime/text/golden/" + name));
}

std::unique_ptr<Tokenizer> NewTokenizer(const std::string& json) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::FromJson(json, "tokenizer.json");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> ShippedTokenizer() {
  return NewTokenizer(ReadFile(std::string(LLMC_TEST_DATA) + "/tale-7m/tokenizer.json"));
}

nlohmann::json BpeModelJson(const nlohmann::json& vocab, const nlohmann::json& merges) {
  return {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
}

nlohmann::json TokenizerJson(const nlohmann::json& model) { return {{"version", "1.0"}, {"model", model}}; }

std::vector<int32_t> EncodeOrFail(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens) {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(
      text, {.add_special_tokens = add_special_tokens, .parse_special_tokens = true, .repeat_bos = true});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : std::vector<int32_t>{-1};
}

std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, const std::string& text) {
  absl::StatusOr<std::vector<int32_t>> ids =
      tokenizer.Encode(text, {.add_special_tokens = false, .parse_special_tokens = false});
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *std::move(ids) : std::vector<int32_t>{-1};
}

std::string DecodeByPieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  StreamDecoder decoder(tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = decoder.Push(id);
    EXPECT_TRUE(IsValidUtf8(piece)) << "a cut character in the piece of id " << id;
    text += piece;
  }
  return text + decoder.Finish();
}

}  // namespace llmc
