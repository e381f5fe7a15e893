// From a rendered conversation to token ids. Text of messages never becomes control tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/chat/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

// Immutable: any number of threads may use one. The tokenizer must outlive it.
//
// Control tokens are the special tokens, and of the others that the tokenizer finds whole those in < > or [ ] that the
// template's source spells (<tool_call>), those of the form <|...|>, with ASCII or wide bars, and <s> and </s>: files
// often do not call special what begins and ends turns. All other added tokens (runs of spaces, HTML) are found in
// messages too, as models were trained. Where control marks are no tokens ("[INST]" of the first Mistral models), no
// tokenizer can tell the template's from a message's.
class ChatEncoder {
 public:
  // `template_source`: ChatTemplate::source() of what renders the conversations.
  ChatEncoder(const Tokenizer& tokenizer, absl::string_view template_source);

  // The ids of the whole text, with the control tokens that the template wrote and no others, those that the tokenizer
  // puts around texts included: templates write them themselves. Where no message spells a control token, the ids are
  // those of the text in one piece. Else the text between the template's control tokens is encoded piece by piece,
  // which differs only for tokenizers that mark the beginning of a text. Errors are those of Tokenizer::Encode.
  absl::StatusOr<std::vector<int32_t>> Encode(const RenderedChat& chat) const;

 private:
  struct Control {
    std::string text;
    int32_t id;
  };
  struct Found {
    size_t begin, end;  // bytes
    int32_t id;
    bool operator==(const Found&) const = default;
  };
  // The control tokens in `text`, the leftmost first, the longest of those.
  std::vector<Found> Find(absl::string_view text) const;
  // Appends the ids of a text without control tokens, whatever it spells.
  absl::Status EncodeText(absl::string_view text, std::vector<int32_t>* ids) const;

  const Tokenizer& tokenizer_;
  std::vector<Control> controls_;             // longest first
  std::vector<bool> is_control_;              // by id
  absl::flat_hash_set<int32_t> not_special_;  // control tokens that the files do not call special
  std::string first_bytes_;                   // with which one begins
};

}  // namespace llmc
