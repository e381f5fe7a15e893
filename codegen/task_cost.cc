#include "codegen/task_cost.h"

#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "ir/op.h"
#include "ir/ops.h"

namespace llmc {
namespace {

class Sum {
 public:
  explicit Sum(const std::vector<const Node*>& nodes) {
    for (const Node* node : nodes) {
      const OpCost cost = node->op->cost(*node);
      flops_ = flops_ + cost.flops;
      state_bytes_ = state_bytes_ + cost.state_bytes;
      for (size_t i = 0; i < cost.operand_bytes.size(); ++i) {
        if (!cost.operand_bytes[i].has_value() || node->operands[i] == nullptr) continue;
        const Value* read = ViewedValue(node->operands[i]);
        AddRead(read, *cost.operand_bytes[i]);
        if (read->type.encoding == nullptr || !Is<Encode>(read->def)) continue;
        // Kernels take its components: what is read of them all counts as read of the codes.
        for (const Value* component : read->def->operands) {
          const bool is_codes = component == read->def->operands[0];
          AddRead(ViewedValue(component), is_codes ? *cost.operand_bytes[i] : Size(0));
        }
      }
    }
  }

  void AddBytes(const Value* value) {
    value = ViewedValue(value);
    if (value->kind == ValueKind::kState || Is<Constant>(value->def) || !seen_.insert(value).second) return;
    const auto read = read_.find(value);
    AddBytes(value, read == read_.end() ? value->type.Bytes() : read->second);
  }
  void AddBytes(const Value* value, const Size& bytes) {
    const bool is_weight = value->kind == ValueKind::kWeight || value->name[0] == '@';
    Size& sum = is_weight ? weight_bytes_ : activation_bytes_;
    sum = sum + bytes;
  }

  // `computes`: with what is computed and read of states.
  plan::Cost Finish(bool computes) const {
    plan::Cost cost;
    if (!weight_bytes_.Is(0)) cost.set_weight_bytes(weight_bytes_.ToString());
    if (!activation_bytes_.Is(0)) cost.set_activation_bytes(activation_bytes_.ToString());
    if (computes && !state_bytes_.Is(0)) cost.set_state_bytes(state_bytes_.ToString());
    if (computes && !flops_.Is(0)) cost.set_flops(flops_.ToString());
    return cost;
  }

 private:
  // Nodes of one kernel that read parts of a value read different ones.
  void AddRead(const Value* value, const Size& bytes) {
    const auto [it, added] = read_.try_emplace(value, bytes);
    if (!added) it->second = it->second + bytes;
  }

  absl::flat_hash_map<const Value*, Size> read_;  // where it is not all of a value
  absl::flat_hash_set<const Value*> seen_;        // a kernel may get two places in one value
  Size weight_bytes_ = 0, activation_bytes_ = 0, state_bytes_ = 0, flops_ = 0;
};

}  // namespace

plan::Cost CostOf(const std::vector<const Node*>& nodes, const std::vector<DeviceCall>& calls, size_t index) {
  const auto is_gemm = [](const DeviceCall& call) { return std::holds_alternative<GemmCall>(call); };
  // What makes a factor or decodes operands, in scratch memory, is not what computes.
  const auto gives_value = [](const DeviceCall& call) {
    const auto* kernel = std::get_if<KernelCall>(&call);
    return kernel != nullptr && absl::c_any_of(kernel->params, [](const KernelParam& param) {
             return param.writes() && param.arg.value != nullptr;
           });
  };
  auto main = absl::c_find_if(calls, is_gemm);
  if (main == calls.end()) main = absl::c_find_if(calls, gives_value);
  const size_t computes = main == calls.end() ? 0 : static_cast<size_t>(main - calls.begin());
  Sum sum(nodes);
  if (const auto* copy = std::get_if<CopyCall>(&calls[index])) {
    sum.AddBytes(copy->to, copy->bytes);
    sum.AddBytes(copy->from, copy->bytes);
  } else if (const auto* product = std::get_if<GemmCall>(&calls[index])) {
    for (const Value* value : {product->out, product->x, product->weight, product->bias, product->residual,
                               product->x_scale, product->weight_scale}) {
      const bool is_made = (value == product->x && product->x_in_scratch.has_value()) ||
                           (value == product->x_scale && product->x_scale_in_scratch);
      if (value != nullptr && !is_made) sum.AddBytes(value);
    }
  } else {
    for (const KernelParam& param : std::get<KernelCall>(calls[index]).params) {
      if (param.arg.value != nullptr) sum.AddBytes(param.arg.value);
    }
  }
  return sum.Finish(index == computes);
}

}  // namespace llmc
