#include "runtime/engine/step_message.h"

#include <algorithm>

namespace llmc {

int64_t StepMessage::MaxBytes(const StepSizes& sizes, int64_t table_width) {
  const int64_t words = 3 * sizes.tokens + (3 + table_width) * sizes.sequences + 2 + sizes.rows;
  return static_cast<int64_t>(sizeof(StepHeader) + sizes.draws * sizeof(DeviceDraw)) + 4 * words;
}

StepMessage::StepMessage(char* place, const StepSizes& sizes)
    : sizes_(sizes),
      header_(reinterpret_cast<StepHeader*>(place)),
      draws_(reinterpret_cast<DeviceDraw*>(header_ + 1)),
      begin_(reinterpret_cast<int32_t*>(place)) {
  *header_ = StepHeader{};
  ids_ = reinterpret_cast<int32_t*>(draws_ + sizes.draws);
  pos_ = ids_ + sizes.tokens;
  slots_ = pos_ + sizes.tokens;
  lens_ = slots_ + sizes.tokens;
  starts_ = lens_ + sizes.sequences;
  rows_ = starts_ + sizes.sequences + 1;
  first_pages_ = rows_ + sizes.rows;
  tables_ = first_pages_ + sizes.sequences + 1;
  starts_[0] = first_pages_[0] = 0;
}

void StepMessage::Add(const Chunk& chunk, int32_t id, int64_t page_size) {
  const int64_t begin = header_->tokens, count = static_cast<int64_t>(chunk.ids.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = chunk.position + i;
    ids_[begin + i] = chunk.ids[i] == kSampledToken ? id : chunk.ids[i];
    pos_[begin + i] = static_cast<int32_t>(position);
    slots_[begin + i] = static_cast<int32_t>(chunk.pages[position / page_size] * page_size + position % page_size);
  }
  header_->tokens += static_cast<int32_t>(count);
  for (int64_t rows = RowsOf(chunk); rows > 0; --rows) {
    rows_[header_->rows++] = static_cast<int32_t>(begin + count - rows);
  }
  const int64_t length = chunk.position + count;
  EndSequence(length, chunk.pages.subspan(0, PagesFor(length, page_size)));
}

void StepMessage::EndSequence(int64_t length, absl::Span<const int32_t> pages) {
  const int32_t sequence = header_->sequences++;
  lens_[sequence] = static_cast<int32_t>(length);
  starts_[sequence + 1] = header_->tokens;
  std::copy(pages.begin(), pages.end(), tables_ + first_pages_[sequence]);
  first_pages_[sequence + 1] = first_pages_[sequence] + static_cast<int32_t>(pages.size());
}

void StepMessage::Pad() {
  const int32_t page = 0;
  while (header_->sequences < sizes_.sequences) {
    ids_[header_->tokens] = pos_[header_->tokens] = 0;
    slots_[header_->tokens++] = -1;
    EndSequence(1, {&page, 1});
  }
  for (; header_->rows < sizes_.rows; ++header_->rows)
    rows_[header_->rows] = std::min(header_->rows, header_->tokens - 1);
  while (header_->draws < sizes_.draws) Add(DeviceDraw{});
  header_->words = static_cast<int32_t>(tables_ + first_pages_[header_->sequences] - begin_);
}

}  // namespace llmc
