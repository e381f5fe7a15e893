// Which of cuBLASLt's proposals for an algorithm is the fastest for each product of a plan, measured when the plan is
// compiled and kept in it by number. The list of proposals is a function of the library, the
// GPU and what cublaslt.cc asks for (its workspace, say): a change of that raises plan::kVersion.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/device/cublaslt.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/target_code.h"

namespace llmc {

// `gemm` with so many rows, columns and terms.
absl::StatusOr<MatrixProducts::Shape> ShapeOf(const plan::Gemm& gemm, int64_t m, int64_t n, int64_t k);

// The single products of a language model's programs at the row counts that are known before a run: decode steps that
// have a graph, and prompts of 512 tokens, 1024, … and the most that a step takes; of other models those of runs of the
// given sizes. Each once; none whose size is not known.
std::vector<MatrixProducts::Shape> ProductsToTune(const TargetCode& code, absl::Span<const StepDims> sizes = {});

// Times them on random numbers, with weights that are in no cache. A proposal is kept if it beats the first by at least
// 2 % when both are timed in turn.
absl::StatusOr<plan::TunedProducts> TuneProducts(const TargetCode& code, absl::Span<const StepDims> sizes,
                                                 Device* device,
                                                 absl::FunctionRef<void(int64_t done, int64_t total)> on_product);

// Nothing where the GPU or the library is another.
void UseTuning(const plan::TunedProducts& tuned, const Device& device, MatrixProducts* products);

}  // namespace llmc
