// What the host and the kernels of kernels/sampling/step_inputs.cuh and kernels/sampling/sample.cuh tell each other,
// byte for byte.
#pragma once

#include <cstdint>

#include "runtime/engine/executor.h"

namespace llmc {

struct StepHeader {
  int32_t words = 0;  // of the whole message, of 32 bits
  int32_t tokens = 0, sequences = 0, rows = 0, draws = 0;
  int32_t unused[11] = {};
};
static_assert(sizeof(StepHeader) == 64);

// What one draw is asked for; addresses are the device's.
struct DeviceDraw {
  uint64_t random = 0;
  uint64_t top_p = 0;
  uint64_t min_weight = 1;
  uint64_t counts = 0;   // u32 [vocabulary]: kInPrompt and how often a token was generated; 0: no penalties
  uint64_t result = 0;   // of a DrawResult; 0: no draw
  float log2_scale = 0;  // 0: greedy
  uint32_t top_k = 0;
  float repetition = 1, frequency = 0, presence = 0;
  int32_t log_probs = -1;
  int32_t row = 0;  // of the logits
  int32_t unused = 0;
};
static_assert(sizeof(DeviceDraw) == 72);

constexpr uint32_t kInPrompt = uint32_t{1} << 31;
constexpr int64_t kMaxDeviceTop = 20;  // likeliest tokens that a draw can report

struct DrawResult {
  int32_t token = 0;
  int32_t status = 0;  // 0; 1: the logit of `token` is NaN or infinite; 2: no token can be
  float logit = 0;     // of the token
  float largest = 0;   // logit
  uint64_t total = 0;  // of the weights at temperature 1, in units of 2^-40
  int32_t top_count = 0;
  int32_t unused = 0;
  int32_t top_tokens[kMaxDeviceTop] = {};
  float top_logits[kMaxDeviceTop] = {};
};
static_assert(sizeof(DrawResult) == 192);

struct StepSizes {
  int64_t tokens = 0, sequences = 0, rows = 0, draws = 0;
};

// Writes the message of a step, chunk by chunk; `sizes` are those of all its chunks and what pads them.
class StepMessage {
 public:
  // Bytes at most, for steps up to `sizes` with tables of `table_width` pages.
  static int64_t MaxBytes(const StepSizes& sizes, int64_t table_width);

  StepMessage(char* place, const StepSizes& sizes);

  // `id` stands for the chunk's only token if that is kSampledToken.
  void Add(const Chunk& chunk, int32_t id, int64_t page_size);
  void Add(const DeviceDraw& draw) { draws_[header_->draws++] = draw; }
  // Fills up with sequences of one token at position 0 that is written nowhere, their rows, and draws of nothing.
  void Pad();

 private:
  void EndSequence(int64_t length, absl::Span<const int32_t> pages);

  StepSizes sizes_;
  StepHeader* header_;
  DeviceDraw* draws_;
  int32_t *begin_, *ids_, *pos_, *slots_, *lens_, *starts_, *rows_, *first_pages_, *tables_;
};

}  // namespace llmc
