// Byte pair encoding of one word, as the `BPE` model of Hugging Face tokenizers does it.
#ifndef LLMC_RUNTIME_TEXT_BPE_H_
#define LLMC_RUNTIME_TEXT_BPE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "runtime/text/json_node.h"

namespace llmc {

// Ids lie in [0, kMaxTokenId]: tables by id must not grow past about 150 MB for one wrong number in a file.
constexpr int32_t kMaxTokenId = (1 << 22) - 1;

// Immutable once read, so thread safe.
class BpeModel {
 public:
  // `node` is the key "model" of tokenizer.json.
  static absl::StatusOr<BpeModel> FromJson(const JsonNode& node);

  // Appends the ids of `word` (valid UTF-8) in time O(n log n). Characters that the vocabulary does not cover become
  // byte tokens, else the unknown token, else nothing.
  void Encode(absl::string_view word, std::vector<int32_t>* ids) const;

  absl::optional<int32_t> TokenId(absl::string_view token) const;
  const absl::flat_hash_map<std::string, int32_t>& vocab() const { return vocab_; }

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

  absl::Status ReadVocab(const JsonNode& node);
  absl::Status ReadOptions(const JsonNode& node);
  absl::Status ReadMerges(const JsonNode& node);
  absl::Status AddTextMerge(const JsonNode& merges, absl::string_view text, int32_t rank);
  absl::Status AddMerge(const JsonNode& merges, absl::string_view left, absl::string_view right, int32_t rank);
  const Merge* FindMerge(int32_t left, int32_t right) const;
  // The ids of the single characters of `word`.
  std::vector<int32_t> Characters(absl::string_view word) const;
  bool AppendBytes(absl::string_view text, std::vector<int32_t>* ids) const;
  void MergeAll(std::vector<Symbol>* symbols) const;

  absl::flat_hash_map<std::string, int32_t> vocab_;
  absl::flat_hash_map<std::pair<int32_t, int32_t>, Merge> merges_;
  std::vector<int32_t> byte_ids_;  // 256 entries if byte fallback is on; -1 where the vocabulary has none
  absl::optional<int32_t> unknown_id_;
  std::string continuing_prefix_;
  std::string end_suffix_;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_BPE_H_
