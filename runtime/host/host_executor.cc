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
  limits.max_step_tokens = paged.max_step_tokens;
  limits.max_step_logits = paged.max_step_logits;
  limits.max_sequences = paged.max_sequences;
  limits.shares_pages = true;
  absl::Status status =
      SetLimit("max_context", options.max_context, paged.max_context, paged.max_context, &limits.max_context);
  int64_t bytes = 0, num_pages = 0, largest = 0;
  for (const StatePool& pool : paged.pools) largest = std::max(largest, pool.page_size);
  for (const StatePool& pool : paged.pools) {
    bytes = std::min(bytes + pool.page_bytes * (largest / pool.page_size), kMaxDefaultKvBytes);
  }
  const int64_t affordable = std::max<int64_t>(1, kMaxDefaultKvBytes / std::max<int64_t>(1, bytes));
  const int64_t wished = kDefaultContexts * PagesFor(limits.max_context, largest);
  status.Update(SetLimit("num_pages", options.num_pages, std::min({wished, affordable, paged.max_pages}),
                         paged.max_pages, &num_pages));
  if (!status.ok()) return status;
  limits.pools.clear();
  DimEnv sizes;
  for (const StatePool& pool : paged.pools) {
    PoolLimits& own = limits.pools.emplace_back();
    own = {.num_pages = num_pages * (largest / pool.page_size), .page_size = pool.page_size, .window = pool.window};
    const bool is_smaller = pool.window > 0 && paged.pools.size() > 1;
    if (is_smaller) own.num_pages = std::min(own.num_pages, PagesOfWindow(own, limits));
    sizes[pool.dim] = own.num_pages;
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
int64_t HostExecutor::PagesOf(const Chunk& chunk, size_t pool) const {
  return PagesFor(chunk.position + static_cast<int64_t>(chunk.ids.size()), limits_.pools[pool].page_size);
}

absl::StatusOr<Logits> HostExecutor::ComputeLogits(const StepInput& input) {
  CopyPages(input.copies);
  int64_t table_width = 1;
  for (const Chunk& chunk : input.chunks) {
    for (size_t i = 0; i < limits_.pools.size(); ++i) table_width = std::max(table_width, PagesOf(chunk, i));
  }
  StepLayout layout(PageSizesOf(limits_.pools), table_width);
  for (const Chunk& chunk : input.chunks) {
    PoolTables tables = chunk.pages;
    for (size_t i = 0; i < tables.size(); ++i) {
      tables[i] = tables[i].subspan(0, static_cast<size_t>(PagesOf(chunk, i)));
    }
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
