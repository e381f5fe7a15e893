// The numbers of weights that a plan has as random numbers only (files/random_source.h), as the host draws them.
#pragma once

#include "absl/types/span.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// Not rounded yet to the weight's type.
void DrawRandomNumbers(const plan::RandomNumbers& random, absl::Span<float> out);
// The bytes of integers of all bits.
void DrawRandomBits(const plan::RandomNumbers& random, absl::Span<char> out);

}  // namespace llmc
