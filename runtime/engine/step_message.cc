#include "runtime/engine/step_message.h"

#include <algorithm>
#include <utility>

namespace llmc {

int64_t StepMessage::MaxBytes(const StepSizes& sizes, int64_t pools, int64_t table_width) {
  const StepMessageParts parts = PartsOfStepMessage(sizes.tokens, sizes.sequences, sizes.rows, sizes.draws, pools);
  return 4 * (parts.page_tables + pools * table_width * sizes.sequences);
}

StepMessage::StepMessage(char* place, const StepSizes& sizes, PageSizes page_sizes)
    : sizes_(sizes),
      page_sizes_(std::move(page_sizes)),
      header_(reinterpret_cast<StepHeader*>(place)),
      draws_(reinterpret_cast<DrawRequest*>(header_ + 1)),
      begin_(reinterpret_cast<int32_t*>(place)) {
  *header_ = StepHeader{};
  const StepMessageParts parts = PartsOfStepMessage(sizes.tokens, sizes.sequences, sizes.rows, sizes.draws,
                                                    static_cast<int64_t>(page_sizes_.size()));
  ids_ = begin_ + parts.ids;
  pos_ = begin_ + parts.pos;
  slots_ = begin_ + parts.slots;
  lens_ = begin_ + parts.lens;
  starts_ = begin_ + parts.starts;
  rows_ = begin_ + parts.rows;
  first_pages_ = begin_ + parts.first_pages;
  tables_ = begin_ + parts.page_tables;
  starts_[0] = first_pages_[0] = 0;
}

void StepMessage::Add(const Chunk& chunk, int32_t id) {
  const int64_t begin = header_->tokens, count = static_cast<int64_t>(chunk.ids.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = chunk.position + i;
    ids_[begin + i] = chunk.ids[i] == kSampledToken ? id : chunk.ids[i];
    pos_[begin + i] = static_cast<int32_t>(position);
    for (size_t pool = 0; pool < page_sizes_.size(); ++pool) {
      const int64_t page_size = page_sizes_[pool], page = chunk.pages[pool][position / page_size];
      slots_[pool * sizes_.tokens + begin + i] = static_cast<int32_t>(page * page_size + position % page_size);
    }
  }
  header_->tokens += static_cast<int32_t>(count);
  for (int64_t rows = RowsOf(chunk); rows > 0; --rows) {
    rows_[header_->rows++] = static_cast<int32_t>(begin + count - rows);
  }
  EndSequence(chunk.position + count, chunk.pages);
}

// The device takes the tables of a sequence as equally long, so those of larger pages are filled up.
void StepMessage::EndSequence(int64_t length, const PoolTables& tables) {
  const int32_t sequence = header_->sequences++;
  lens_[sequence] = static_cast<int32_t>(length);
  starts_[sequence + 1] = header_->tokens;
  int32_t* to = tables_ + first_pages_[sequence];
  const int64_t width = PagesFor(length, *std::min_element(page_sizes_.begin(), page_sizes_.end()));
  for (size_t pool = 0; pool < page_sizes_.size(); ++pool) {
    const int64_t num_pages = PagesFor(length, page_sizes_[pool]);
    to = std::copy_n(tables[pool].begin(), num_pages, to);
    to = std::fill_n(to, width - num_pages, 0);
  }
  first_pages_[sequence + 1] = static_cast<int32_t>(to - tables_);
}

void StepMessage::Pad() {
  const int32_t page = 0;
  const PoolTables tables(page_sizes_.size(), absl::MakeConstSpan(&page, 1));
  while (header_->sequences < sizes_.sequences) {
    ids_[header_->tokens] = pos_[header_->tokens] = 0;
    for (size_t pool = 0; pool < page_sizes_.size(); ++pool) slots_[pool * sizes_.tokens + header_->tokens] = -1;
    ++header_->tokens;
    EndSequence(1, tables);
  }
  for (; header_->rows < sizes_.rows; ++header_->rows)
    rows_[header_->rows] = std::min(header_->rows, header_->tokens - 1);
  while (header_->draws < sizes_.draws) Add(DrawRequest{});
  header_->words = static_cast<int32_t>(tables_ + first_pages_[header_->sequences] - begin_);
}

}  // namespace llmc
