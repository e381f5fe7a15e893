// The Unigram language model: of all ways to cut a word into tokens, the one with the best sum of scores.
#ifndef LLMC_RUNTIME_TEXT_UNIGRAM_H_
#define LLMC_RUNTIME_TEXT_UNIGRAM_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "runtime/text/byte_trie.h"
#include "runtime/text/json_node.h"
#include "runtime/text/model.h"

namespace llmc {

// Kudo, "Subword Regularization" (arXiv:1804.10959), section 3.2; the best cut by Viterbi's algorithm.
class UnigramModel : public TokenModel {
 public:
  struct Piece {
    std::string text;
    double score;                  // the logarithm of its probability
    bool is_matched = true;        // false: no text becomes it (a control token, say)
    bool is_user_defined = false;  // preferred to whatever else covers its bytes
  };
  struct Options {
    absl::optional<int32_t> unknown_id;  // of characters that no piece covers; a run of them is one token
    bool byte_fallback = false;          // they become tokens <0xHH> of their bytes, if all of those exist
    // SentencePiece adds scores up in float32 and takes the bytes of each character alone; the package tokenizers adds
    // in float64 and takes those of a whole run.
    bool as_sentencepiece = false;
  };

  // `node` is the key "model" of tokenizer.json.
  static absl::StatusOr<UnigramModel> FromJson(const JsonNode& node);
  // Pieces by id. Of equal texts the last counts. InvalidArgument: a score is not finite, or the unknown id is no
  // piece.
  static absl::StatusOr<UnigramModel> FromPieces(std::vector<Piece> pieces, const Options& options);

  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids) const override;
  void HideTokens(const std::vector<bool>& special) override;
  std::vector<std::pair<absl::string_view, int32_t>> Tokens() const override;

 private:
  class Search;

  void AppendUnknown(absl::string_view text, std::vector<int32_t>* ids) const;

  std::vector<Piece> pieces_;  // by id
  Options options_;
  ByteTrie trie_;
  // What the search reads of a piece.
  struct Score {
    double score = 0;
    bool is_user_defined = false;
    bool is_hidden = false;
  };
  std::vector<Score> scores_;      // by id
  std::vector<int32_t> byte_ids_;  // 256 entries with byte fallback; -1: no such token
  double unknown_score_ = 0;
  double best_score_ = 0;  // of all normal pieces
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_UNIGRAM_H_
