#include "tools/bench_sampling.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/plan/plan_format.h"

namespace llmc {
namespace {

constexpr int kParts = 4;  // of the plan's program: inputs, choice, two more for draws

DrawRequest MakeDraw(BenchSampling::Kind kind, int32_t row, DrawResult* result) {
  DrawRequest draw = {.result = result, .row = row};
  if (kind == BenchSampling::Kind::kGreedy) return draw;
  const SamplingParams params = {.temperature = 0.8, .top_p = 0.95};
  const SamplingScale scale = ScaleOf(params);
  draw.random = SamplerBits(7, static_cast<uint64_t>(row));
  draw.log2_scale = scale.log2_scale;
  draw.top_p = scale.top_p;
  draw.min_weight = scale.min_weight;
  draw.top_k = scale.top_k;
  return draw;
}

}  // namespace

absl::StatusOr<BenchSampling> BenchSampling::Create(DeviceModel* model, int64_t sequences, int64_t table_width) {
  const plan::Program& program = model->code().sampling();
  if (program.steps_size() != kParts) {
    return absl::FailedPreconditionError("the plan has no code that samples tokens; compile it again");
  }
  BenchSampling sampling;
  sampling.model_ = model;
  sampling.table_width_ = table_width;
  const int64_t bytes = StepMessage::MaxBytes(
      {.tokens = sequences, .sequences = sequences, .rows = sequences, .draws = sequences}, table_width);
  sampling.message_bytes_ =
      static_cast<int64_t>(plan::AlignUp(static_cast<uint64_t>(std::max<int64_t>(bytes, kLeastMessageBytes)), 256));
  Device* device = model->device();
  ASSIGN_OR_RETURN(DeviceMemory arena, device->Allocate(static_cast<int64_t>(program.arena_bytes())));
  sampling.arena_ = std::move(arena);
  ASSIGN_OR_RETURN(PinnedMemory messages, device->AllocatePinned(2 * sampling.message_bytes_));
  sampling.messages_ = std::move(messages);
  ASSIGN_OR_RETURN(PinnedMemory results, device->AllocatePinned(sequences * static_cast<int64_t>(sizeof(DrawResult))));
  sampling.results_ = std::move(results);
  RETURN_IF_ERROR(device->FillBytes(sampling.arena_.data(), 0, sampling.arena_.bytes()));
  return sampling;
}

absl::StatusOr<DeviceProgram> BenchSampling::Build(const std::map<std::string, DeviceRange>& places) const {
  const plan::Program& program = model_->code().sampling();
  std::vector<DeviceRange> buffers;
  for (const plan::Buffer& buffer : program.buffers()) {
    const auto place = places.find(buffer.name());
    if (buffer.name() == "messages") {
      buffers.push_back({reinterpret_cast<DevicePointer>(messages_.data()), messages_.bytes()});
    } else if (place != places.end()) {
      buffers.push_back(place->second);
    } else if (buffer.bytes() == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the plan is damaged: nothing gives ", buffer.name()));
    } else {
      buffers.push_back({arena_.data() + buffer.offset(), static_cast<int64_t>(buffer.bytes())});
    }
  }
  return model_->Build(program, std::move(buffers));
}

void BenchSampling::Write(const std::vector<Chunk>& chunks, Kind kind) {
  kind_ = kind;
  sequences_ = static_cast<int64_t>(chunks.size());
  const StepSizes sizes = {.tokens = sequences_, .sequences = sequences_, .rows = sequences_, .draws = sequences_};
  const int64_t page_size = model_->manifest().language_model().page_size();
  for (int64_t place = 0; place < 2; ++place) {
    StepMessage message(messages_.data() + place * message_bytes_, sizes);
    for (int32_t row = 0; row < sequences_; ++row) {
      message.Add(chunks[static_cast<size_t>(row)], 0, page_size);
      message.Add(MakeDraw(kind, row, results() + row));
    }
    message.Pad();
  }
  std::fill(results(), results() + sequences_, DrawResult{.token = -1});
}

StepDims BenchSampling::Dims() const {
  return {{"draws", sequences_}, {"z", 1}, {"message_words", message_bytes_ / 4}, {"table_width", table_width_}};
}

absl::Status BenchSampling::EnqueueInputs(const DeviceProgram& code) const {
  return model_->Enqueue(code.operations[0], Dims());
}

absl::Status BenchSampling::EnqueueChoice(const DeviceProgram& code) const {
  const size_t parts = kind_ == Kind::kGreedy ? 2 : kParts;
  absl::Status status;
  for (size_t i = 1; i < parts && status.ok(); ++i) status = model_->Enqueue(code.operations[i], Dims());
  return status;
}

absl::Status BenchSampling::CheckTokens() const {
  const int64_t vocabulary = model_->manifest().language_model().vocab_size();
  for (int64_t i = 0; i < sequences_; ++i) {
    const DrawResult& result = results()[i];
    if (result.status == 0 && result.token >= 0 && result.token < vocabulary) continue;
    return absl::InternalError(absl::StrCat("the device sampled the token ", result.token, " with status ",
                                            result.status, " for sequence ", i, " of ", sequences_));
  }
  return absl::OkStatus();
}

}  // namespace llmc
