#include "runtime/engine/score.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "runtime/engine/page_pool.h"

namespace llmc {
namespace {

constexpr int64_t kMaxLogitBytes = int64_t{256} << 20;  // of one step

// One sequence under way.
struct Cursor {
  size_t sequence = 0;
  int64_t position = 0;
  PageTable pages;
};

class Scorer {
 public:
  Scorer(Executor* executor, absl::Span<const std::vector<int32_t>> sequences, LogitsVisitor visit)
      : executor_(executor),
        sequences_(sequences),
        visit_(visit),
        pages_(executor->limits().pools, /*keeps_prefixes=*/false) {
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
  absl::Status Check() {
    RETURN_IF_ERROR(executor_->BorrowPages());
    const ExecutorLimits& limits = executor_->limits();
    const int64_t most = MaxCachedTokens(limits);
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
      Cursor cursor{.sequence = next_, .pages = PageTable(&pages_)};
      if (!WindowsHaveRoom() || !pages_.Reserve(Length(cursor), &cursor.pages)) return;
      tokens += Length(cursor);
      active_.push_back(std::move(cursor));
    }
  }

  // For one sequence more: what each window sees, and a step.
  bool WindowsHaveRoom() const {
    const int64_t count = static_cast<int64_t>(active_.size()) + 1;
    for (size_t i = 0; i < pages_.num_pools() && count > 1; ++i) {
      if (pages_.window(i) == 0) continue;
      const int64_t each = PagesFor(pages_.window(i) + max_rows_, pages_.page_size(i)) + 1;
      if (count * each > pages_.num_pages(i)) return false;
    }
    return true;
  }

  absl::Status Step() {
    Admit();
    if (active_.empty()) return absl::OkStatus();
    StepInput input;
    int64_t budget = max_rows_;
    for (Cursor& cursor : active_) {
      const int64_t count = std::min(budget, Length(cursor) - cursor.position);
      if (count == 0) break;
      budget -= count;
      if (!pages_.Write(cursor.position, cursor.position + count, &cursor.pages, /*copies=*/nullptr)) {
        return absl::InternalError("too few pages of the KV cache");
      }
      input.chunks.push_back({.sequence = static_cast<int64_t>(cursor.sequence),
                              .begins = cursor.position == 0,
                              .ids = absl::MakeConstSpan(sequences_[cursor.sequence]).subspan(cursor.position, count),
                              .position = cursor.position,
                              .pages = cursor.pages.tables(),
                              .logits = WantedLogits::kAll});
    }
    ASSIGN_OR_RETURN(const StepResult result, executor_->RunStep(input));
    const Logits& logits = result.logits;
    if (!logits.failed.empty()) return logits.failed.begin()->second;
    int64_t row = 0;
    for (size_t i = 0; i < input.chunks.size(); ++i) {
      for (size_t t = 0; t < input.chunks[i].ids.size(); ++t) {
        absl::Status status = visit_(active_[i].sequence, active_[i].position++, logits.row(row++));
        if (!status.ok()) return status;
      }
      pages_.DropUnseen(active_[i].position, &active_[i].pages);
    }
    EndFinished();
    return absl::OkStatus();
  }

  void EndFinished() {
    std::vector<Cursor> unfinished;
    for (Cursor& cursor : active_) {
      if (cursor.position < Length(cursor)) {
        unfinished.push_back(std::move(cursor));
        continue;
      }
      executor_->EndSequence(static_cast<int64_t>(cursor.sequence));
    }
    active_ = std::move(unfinished);
  }

  int64_t Length(const Cursor& cursor) const { return static_cast<int64_t>(sequences_[cursor.sequence].size()); }

  Executor* executor_;
  absl::Span<const std::vector<int32_t>> sequences_;
  LogitsVisitor visit_;
  PagePool pages_;
  int64_t max_rows_;
  size_t next_ = 0;
  std::vector<Cursor> active_;
};

template <class T>
std::vector<int64_t> Widen(const HostTensor& tensor) {
  const absl::Span<const T> values = tensor.values<T>();
  return std::vector<int64_t>(values.begin(), values.end());
}

absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view name, const HostTensor& tensor,
                                              absl::string_view remedy) {
  if (absl::Status status = tensor.Check(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
  }
  switch (tensor.type) {
    case DType::kI64:
      return Widen<int64_t>(tensor);
    case DType::kI32:
      return Widen<int32_t>(tensor);
    case DType::kI16:
      return Widen<int16_t>(tensor);
    case DType::kI8:
      return Widen<int8_t>(tensor);
    case DType::kU8:
    case DType::kBool:
      return Widen<uint8_t>(tensor);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is ", DTypeName(tensor.type), ", must be i64, i32, i16, i8, u8 or bool", remedy));
  }
}

// What a user can do whose mask or positions the program of an ONNX file does not take.
absl::string_view Remedy(const ScoreOptions& options) {
  return options.skips_hidden ? "" : "; run the ONNX file itself, or compile it with --no-paginate";
}

absl::Status CheckShapes(const HostTensor& input_ids, const ScoreOptions& options) {
  const std::vector<int64_t>& shape = input_ids.shape;
  if (shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("input_ids has shape [", absl::StrJoin(shape, ", "), "], must be [batch, sequence]"));
  }
  const auto check = [&](absl::string_view name, const HostTensor* tensor, bool may_be_shared) -> absl::Status {
    if (tensor == nullptr || tensor->shape == shape) return absl::OkStatus();
    if (may_be_shared && tensor->shape == std::vector<int64_t>{1, shape[1]}) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, " has shape [", absl::StrJoin(tensor->shape, ", "),
                                                   "], input_ids [", absl::StrJoin(shape, ", "),
                                                   "], and the cache begins empty", Remedy(options)));
  };
  absl::Status status = check("attention_mask", options.attention_mask, false);
  status.Update(check("position_ids", options.position_ids, true));
  return status;
}

// Elements of the inputs; empty where one is not given.
struct Elements {
  std::vector<int64_t> ids, mask, positions;
};

absl::StatusOr<Elements> ElementsOf(const HostTensor& input_ids, const ScoreOptions& options) {
  Elements elements;
  for (const auto& [name, tensor, to] : {std::tuple("input_ids", &input_ids, &elements.ids),
                                         {"attention_mask", options.attention_mask, &elements.mask},
                                         {"position_ids", options.position_ids, &elements.positions}}) {
    if (tensor == nullptr) continue;
    ASSIGN_OR_RETURN(std::vector<int64_t> values, Integers(name, *tensor, tensor == &input_ids ? "" : Remedy(options)));
    *to = std::move(values);
  }
  return elements;
}

// The tokens of each row that are not left out, and the columns they stand in.
struct Rows {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<int64_t>> columns;
};

absl::StatusOr<Rows> VisibleRows(const Elements& elements, int64_t batch, int64_t length, const ScoreOptions& options) {
  Rows rows{.ids = std::vector<std::vector<int32_t>>(batch), .columns = std::vector<std::vector<int64_t>>(batch)};
  const auto wrong = [&](absl::string_view name, int64_t i, int64_t holds, absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " holds ", holds, " at [", i / length, ", ", i % length, "]", why));
  };
  const int64_t size = batch * length, shared = static_cast<int64_t>(elements.positions.size()) < size ? length : size;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t mask = elements.mask.empty() ? 1 : elements.mask[i], id = elements.ids[i];
    if (mask != 0 && mask != 1) return wrong("attention_mask", i, mask, ", must be 0 or 1");
    if (mask == 0 && !options.skips_hidden) {
      return wrong("attention_mask", i, mask,
                   absl::StrCat(", but in a program with a paged cache no token can be hidden", Remedy(options)));
    }
    if (mask == 0) continue;
    const int64_t position = static_cast<int64_t>(rows.ids[i / length].size());
    if (!elements.positions.empty() && elements.positions[i % shared] != position) {
      return wrong("position_ids", i, elements.positions[i % shared],
                   absl::StrCat(", but a program with a paged cache counts its tokens from 0: it is ", position,
                                Remedy(options)));
    }
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) return wrong("input_ids", i, id, ", which is no token");
    rows.ids[i / length].push_back(static_cast<int32_t>(id));
    rows.columns[i / length].push_back(i % length);
  }
  return rows;
}

}  // namespace

absl::Status VisitLogits(Executor* executor, absl::Span<const std::vector<int32_t>> sequences, LogitsVisitor visit) {
  return Scorer(executor, sequences, visit).Run();
}

absl::StatusOr<HostTensor> ScoreBatch(Executor* executor, const HostTensor& input_ids, const ScoreOptions& options) {
  RETURN_IF_ERROR(CheckShapes(input_ids, options));
  const auto elements = ElementsOf(input_ids, options);
  if (!elements.ok()) return elements.status();
  const int64_t batch = input_ids.shape[0], length = input_ids.shape[1], vocab = executor->limits().vocab_size;
  const auto rows = VisibleRows(*elements, batch, length, options);
  if (!rows.ok()) return rows.status();
  auto result = HostTensor::Zeros(DType::kF32, {batch, length, vocab});
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
