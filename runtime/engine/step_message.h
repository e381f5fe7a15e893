// Writes the message of a step for the device: kernels/layout/step_message.h says what is in it.
#pragma once

#include <cstdint>

#include "kernels/layout/step_message.h"
#include "runtime/engine/executor.h"

namespace llmc {

struct StepSizes {
  int64_t tokens = 0, sequences = 0, rows = 0, draws = 0;
};

// Writes the message of a step, chunk by chunk; `sizes` are those of all its chunks and what pads them.
class StepMessage {
 public:
  // Bytes at most, for steps up to `sizes` with tables of `table_width` pages in each of `pools`.
  static int64_t MaxBytes(const StepSizes& sizes, int64_t pools, int64_t table_width);

  StepMessage(char* place, const StepSizes& sizes, PageSizes page_sizes);

  // `id` stands for the chunk's only token if that is kSampledToken.
  void Add(const Chunk& chunk, int32_t id);
  void Add(const DrawRequest& draw) { draws_[header_->draws++] = draw; }
  // Fills up with sequences of one token at position 0 that is written nowhere, their rows, and draws of nothing.
  void Pad();

 private:
  void EndSequence(int64_t length, const PoolTables& tables);

  StepSizes sizes_;
  PageSizes page_sizes_;
  StepHeader* header_;
  DrawRequest* draws_;
  int32_t *begin_, *ids_, *pos_, *slots_, *lens_, *starts_, *rows_, *first_pages_, *tables_;
};

}  // namespace llmc
