// From a rendered conversation to token ids. Text of messages never becomes control tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/chat/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

// Immutable: any number of threads may use one. The tokenizer must outlive it.
class ChatEncoder {
 public:
  explicit ChatEncoder(const Tokenizer& tokenizer);

  // The ids of the whole text, with the special tokens that the template wrote and no others, those that the tokenizer
  // puts around texts included: templates write them themselves. Where no message spells a special token, the ids are
  // those of the text in one piece. Else the text between the template's special tokens is encoded piece by piece,
  // which differs only for tokenizers that mark the beginning of a text. Errors are those of Tokenizer::Encode.
  absl::StatusOr<std::vector<int32_t>> Encode(const RenderedChat& chat) const;

 private:
  struct Special {
    std::string text;
    int32_t id;
  };
  struct Found {
    size_t begin, end;  // bytes
    int32_t id;
    bool operator==(const Found&) const = default;
  };
  // The special tokens in `text`, the leftmost first, the longest of those.
  std::vector<Found> Find(absl::string_view text) const;

  const Tokenizer& tokenizer_;
  std::vector<Special> specials_;  // longest first
  std::string first_bytes_;        // with which one begins
};

}  // namespace llmc
