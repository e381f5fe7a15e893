// Models that look words up: WordPiece cuts a word into the longest tokens from its front, WordLevel takes it whole.
#ifndef LLMC_RUNTIME_TEXT_WORD_MODELS_H_
#define LLMC_RUNTIME_TEXT_WORD_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/byte_trie.h"
#include "runtime/text/json_node.h"
#include "runtime/text/model.h"

namespace llmc {

// As in BERT (arXiv:1810.04805).
class WordPieceModel : public TokenModel {
 public:
  struct Options {
    std::string unknown_token = "[UNK]";   // of a word that cannot be cut into tokens; InvalidArgument if there is none
    std::string continuing_prefix = "##";  // of the tokens behind the first one of a word
    int64_t max_input_chars = 100;         // longer words are unknown
  };

  static absl::StatusOr<WordPieceModel> FromJson(const JsonNode& node);
  static absl::StatusOr<WordPieceModel> FromVocab(Vocab vocab, const Options& options);

  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids) const override;
  void HideTokens(const std::vector<bool>& special) override { hidden_ = special; }

 private:
  ByteTrie first_;       // tokens at the front of a word
  ByteTrie continuing_;  // and behind, without their prefix
  int32_t unknown_id_ = 0;
  int64_t max_input_chars_ = 0;
  std::vector<bool> hidden_;  // by id
};

class WordLevelModel : public TokenModel {
 public:
  static absl::StatusOr<WordLevelModel> FromJson(const JsonNode& node);

  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids) const override;
  void HideTokens(const std::vector<bool>& special) override { hidden_ = special; }

 private:
  absl::optional<int32_t> unknown_id_;
  std::vector<bool> hidden_;  // by id
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_WORD_MODELS_H_
