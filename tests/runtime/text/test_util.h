// Helpers of the tokenizer tests.
#ifndef LLMC_TESTS_RUNTIME_TEXT_TEST_UTIL_H_
#define LLMC_TESTS_RUNTIME_TEXT_TEST_UTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer.h"

namespace llmc {

// The file's bytes; fails the test if it cannot be read.
std::string ReadFile(const std::string& path);

// A file of golden/, parsed.
nlohmann::json ReadGolden(const std::string& name);

// The tokenizer of a tokenizer.json; fails the test and returns nullptr if it is refused.
std::unique_ptr<Tokenizer> NewTokenizer(const std::string& json);
std::unique_ptr<Tokenizer> ShippedTokenizer();

// A BPE model over `vocab`, and a whole file around a model.
nlohmann::json BpeModelJson(const nlohmann::json& vocab, const nlohmann::json& merges);
nlohmann::json TokenizerJson(const nlohmann::json& model);

// The ids, or the error's text in a list that equals no golden one.
std::vector<int32_t> EncodeOrFail(const Tokenizer& tokenizer, const std::string& text, bool add_special_tokens);

// The same where special tokens that are spelled out in the text are text.
std::vector<int32_t> EncodePlain(const Tokenizer& tokenizer, const std::string& text);

// Decodes token by token; fails the test if a piece is not whole characters.
std::string DecodeByPieces(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens);

}  // namespace llmc

#endif  // LLMC_TESTS_RUNTIME_TEXT_TEST_UTIL_H_
