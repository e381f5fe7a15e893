#include "runtime/device/cuda_executor.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/layout/sampling.h"
#include "runtime/device/graph_buckets.h"
#include "runtime/device/trace.h"

namespace llmc {

absl::Status CudaExecutor::Submit(const StepInput& input) {
  if (!broken_.ok()) return broken_;
  if (static_cast<int64_t>(in_flight_.size()) == limits_.max_steps_in_flight) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: ", limits_.max_steps_in_flight, " are in flight, which is the limit"));
  }
  RETURN_IF_ERROR(CheckStepInput(limits_, input));
  RETURN_IF_ERROR(model_->device()->Use());
  RETURN_IF_ERROR(CheckSampledTokens(input));
  InFlight step{.step = num_steps_};
  const TraceSpan span(model_->device()->trace(), "submit a step");
  RETURN_IF_ERROR(PrepareCounts(input, &step));
  const Shape shape = ShapeOf(input);
  WriteMessage(input, shape, &step);
  absl::Status status = CopyPages(input.copies);
  if (status.ok()) status = Run(shape);
  if (status.ok()) status = CopyRows(input, programs_[last_program_], &step);
  if (status.ok()) status = model_->Finish(model_->device()->Record(places_[step.step % 2].done));
  // The device counts steps too: after half of one the two would not agree.
  if (!status.ok()) return broken_ = status;
  in_flight_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status CudaExecutor::CheckSampledTokens(const StepInput& input) const {
  for (const Chunk& chunk : input.chunks) {
    if (chunk.ids[0] != kSampledToken || state_of_.contains(chunk.sequence)) continue;
    return absl::InvalidArgumentError(absl::StrCat("step, sequence ", chunk.sequence, ": has sampled no token"));
  }
  return absl::OkStatus();
}

CudaExecutor::Shape CudaExecutor::ShapeOf(const StepInput& input) const {
  Shape shape;
  StepSizes& sizes = shape.sizes;
  sizes.sequences = static_cast<int64_t>(input.chunks.size());
  bool one_each = true;
  for (const Chunk& chunk : input.chunks) {
    sizes.tokens += static_cast<int64_t>(chunk.ids.size());
    sizes.rows += RowsOf(chunk);
    one_each = one_each && chunk.ids.size() == 1 && RowsOf(chunk) == 1;
    if (chunk.sampling == nullptr) continue;
    ++sizes.draws;
    const SamplingParams& params = chunk.sampling->params;
    const bool draws = params.temperature != 0 && params.top_k != 1;
    const bool has_log_probs = chunk.sampling->log_probs.value_or(kMaxDeviceTop + 1) <= kMaxDeviceTop;
    const plan::Sampling kind = has_log_probs ? plan::LOG_PROBS : draws ? plan::DRAWS : plan::GREEDY;
    shape.sampling = std::max(shape.sampling, kind);
  }
  sizes.rows = std::max<int64_t>(sizes.rows, 1);
  if (one_each && sizes.sequences <= kLargestGraph) {
    // At most what the arena has room for.
    const int64_t bucket = std::min({GraphBucketOf(sizes.sequences), limits_.max_sequences, limits_.max_step_tokens});
    sizes = {.tokens = bucket, .sequences = bucket, .rows = bucket, .draws = sizes.draws > 0 ? bucket : 0};
    shape.decodes = true;
  }
  return shape;
}

// A sequence that samples with penalties has counts of its tokens on the device, which each draw brings up to date. The
// first such step makes them from the tokens so far. A sequence that begins again (after it gave up its pages, or under
// a number that was another's) forgets its counts and its last token first.
absl::Status CudaExecutor::PrepareCounts(const StepInput& input, InFlight* step) {
  for (const Chunk& chunk : input.chunks) {
    if (chunk.begins) EndSequence(chunk.sequence);
    if (chunk.sampling == nullptr) continue;
    Sequence& state = state_of_[chunk.sequence];
    if (!chunk.sampling->params.has_penalties() || state.counts.data() != 0) continue;
    ASSIGN_OR_RETURN(DeviceMemory counts, CountsOf(*chunk.sampling, step));
    state.counts = std::move(counts);
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemory> CudaExecutor::CountsOf(const Sampling& sampling, InFlight* step) {
  DeviceMemory memory;
  if (free_counts_.empty()) {
    ASSIGN_OR_RETURN(DeviceMemory allocated, model_->device()->Allocate(limits_.vocab_size * 4));
    memory = std::move(allocated);
  } else {
    memory = std::move(free_counts_.back());
    free_counts_.pop_back();
  }
  std::vector<uint32_t>& counts = step->counts.emplace_back(limits_.vocab_size);
  for (int32_t id : sampling.history.subspan(0, sampling.prompt_size)) counts[id] |= kInPrompt;
  for (int32_t id : sampling.history.subspan(sampling.prompt_size)) ++counts[id];
  absl::Status status = model_->device()->CopyToDevice(memory.data(), counts.data(), memory.bytes());
  if (!status.ok()) return status;
  return memory;
}

void CudaExecutor::EndSequence(int64_t sequence) {
  const auto it = state_of_.find(sequence);
  if (it == state_of_.end()) return;
  // Steps run in order, so the next owner overwrites them after the last step that counts there.
  if (it->second.counts.data() != 0) free_counts_.push_back(std::move(it->second.counts));
  state_of_.erase(it);
}

DrawResult* CudaExecutor::ResultOf(int64_t step, int64_t draw) const {
  return reinterpret_cast<DrawResult*>(results_.data()) + (step % 2) * max_draws_ + draw;
}

void CudaExecutor::WriteMessage(const StepInput& input, const Shape& shape, InFlight* step) {
  StepMessage message(messages_.data() + (num_steps_ % 2) * message_bytes_, shape.sizes, PageSizesOf(limits_.pools));
  int64_t row = 0, host_rows = 0;
  int32_t draws = 0;
  for (const Chunk& chunk : input.chunks) {
    Pending pending{.sequence = chunk.sequence, .wants_rows = chunk.logits != WantedLogits::kNone};
    int32_t id = 0;
    if (chunk.ids[0] == kSampledToken) {
      const Sequence& state = state_of_.at(chunk.sequence);
      const bool is_known = in_flight_.empty() || state.step < in_flight_.front().step;
      id = is_known ? state.token : -1 - state.draw;
    }
    message.Add(chunk, id);
    if (pending.wants_rows) pending.num_host_rows = RowsOf(chunk);
    if (chunk.sampling != nullptr) {
      Sequence& state = state_of_.at(chunk.sequence);
      DrawRequest draw = MakeDraw(chunk, row + RowsOf(chunk) - 1, state.counts);
      draw.result = ResultOf(num_steps_, draws);
      message.Add(draw);
      state.step = num_steps_;
      state.draw = pending.draw = draws++;
      if (chunk.sampling->log_probs.value_or(0) > kMaxDeviceTop) {
        pending.log_probs = *chunk.sampling->log_probs;
        pending.num_host_rows = std::max<int64_t>(pending.num_host_rows, 1);
      } else {
        pending.device_log_probs = chunk.sampling->log_probs.has_value();
      }
    }
    pending.host_row = host_rows;
    host_rows += pending.num_host_rows;
    row += RowsOf(chunk);
    step->chunks.push_back(pending);
  }
  message.Pad();
}

DrawRequest CudaExecutor::MakeDraw(const Chunk& chunk, int64_t row, const DeviceMemory& counts) const {
  const SamplingParams& params = chunk.sampling->params;
  DrawRequest draw = {.random = SamplerBits(params.seed, chunk.sampling->index),
                      .repetition = static_cast<float>(params.repetition_penalty),
                      .frequency = static_cast<float>(params.frequency_penalty),
                      .presence = static_cast<float>(params.presence_penalty),
                      .row = static_cast<int32_t>(row)};
  if (params.has_penalties()) draw.counts = reinterpret_cast<uint32_t*>(counts.data());
  if (params.temperature != 0 && params.top_k != 1) {
    const SamplingScale scale = ScaleOf(params);
    draw.log2_scale = scale.log2_scale;
    draw.top_p = scale.top_p;
    draw.min_weight = scale.min_weight;
    draw.top_k = scale.top_k;
  }
  const int64_t log_probs = chunk.sampling->log_probs.value_or(-1);
  if (log_probs <= kMaxDeviceTop) draw.log_probs = static_cast<int32_t>(log_probs);
  return draw;
}

// In the stream, so after all that earlier steps write, and outside of graphs. A page of a state is one range.
absl::Status CudaExecutor::CopyPages(absl::Span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) {
    for (size_t i = 0; i < pool_of_.size(); ++i) {
      if (pool_of_[i] != copy.pool) continue;
      const DeviceMemory& state = model_->states()[i];
      const int64_t bytes = state.bytes() / limits_.pools[copy.pool].num_pages;
      absl::Status status =
          model_->device()->CopyOnDevice(state.data() + copy.to * bytes, state.data() + copy.from * bytes, bytes);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Run(const Shape& shape) {
  StepDims dims = {{tokens_, shape.sizes.tokens},
                   {sequences_, shape.sizes.sequences},
                   {rows_, shape.sizes.rows},
                   {pages_, table_width_},
                   {std::string(kDraws), shape.sizes.draws},
                   {std::string(kSampledForms), shape.sampling == plan::LOG_PROBS ? 2 : 1},
                   {std::string(kMessageWords), message_bytes_ / 4},
                   {std::string(kTableWidth), table_width_}};
  for (size_t i = 0; i < pools_.size(); ++i) dims[pools_[i]] = limits_.pools[i].num_pages;
  last_program_ = ChooseProgram(plan_programs_, dims, shape.decodes);
  const Program& program = programs_[last_program_];
  ++num_steps_;
  if (!use_graphs_ || !shape.decodes) return model_->Enqueue(program.code, dims, shape.sampling);
  const auto key = std::make_tuple(last_program_, shape.sizes.sequences, shape.sampling);
  if (const auto graph = graphs_.find(key); graph != graphs_.end()) return model_->device()->Launch(graph->second);
  // Once outside of the capture, so that products have found their algorithms. That is this step's run.
  RETURN_IF_ERROR(model_->Enqueue(program.code, dims, shape.sampling));
  RETURN_IF_ERROR(model_->device()->BeginCapture());
  const absl::Status enqueued = model_->Enqueue(program.code, dims, shape.sampling);
  absl::StatusOr<DeviceGraph> captured = model_->device()->EndCapture();
  if (!enqueued.ok()) return enqueued;
  if (!captured.ok()) return captured.status();
  graphs_.emplace(key, *std::move(captured));
  return absl::OkStatus();
}

// What the host needs of the logits.
absl::Status CudaExecutor::CopyRows(const StepInput& input, const Program& program, InFlight* step) {
  const int64_t row_bytes = limits_.vocab_size * static_cast<int64_t>(sizeof(float));
  int64_t all = 0, row = 0;
  for (const Pending& chunk : step->chunks) all += chunk.num_host_rows;
  PinnedMemory& logits = places_[step->step % 2].logits;
  if (logits.bytes() < all * row_bytes) {
    ASSIGN_OR_RETURN(PinnedMemory memory, model_->device()->AllocatePinned(all * row_bytes));
    logits = std::move(memory);
  }
  for (size_t i = 0; i < input.chunks.size(); ++i) {
    const Pending& chunk = step->chunks[i];
    row += RowsOf(input.chunks[i]);
    if (chunk.num_host_rows == 0) continue;
    absl::Status status = model_->device()->CopyToHost(logits.data() + chunk.host_row * row_bytes,
                                                       program.logits + (row - chunk.num_host_rows) * row_bytes,
                                                       chunk.num_host_rows * row_bytes);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Span<const float> CudaExecutor::HostRow(const InFlight& step, int64_t row) const {
  const auto* logits = reinterpret_cast<const float*>(places_[step.step % 2].logits.data());
  return {logits + row * limits_.vocab_size, static_cast<size_t>(limits_.vocab_size)};
}

absl::StatusOr<StepResult> CudaExecutor::Collect() {
  if (in_flight_.empty()) return absl::FailedPreconditionError("no step is in flight");
  RETURN_IF_ERROR(model_->device()->Use());
  const InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const TraceSpan span(model_->device()->trace(), "collect a step");
  if (absl::Status status = model_->Finish(model_->device()->Wait(places_[step.step % 2].done)); !status.ok()) {
    return broken_ = status;
  }
  if (absl::Status status = model_->CollectTrace(); !status.ok()) return broken_ = status;
  RETURN_IF_ERROR(TakeDeviceError());
  StepResult result{.logits = {.vocab_size = limits_.vocab_size},
                    .sampled = std::vector<SampledToken>(step.chunks.size())};
  for (size_t i = 0; i < step.chunks.size(); ++i) {
    const Pending& chunk = step.chunks[i];
    if (chunk.draw >= 0) {
      absl::StatusOr<SampledToken> sampled = ReadDraw(chunk, step);
      if (const auto state = state_of_.find(chunk.sequence);
          state != state_of_.end() && state->second.step == step.step) {
        state->second.token = sampled.ok() ? sampled->token : 0;
      }
      if (sampled.ok()) {
        result.sampled[i] = *std::move(sampled);
      } else {
        result.logits.failed[i] = sampled.status();
        continue;
      }
    }
    if (!chunk.wants_rows) continue;
    const float* values = HostRow(step, chunk.host_row).data();
    result.logits.values.insert(result.logits.values.end(), values, values + chunk.num_host_rows * limits_.vocab_size);
    result.logits.rows += chunk.num_host_rows;
  }
  return result;
}

// The device error may be of any step that was in flight then: all of them end in it.
absl::Status CudaExecutor::TakeDeviceError() {
  if (steps_at_device_error_ > 0) {
    --steps_at_device_error_;
    return device_error_;
  }
  device_error_ = model_->TakeDeviceError();
  if (device_error_.ok()) return device_error_;
  if (absl::Status status = model_->device()->Synchronize(); !status.ok()) return broken_ = status;
  model_->TakeDeviceError().IgnoreError();
  steps_at_device_error_ = in_flight_.size();
  return device_error_;
}

absl::StatusOr<SampledToken> CudaExecutor::ReadDraw(const Pending& chunk, const InFlight& step) {
  const DrawResult& draw = *ResultOf(step.step, chunk.draw);
  if (draw.token < 0 || draw.token >= limits_.vocab_size || draw.top_count < 0 || draw.top_count > kMaxDeviceTop) {
    return absl::InternalError(absl::StrCat("the device sampled the token ", draw.token, ": the plan is damaged"));
  }
  if (draw.status == 1) {
    return absl::InvalidArgumentError(absl::StrCat("the model gave the logit ", draw.logit, " for token ", draw.token));
  }
  if (draw.status != 0) return absl::InvalidArgumentError("the model allows no token");
  SampledToken sampled{.token = draw.token};
  if (chunk.log_probs >= 0) {
    const absl::Span<const float> logits = HostRow(step, chunk.host_row + chunk.num_host_rows - 1);
    sampled.log_prob = logits[draw.token] - LogSumExp(logits);
    sampled.top_log_probs = TopLogProbs(logits, chunk.log_probs);
  } else if (chunk.device_log_probs) {
    const double log_sum = draw.largest + std::log(std::ldexp(static_cast<double>(draw.total), -kWeightBits));
    sampled.log_prob = draw.logit - log_sum;
    for (int32_t i = 0; i < draw.top_count; ++i) {
      sampled.top_log_probs.push_back({draw.top_tokens[i], draw.top_logits[i] - log_sum});
    }
  }
  return sampled;
}

}  // namespace llmc
