// Text that knows which of its bytes the template wrote and which came from the conversation.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace llmc::jinja {

class Budget;

// Bytes of a text: [begin, end).
struct ByteRange {
  size_t begin;
  size_t end;
};

struct Text {
  std::string bytes;            // valid UTF-8
  std::vector<ByteRange> data;  // what came from the conversation, or was made of it; in order, apart from each other
  bool is_data() const { return !data.empty(); }
  bool is_all_data() const { return data.size() == 1 && data[0].begin == 0 && data[0].end == bytes.size(); }
};

// Joins pieces. The pieces keep where they came from.
class TextBuilder {
 public:
  // Nothing may grow beyond the room that `budget` has left.
  explicit TextBuilder(Budget* budget) : budget_(budget) {}

  void Append(absl::string_view bytes, bool is_data);
  void Append(const Text& text) { Append(text, 0, text.bytes.size()); }
  void Append(const Text& text, size_t begin, size_t end);  // a part of it
  size_t size() const { return text_.bytes.size(); }
  Text Build() { return std::move(text_); }
  const Text& text() const { return text_; }

 private:
  void MarkData(size_t begin, size_t end);
  void Grow(size_t bytes);
  Budget* budget_;
  Text text_;
};

}  // namespace llmc::jinja
