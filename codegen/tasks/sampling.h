// What runs before and after the programs of a language model on a device: the step's inputs, and the choice of tokens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/tasks/kernel_call.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

struct SamplingCode {
  struct Launch {
    std::string label;
    KernelCall call;
  };
  plan::Program memory;  // buffers and their arena
  std::vector<Launch> launches;
};

// None if `model` is not a language model with a paged KV cache and logits in f32, or if its step has inputs that this
// code gives no values.
std::optional<SamplingCode> SelectSampling(const Model& model);

}  // namespace llmc
