#include "frontend/onnx_ops.h"

#include <map>

namespace llmc {
namespace {

using Table = std::map<absl::string_view, const OnnxOp*>;

const Table& OnnxOps() {
  static const Table& table = *new Table([] {
    Table rows;
    for (absl::Span<const OnnxOp> family :
         {OnnxElementwiseOps(), OnnxShapeOps(), OnnxIndexingOps(), OnnxReduceOps(), OnnxPoolOps(), OnnxQuantOps(),
          OnnxActivationOps(), OnnxSelectOps(), OnnxNormOps(), OnnxLossOps(), OnnxConvOps(), OnnxNnOps(),
          OnnxAttentionOps()}) {
      for (const OnnxOp& op : family) rows.emplace(op.op_type, &op);
    }
    return rows;
  }());
  return table;
}

}  // namespace

const OnnxOp* FindOnnxOp(absl::string_view op_type) {
  auto it = OnnxOps().find(op_type);
  return it == OnnxOps().end() ? nullptr : it->second;
}

std::vector<const OnnxOp*> AllOnnxOps() {
  std::vector<const OnnxOp*> ops;
  for (const auto& [name, op] : OnnxOps()) ops.push_back(op);
  return ops;
}

}  // namespace llmc
