// What the steps of a device plan read and write, to compare with the memory that is there: sizes in a damaged plan may
// be anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/device/cublaslt.h"
#include "runtime/host_tensor.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan.pb.h"

namespace llmc {

// Of an expression as plans have it.
absl::StatusOr<int64_t> EvaluateSize(const std::string& text, const StepDims& dims);
using PlanShape = google::protobuf::RepeatedPtrField<std::string>;
absl::StatusOr<std::vector<int64_t>> EvaluateShape(const PlanShape& shape, const StepDims& dims);
// InvalidArgument: a size is negative or the product overflows.
absl::StatusOr<int64_t> TensorBytes(DType type, const std::vector<int64_t>& shape);

// The memory that there is for a product's operands.
struct ProductBytes {
  int64_t out = 0, x = 0, weight = 0, bias = 0, residual = 0, x_scale = 0, weight_scale = 0;
};
// InvalidArgument unless there is room for what the product writes and reads.
absl::Status CheckProduct(const MatrixProducts::Shape& product, const ProductBytes& bytes);
// The same for `what`, which takes `bytes` and has a place of `room`.
absl::Status CheckRoom(absl::string_view what, int64_t bytes, int64_t room);
// The same for `bytes` that are copied.
absl::Status CheckCopy(int64_t bytes, int64_t to, int64_t from);

}  // namespace llmc
