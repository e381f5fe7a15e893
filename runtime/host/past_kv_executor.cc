#include "runtime/host/past_kv_executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr int64_t kPageSize = 4096;  // pages hold nothing here, so few of them
constexpr int64_t kMaxContext = int64_t{1} << 20;
constexpr int64_t kMaxStepTokens = 8192;
constexpr int64_t kMaxSequences = 256;

bool IsKnownInput(absl::string_view name) {
  return name == "input_ids" || name == "attention_mask" || name == "position_ids";
}

// The outputs that exporters pair with an input past…X.
std::vector<std::string> PresentNames(absl::string_view past) {
  std::vector<std::string> names;
  for (absl::string_view prefix : {"past_key_values", "past"}) {
    if (!absl::StartsWith(past, prefix)) continue;
    for (absl::string_view present : {"present", "present_key_values"}) {
      names.push_back(absl::StrCat(present, past.substr(prefix.size())));
    }
  }
  return names;
}

const Output* FindOutput(const Step& step, absl::string_view name) {
  for (const Output& output : step.outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

// The cache of a sequence without tokens: batch 1, and 0 where the length goes. Keys and values in one tensor have an
// axis of 2 in front.
absl::StatusOr<Tensor> EmptyPast(const Value& param) {
  Shape shape;
  int64_t lengths = 0;
  const size_t batch = param.type.rank() == 5 && param.type.shape[0] == Dim(2) ? 1 : 0;
  for (const Dim& dim : param.type.shape) {
    const bool is_batch = shape.size() == batch;
    if (!dim.is_constant() && !is_batch) ++lengths;
    shape.push_back(dim.is_constant() ? dim.value() : is_batch ? 1 : 0);
  }
  if (lengths != 1 || shape[batch] != 1) {
    return absl::UnimplementedError(absl::StrCat("language model: the cache ", param.name, " is ",
                                                 param.type.ToString(),
                                                 ", which is not one sequence with one axis of variable length"));
  }
  return Tensor(param.type.dtype, shape);
}

Tensor Row(DType dtype, int64_t size, int64_t first, int64_t step) {
  std::vector<int64_t> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = first + i * step;
  return Tensor::FromValues(dtype, {1, size}, values);
}

// The rows of `from` [1, S, V], the last tokens of a sequence, that the chunk wants.
absl::Status AppendRows(const Tensor& from, const Chunk& chunk, Logits* to) {
  const int64_t count = chunk.logits == WantedLogits::kAll    ? static_cast<int64_t>(chunk.ids.size())
                        : chunk.logits == WantedLogits::kLast ? 1
                                                              : 0;
  const Shape& shape = from.shape();
  if (shape.size() != 3 || shape[0] != 1 || shape[1] < count || shape[2] != to->vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the model gave logits ", ShapeToString(shape), " where [1, ", count,
                                                   ", ", to->vocab_size, "] are wanted"));
  }
  const std::vector<float> values = from.ToFloats();
  to->values.insert(to->values.end(), values.end() - count * to->vocab_size, values.end());
  to->rows += count;
  return absl::OkStatus();
}

}  // namespace

bool IsPastKvLanguageModel(const Model& model) {
  if (model.steps.empty() || !model.states.empty()) return false;
  const Step& step = *model.steps.front();
  const Output* logits = FindOutput(step, "logits");
  return logits != nullptr && logits->value->type.rank() == 3 &&
         absl::c_any_of(step.params, [](const Value* param) { return param->name == "%input_ids"; });
}

absl::StatusOr<std::unique_ptr<PastKvExecutor>> PastKvExecutor::Create(const Model* model,
                                                                       const HostExecutorOptions& options) {
  if (model->steps.empty()) return absl::UnimplementedError("this is no language model");
  auto evaluator = Evaluator::Create(model);
  if (!evaluator.ok()) return evaluator.status();
  const std::shared_ptr<Evaluator> shared = *std::move(evaluator);
  return Create(model, options,
                [shared, step = model->steps.front().get()](const NamedTensors& in) { return shared->Run(*step, in); });
}

absl::StatusOr<std::unique_ptr<PastKvExecutor>> PastKvExecutor::Create(const Model* model,
                                                                       const HostExecutorOptions& options,
                                                                       StepRunner run) {
  auto executor = std::unique_ptr<PastKvExecutor>(new PastKvExecutor());
  if (model->steps.empty() || !model->states.empty()) return absl::UnimplementedError("this is no language model");
  executor->step_ = model->steps.front().get();
  absl::Status status = executor->ReadInputs();
  if (!status.ok()) return status;
  if (options.max_context < 0 || options.max_context > kMaxContext || options.num_pages < 0 ||
      options.num_pages > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context, " is not in [0, ", kMaxContext,
                                                   "] or num_pages ", options.num_pages, " is out of range"));
  }
  ExecutorLimits& limits = executor->limits_;
  limits.page_size = kPageSize;
  limits.max_context = options.max_context == 0 ? kMaxContext : options.max_context;
  limits.pools[0].num_pages =
      options.num_pages == 0 ? kMaxSequences * PagesFor(limits.max_context, kPageSize) : options.num_pages;
  limits.max_step_tokens = kMaxStepTokens;
  limits.max_sequences = kMaxSequences;
  executor->run_ = std::move(run);
  status = executor->ReadVocabulary();
  if (!status.ok()) return status;
  if (limits.vocab_size < 1) return absl::UnimplementedError("no language model: its vocabulary is empty");
  return executor;
}

absl::Status PastKvExecutor::ReadInputs() {
  for (const Value* param : step_->params) {
    const std::string name = param->name.substr(1);
    if (IsKnownInput(name)) {
      const DType dtype = param->type.dtype;
      if (param->type.rank() != 2 || (!IsInteger(dtype) && dtype != DType::kBool)) {
        return absl::UnimplementedError(
            absl::StrCat("language model: the input ", name, " is ", param->type.ToString(), ", not integers [B, S]"));
      }
      inputs_[name] = dtype;
    } else
      RETURN_IF_ERROR(AddPastKv(*param));
  }
  if (inputs_.count("input_ids") == 0) return absl::UnimplementedError("no language model: it has no input input_ids");
  return absl::OkStatus();
}

absl::Status PastKvExecutor::AddPastKv(const Value& param) {
  const std::string name = param.name.substr(1);
  for (const std::string& present : PresentNames(name)) {
    const Output* output = FindOutput(*step_, present);
    if (output == nullptr) continue;
    if (output->value->type.dtype != param.type.dtype) {
      return absl::UnimplementedError(absl::StrCat("language model: the cache ", name, " is ", param.type.ToString(),
                                                   " but ", present, " is ", output->value->type.ToString()));
    }
    ASSIGN_OR_RETURN(Tensor start, EmptyPast(param));
    past_kv_.push_back({.input = name, .output = present, .start = std::move(start)});
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("language model: nothing is known to feed to the input ", name,
                                               "; known are input_ids, attention_mask, position_ids, and past… with an "
                                               "output present…"));
}

absl::Status PastKvExecutor::ReadVocabulary() {
  const Output* logits = FindOutput(*step_, "logits");
  if (logits == nullptr || logits->value->type.rank() != 3) {
    return absl::UnimplementedError("no language model: it has no output logits [B, S, V]");
  }
  const Dim& vocabulary = logits->value->type.shape[2];
  if (vocabulary.is_constant()) {
    limits_.vocab_size = vocabulary.value();
    return absl::OkStatus();
  }
  // Only a run can tell.
  Sequence probe;
  for (const PastKv& f : past_kv_) probe.past[f.input] = f.start;
  const auto outputs = run_(StepTensors(probe, {0}, 0));
  if (!outputs.ok()) return outputs.status();
  limits_.vocab_size = outputs->at("logits").shape()[2];
  return absl::OkStatus();
}

NamedTensors PastKvExecutor::StepTensors(const Sequence& sequence, absl::Span<const int32_t> ids,
                                         int64_t position) const {
  const int64_t count = static_cast<int64_t>(ids.size());
  NamedTensors tensors = sequence.past;
  for (const auto& [name, dtype] : inputs_) {
    if (name == "input_ids") {
      tensors[name] = Tensor::FromValues(dtype, {1, count}, std::vector<int32_t>(ids.begin(), ids.end()));
    } else if (name == "position_ids") {
      tensors[name] = Row(dtype, count, position, 1);
    } else {
      tensors[name] = Row(dtype, position + count, 1, 0);
    }
  }
  return tensors;
}

absl::StatusOr<Logits> PastKvExecutor::ComputeLogits(const StepInput& input) {
  Logits logits{.vocab_size = limits_.vocab_size};
  for (size_t i = 0; i < input.chunks.size(); ++i) {
    if (absl::Status status = RunChunk(input.chunks[i], &logits); !status.ok()) logits.failed[i] = status;
  }
  return logits;
}

absl::Status PastKvExecutor::RunChunk(const Chunk& chunk, Logits* logits) {
  if (chunk.begins) {
    Sequence fresh;
    for (const PastKv& f : past_kv_) fresh.past[f.input] = f.start;
    sequences_[chunk.sequence] = std::move(fresh);
  }
  const auto it = sequences_.find(chunk.sequence);
  if (it == sequences_.end() || static_cast<int64_t>(it->second.ids.size()) != chunk.position) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence ", chunk.sequence, " does not go on at position ", chunk.position));
  }
  Sequence& sequence = it->second;
  sequence.ids.insert(sequence.ids.end(), chunk.ids.begin(), chunk.ids.end());
  const bool cached = !past_kv_.empty();
  if (!cached && chunk.logits == WantedLogits::kNone) return absl::OkStatus();
  const int64_t first = cached ? chunk.position : 0;
  const absl::Span<const int32_t> ids = absl::MakeConstSpan(sequence.ids).subspan(first);
  auto outputs = run_(StepTensors(sequence, ids, first));
  if (!outputs.ok()) return outputs.status();
  for (const PastKv& f : past_kv_) sequence.past[f.input] = std::move(outputs->at(f.output));
  return AppendRows(outputs->at("logits"), chunk, logits);
}

}  // namespace llmc
