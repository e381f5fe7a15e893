#include "frontend/onnx/ops.h"

#include <initializer_list>
#include <map>
#include <utility>

namespace llmc {
namespace {

using Key = std::pair<absl::string_view, absl::string_view>;  // domain and op
using Table = std::map<Key, const OnnxOp*>;
using Families = std::initializer_list<absl::Span<const OnnxOp>>;

void AddRows(Table* rows, absl::string_view domain, Families families) {
  for (absl::Span<const OnnxOp> family : families) {
    for (const OnnxOp& op : family) rows->emplace(Key(domain, op.op_type), &op);
  }
}

const Table& OnnxOps() {
  static const Table& table = *new Table([] {
    Table rows;
    AddRows(&rows, "",
            {OnnxElementwiseOps(), OnnxShapeOps(), OnnxIndexingOps(), OnnxReduceOps(), OnnxPoolOps(), OnnxQuantOps(),
             OnnxActivationOps(), OnnxSelectOps(), OnnxNormOps(), OnnxLossOps(), OnnxConvOps(), OnnxNnOps(),
             OnnxAttentionOps(), OnnxResizeOps(), OnnxSignalOps(), OnnxImageOps(), OnnxRecurrentOps()});
    AddRows(&rows, kMicrosoftDomain,
            {OnnxContribNormOps(), OnnxContribActivationOps(), OnnxContribAttentionOps(), OnnxContribCacheOps(),
             OnnxContribQuantOps(), OnnxContribMoeOps(), OnnxContribIntegerOps(), OnnxContribFusedOps(),
             OnnxContribRecurrentOps()});
    return rows;
  }());
  return table;
}

}  // namespace

const OnnxOp* FindOnnxOp(absl::string_view domain, absl::string_view op_type) {
  auto it = OnnxOps().find(Key(domain, op_type));
  return it == OnnxOps().end() ? nullptr : it->second;
}

std::vector<const OnnxOp*> AllOnnxOps(absl::string_view domain) {
  std::vector<const OnnxOp*> ops;
  for (const auto& [key, op] : OnnxOps()) {
    if (key.first == domain) ops.push_back(op);
  }
  return ops;
}

}  // namespace llmc
