#include "tools/bench_sampling.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/step_programs.h"

namespace llmc {
namespace {

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

absl::StatusOr<BenchSampling> BenchSampling::Create(DeviceModel* model, const PageSizes& page_sizes, int64_t sequences,
                                                    int64_t table_width) {
  if (model->code().FindPersistent("sampled") == nullptr) {
    return absl::FailedPreconditionError("the plan has no code that samples tokens; compile it again");
  }
  BenchSampling sampling;
  sampling.model_ = model;
  sampling.page_sizes_ = page_sizes;
  sampling.table_width_ = table_width;
  const int64_t bytes =
      StepMessage::MaxBytes({.tokens = sequences, .sequences = sequences, .rows = sequences, .draws = sequences},
                            static_cast<int64_t>(page_sizes.size()), table_width);
  sampling.message_bytes_ =
      static_cast<int64_t>(plan::AlignUp(static_cast<uint64_t>(std::max<int64_t>(bytes, kLeastMessageBytes)), 256));
  Device* device = model->device();
  ASSIGN_OR_RETURN(PinnedMemory messages, device->AllocatePinned(2 * sampling.message_bytes_));
  sampling.messages_ = std::move(messages);
  ASSIGN_OR_RETURN(PinnedMemory results, device->AllocatePinned(sequences * static_cast<int64_t>(sizeof(DrawResult))));
  sampling.results_ = std::move(results);
  model->SetStepMessages({reinterpret_cast<DevicePointer>(sampling.messages_.data()), sampling.messages_.bytes()});
  return sampling;
}

void BenchSampling::Write(const std::vector<Chunk>& chunks, Kind kind) {
  sequences_ = static_cast<int64_t>(chunks.size());
  const StepSizes sizes = {.tokens = sequences_, .sequences = sequences_, .rows = sequences_, .draws = sequences_};
  for (int64_t place = 0; place < 2; ++place) {
    StepMessage message(messages_.data() + place * message_bytes_, sizes, page_sizes_);
    for (int32_t row = 0; row < sequences_; ++row) {
      message.Add(chunks[static_cast<size_t>(row)], 0);
      message.Add(MakeDraw(kind, row, results() + row));
    }
    message.Pad();
  }
  std::fill(results(), results() + sequences_, DrawResult{.token = -1});
}

StepDims BenchSampling::Dims() const {
  return {{std::string(kDraws), sequences_},
          {std::string(kSampledForms), 1},
          {std::string(kMessageWords), message_bytes_ / 4},
          {std::string(kTableWidth), table_width_}};
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
