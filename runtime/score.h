// Logits of given token sequences, many in one step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/executor.h"
#include "runtime/host_tensor.h"

namespace llmc {

// Called with the logits after token `position` of sequences[sequence], in order of positions within a sequence.
using LogitsVisitor =
    absl::FunctionRef<absl::Status(size_t sequence, int64_t position, absl::Span<const float> logits)>;

// Runs whole sequences, several in a step as far as the executor's limits allow; long ones in pieces. Uses all pages of
// the executor from the first on, so no engine may have live requests on it. InvalidArgument: a sequence is longer than
// the context or the KV cache. The visitor's first error ends it.
absl::Status VisitLogits(Executor* executor, absl::Span<const std::vector<int32_t>> sequences, LogitsVisitor visit);

// What a Hugging Face model's forward gives: logits f32 [B, S, V] of input_ids [B, S]. attention_mask, if given, has
// the shape of input_ids and elements 0 or 1; tokens with 0 are left out, on whichever side: positions count the
// others, and their logits are 0. Both are i64, i32, i16, i8, u8 or bool. InvalidArgument names what is wrong.
absl::StatusOr<HostTensor> ScoreBatch(Executor* executor, const HostTensor& input_ids,
                                      const HostTensor* attention_mask = nullptr);

}  // namespace llmc
