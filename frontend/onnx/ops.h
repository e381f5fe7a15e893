// What each ONNX op becomes: one table of rows.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "frontend/onnx/node.h"

namespace llmc {

// ONNX Runtime's operators; version 1 is the only one.
inline constexpr absl::string_view kMicrosoftDomain = "com.microsoft";

struct OnnxOp {
  absl::string_view op_type;
  int since;       // the first opset of its domain that has it
  int min_inputs;  // these must be present
  int max_inputs;  // -1: any number
  // Reads inputs and attributes, emits ops and sets the outputs; errors stay in the node. Inputs below min_inputs are
  // not null. Unimplemented errors are gathered over the whole model.
  void (*import)(OnnxNode& node);
  absl::string_view limits = "";  // what of the op is not supported, for people
};

inline constexpr int kMinOpset = 7;
inline constexpr int kMaxOpset = 25;

// nullptr if there is no row. The default domain is "".
const OnnxOp* FindOnnxOp(absl::string_view domain, absl::string_view op_type);
// Every row of a domain, by name.
std::vector<const OnnxOp*> AllOnnxOps(absl::string_view domain);

// MatMul of ONNX: a vector takes part as a row (left) or a column (right) whose axis then goes away, as in numpy.
Value* OnnxMatMul(OnnxNode& n, Value* lhs, Value* rhs);

// Gemm of the node's inputs and attributes.
Value* GemmByAttributes(OnnxNode& n);

// AveragePool of x, as the node's attributes say.
Value* AveragePoolByAttributes(OnnxNode& n, Value* x);

// Softmax over all axes from `axis` on as one.
Value* JoinedSoftmax(OnnxNode& n, Value* x, int64_t axis, bool log);

// Attention of ONNX Runtime, whose projections [B, S, widths of q, k and v] are `merged`. `past` and `padding` are the
// numbers of those inputs, `bias` that of a bias of the scores.
void AttendMerged(OnnxNode& n, Value* merged, size_t past, size_t padding, size_t bias);

// RMSNormalization under ONNX Runtime's name, which it has in both domains.
void ImportSimplifiedLayerNormalization(OnnxNode& n);

// x[N, C, …] less its mean over each of `groups` parts of the channels, over its deviation: [N, groups, C / groups,
// the product of the other sizes].
Value* NormalizedGroups(OnnxNode& n, Value* x, int64_t groups, double eps);

// The rows of each family.
absl::Span<const OnnxOp> OnnxElementwiseOps();
absl::Span<const OnnxOp> OnnxShapeOps();
absl::Span<const OnnxOp> OnnxIndexingOps();
absl::Span<const OnnxOp> OnnxReduceOps();
absl::Span<const OnnxOp> OnnxPoolOps();
absl::Span<const OnnxOp> OnnxQuantOps();
absl::Span<const OnnxOp> OnnxActivationOps();
absl::Span<const OnnxOp> OnnxSelectOps();
absl::Span<const OnnxOp> OnnxNormOps();
absl::Span<const OnnxOp> OnnxLossOps();
absl::Span<const OnnxOp> OnnxConvOps();
absl::Span<const OnnxOp> OnnxNnOps();
absl::Span<const OnnxOp> OnnxAttentionOps();
absl::Span<const OnnxOp> OnnxResizeOps();
absl::Span<const OnnxOp> OnnxSignalOps();
absl::Span<const OnnxOp> OnnxImageOps();
absl::Span<const OnnxOp> OnnxRecurrentOps();
// Those of com.microsoft.
absl::Span<const OnnxOp> OnnxContribRecurrentOps();
absl::Span<const OnnxOp> OnnxContribNormOps();
absl::Span<const OnnxOp> OnnxContribActivationOps();
absl::Span<const OnnxOp> OnnxContribAttentionOps();
absl::Span<const OnnxOp> OnnxContribCacheOps();
absl::Span<const OnnxOp> OnnxContribQuantOps();
absl::Span<const OnnxOp> OnnxContribMoeOps();
absl::Span<const OnnxOp> OnnxContribIntegerOps();
absl::Span<const OnnxOp> OnnxContribFusedOps();

}  // namespace llmc
