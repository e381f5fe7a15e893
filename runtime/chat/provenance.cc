#include "runtime/chat/provenance.h"

#include <algorithm>

#include "runtime/chat/budget.h"

namespace llmc::jinja {

void TextBuilder::Grow(size_t bytes) {
  budget_->StepBytes(bytes);
  budget_->CheckRoom(static_cast<int64_t>(text_.bytes.size() + bytes + text_.data.size() * sizeof(ByteRange)));
}

void TextBuilder::MarkData(size_t begin, size_t end) {
  if (begin == end) return;
  if (!text_.data.empty() && text_.data.back().end == begin) {
    text_.data.back().end = end;
  } else {
    text_.data.push_back({begin, end});
  }
}

void TextBuilder::Append(absl::string_view bytes, bool is_data) {
  Grow(bytes.size());
  const size_t begin = text_.bytes.size();
  text_.bytes.append(bytes.data(), bytes.size());
  if (is_data) MarkData(begin, text_.bytes.size());
}

void TextBuilder::Append(const Text& text, size_t begin, size_t end) {
  Grow(end - begin);
  const size_t at = text_.bytes.size();
  text_.bytes.append(text.bytes, begin, end - begin);
  auto range = std::partition_point(text.data.begin(), text.data.end(),
                                    [begin](const ByteRange& range) { return range.end <= begin; });
  for (; range != text.data.end() && range->begin < end; ++range) {
    budget_->Step();
    MarkData(at + std::max(range->begin, begin) - begin, at + std::min(range->end, end) - begin);
  }
}

}  // namespace llmc::jinja
