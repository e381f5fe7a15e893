// The `model` of a tokenizer: turns one word into token ids.
#ifndef LLMC_RUNTIME_TEXT_MODEL_H_
#define LLMC_RUNTIME_TEXT_MODEL_H_

#include <cstdint>
#include <memory>
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

using Vocab = absl::flat_hash_map<std::string, int32_t>;

// An object of ids by token, with ids in range and no id twice.
absl::StatusOr<Vocab> ReadVocab(const JsonNode& vocab);

// Immutable once read, so thread safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // `node` is the key "model" of tokenizer.json. Unimplemented: a type that is not supported.
  static absl::StatusOr<std::unique_ptr<TokenModel>> FromJson(const JsonNode& node);

  // Appends the ids of `word`, valid UTF-8. InvalidArgument: a character that the vocabulary does not cover, in a model
  // that has no unknown token.
  virtual absl::Status Encode(absl::string_view word, std::vector<int32_t>* ids) const = 0;

  // Whether every byte has a token of byte-level's alphabet, and so EncodeBytes works.
  virtual bool IsByteLevel() const { return false; }
  // Encode(BytesToAlphabet(bytes)), faster, of any bytes.
  virtual void EncodeBytes(absl::string_view bytes, std::vector<int32_t>* ids) const;

  // From now on the tokens of these ids are not made of text: `special` says by id which, and may be shorter than the
  // vocabulary.
  virtual void HideTokens(const std::vector<bool>& special) = 0;

  // Every token with its id.
  virtual std::vector<std::pair<absl::string_view, int32_t>> Tokens() const;
  absl::optional<int32_t> TokenId(absl::string_view token) const;

 protected:
  // The error of a character that `word` has and the vocabulary lacks.
  static absl::Status NotCovered(absl::string_view word);

  Vocab vocab_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_MODEL_H_
