// Logits of given token sequences, many in one step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/engine/executor.h"
#include "runtime/host_tensor.h"

namespace llmc {

// Called with the logits after token `position` of sequences[sequence], in order of positions within a sequence.
using LogitsVisitor =
    absl::FunctionRef<absl::Status(size_t sequence, int64_t position, absl::Span<const float> logits)>;

// Runs whole sequences, several in a step as far as the executor's limits allow; long ones in pieces. Uses all pages of
// the executor from the first on, so no engine may have live requests on it. InvalidArgument: a sequence is longer than
// the context or the KV cache. The visitor's first error ends it.
absl::Status VisitLogits(Executor* executor, absl::Span<const std::vector<int32_t>> sequences, LogitsVisitor visit);

// What may be given beside tokens; of i64, i32, i16, i8, u8 or bool, as the tokens are.
struct ScoreOptions {
  // [B, S], of 0 and 1.
  const HostTensor* attention_mask = nullptr;
  // [B, S] or [1, S]: must count the tokens that are not left out, from 0 in each sequence.
  const HostTensor* position_ids = nullptr;
  // Tokens with a 0 in the mask are left out, on whichever side, and their logits are 0. Else the mask must be all
  // ones: a program of tokens has no other numbers for what ONNX files compute of hidden tokens.
  bool skips_hidden = false;
};

// What the forward of a causal language model gives: logits f32 [B, S, V] of input_ids [B, S]. InvalidArgument names
// what is wrong, or what would not be what the model's file gives.
absl::StatusOr<HostTensor> ScoreBatch(Executor* executor, const HostTensor& input_ids,
                                      const ScoreOptions& options = {});

}  // namespace llmc
