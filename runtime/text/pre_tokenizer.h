// The `pre_tokenizer` of tokenizer.json: splits normalized text into the words that the model encodes one by one.
#ifndef LLMC_RUNTIME_TEXT_PRE_TOKENIZER_H_
#define LLMC_RUNTIME_TEXT_PRE_TOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/json_node.h"
#include "runtime/text/text_budget.h"
#include "runtime/text/word_matcher.h"

namespace llmc {

// Whether the character, none of ASCII, is white space by Unicode's property.
bool IsLongSpace(char32_t c);
inline bool IsSpace(char32_t c) { return c < 0x80 ? c == ' ' || (c >= '\t' && c <= '\r') : IsLongSpace(c); }

// A piece of the text, valid UTF-8.
struct Piece {
  std::string text;
  bool at_start;  // the piece begins where the whole input begins
};

// A pre-tokenizer that does nothing but cut all of a text by a well-known pattern and write byte-level's alphabet.
struct ByteLevelWords {
  WordMatcher matcher = nullptr;  // nullptr: it does something else
  bool add_prefix_space = false;  // before a text that begins with none
};

// Immutable, so thread safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Replaces `pieces` by what they split into, in order, without empty ones. ResourceExhausted if a step
  // writes more than is left of the budget.
  virtual absl::Status Split(std::vector<Piece>* pieces, TextBudget* budget) const;

  virtual ByteLevelWords AsByteLevelWords() const { return {}; }
  // Whether what a text splits into is what its words between white space (IsSpace) split into, one by one.
  virtual bool SplitsWordsAlone() const { return false; }
  // Split() of pieces without white space.
  virtual absl::Status SplitWord(std::vector<Piece>* pieces, TextBudget* budget) const { return Split(pieces, budget); }
  // The matcher of a well-known pattern, if all this does is to cut text into its words.
  virtual WordMatcher AsWordCut() const { return nullptr; }
  // Whether all this does is to write byte-level's alphabet.
  virtual bool IsByteAlphabet() const { return false; }

  static absl::StatusOr<std::unique_ptr<PreTokenizer>> FromJson(const JsonNode& node);
  // Takes the matches of `regex` (in Rust's syntax) as words, as tiktoken does, in byte-level's alphabet.
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> FromRustRegex(absl::string_view regex);

 protected:
  // Appends what `piece` splits into; empty pieces are dropped later. Split spends their bytes.
  virtual absl::Status SplitPiece(Piece piece, TextBudget* budget, std::vector<Piece>* out) const = 0;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_PRE_TOKENIZER_H_
