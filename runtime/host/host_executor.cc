#include "runtime/host/host_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/host/paged_model.h"
#include "runtime/host/past_kv_executor.h"

namespace llmc {
namespace {

constexpr int64_t kMaxDefaultKvBytes = int64_t{1} << 30;
constexpr int64_t kDefaultContexts = 4;

absl::Status SetLimit(absl::string_view name, int64_t wanted, int64_t otherwise, int64_t high, int64_t* limit) {
  if (wanted < 0 || wanted > high) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is ", wanted, ", must be in [1, ", high, "]"));
  }
  *limit = wanted == 0 ? otherwise : wanted;
  return absl::OkStatus();
}

// The tensors that describe a step; see ir/ops_lm.h.
struct StepTensors {
  std::vector<int32_t> ids, pos, slots, pages, lens, starts = {0}, rows;
  int64_t pages_per_sequence = 1;

  void AddChunk(const Chunk& chunk, int64_t page_size) {
    const int64_t begin = static_cast<int64_t>(ids.size());
    const int64_t count = static_cast<int64_t>(chunk.ids.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = chunk.position + i;
      ids.push_back(chunk.ids[i]);
      pos.push_back(static_cast<int32_t>(position));
      slots.push_back(static_cast<int32_t>(chunk.pages[position / page_size] * page_size + position % page_size));
      if (chunk.logits == WantedLogits::kAll || (chunk.logits == WantedLogits::kLast && i == count - 1)) {
        rows.push_back(static_cast<int32_t>(begin + i));
      }
    }
    const int64_t used = PagesFor(chunk.position + count, page_size);
    pages.insert(pages.end(), chunk.pages.begin(), chunk.pages.begin() + used);
    pages.resize(lens.size() * pages_per_sequence + pages_per_sequence, 0);
    lens.push_back(static_cast<int32_t>(chunk.position + count));
    starts.push_back(static_cast<int32_t>(begin + count));
  }

  NamedTensors Named() const {
    auto tensor = [](const std::vector<int32_t>& values) {
      return Tensor::FromValues(DType::kI32, {static_cast<int64_t>(values.size())}, values);
    };
    const Shape table = {static_cast<int64_t>(lens.size()), pages_per_sequence};
    return {{"ids", tensor(ids)},
            {"pos", tensor(pos)},
            {"slots", tensor(slots)},
            {"lens", tensor(lens)},
            {"rows", tensor(rows)},
            {"starts", tensor(starts)},
            {"pages", Tensor::FromValues(DType::kI32, table, pages)}};
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> NewHostExecutor(const Model* model, const HostExecutorOptions& options) {
  if (!IsPagedLanguageModel(*model)) return PastKvExecutor::Create(model, options);
  return HostExecutor::Create(model, options);
}

absl::StatusOr<std::unique_ptr<HostExecutor>> HostExecutor::Create(const Model* model,
                                                                   const HostExecutorOptions& options) {
  ASSIGN_OR_RETURN(const PagedModel paged, DescribePagedModel(*model));
  auto executor = std::unique_ptr<HostExecutor>(new HostExecutor());
  executor->step_ = paged.step;
  ExecutorLimits& limits = executor->limits_;
  limits.vocab_size = paged.vocab_size;
  limits.page_size = paged.page_size;
  limits.max_step_tokens = paged.max_step_tokens;
  limits.max_step_logits = paged.max_step_logits;
  limits.max_sequences = paged.max_sequences;
  limits.window = paged.window;
  limits.shares_pages = true;
  absl::Status status =
      SetLimit("max_context", options.max_context, paged.max_context, paged.max_context, &limits.max_context);
  const int64_t affordable = std::max<int64_t>(1, kMaxDefaultKvBytes / std::max<int64_t>(1, paged.page_bytes));
  const int64_t wished = kDefaultContexts * PagesFor(limits.max_context, limits.page_size);
  status.Update(SetLimit("num_pages", options.num_pages, std::min({wished, affordable, paged.max_pages}),
                         paged.max_pages, &limits.num_pages));
  if (!status.ok()) return status;

  auto evaluator = Evaluator::Create(model);
  if (!evaluator.ok()) return evaluator.status();
  executor->evaluator_ = *std::move(evaluator);
  status = executor->evaluator_->AllocateStates({{paged.pages_symbol, limits.num_pages}});
  if (!status.ok()) return status;
  return executor;
}

void HostExecutor::CopyPages(absl::Span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) {
    for (const Value* state : evaluator_->model().states) {
      Tensor* tensor = evaluator_->FindState(state->name);
      const int64_t bytes = tensor->bytes() / limits_.num_pages;
      std::memmove(tensor->mutable_raw() + copy.to * bytes, tensor->raw() + copy.from * bytes,
                   static_cast<size_t>(bytes));
    }
  }
}

absl::StatusOr<Logits> HostExecutor::ComputeLogits(const StepInput& input) {
  CopyPages(input.copies);
  StepTensors tensors;
  for (const Chunk& chunk : input.chunks) {
    const int64_t length = chunk.position + static_cast<int64_t>(chunk.ids.size());
    tensors.pages_per_sequence = std::max(tensors.pages_per_sequence, PagesFor(length, limits_.page_size));
  }
  for (const Chunk& chunk : input.chunks) tensors.AddChunk(chunk, limits_.page_size);
  const int64_t wanted = static_cast<int64_t>(tensors.rows.size());
  if (wanted == 0) tensors.rows.push_back(0);  // models need not handle a step without rows
  const auto outputs = evaluator_->Run(*step_, tensors.Named());
  if (!outputs.ok()) return outputs.status();
  const auto logits = outputs->find("logits");
  if (logits == outputs->end() || logits->second.size() < wanted * limits_.vocab_size) {
    return absl::InternalError("the step gave too few logits");
  }
  Logits result{.rows = wanted, .vocab_size = limits_.vocab_size, .values = logits->second.ToFloats()};
  result.values.resize(wanted * limits_.vocab_size);
  return result;
}

}  // namespace llmc
