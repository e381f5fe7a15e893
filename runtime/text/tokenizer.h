// Text to token ids and back, as described by a Hugging Face tokenizer.json.
#ifndef LLMC_RUNTIME_TEXT_TOKENIZER_H_
#define LLMC_RUNTIME_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace llmc {

class StreamDecoder;

// Immutable: all methods may be called from many threads at once.
class Tokenizer {
 public:
  // `json` is the text of a tokenizer.json; `name` is the file's name, for errors. InvalidArgument: the file is wrong,
  // the message names the key. Unimplemented: a model other than BPE, or a step that is not supported.
  // `truncation` and `padding` are ignored: a prompt is never cut or padded here.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(absl::string_view json, absl::string_view name);
  ~Tokenizer();

  // The ids of `utf8`. Added tokens in the text are always recognized, also special ones. `add_special_tokens` puts
  // those of the post-processor around it (such as a begin-of-text). Wrong UTF-8 is read as U+FFFD, one for each
  // longest wrong sequence. InvalidArgument: `utf8` is larger than 1 GiB. ResourceExhausted: the file's steps make far
  // more text of it than it has, or a pattern needs too many steps on it.
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view utf8, bool add_special_tokens) const;

  // The text of `ids`, always valid UTF-8: bytes that are no character become U+FFFD. Ids outside the vocabulary are
  // skipped, and with `skip_special_tokens` special tokens too.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special_tokens) const;

  absl::optional<int32_t> TokenId(absl::string_view token) const;
  // One more than the largest id; ids below may be unused.
  int32_t vocab_size() const;
  // False for ids outside the vocabulary.
  bool IsSpecial(int32_t id) const;

 private:
  friend class StreamDecoder;
  struct Parts;
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
