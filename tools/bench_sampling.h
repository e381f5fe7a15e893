// What a decode step does on the device beside the model: it reads the step's message before and chooses tokens after.
#pragma once

#include <cstdint>
#include <map>
#include <string>
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

  // For decode steps of at most `sequences` sequences with tables of `table_width` pages. `model` must outlive it.
  static absl::StatusOr<BenchSampling> Create(DeviceModel* model, int64_t sequences, int64_t table_width);

  // The code, which reads and writes `places`: the step's inputs and "logits", by name.
  absl::StatusOr<DeviceProgram> Build(const std::map<std::string, DeviceRange>& places) const;
  // What the next steps read, until the next call: one token of each chunk.
  void Write(const std::vector<Chunk>& chunks, Kind kind);
  // The parts of a step of as many sequences as were written, before and after the model.
  absl::Status EnqueueInputs(const DeviceProgram& code) const;
  absl::Status EnqueueChoice(const DeviceProgram& code) const;
  // Internal: a step that ran since Write chose no token of the vocabulary for a sequence.
  absl::Status CheckTokens() const;

 private:
  StepDims Dims() const;
  DrawResult* results() const { return reinterpret_cast<DrawResult*>(results_.data()); }

  DeviceModel* model_ = nullptr;
  int64_t table_width_ = 0, message_bytes_ = 0, sequences_ = 0;
  Kind kind_ = Kind::kGreedy;
  DeviceMemory arena_;
  PinnedMemory messages_, results_;  // two messages, which steps read by turns
};

}  // namespace llmc
