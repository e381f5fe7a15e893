#include "runtime/executor.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace llmc {
namespace {

absl::Status CheckChunk(const ExecutorLimits& limits, const Chunk& chunk) {
  auto error = [&](auto... message) {
    return absl::InvalidArgumentError(absl::StrCat("step, sequence ", chunk.sequence, ": ", message...));
  };
  if (chunk.ids.empty()) return error("no tokens");
  if (chunk.position < 0 || chunk.position > limits.max_context) return error("position ", chunk.position);
  const int64_t length = chunk.position + static_cast<int64_t>(chunk.ids.size());
  if (length > limits.max_context) return error(length, " tokens, the context is ", limits.max_context);
  for (int32_t id : chunk.ids) {
    if (id < 0 || id >= limits.vocab_size) return error("token id ", id, " is not in [0, ", limits.vocab_size, ")");
  }
  const int64_t needed = PagesFor(length, limits.page_size);
  if (static_cast<int64_t>(chunk.pages.size()) < needed) {
    return error(chunk.pages.size(), " pages, ", length, " tokens need ", needed);
  }
  for (int32_t page : chunk.pages) {
    if (page < 0 || page >= limits.num_pages) return error("page ", page, " is not in [0, ", limits.num_pages, ")");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStepInput(const ExecutorLimits& limits, const StepInput& input) {
  if (input.chunks.empty()) return absl::InvalidArgumentError("step: no tokens");
  if (static_cast<int64_t>(input.chunks.size()) > limits.max_sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: ", input.chunks.size(), " sequences, the limit is ", limits.max_sequences));
  }
  int64_t tokens = 0;
  absl::flat_hash_set<int64_t> sequences;
  for (const Chunk& chunk : input.chunks) {
    if (absl::Status status = CheckChunk(limits, chunk); !status.ok()) return status;
    if (!sequences.insert(chunk.sequence).second) {
      return absl::InvalidArgumentError(absl::StrCat("step: sequence ", chunk.sequence, " occurs twice"));
    }
    tokens += static_cast<int64_t>(chunk.ids.size());
  }
  if (tokens > limits.max_step_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("step: ", tokens, " tokens, the limit is ", limits.max_step_tokens));
  }
  return absl::OkStatus();
}

int64_t PagesFor(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

}  // namespace llmc
