#include "runtime/engine/step_message.h"

#include <algorithm>

namespace llmc {

int64_t StepMessage::MaxBytes(const StepSizes& sizes, int64_t pools, int64_t table_width) {
  const StepMessageParts parts = PartsOfStepMessage(sizes.tokens, sizes.sequences, sizes.rows, sizes.draws, pools);
  return 4 * (parts.page_tables + pools * table_width * sizes.sequences);
}

StepMessage::StepMessage(char* place, const StepSizes& sizes, size_t pools)
    : sizes_(sizes),
      pools_(pools),
      header_(reinterpret_cast<StepHeader*>(place)),
      draws_(reinterpret_cast<DrawRequest*>(header_ + 1)),
      begin_(reinterpret_cast<int32_t*>(place)) {
  *header_ = StepHeader{};
  const StepMessageParts parts =
      PartsOfStepMessage(sizes.tokens, sizes.sequences, sizes.rows, sizes.draws, static_cast<int64_t>(pools));
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

void StepMessage::Add(const Chunk& chunk, int32_t id, int64_t page_size) {
  const int64_t begin = header_->tokens, count = static_cast<int64_t>(chunk.ids.size());
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = chunk.position + i;
    ids_[begin + i] = chunk.ids[i] == kSampledToken ? id : chunk.ids[i];
    pos_[begin + i] = static_cast<int32_t>(position);
    for (size_t pool = 0; pool < pools_; ++pool) {
      const int64_t page = chunk.pages[pool][position / page_size];
      slots_[pool * sizes_.tokens + begin + i] = static_cast<int32_t>(page * page_size + position % page_size);
    }
  }
  header_->tokens += static_cast<int32_t>(count);
  for (int64_t rows = RowsOf(chunk); rows > 0; --rows) {
    rows_[header_->rows++] = static_cast<int32_t>(begin + count - rows);
  }
  const int64_t length = chunk.position + count;
  EndSequence(length, chunk.pages, PagesFor(length, page_size));
}

void StepMessage::EndSequence(int64_t length, const PoolTables& tables, int64_t num_pages) {
  const int32_t sequence = header_->sequences++;
  lens_[sequence] = static_cast<int32_t>(length);
  starts_[sequence + 1] = header_->tokens;
  int32_t* to = tables_ + first_pages_[sequence];
  for (const absl::Span<const int32_t> table : tables) to = std::copy_n(table.begin(), num_pages, to);
  first_pages_[sequence + 1] = static_cast<int32_t>(to - tables_);
}

void StepMessage::Pad() {
  const int32_t page = 0;
  const PoolTables tables(pools_, absl::MakeConstSpan(&page, 1));
  while (header_->sequences < sizes_.sequences) {
    ids_[header_->tokens] = pos_[header_->tokens] = 0;
    for (size_t pool = 0; pool < pools_; ++pool) slots_[pool * sizes_.tokens + header_->tokens] = -1;
    ++header_->tokens;
    EndSequence(1, tables, 1);
  }
  for (; header_->rows < sizes_.rows; ++header_->rows)
    rows_[header_->rows] = std::min(header_->rows, header_->tokens - 1);
  while (header_->draws < sizes_.draws) Add(DrawRequest{});
  header_->words = static_cast<int32_t>(tables_ + first_pages_[header_->sequences] - begin_);
}

}  // namespace llmc
