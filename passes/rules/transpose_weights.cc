// Weights [k, n] of products as [n, k], once in `prepare`: as models from folders have them, what merges weights wants
// them, and GEMV kernels read them.

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "passes/passes.h"

namespace llmc {

absl::Status TransposeWeights(Model* model) {
  absl::flat_hash_map<const Value*, Value*> turned;
  for (const auto& node : model->steps.front()->block.nodes) {
    if (!Is<Linear>(node.get())) continue;
    const auto op = View<Linear>(*node);
    const bool is_prepared =
        op.rhs->kind == ValueKind::kWeight || (op.rhs->def != nullptr && op.rhs->def->block == &model->prepare);
    if (!is_prepared || op.transpose_rhs || op.rhs->type.rank() != 2 || op.rhs->type.encoding != nullptr) continue;
    Value*& to = turned[op.rhs];
    if (to == nullptr) {
      ASSIGN_OR_RETURN(Node * turn, model->AddNode(&model->prepare, nullptr, DefOf<Transpose>(), {op.rhs},
                                                   {{"perm", Attr(std::vector<int64_t>{1, 0})}},
                                                   {model->FreshName(absl::StrCat(op.rhs->name, ".t"))}, node->loc));
      to = turn->results[0];
    }
    model->SetOperand(node.get(), 1, to);
    node->attrs["transpose_rhs"] = true;
  }
  return absl::OkStatus();
}

}  // namespace llmc
