// The graph of a decoder: one step "main", over tokens with a paged cache or over whole sequences (frontend/import.h).
#pragma once

#include "absl/status/status.h"
#include "frontend/huggingface/blocks.h"
#include "frontend/huggingface/weights.h"
#include "ir/graph.h"

namespace llmc::hf {

// Complaints about weights are kept in `weights`, which the caller asks before it uses the graph.
absl::Status BuildDecoder(const DecoderSpec& spec, DecoderForm form, HfWeights* weights, Model* model);

}  // namespace llmc::hf
