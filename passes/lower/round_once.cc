#include "passes/lower/round_once.h"

#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops.h"

namespace llmc {
namespace {

bool IsNarrow(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

class Widening {
 public:
  Widening(Model* model, const std::vector<Node*>& members) : model_(model), members_(members) {}

  absl::Status Run() {
    for (Node* node : members_) {
      for (size_t i = 0; i < node->operands.size(); ++i) {
        Value* operand = node->operands[i];
        if (operand == nullptr || !IsNarrow(operand->type.dtype) || IsMember(operand)) continue;
        ASSIGN_OR_RETURN(Value * wide, WideOf(operand, node));
        model_->SetOperand(node, i, wide);
      }
      RETURN_IF_ERROR(model_->Reinfer(node));
    }
    return Narrow(members_.back());
  }

 private:
  bool IsMember(const Value* value) const { return absl::c_linear_search(members_, value->def); }

  absl::StatusOr<Node*> AddCast(Value* from, DType to, absl::string_view name, Node* before) {
    ASSIGN_OR_RETURN(Node * cast,
                     model_->AddNode(before != nullptr ? before->block : members_[0]->block, before, DefOf<Cast>(),
                                     {from}, {{"to", Attr(to)}}, {std::string(name)}, members_.back()->loc));
    cast->kernel = members_[0]->kernel;
    return cast;
  }

  absl::StatusOr<Value*> WideOf(Value* value, Node* before) {
    Value*& wide = wide_[value];
    if (wide == nullptr) {
      const std::string name = absl::StrCat("%", value->name.substr(1), ".f32");
      ASSIGN_OR_RETURN(const Node* cast, AddCast(value, DType::kF32, name, before));
      wide = cast->results[0];
    }
    return wide;
  }

  // The result keeps its name.
  absl::Status Narrow(Node* last) {
    Value* sum = last->results[0];
    const std::string name = sum->name;
    model_->Rename(sum, absl::StrCat(name, ".f32"));
    const auto next = std::next(last->self);
    Node* before = next == last->block->nodes.end() ? nullptr : next->get();
    const std::vector<Node*> users = sum->users;
    ASSIGN_OR_RETURN(const Node* cast, AddCast(sum, narrow_, name, before));
    Value* result = cast->results[0];
    for (Node* user : users) {
      for (size_t i = 0; i < user->operands.size(); ++i) {
        if (user->operands[i] == sum) model_->SetOperand(user, i, result);
      }
    }
    for (const auto& step : model_->steps) {
      for (Output& output : step->outputs) {
        if (output.value == sum) output.value = result;
      }
    }
    return absl::OkStatus();
  }

  Model* model_;
  const std::vector<Node*>& members_;
  const DType narrow_ = members_.back()->results[0]->type.dtype;
  absl::flat_hash_map<const Value*, Value*> wide_;
};

}  // namespace

absl::Status RoundOnce(Model* model, Step* step, const Backends& backends) {
  absl::flat_hash_map<const Kernel*, std::vector<Node*>> members;
  for (const auto& node : step->block.nodes) {
    if (node->kernel != nullptr) members[node->kernel].push_back(node.get());
  }
  for (const Kernel& kernel : step->kernels) {
    const auto backend = absl::c_find_if(backends, [&](const Backend& b) { return b.name == kernel.backend; });
    const std::vector<Node*>& nodes = members[&kernel];
    if (backend == backends.end() || !backend->rounds_once || nodes.size() < 2) continue;
    if (!IsNarrow(nodes.back()->results[0]->type.dtype)) continue;
    RETURN_IF_ERROR(Widening(model, nodes).Run());
  }
  return absl::OkStatus();
}

}  // namespace llmc
