// Reads what a user types, or what a pipe brings.
#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace llmc {

// Set by Ctrl-C while a ChatLines lives.
extern std::atomic<bool> chat_interrupted;

class ChatLines {
 public:
  // Takes over Ctrl-C. With `prompts` shows where to type.
  explicit ChatLines(bool prompts);
  ~ChatLines();
  ChatLines(const ChatLines&) = delete;
  ChatLines& operator=(const ChatLines&) = delete;

  // A line without its end; nullopt at the end of the input, after a second Ctrl-C, or where the input is no longer a
  // text of at most 64 MiB a line.
  std::optional<std::string> Line(absl::string_view prompt);
  // A text: a line; or several, of which each but the last ends in a backslash, or that stand between """ and """.
  std::optional<std::string> Text();

 private:
  int Byte();

  const bool prompts_;
  std::string buffer_;  // of standard input
  size_t next_ = 0;
};

}  // namespace llmc
