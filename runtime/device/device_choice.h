// Which device runs a model, and how much of its memory, as users say it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace llmc {

struct DeviceChoice {
  bool is_gpu = false;
  int index = 0;  // of the GPU, by CUDA's numbers, which CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER choose
};

// "host"; "cuda", which is "cuda:0"; "cuda:1". InvalidArgument: anything else. Whether there is such a GPU is not
// asked.
absl::StatusOr<DeviceChoice> ParseDevice(absl::string_view text);

// Of all of a GPU's memory, what one plan may take for its weights, activations, graphs and KV cache together.
inline constexpr double kDefaultMemoryFraction = 0.9;

// InvalidArgument unless it is in (0, 1].
absl::Status CheckMemoryFraction(double fraction);

}  // namespace llmc
