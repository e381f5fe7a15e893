// The graph of an encoder: one step "main" over whole tensors, whose inputs and outputs are named as in transformers.
#pragma once

#include "absl/status/status.h"
#include "frontend/huggingface/blocks.h"
#include "frontend/huggingface/weights.h"
#include "ir/graph.h"

namespace llmc::hf {

// Complaints about weights are kept in `weights`, which the caller asks before it uses the graph.
absl::Status BuildEncoder(const EncoderSpec& spec, HfWeights* weights, Model* model);

}  // namespace llmc::hf
