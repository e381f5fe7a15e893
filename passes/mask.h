// What the mask of an attention is, proven by evaluating one element of it with symbols as its indices.
#pragma once

#include <string>

#include "ir/graph.h"

namespace llmc {

enum class MaskKind {
  kUnknown,
  kFull,           // every query sees every key
  kCausal,         // query i sees keys [0, i]
  kCausalFromEnd,  // query i sees keys [0, i + K - L]
};

struct MaskProof {
  MaskKind kind = MaskKind::kUnknown;
  std::string why;  // of kUnknown: what stopped the proof
};

// `attention` has a mask. The proof holds for every run in which scores have elements: where a batch, or the queries or
// keys are none, there is nothing to hide. It takes bounded time.
MaskProof ProveMask(const Model& model, const Node& attention);

}  // namespace llmc
