// Text to token ids and back, as described by the tokenizer files of a model.
#ifndef LLMC_RUNTIME_TEXT_TOKENIZER_H_
#define LLMC_RUNTIME_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace llmc {

class StreamDecoder;
struct TokenizerParts;
struct TypedTokens;

// A file of a model's folder: its name there, and what it holds.
struct TokenizerFile {
  std::string name;
  std::string text;
};

struct EncodeOptions {
  // Puts special tokens around the text (such as a begin-of-text), as the tokenizer's files say.
  bool add_special_tokens = true;
  // Special tokens that are spelled out in the text become those tokens; else they are text like any other. What users
  // of a chat or a server wrote must be encoded without, or it could end their turn and begin another's. Added tokens
  // that are not special are always recognized.
  bool parse_special_tokens = false;
  // Ids of added tokens that are not special and yet recognized only where special ones are: control tokens that the
  // files call ordinary. nullptr: none.
  const absl::flat_hash_set<int32_t>* as_special = nullptr;
  // A text that begins with the special tokens that are put before texts gets them again.
  bool repeat_bos = false;
};

// Immutable: all methods may be called from many threads at once.
class Tokenizer {
 public:
  // `json` is the text of a tokenizer.json; `name` is the file's name, for errors. InvalidArgument: the file is wrong,
  // the message names the key. Unimplemented: a model or a step that is not supported, by its name.
  // `truncation` and `padding` are ignored: a prompt is never cut or padded here.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view json, absl::string_view name);
  // With the tokenizer_config.json beside it; empty: there is none. Its add_bos_token and add_eos_token, where they are
  // given, decide whether those tokens are put around a text, and else the post-processor of `json` does. So do
  // llama.cpp and, for Llama's tokenizers, transformers 4; transformers 5 overlooks them. A token that the vocabulary
  // lacks is not added.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view json, absl::string_view name,
                                                             absl::string_view config, absl::string_view config_name);
  // The tokenizer of a folder, from those of its files that IsTokenizerFile() names (others do no harm). The first of
  // these that is there counts: tokenizer.json; tekken.json (Mistral); tokenizer.model and its like (SentencePiece, or
  // ranks as of tiktoken); *.tiktoken; vocab.json with merges.txt (GPT-2, RoBERTa, Qwen2); vocab.txt (BERT). `prefix`
  // stands before the names of files in errors. What is not found in tokenizer_config.json but in config.json is the
  // class of the tokenizer. NotFound: none is there, and the message says what was looked for; else errors are those of
  // FromJson.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromFiles(absl::Span<const TokenizerFile> files,
                                                              absl::string_view prefix);
  // Of the sorted names of a folder's files those that FromFiles reads there, but tokenizer_config.json and
  // config.json. The first is the main one.
  static std::vector<std::string> ChooseFiles(const std::vector<std::string>& names);
  // Whether FromFiles reads a file of this name.
  static bool IsTokenizerFile(absl::string_view name);
  ~Tokenizer();

  // The ids of `utf8`. Wrong UTF-8 is read as U+FFFD, one for each longest wrong sequence. InvalidArgument: `utf8` is
  // larger than 1 GiB. ResourceExhausted: the file's steps make far more text of it than it has, or a pattern needs too
  // many steps on it.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8, const EncodeOptions& options) const;

  // The ids of two texts, each encoded without special tokens, as one text for models that compare two: with special
  // tokens and types as the tokenizer's files say (post_processor.h). Unimplemented: they do not say it.
  absl::StatusOr<TypedTokens> Join(absl::Span<const int32_t> first, absl::Span<const int32_t> second) const;

  // The text of `ids`, always valid UTF-8: bytes that are no character become U+FFFD. Ids outside the vocabulary are
  // skipped, and with `skip_special_tokens` special tokens too.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  absl::optional<int32_t> TokenId(absl::string_view token) const;
  // The end-of-sequence token that tokenizer_config.json names.
  absl::optional<int32_t> eos_token_id() const;
  // One more than the largest id; ids below may be unused.
  int32_t vocab_size() const;
  // False for ids outside the vocabulary.
  bool IsSpecial(int32_t id) const;
  // Whether a text that spells the token gets it before the model sees the text: an added token, or a user-defined
  // piece of SentencePiece. as_special does not hold for the latter.
  bool IsFoundWhole(int32_t id) const;

 private:
  friend class StreamDecoder;
  using Parts = TokenizerParts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);
  // The token's text as the file has it; nullptr if there is none or it is to be skipped.
  const std::string* TokenText(int32_t id, bool skip_special_tokens) const;

  std::unique_ptr<const Parts> parts_;
};

// Decodes token by token. Text is held back until later tokens cannot change it, so each piece is of whole characters,
// and all pieces with Finish() are what Decode() gives for all ids. Not thread safe; the tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  StreamDecoder(StreamDecoder&&) noexcept;
  ~StreamDecoder();

  std::string Push(int32_t id);
  // The rest, once after the last id.
  std::string Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_TOKENIZER_H_
