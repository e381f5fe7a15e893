// What the programs of a language model on a device run before and after the model: they take the step's inputs from a
// message of the host, and choose tokens.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/tasks/kernel_call.h"
#include "ir/graph.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

struct SamplingCalls {
  struct Call {
    std::string label;
    KernelCall call;
    std::vector<plan::Sampling> kinds;  // of steps that run it; none: all
  };
  Call inputs;
  std::vector<Call> choice;  // in their order
};

// None if `model` is not a language model with a paged KV cache and logits in f32, or if its step has inputs that this
// code gives no values.
std::optional<SamplingCalls> SelectSampling(const Model& model);

}  // namespace llmc
