#include "runtime/host/host_executor.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "runtime/host/feedback_executor.h"

namespace llmc {
namespace {

constexpr std::array<absl::string_view, 7> kInputs = {"ids", "pos", "slots", "pages", "lens", "starts", "rows"};
constexpr int64_t kMaxDefaultKvBytes = int64_t{1} << 30;
constexpr int64_t kDefaultContexts = 4;

const Step* FindStep(const Model& model) {
  for (const auto& step : model.steps) {
    if (step->name == "main") return step.get();
  }
  return nullptr;
}

const Value* FindParam(const Step& step, absl::string_view name) {
  for (const Value* param : step.params) {
    if (absl::string_view(param->name).substr(1) == name) return param;
  }
  return nullptr;
}

// The largest size of a dim that is a number or a symbol.
absl::StatusOr<int64_t> Bound(const Model& model, const TensorType& type, size_t axis) {
  if (axis < type.shape.size()) {
    const Dim& dim = type.shape[axis];
    if (dim.is_constant()) return dim.value();
    const auto it = model.dims.find(dim.ToString());
    if (it != model.dims.end()) return it->second;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("language model: axis ", axis, " of ", type.ToString(), " has no bound"));
}

// Fills page_size; gives the symbol of the number of pages and the bytes of one page over all states.
absl::Status ReadStates(const Model& model, ExecutorLimits* limits, std::string* symbol, int64_t* page_bytes) {
  for (const Value* state : model.states) {
    const Dims& shape = state->type.shape;
    const bool fits = shape.size() == 5 && shape[0].is_symbol() &&
                      std::all_of(shape.begin() + 1, shape.end(), [](const Dim& d) { return d.is_constant(); });
    if (!fits ||
        (limits->page_size != 0 && (limits->page_size != shape[2].value() || *symbol != shape[0].ToString()))) {
      return absl::UnimplementedError(absl::StrCat("language model: the state ", state->name, " of type ",
                                                   state->type.ToString(),
                                                   " is no KV cache [N, 2, page_size, heads, head_dim] as the others"));
    }
    limits->page_size = shape[2].value();
    *symbol = shape[0].ToString();
    *page_bytes += 2 * limits->page_size * shape[3].value() * shape[4].value() * DTypeBits(state->type.dtype) / 8;
  }
  if (limits->page_size < 1) return absl::UnimplementedError("language model: it has no KV cache");
  return absl::OkStatus();
}

absl::Status SetVocabulary(const Step& step, ExecutorLimits* limits) {
  for (const Output& output : step.outputs) {
    const Dims& shape = output.value->type.shape;
    if (output.name != "logits" || shape.size() != 2 || !shape[1].is_constant() || shape[1].value() < 1) continue;
    limits->vocab_size = shape[1].value();
    return absl::OkStatus();
  }
  return absl::UnimplementedError("language model: it has no output \"logits\" [R, vocabulary]");
}

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

bool IsPagedLanguageModel(const Model& model) {
  const Step* step = FindStep(model);
  return step != nullptr && step->params.size() == kInputs.size() &&
         absl::c_all_of(kInputs, [&](absl::string_view name) { return FindParam(*step, name) != nullptr; });
}

absl::StatusOr<std::unique_ptr<Executor>> NewHostExecutor(const Model* model, const HostExecutorOptions& options) {
  if (!IsPagedLanguageModel(*model)) return FeedbackExecutor::Create(model, options);
  return HostExecutor::Create(model, options);
}

absl::StatusOr<std::unique_ptr<HostExecutor>> HostExecutor::Create(const Model* model,
                                                                   const HostExecutorOptions& options) {
  if (!IsPagedLanguageModel(*model)) return absl::InvalidArgumentError("the model has no paged step \"main\"");
  auto executor = std::unique_ptr<HostExecutor>(new HostExecutor());
  executor->step_ = FindStep(*model);
  const Step& step = *executor->step_;
  ExecutorLimits& limits = executor->limits_;
  std::string pages_symbol;
  int64_t page_bytes = 0;
  absl::Status status = SetVocabulary(step, &limits);
  status.Update(ReadStates(*model, &limits, &pages_symbol, &page_bytes));
  if (!status.ok()) return status;

  const auto tokens = Bound(*model, FindParam(step, "ids")->type, 0);
  const auto rows = Bound(*model, FindParam(step, "rows")->type, 0);
  const auto sequences = Bound(*model, FindParam(step, "lens")->type, 0);
  const auto pages = Bound(*model, FindParam(step, "pages")->type, 1);
  const auto pool = Bound(*model, model->states.front()->type, 0);
  for (const auto* bound : {&tokens, &rows, &sequences, &pages, &pool}) status.Update(bound->status());
  if (!status.ok()) return status;
  limits.max_step_tokens = std::min(*tokens, *rows);
  limits.max_sequences = *sequences;
  const int64_t context = *pages * limits.page_size;
  status = SetLimit("max_context", options.max_context, context, context, &limits.max_context);
  const int64_t affordable = std::max<int64_t>(1, kMaxDefaultKvBytes / std::max<int64_t>(1, page_bytes));
  const int64_t wished = kDefaultContexts * PagesFor(limits.max_context, limits.page_size);
  // Slots are 32-bit numbers.
  const int64_t most = std::min(*pool, std::numeric_limits<int32_t>::max() / limits.page_size);
  status.Update(
      SetLimit("num_pages", options.num_pages, std::min({wished, affordable, most}), most, &limits.num_pages));
  if (!status.ok()) return status;

  auto evaluator = Evaluator::Create(model);
  if (!evaluator.ok()) return evaluator.status();
  executor->evaluator_ = *std::move(evaluator);
  status = executor->evaluator_->AllocateStates({{pages_symbol, limits.num_pages}});
  if (!status.ok()) return status;
  return executor;
}

absl::StatusOr<Logits> HostExecutor::RunStep(const StepInput& input) {
  if (absl::Status status = CheckStepInput(limits_, input); !status.ok()) return status;
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
