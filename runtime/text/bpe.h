// Byte pair encoding of one word (arXiv:1508.07909), as the `BPE` model of Hugging Face tokenizers does it.
#ifndef LLMC_RUNTIME_TEXT_BPE_H_
#define LLMC_RUNTIME_TEXT_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "runtime/text/byte_trie.h"
#include "runtime/text/json_node.h"
#include "runtime/text/model.h"

namespace llmc {

class BpeModel : public TokenModel {
 public:
  // A token of a vocabulary without a list of merges (SentencePiece, tiktoken): any two neighbours whose texts together
  // are a token merge into it, those of the lowest rank first.
  struct Piece {
    enum Kind {
      kMerged,
      kWhole,   // not made of other tokens: found in the text as it stands, before anything is merged
      kUnmade,  // not made of text at all
    };
    std::string text;
    int32_t rank;
    Kind kind = kMerged;
  };
  struct Options {
    absl::optional<int32_t> unknown_id;
    bool byte_fallback = false;
    bool fuse_unknown = false;   // a run of unknown characters is one token
    bool ignore_merges = false;  // a word that is a token is that token, however its parts merge
    std::string continuing_prefix;
    std::string end_suffix;
  };

  // `node` is the key "model" of tokenizer.json.
  static absl::StatusOr<BpeModel> FromJson(const JsonNode& node);
  // Pieces by id; an empty text is an id without a token. InvalidArgument: two have the same text, one is longer than
  // 1 KiB or all than 8 MiB, or a character of a merged one is no piece itself.
  static absl::StatusOr<BpeModel> FromPieces(const std::vector<Piece>& pieces, const Options& options);

  // In time O(n log n). Characters that the vocabulary does not cover become byte tokens, else the unknown token, else
  // nothing.
  absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids) const override;
  void HideTokens(const std::vector<bool>& special) override;

  bool IsByteLevel() const override { return is_byte_level_; }
  void EncodeBytes(absl::string_view bytes, std::vector<int32_t>* ids) const override;

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };

  absl::Status ReadOptions(const JsonNode& node);
  absl::Status ReadMerges(const JsonNode& node);
  absl::Status AddTextMerge(const JsonNode& merges, absl::string_view text, int32_t rank);
  absl::Status AddMerge(const JsonNode& merges, absl::string_view left, absl::string_view right, int32_t rank);
  absl::Status AddPieceMerges(const Piece& piece, int32_t id);
  // Once, after the vocabulary, options and merges.
  void Prepare();

  static uint64_t PairKey(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  bool IsHidden(int32_t id) const { return static_cast<size_t>(id) < hidden_.size() && hidden_[id]; }
  const Merge* FindMerge(int32_t left, int32_t right) const;
  // Whether U+2581, SentencePiece's mark of a space, stands in tokens only at their front, so that nothing merges
  // across the place before one.
  bool MarksBeginTokens() const;
  // Encodes text that holds no whole piece, as words that begin with marks if that comes to the same.
  void EncodeWords(absl::string_view text, std::vector<int32_t>* ids) const;
  // Encodes such a word, or the text.
  void EncodePart(absl::string_view word, std::vector<int32_t>* ids) const;
  // The ids of the single characters of `word`.
  std::vector<int32_t> Characters(absl::string_view word) const;
  bool AppendBytes(absl::string_view text, std::vector<int32_t>* ids) const;
  // Merges the symbols from `first` to the end of `ids`.
  void MergeAll(size_t first, std::vector<int32_t>* ids) const;
  // In quadratic time, which is the fastest for few.
  void MergeFew(size_t first, std::vector<int32_t>* ids) const;
  void MergeMany(std::vector<Symbol>* symbols) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // by PairKey
  Options options_;
  std::vector<int32_t> byte_ids_;  // 256 entries if byte fallback is on; -1 where the vocabulary has none
  ByteTrie whole_;
  bool has_whole_ = false;
  bool is_byte_level_ = false;
  bool cuts_before_marks_ = false;
  std::array<int32_t, 256> alphabet_ids_;  // of byte-level's characters; -1: no such token
  Vocab words_;                            // by bytes, if merges are ignored and this is byte-level
  std::vector<bool> hidden_;               // by id
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_BPE_H_
