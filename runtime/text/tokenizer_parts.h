// What a tokenizer is made of. Every format of tokenizer files is read into these parts.
#ifndef LLMC_RUNTIME_TEXT_TOKENIZER_PARTS_H_
#define LLMC_RUNTIME_TEXT_TOKENIZER_PARTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "runtime/text/added_tokens.h"
#include "runtime/text/decoder.h"
#include "runtime/text/json_node.h"
#include "runtime/text/model.h"
#include "runtime/text/normalizer.h"
#include "runtime/text/post_processor.h"
#include "runtime/text/pre_tokenizer.h"
#include "runtime/text/text_budget.h"
#include "runtime/text/tokenizer_config.h"

namespace llmc {

// Immutable once read, so thread safe.
struct TokenizerParts {
  std::string name;                             // of the file, for errors
  std::unique_ptr<Normalizer> normalizer;       // or nullptr
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // or nullptr
  std::unique_ptr<TokenModel> model;
  absl::optional<PostProcessor> post_processor;
  Decoder decoder = Decoder::JoinWithSpaces();
  AddedTokenMatcher raw_tokens;         // looked for before normalization
  AddedTokenMatcher normalized_tokens;  // and behind it
  absl::flat_hash_map<std::string, int32_t> added_ids;
  absl::flat_hash_set<int32_t> symbols;  // ids that the normalizer and the model find as they stand
  std::vector<std::string> texts;        // by id
  std::vector<bool> exists;              // by id
  std::vector<bool> special;             // by id
  absl::optional<int32_t> eos_token_id;
  ByteLevelWords byte_level_words;      // with a matcher: words are cut and encoded without an alphabet between
  std::vector<std::string> byte_texts;  // by id, if all that decodes is byte-level: the tokens' bytes

  // `steps` has the keys "normalizer", "pre_tokenizer", "post_processor", "decoder" and "added_tokens" of a
  // tokenizer.json; those that are absent are not there.
  absl::Status Read(const JsonNode& steps, std::unique_ptr<TokenModel> token_model);
  // The tokens that `config` names are put around texts as it says.
  void Apply(const TokenizerConfig& config);

  absl::optional<int32_t> TokenId(absl::string_view token) const;

  // Encodes text without raw added tokens. `at_start`: the whole text begins here.
  absl::Status EncodeBetween(absl::string_view text, bool at_start, const EncodeOptions& options, TextBudget* budget,
                             std::vector<int32_t>* ids) const;

 private:
  absl::Status ReadSteps(const JsonNode& root);
  absl::Status ReadAddedTokens(const JsonNode& root);
  absl::Status AddToken(const JsonNode& node, const AddedToken& token);
  absl::Status CheckPostProcessor(const JsonNode& root) const;
  void Resize(int32_t size);
  absl::Status EncodeWords(absl::string_view text, bool at_start, TextBudget* budget, std::vector<int32_t>* ids) const;
  // The same where words between white space split alone.
  absl::Status EncodeSpacedWords(absl::string_view text, bool at_start, TextBudget* budget,
                                 std::vector<int32_t>* ids) const;
  // Encodes what a text was split into; `split`: whether it was.
  absl::Status EncodePieces(const absl::Status& split, const std::vector<Piece>& pieces,
                            std::vector<int32_t>* ids) const;
  // The same where there is a matcher.
  void EncodeByteLevelWords(absl::string_view text, std::vector<int32_t>* ids) const;
  // `status` with the file's name and the key of the step that failed.
  absl::Status At(absl::string_view key, const absl::Status& status) const;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_TOKENIZER_PARTS_H_
