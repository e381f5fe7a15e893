#include "runtime/engine/executor.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

// The first of `values` that is not in [low, high), or nullptr. Long tables come with every step: the first loop is
// vectorized.
const int32_t* FindOutside(absl::Span<const int32_t> values, int64_t low, int64_t high) {
  int32_t least = 0, most = 0;
  if (!values.empty()) least = most = values.front();
  for (int32_t value : values) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (values.empty() || (least >= low && most < high)) return nullptr;
  return std::find_if(values.begin(), values.end(), [&](int32_t value) { return value < low || value >= high; });
}

absl::Status CheckChunk(const ExecutorLimits& limits, const Chunk& chunk) {
  auto error = [&](auto... message) {
    return absl::InvalidArgumentError(absl::StrCat("step, sequence ", chunk.sequence, ": ", message...));
  };
  if (chunk.ids.empty()) return error("no tokens");
  if (chunk.position < 0 || chunk.position > limits.max_context) return error("position ", chunk.position);
  const int64_t length = chunk.position + static_cast<int64_t>(chunk.ids.size());
  if (length > limits.max_context) return error(length, " tokens, the context is ", limits.max_context);
  if (chunk.position == 0 && !chunk.begins) return error("position 0, but it does not begin");
  if (chunk.position > 0 && chunk.begins && !limits.shares_pages) {
    return error("begins at position ", chunk.position, ", but this executor keeps no tokens for others");
  }
  const bool is_sampled = chunk.ids.size() == 1 && chunk.ids[0] == kSampledToken && !chunk.begins;
  if (const int32_t* id = FindOutside(chunk.ids, 0, limits.vocab_size); id != nullptr && !is_sampled) {
    return error("token id ", *id, " is not in [0, ", limits.vocab_size, ")");
  }
  if (chunk.pages.size() != limits.pools.size()) {
    return error(chunk.pages.size(), " page tables, there are ", limits.pools.size(), " pools");
  }
  for (size_t i = 0; i < limits.pools.size(); ++i) {
    const int64_t needed = PagesFor(length, limits.pools[i].page_size);
    if (static_cast<int64_t>(chunk.pages[i].size()) < needed) {
      return error(chunk.pages[i].size(), " pages, ", length, " tokens need ", needed);
    }
    if (const int32_t* page = FindOutside(chunk.pages[i], 0, limits.pools[i].num_pages); page != nullptr) {
      return error("page ", *page, " is not in [0, ", limits.pools[i].num_pages, ")");
    }
  }
  if (chunk.sampling == nullptr) return absl::OkStatus();
  if (absl::Status status = CheckSamplingParams(chunk.sampling->params); !status.ok()) return error(status.message());
  if (!chunk.sampling->params.has_penalties()) return absl::OkStatus();
  const absl::Span<const int32_t> history = chunk.sampling->history;
  if (const int32_t* id = FindOutside(history, 0, limits.vocab_size); id != nullptr) {
    return error("token id ", *id, " of its history is not in [0, ", limits.vocab_size, ")");
  }
  if (chunk.sampling->prompt_size < 0 || chunk.sampling->prompt_size > static_cast<int64_t>(history.size())) {
    return error("a prompt of ", chunk.sampling->prompt_size, " tokens in a history of ", history.size());
  }
  return absl::OkStatus();
}

absl::Status CheckCopies(const ExecutorLimits& limits, absl::Span<const PageCopy> copies) {
  if (!copies.empty() && !limits.shares_pages) return absl::InvalidArgumentError("step: this executor copies no pages");
  for (const PageCopy& copy : copies) {
    if (copy.pool >= limits.pools.size()) {
      return absl::InvalidArgumentError(absl::StrCat("step: a copy in pool ", copy.pool, ", which there is not"));
    }
    const int64_t num_pages = limits.pools[copy.pool].num_pages;
    for (const int32_t page : {copy.from, copy.to}) {
      if (page >= 0 && page < num_pages) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("step: a copy of page ", page, ", which is not in [0, ", num_pages, ")"));
    }
  }
  return absl::OkStatus();
}

// Sizes come from models and plans: cut to what cannot overflow.
constexpr int64_t kMostTokens = int64_t{1} << 32;
int64_t TokensInFlight(const ExecutorLimits& limits) {
  return std::min(limits.max_steps_in_flight, kMostTokens / 1024) *
         std::clamp<int64_t>(limits.max_step_tokens, 0, 1 << 24);
}

}  // namespace

absl::Status CheckStepInput(const ExecutorLimits& limits, const StepInput& input) {
  if (input.chunks.empty()) return absl::InvalidArgumentError("step: no tokens");
  if (static_cast<int64_t>(input.chunks.size()) > limits.max_sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: ", input.chunks.size(), " sequences, the limit is ", limits.max_sequences));
  }
  RETURN_IF_ERROR(CheckCopies(limits, input.copies));
  int64_t tokens = 0, rows = 0;
  absl::flat_hash_set<int64_t> sequences;
  for (const Chunk& chunk : input.chunks) {
    RETURN_IF_ERROR(CheckChunk(limits, chunk));
    if (!sequences.insert(chunk.sequence).second) {
      return absl::InvalidArgumentError(absl::StrCat("step: sequence ", chunk.sequence, " occurs twice"));
    }
    const int64_t count = static_cast<int64_t>(chunk.ids.size());
    tokens += count;
    rows += RowsOf(chunk);
  }
  if (tokens > limits.max_step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("step: ", tokens, " tokens, the limit is ", limits.max_step_tokens));
  }
  if (limits.max_step_logits > 0 && rows > limits.max_step_logits) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: ", rows, " rows of logits, the limit is ", limits.max_step_logits));
  }
  return absl::OkStatus();
}

absl::Status Executor::BeginEngine(const std::atomic<int64_t>* live_requests) {
  if (live_requests_ != nullptr) {
    return absl::FailedPreconditionError(
        "there is an engine, and two would overwrite each other's KV cache: add the requests to that one, destroy it "
        "first, or load the plan once more");
  }
  live_requests_ = live_requests;
  return absl::OkStatus();
}

absl::Status Executor::BorrowPages() {
  const int64_t live = live_requests_ == nullptr ? 0 : live_requests_->load();
  if (live == 0) {
    ++num_loans_;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the engine has ", live, " live request", live == 1 ? "" : "s",
                   ", whose KV cache would be overwritten: run them to their end or cancel them first, or load the "
                   "plan once more"));
}

absl::StatusOr<StepResult> Executor::RunStep(const StepInput& input) {
  RETURN_IF_ERROR(Submit(input));
  return Collect();
}

absl::Status SynchronousExecutor::Submit(const StepInput& input) {
  if (result_.has_value()) return absl::InvalidArgumentError("step: one is in flight, which is the limit");
  RETURN_IF_ERROR(CheckStepInput(limits(), input));
  for (const Chunk& chunk : input.chunks) {
    if (chunk.ids[0] == kSampledToken && histories_.count(chunk.sequence) == 0) {
      return absl::InvalidArgumentError(absl::StrCat("step, sequence ", chunk.sequence, ": has sampled no token"));
    }
  }
  result_ = Run(input);
  return absl::OkStatus();
}

absl::StatusOr<StepResult> SynchronousExecutor::Collect() {
  if (!result_.has_value()) return absl::FailedPreconditionError("no step is in flight");
  absl::StatusOr<StepResult> result = *std::move(result_);
  result_.reset();
  return result;
}

absl::StatusOr<StepResult> SynchronousExecutor::Run(const StepInput& input) {
  StepInput known = input;
  for (Chunk& chunk : known.chunks) {
    if (chunk.begins) histories_.erase(chunk.sequence);
    if (chunk.ids[0] == kSampledToken) chunk.ids = absl::MakeConstSpan(&histories_.at(chunk.sequence).last, 1);
    if (chunk.sampling == nullptr) continue;
    histories_.try_emplace(chunk.sequence);
    if (chunk.logits == WantedLogits::kNone) chunk.logits = WantedLogits::kLast;
  }
  ASSIGN_OR_RETURN(Logits logits, ComputeLogits(known));
  if (absl::c_none_of(input.chunks, [](const Chunk& chunk) { return chunk.sampling != nullptr; })) {
    return StepResult{.logits = std::move(logits), .sampled = std::vector<SampledToken>(input.chunks.size())};
  }
  StepResult result{.logits = {.failed = logits.failed, .vocab_size = logits.vocab_size},
                    .sampled = std::vector<SampledToken>(input.chunks.size())};
  int64_t row = 0;
  for (size_t i = 0; i < known.chunks.size(); ++i) {
    const Chunk& chunk = known.chunks[i];
    if (logits.failed.count(i) > 0 || chunk.logits == WantedLogits::kNone) continue;
    const int64_t rows = chunk.logits == WantedLogits::kAll ? static_cast<int64_t>(chunk.ids.size()) : 1;
    if (chunk.sampling != nullptr) {
      absl::StatusOr<SampledToken> token = Sample(chunk, logits.row(row + rows - 1));
      if (token.ok()) result.sampled[i] = *std::move(token);
      if (!token.ok()) result.logits.failed[i] = token.status();
    }
    if (input.chunks[i].logits != WantedLogits::kNone && result.logits.failed.count(i) == 0) {
      const auto values = absl::MakeConstSpan(logits.values).subspan(row * logits.vocab_size, rows * logits.vocab_size);
      result.logits.values.insert(result.logits.values.end(), values.begin(), values.end());
      result.logits.rows += rows;
    }
    row += rows;
  }
  return result;
}

absl::StatusOr<SampledToken> SynchronousExecutor::Sample(const Chunk& chunk, absl::Span<const float> logits) {
  const Sampling& sampling = *chunk.sampling;
  History& history = histories_.at(chunk.sequence);
  std::vector<float> changed;
  if (sampling.params.has_penalties()) {
    if (!history.is_counted) {
      history.is_counted = true;
      history.counts.AddPrompt(sampling.history.subspan(0, sampling.prompt_size));
      for (int32_t id : sampling.history.subspan(sampling.prompt_size)) history.counts.AddGenerated(id);
    }
    changed.assign(logits.begin(), logits.end());
    ApplyPenalties(sampling.params, history.counts, absl::MakeSpan(changed));
  }
  const absl::Span<const float> chosen_from = changed.empty() ? logits : changed;
  ASSIGN_OR_RETURN(const int32_t token, SampleToken(chosen_from, sampling.params, sampling.index));
  history.last = token;
  if (sampling.params.has_penalties()) history.counts.AddGenerated(token);
  SampledToken sampled{.token = token};
  if (sampling.log_probs.has_value()) {
    sampled.log_prob = logits[token] - LogSumExp(logits);
    sampled.top_log_probs = TopLogProbs(logits, *sampling.log_probs);
  }
  return sampled;
}

int64_t RowsOf(const Chunk& chunk) {
  if (chunk.logits == WantedLogits::kAll) return static_cast<int64_t>(chunk.ids.size());
  return chunk.logits == WantedLogits::kLast || chunk.sampling != nullptr ? 1 : 0;
}

int64_t PagesFor(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

absl::Status CheckHoldsPage(absl::string_view pool, int64_t pages, int64_t page_size, int64_t largest) {
  if (page_size == largest || pages >= largest / page_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the KV cache has room for no tokens: ", pool, " is at most ", pages,
                                                 " pages of ", page_size, " tokens, fewer than one page of ", largest,
                                                 " of another pool; compile with --bound ", pool, "=",
                                                 largest / page_size, " or more"));
}

PageSizes PageSizesOf(absl::Span<const PoolLimits> pools) {
  PageSizes sizes;
  for (const PoolLimits& pool : pools) sizes.push_back(pool.page_size);
  return sizes;
}

int64_t PagesInLargest(const PoolLimits& pool, absl::Span<const PoolLimits> pools) {
  int64_t largest = pool.page_size;
  for (const PoolLimits& other : pools) largest = std::max(largest, other.page_size);
  return largest / pool.page_size;
}

// A sequence goes through a window's pool if that holds what the window sees and what steps in flight write.
int64_t MaxCachedTokens(const ExecutorLimits& limits) {
  int64_t most = limits.max_context;
  for (const PoolLimits& pool : limits.pools) {
    const int64_t held = std::min(pool.window, kMostTokens) + TokensInFlight(limits);
    const bool slides = pool.window > 0 && pool.num_pages >= PagesFor(held, pool.page_size) + 2;
    if (!slides) most = std::min(most, pool.num_pages * pool.page_size);
  }
  return most;
}

int64_t PagesOfWindow(const PoolLimits& pool, const ExecutorLimits& limits) {
  const int64_t each = PagesFor(std::min(pool.window, kMostTokens), pool.page_size) + 2;
  return std::clamp<int64_t>(limits.max_sequences, 1, 1 << 24) * each +
         PagesFor(TokensInFlight(limits), pool.page_size) + 1;
}

}  // namespace llmc
