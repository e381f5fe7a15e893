#include "passes/paginate/split_pools.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "ir/ops_lm.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"

namespace llmc::pagination {
namespace {

constexpr size_t kMaxPools = 4;  // each has its inputs in every step

// How far ops look back into each state: the largest window or chunk of those that read it, 0 if one sees everything.
std::map<Value*, int64_t> WindowsOf(const Model& model, const Step& step) {
  std::map<Value*, int64_t> windows;
  for (const auto& node : step.block.nodes) {
    if (!node->op->info.Has(kReadsState)) continue;
    const int64_t own = Is<PagedAttention>(node.get()) ? View<PagedAttention>(*node).Range().Most() : 0;
    for (Value* operand : node->operands) {
      if (operand == nullptr || operand->kind != ValueKind::kState) continue;
      const auto [it, is_new] = windows.emplace(operand, own);
      if (!is_new) it->second = own == 0 || it->second == 0 ? 0 : std::max(own, it->second);
    }
  }
  for (Value* state : model.states) windows.emplace(state, 0);  // nobody reads it
  return windows;
}

// The inputs of the step that are for one pool, by their roles.
using PoolInputs = std::map<StepRole, Value*>;

PoolInputs InputsOf(const Step& step) {
  PoolInputs inputs;
  for (Value* param : step.params) {
    if (param->role.role != StepRole::kNone && InfoOf(param->role.role).of_pool) inputs[param->role.role] = param;
  }
  return inputs;
}

// The same inputs for another pool.
PoolInputs CopyInputs(const PoolInputs& inputs, const std::string& pool, Model* model, Step* step) {
  PoolInputs copies;
  for (const auto& [role, input] : inputs) {
    const std::string name = model->FreshName(absl::StrCat(input->name, ".", pool));
    copies[role] = model->AddParam(step, name, input->type, {.role = role, .pool = pool});
  }
  return copies;
}

void UseInputs(const PoolInputs& inputs, Model* model, Node* node) {
  for (size_t i = 0; i < node->operands.size(); ++i) {
    const Value* operand = node->operands[i];
    if (operand == nullptr || operand->kind != ValueKind::kParam) continue;
    if (const auto it = inputs.find(operand->role.role); it != inputs.end()) model->SetOperand(node, i, it->second);
  }
}

Value* StateOf(const Node& node) {
  for (Value* operand : node.operands) {
    if (operand != nullptr && operand->kind == ValueKind::kState) return operand;
  }
  return nullptr;
}

// Paged, in the same pool.
bool AreKvStates(const Model& model) {
  return absl::c_all_of(model.states, [&](const Value* state) {
    return state->state->kind == StateKind::kPaged && state->state->count == model.states.front()->state->count;
  });
}

// Whether what is made of the inputs is never handed on: then their readers tell the pool.
bool AreReadWithStates(const PoolInputs& inputs) {
  return absl::c_all_of(inputs, [](const auto& entry) {
    return absl::c_all_of(entry.second->users, [](const Node* user) { return StateOf(*user) != nullptr; });
  });
}

}  // namespace

void SplitPools(Model* model, Ledger* ledger) {
  if (model->steps.size() != 1 || model->states.empty()) return;
  Step* step = model->steps.front().get();
  const absl::StatusOr<StepContract> contract = ContractOf(*step);
  if (!contract.ok() || !contract->is_paged() || !contract->pools()[0].empty()) return;
  const std::map<Value*, int64_t> windows = WindowsOf(*model, *step);
  std::set<int64_t> sizes;
  for (const auto& [state, window] : windows) sizes.insert(window);
  if (sizes.size() < 2 || sizes.size() > kMaxPools) return;

  const PoolInputs inputs = InputsOf(*step);
  if (!AreKvStates(*model) || !AreReadWithStates(inputs)) return;
  const Dim pages = model->states.front()->state->count;
  const auto bound = model->dims.find(pages.ToString());
  if (!pages.is_symbol() || bound == model->dims.end()) return;
  const int64_t most = bound->second;
  for (const auto& [role, input] : inputs) input->role.pool = pages.ToString();
  std::map<int64_t, std::pair<Dim, PoolInputs>>
      pools;  // by window; the one with the least keeps the dim and the inputs
  for (const int64_t window : sizes) {
    if (pools.empty()) {
      pools[window] = {pages, inputs};
      continue;
    }
    const Dim dim = model->FreshDim(absl::StrCat(pages.ToString(), window), most);
    pools[window] = {dim, CopyInputs(inputs, dim.ToString(), model, step)};
  }
  for (const auto& [state, window] : windows) {
    StateType type = *state->state;
    type.count = pools[window].first;
    Model::SetStateType(state, type);
  }
  for (const auto& node : step->block.nodes) {
    if (Value* state = StateOf(*node)) UseInputs(pools[windows.at(state)].second, model, node.get());
  }
  ledger->Fired("split-pools", model->name);
}

}  // namespace llmc::pagination
