#include "runtime/host/host_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/step_inputs.h"
#include "runtime/engine/past_kv_executor.h"
#include "runtime/host/host_model.h"
#include "runtime/host/host_tensors.h"
#include "runtime/host/paged_model.h"

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
NamedTensors InputsOf(const Step& step, const StepContract& contract, const StepLayout& layout) {
  NamedTensors inputs;
  for (const Value* param : step.params) {
    const StepRole role = param->role.role;
    const std::string name = param->name.substr(1);
    inputs[name] = Tensor::FromValues(param->type.dtype, InputShape(role, layout),
                                      InputValues(role, layout, contract.PoolOfInput(name)));
  }
  return inputs;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> NewHostExecutor(const Model* model, const CacheOptions& options) {
  if (IsPagedLanguageModel(*model)) return HostExecutor::Create(model, options);
  if (model->steps.empty()) return absl::UnimplementedError("this is no language model");
  ASSIGN_OR_RETURN(const ModelDescription description, Describe(*model));
  auto evaluator = Evaluator::Create(model);
  if (!evaluator.ok()) return evaluator.status();
  const std::shared_ptr<Evaluator> shared = *std::move(evaluator);
  return PastKvExecutor::Create(description, options, [shared, step = model->steps.front().get()](const auto& inputs) {
    return RunStep(shared.get(), *step, inputs);
  });
}

absl::StatusOr<std::unique_ptr<HostExecutor>> HostExecutor::Create(const Model* model, const CacheOptions& options) {
  ASSIGN_OR_RETURN(const PagedModel paged, DescribePagedModel(*model));
  auto executor = std::unique_ptr<HostExecutor>(new HostExecutor());
  executor->step_ = paged.step;
  ExecutorLimits& limits = executor->limits_;
  limits.vocab_size = paged.vocab_size;
  limits.page_size = paged.page_size;
  limits.max_step_tokens = paged.max_step_tokens;
  limits.max_step_logits = paged.max_step_logits;
  limits.max_sequences = paged.max_sequences;
  limits.shares_pages = true;
  absl::Status status =
      SetLimit("max_context", options.max_context, paged.max_context, paged.max_context, &limits.max_context);
  int64_t page_bytes = 0, num_pages = 0;
  for (const StatePool& pool : paged.pools) page_bytes += pool.page_bytes;
  const int64_t affordable = std::max<int64_t>(1, kMaxDefaultKvBytes / std::max<int64_t>(1, page_bytes));
  const int64_t wished = kDefaultContexts * PagesFor(limits.max_context, limits.page_size);
  status.Update(SetLimit("num_pages", options.num_pages, std::min({wished, affordable, paged.max_pages}),
                         paged.max_pages, &num_pages));
  if (!status.ok()) return status;
  limits.pools.clear();
  DimEnv sizes;
  for (const StatePool& pool : paged.pools) {
    const bool is_smaller = pool.window > 0 && paged.pools.size() > 1;
    const int64_t most = is_smaller ? PagesOfWindow(pool.window, limits) : num_pages;
    limits.pools.push_back({.num_pages = std::min(num_pages, most), .window = pool.window});
    sizes[pool.dim] = limits.pools.back().num_pages;
  }
  ASSIGN_OR_RETURN(executor->contract_, ContractOf(*paged.step));

  auto evaluator = Evaluator::Create(model);
  if (!evaluator.ok()) return evaluator.status();
  executor->evaluator_ = *std::move(evaluator);
  status = executor->evaluator_->AllocateStates(sizes);
  if (!status.ok()) return status;
  return executor;
}

void HostExecutor::CopyPages(absl::Span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) {
    for (const Value* state : evaluator_->model().states) {
      if (contract_.PoolOf(state->type.shape[0].ToString()) != copy.pool) continue;
      Tensor* tensor = evaluator_->FindState(state->name);
      const int64_t bytes = tensor->bytes() / limits_.pools[copy.pool].num_pages;
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
    PoolTables tables;
    for (const absl::Span<const int32_t> table : chunk.pages) tables.push_back(table.subspan(0, pages));
    layout.Add({.ids = chunk.ids, .position = chunk.position, .pages = std::move(tables)}, RowsOf(chunk));
  }
  const int64_t wanted = layout.Size(StepAxis::kRow);
  if (wanted == 0) layout.AddRow(0);  // models need not handle a step without rows
  const auto outputs = evaluator_->Run(*step_, InputsOf(*step_, contract_, layout));
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
