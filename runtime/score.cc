#include "runtime/score.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/kv_pages.h"

namespace llmc {
namespace {

constexpr int64_t kMaxLogitBytes = int64_t{256} << 20;  // of one step

// One sequence under way.
struct Cursor {
  size_t sequence = 0;
  int64_t position = 0;
  std::vector<int32_t> pages;
};

class Scorer {
 public:
  Scorer(Executor* executor, absl::Span<const std::vector<int32_t>> sequences, LogitsVisitor visit)
      : executor_(executor), sequences_(sequences), visit_(visit), pages_(executor->limits().num_pages) {
    const ExecutorLimits& limits = executor->limits();
    const int64_t most =
        limits.max_step_logits > 0 ? std::min(limits.max_step_logits, limits.max_step_tokens) : limits.max_step_tokens;
    max_rows_ = std::clamp<int64_t>(kMaxLogitBytes / (limits.vocab_size * sizeof(float)), 1, most);
  }

  absl::Status Run() {
    absl::Status status = Check();
    while (status.ok() && (next_ < sequences_.size() || !active_.empty())) {
      status = Step();
    }
    for (const Cursor& cursor : active_) executor_->EndSequence(static_cast<int64_t>(cursor.sequence));
    return status;
  }

 private:
  absl::Status Check() const {
    const ExecutorLimits& limits = executor_->limits();
    const int64_t most = std::min(limits.max_context, limits.num_pages * limits.page_size);
    for (const auto& ids : sequences_) {
      if (static_cast<int64_t>(ids.size()) <= most) continue;
      return absl::InvalidArgumentError(absl::StrCat("a sequence of ", ids.size(), " tokens is longer than the ",
                                                     most == limits.max_context ? "context" : "KV cache", " of ",
                                                     most));
    }
    return absl::OkStatus();
  }

  // Starts sequences while there are tokens, pages and rows left in this step.
  void Admit() {
    const ExecutorLimits& limits = executor_->limits();
    int64_t tokens = 0;
    for (const Cursor& cursor : active_) tokens += Length(cursor) - cursor.position;
    for (; next_ < sequences_.size() && tokens < max_rows_; ++next_) {
      if (static_cast<int64_t>(active_.size()) == limits.max_sequences) return;
      if (sequences_[next_].empty()) continue;
      Cursor cursor{.sequence = next_};
      if (!pages_.Allocate(PagesFor(Length(cursor), limits.page_size), &cursor.pages)) return;
      tokens += Length(cursor);
      active_.push_back(std::move(cursor));
    }
  }

  absl::Status Step() {
    Admit();
    if (active_.empty()) return absl::OkStatus();
    StepInput input;
    int64_t budget = max_rows_;
    for (const Cursor& cursor : active_) {
      const int64_t count = std::min(budget, Length(cursor) - cursor.position);
      if (count == 0) break;
      budget -= count;
      input.chunks.push_back({.sequence = static_cast<int64_t>(cursor.sequence),
                              .ids = absl::MakeConstSpan(sequences_[cursor.sequence]).subspan(cursor.position, count),
                              .position = cursor.position,
                              .pages = cursor.pages,
                              .logits = WantedLogits::kAll});
    }
    const absl::StatusOr<StepResult> result = executor_->RunStep(input);
    if (!result.ok()) return result.status();
    const Logits& logits = result->logits;
    if (!logits.failed.empty()) return logits.failed.begin()->second;
    int64_t row = 0;
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      for (size_t t = 0; t < input.chunks[i].ids.size(); ++t) {
        absl::Status status = visit_(active_[i].sequence, active_[i].position++, logits.row(row++));
        if (!status.ok()) return status;
      }
    }
    return EndFinished();
  }

  absl::Status EndFinished() {
    std::vector<Cursor> unfinished;
    absl::Status status;
    for (Cursor& cursor : active_) {
      if (cursor.position < Length(cursor)) {
        unfinished.push_back(std::move(cursor));
        continue;
      }
      executor_->EndSequence(static_cast<int64_t>(cursor.sequence));
      status.Update(pages_.Free(cursor.pages));
    }
    active_ = std::move(unfinished);
    return status;
  }

  int64_t Length(const Cursor& cursor) const { return static_cast<int64_t>(sequences_[cursor.sequence].size()); }

  Executor* executor_;
  absl::Span<const std::vector<int32_t>> sequences_;
  LogitsVisitor visit_;
  KvPages pages_;
  int64_t max_rows_;
  size_t next_ = 0;
  std::vector<Cursor> active_;
};

template <class T>
std::vector<int64_t> Widen(const HostTensor& tensor) {
  const absl::Span<const T> values = tensor.values<T>();
  return std::vector<int64_t>(values.begin(), values.end());
}

absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view name, const HostTensor& tensor) {
  if (absl::Status status = tensor.Check(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
  }
  switch (tensor.type) {
    case ElementType::kI64:
      return Widen<int64_t>(tensor);
    case ElementType::kI32:
      return Widen<int32_t>(tensor);
    case ElementType::kI16:
      return Widen<int16_t>(tensor);
    case ElementType::kI8:
      return Widen<int8_t>(tensor);
    case ElementType::kU8:
    case ElementType::kBool:
      return Widen<uint8_t>(tensor);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", ElementTypeName(tensor.type), ", must be i64, i32, i16, i8, u8 or bool"));
  }
}

absl::Status CheckShapes(const HostTensor& input_ids, const HostTensor* mask) {
  if (input_ids.shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("input_ids has shape [", absl::StrJoin(input_ids.shape, ", "), "], must be [batch, sequence]"));
  }
  if (mask != nullptr && mask->shape != input_ids.shape) {
    return absl::InvalidArgumentError(absl::StrCat("attention_mask has shape [", absl::StrJoin(mask->shape, ", "),
                                                   "], input_ids [", absl::StrJoin(input_ids.shape, ", "), "]"));
  }
  return absl::OkStatus();
}

// The tokens of each row whose mask is 1, and the columns they stand in.
struct Rows {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<int64_t>> columns;
};

absl::StatusOr<Rows> UnmaskedRows(const std::vector<int64_t>& ids, const std::vector<int64_t>& mask, int64_t batch,
                                  int64_t length) {
  Rows rows{.ids = std::vector<std::vector<int32_t>>(batch), .columns = std::vector<std::vector<int64_t>>(batch)};
  for (int64_t i = 0; i < batch * length; ++i) {
    if (!mask.empty() && mask[i] != 0 && mask[i] != 1) {
      return absl::InvalidArgumentError(absl::StrCat("attention_mask holds ", mask[i], ", must be 0 or 1"));
    }
    if (!mask.empty() && mask[i] == 0) continue;
    if (ids[i] < 0 || ids[i] > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("input_ids holds ", ids[i], ", which is no token"));
    }
    rows.ids[i / length].push_back(static_cast<int32_t>(ids[i]));
    rows.columns[i / length].push_back(i % length);
  }
  return rows;
}

}  // namespace

absl::Status VisitLogits(Executor* executor, absl::Span<const std::vector<int32_t>> sequences, LogitsVisitor visit) {
  return Scorer(executor, sequences, visit).Run();
}

absl::StatusOr<HostTensor> ScoreBatch(Executor* executor, const HostTensor& input_ids,
                                      const HostTensor* attention_mask) {
  if (absl::Status status = CheckShapes(input_ids, attention_mask); !status.ok()) return status;
  const auto ids = Integers("input_ids", input_ids);
  if (!ids.ok()) return ids.status();
  absl::StatusOr<std::vector<int64_t>> mask = std::vector<int64_t>();
  if (attention_mask != nullptr) mask = Integers("attention_mask", *attention_mask);
  if (!mask.ok()) return mask.status();
  const int64_t batch = input_ids.shape[0], length = input_ids.shape[1], vocab = executor->limits().vocab_size;
  const auto rows = UnmaskedRows(*ids, *mask, batch, length);
  if (!rows.ok()) return rows.status();
  auto result = HostTensor::Zeros(ElementType::kF32, {batch, length, vocab});
  if (!result.ok()) return result.status();
  const absl::Span<float> out = result->mutable_values<float>();
  absl::Status status =
      VisitLogits(executor, rows->ids, [&](size_t row, int64_t position, absl::Span<const float> logits) {
        const int64_t at = static_cast<int64_t>(row) * length + rows->columns[row][position];
        std::copy(logits.begin(), logits.end(), out.begin() + at * vocab);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return result;
}

}  // namespace llmc
