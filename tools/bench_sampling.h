// What a decode step does on the device beside the model: it reads the step's message before and chooses tokens after.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device/device_model.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/step_message.h"

namespace llmc {

class BenchSampling {
 public:
  // The likeliest token of each sequence, or draws at temperature 0.8 and top_p 0.95.
  enum class Kind { kGreedy, kDraw };

  // Where `model` takes its steps from: for decode steps of at most `sequences` sequences with tables of `table_width`
  // pages in each of its pools, whose pages have these sizes. `model` must outlive it.
  static absl::StatusOr<BenchSampling> Create(DeviceModel* model, const PageSizes& page_sizes, int64_t sequences,
                                              int64_t table_width);

  // What the next steps read, until the next call: one token of each chunk.
  void Write(const std::vector<Chunk>& chunks, Kind kind);
  // What the tasks of such a step need besides the dims of the model.
  StepDims Dims() const;
  // Internal: a step that ran since Write chose no token of the vocabulary for a sequence.
  absl::Status CheckTokens() const;

 private:
  DrawResult* results() const { return reinterpret_cast<DrawResult*>(results_.data()); }

  DeviceModel* model_ = nullptr;
  PageSizes page_sizes_;
  int64_t table_width_ = 0, message_bytes_ = 0, sequences_ = 0;
  PinnedMemory messages_, results_;  // two messages, which steps read by turns
};

}  // namespace llmc
