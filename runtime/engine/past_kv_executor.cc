#include "runtime/engine/past_kv_executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
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

const TensorInfo* Find(const std::vector<TensorInfo>& infos, absl::string_view name) {
  const auto it = absl::c_find_if(infos, [&](const TensorInfo& info) { return info.name == name; });
  return it == infos.end() ? nullptr : &*it;
}

std::string TypeText(const TensorInfo& info) {
  return absl::StrCat(DTypeName(info.type), "[", absl::StrJoin(info.shape, ", "), "]");
}

// The cache of a sequence without tokens: batch 1, and 0 where the length goes. Keys and values in one tensor have an
// axis of 2 in front.
absl::StatusOr<HostTensor> EmptyPast(const TensorInfo& past) {
  std::vector<int64_t> shape;
  int64_t lengths = 0;
  const size_t batch = past.shape.size() == 5 && past.shape[0] == "2" ? 1 : 0;
  for (const std::string& dim : past.shape) {
    const bool is_batch = shape.size() == batch;
    int64_t size = 0;
    const bool is_known = absl::SimpleAtoi(dim, &size);
    if (!is_known && !is_batch) ++lengths;
    shape.push_back(is_known ? size : is_batch ? 1 : 0);
  }
  if (lengths != 1 || shape[batch] != 1) {
    return absl::UnimplementedError(absl::StrCat("language model: the cache ", past.name, " is ", TypeText(past),
                                                 ", which is not one sequence with one axis of variable length"));
  }
  return HostTensor::Zeros(past.type, shape);
}

absl::StatusOr<HostTensor> Row(DType dtype, int64_t size, int64_t first, int64_t step) {
  std::vector<int64_t> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = first + i * step;
  return HostTensor::FromInts(dtype, values, {1, size});
}

// The rows of `from` [1, S, V], the last tokens of a sequence, that the chunk wants.
absl::Status AppendRows(const HostTensor& from, const Chunk& chunk, Logits* to) {
  const int64_t count = chunk.logits == WantedLogits::kAll    ? static_cast<int64_t>(chunk.ids.size())
                        : chunk.logits == WantedLogits::kLast ? 1
                                                              : 0;
  const std::vector<int64_t>& shape = from.shape;
  if (shape.size() != 3 || shape[0] != 1 || shape[1] < count || shape[2] != to->vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the model gave logits [", absl::StrJoin(shape, ", "),
                                                   "] where [1, ", count, ", ", to->vocab_size, "] are wanted"));
  }
  ASSIGN_OR_RETURN(const std::vector<float> values, from.ToFloats());
  to->values.insert(to->values.end(), values.end() - count * to->vocab_size, values.end());
  to->rows += count;
  return absl::OkStatus();
}

}  // namespace

bool IsPastKvLanguageModel(const ModelDescription& model) {
  const TensorInfo* logits = Find(model.outputs, "logits");
  return !model.has_states && logits != nullptr && logits->shape.size() == 3 &&
         Find(model.inputs, "input_ids") != nullptr;
}

absl::StatusOr<std::unique_ptr<PastKvExecutor>> PastKvExecutor::Create(const ModelDescription& model,
                                                                       const CacheOptions& options, ModelRunner run) {
  auto executor = std::unique_ptr<PastKvExecutor>(new PastKvExecutor());
  if (model.has_states) return absl::UnimplementedError("this is no language model");
  RETURN_IF_ERROR(executor->ReadInputs(model));
  if (options.max_context < 0 || options.max_context > kMaxContext || options.num_pages < 0 ||
      options.num_pages > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("max_context ", options.max_context, " is not in [0, ", kMaxContext,
                                                   "] or num_pages ", options.num_pages, " is out of range"));
  }
  ExecutorLimits& limits = executor->limits_;
  limits.pools[0].page_size = kPageSize;
  limits.max_context = options.max_context == 0 ? kMaxContext : options.max_context;
  limits.pools[0].num_pages =
      options.num_pages == 0 ? kMaxSequences * PagesFor(limits.max_context, kPageSize) : options.num_pages;
  limits.max_step_tokens = kMaxStepTokens;
  limits.max_sequences = kMaxSequences;
  executor->run_ = std::move(run);
  RETURN_IF_ERROR(executor->ReadVocabulary(model));
  if (limits.vocab_size < 1) return absl::UnimplementedError("no language model: its vocabulary is empty");
  if (limits.vocab_size > std::numeric_limits<int32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat("no language model: a vocabulary of ", limits.vocab_size, " tokens"));
  }
  return executor;
}

absl::Status PastKvExecutor::ReadInputs(const ModelDescription& model) {
  for (const TensorInfo& input : model.inputs) {
    if (!IsKnownInput(input.name)) {
      RETURN_IF_ERROR(AddPastKv(model, input));
      continue;
    }
    if (input.shape.size() != 2 || (!IsInteger(input.type) && input.type != DType::kBool)) {
      return absl::UnimplementedError(
          absl::StrCat("language model: the input ", input.name, " is ", TypeText(input), ", not integers [B, S]"));
    }
    inputs_[input.name] = input.type;
  }
  if (inputs_.count("input_ids") == 0) return absl::UnimplementedError("no language model: it has no input input_ids");
  return absl::OkStatus();
}

absl::Status PastKvExecutor::AddPastKv(const ModelDescription& model, const TensorInfo& past) {
  for (const std::string& present : PresentNames(past.name)) {
    const TensorInfo* output = Find(model.outputs, present);
    if (output == nullptr) continue;
    if (output->type != past.type) {
      return absl::UnimplementedError(absl::StrCat("language model: the cache ", past.name, " is ", TypeText(past),
                                                   " but ", present, " is ", TypeText(*output)));
    }
    ASSIGN_OR_RETURN(HostTensor start, EmptyPast(past));
    past_kv_.push_back({.input = past.name, .output = present, .start = std::move(start)});
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("language model: nothing is known to feed to the input ", past.name,
                                               "; known are input_ids, attention_mask, position_ids, and past… with an "
                                               "output present…"));
}

absl::Status PastKvExecutor::ReadVocabulary(const ModelDescription& model) {
  const TensorInfo* logits = Find(model.outputs, "logits");
  if (logits == nullptr || logits->shape.size() != 3) {
    return absl::UnimplementedError("no language model: it has no output logits [B, S, V]");
  }
  if (absl::SimpleAtoi(logits->shape[2], &limits_.vocab_size)) return absl::OkStatus();
  // Only a run can tell.
  Sequence probe;
  for (const PastKv& f : past_kv_) probe.past[f.input] = f.start;
  ASSIGN_OR_RETURN(const NamedHostTensors tensors, StepTensors(probe, {0}, 0));
  const auto outputs = run_(tensors);
  if (!outputs.ok()) return outputs.status();
  limits_.vocab_size = outputs->at("logits").shape[2];
  return absl::OkStatus();
}

absl::StatusOr<NamedHostTensors> PastKvExecutor::StepTensors(const Sequence& sequence, absl::Span<const int32_t> ids,
                                                             int64_t position) const {
  const int64_t count = static_cast<int64_t>(ids.size());
  NamedHostTensors tensors = sequence.past;
  for (const auto& [name, dtype] : inputs_) {
    absl::StatusOr<HostTensor> tensor;
    if (name == "input_ids") {
      tensor = HostTensor::FromInts(dtype, std::vector<int64_t>(ids.begin(), ids.end()), {1, count});
    } else if (name == "position_ids") {
      tensor = Row(dtype, count, position, 1);
    } else {
      tensor = Row(dtype, position + count, 1, 0);
    }
    if (!tensor.ok()) return tensor.status();
    tensors[name] = *std::move(tensor);
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
  ASSIGN_OR_RETURN(const NamedHostTensors tensors, StepTensors(sequence, ids, first));
  auto outputs = run_(tensors);
  if (!outputs.ok()) return outputs.status();
  for (const PastKv& f : past_kv_) sequence.past[f.input] = std::move(outputs->at(f.output));
  return AppendRows(outputs->at("logits"), chunk, logits);
}

}  // namespace llmc
