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

// The tensors of a step by the names of its inputs.
NamedTensors InputsOf(const Step& step, const StepLayout& layout) {
  NamedTensors inputs;
  for (const Value* param : step.params) {
    const StepRole role = param->role.role;
    inputs[param->name.substr(1)] =
        Tensor::FromValues(param->type.dtype, InputShape(role, layout), InputValues(role, layout));
  }
  return inputs;
}

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

// Of those in a chunk's table, the ones that its tokens need.
int64_t HostExecutor::PagesOf(const Chunk& chunk) const {
  return PagesFor(chunk.position + static_cast<int64_t>(chunk.ids.size()), limits_.page_size);
}

absl::StatusOr<Logits> HostExecutor::ComputeLogits(const StepInput& input) {
  CopyPages(input.copies);
  int64_t table_width = 1;
  for (const Chunk& chunk : input.chunks) table_width = std::max(table_width, PagesOf(chunk));
  StepLayout layout(limits_.page_size, table_width);
  for (const Chunk& chunk : input.chunks) {
    const auto pages = static_cast<size_t>(PagesOf(chunk));
    layout.Add({.ids = chunk.ids, .position = chunk.position, .pages = chunk.pages.subspan(0, pages)}, RowsOf(chunk));
  }
  const int64_t wanted = layout.Size(StepAxis::kRow);
  if (wanted == 0) layout.AddRow(0);  // models need not handle a step without rows
  const auto outputs = evaluator_->Run(*step_, InputsOf(*step_, layout));
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
