#include "passes/lower/side_by_side.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "passes/driver/match.h"
#include "passes/lower/kernel_order.h"

namespace llmc {
namespace {

class Joiner {
 public:
  Joiner(Step* step, const Backends& backends, const Backend& backend, Ledger* ledger)
      : step_(step), backends_(backends), backend_(backend), ledger_(ledger), outputs_(OutputsOf(*step)) {}

  absl::StatusOr<JoinedKernels> Run() {
    step_->block.Renumber();
    for (const auto& node : step_->block.nodes) {
      if (node->kernel == nullptr) continue;
      if (unit_of_.try_emplace(node->kernel, units_.size()).second) units_.push_back({.kernel = node->kernel});
      units_.back().nodes.push_back(node.get());
    }
    for (size_t first = 0; first < units_.size(); ++first) {
      if (units_[first].nodes.empty()) continue;
      const size_t end = std::min(units_.size(), first + 1 + kMostBetween);
      for (size_t other = first + 1; other < end; ++other) {
        if (!units_[other].nodes.empty() && !Needs(other, first)) Join(other, first);
      }
    }
    RETURN_IF_ERROR(OrderKernels(step_));
    return std::move(joined_);
  }

 private:
  struct Unit {
    Kernel* kernel = nullptr;
    std::vector<Node*> nodes;
    double beside = -1;  // microseconds of all its parts but the longest; less than 0: it is one kernel
    double longest = 0;
  };

  // Whether anything of the unit `other` comes after something of `first`, by values or by a state.
  bool Needs(size_t other, size_t first) const {
    const int64_t begin = units_[first].nodes.front()->order;
    const absl::flat_hash_set<const Node*> goal(units_[first].nodes.begin(), units_[first].nodes.end());
    absl::flat_hash_set<const Node*> seen;
    std::vector<const Node*> pending(units_[other].nodes.begin(), units_[other].nodes.end());
    while (!pending.empty()) {
      const Node* node = pending.back();
      pending.pop_back();
      if (goal.contains(node) || SharesState(*node, begin)) return true;
      for (const Value* operand : node->operands) {
        const Node* def = operand == nullptr ? nullptr : operand->def;
        if (def == nullptr || def->block != node->block || !seen.insert(def).second) continue;
        const Unit* unit = def->kernel == nullptr ? nullptr : &units_[unit_of_.at(def->kernel)];
        // What ends before `first` begins does not come after it.
        if ((unit == nullptr ? def : unit->nodes.back())->order < begin) continue;
        pending.push_back(def);
        if (unit == nullptr) continue;
        for (const Node* member : unit->nodes) {
          if (seen.insert(member).second) pending.push_back(member);
        }
      }
    }
    return false;
  }

  // Whether an earlier node, from `begin` on, uses a state that this one uses.
  static bool SharesState(const Node& node, int64_t begin) {
    return node.op->info.touches_state() && absl::c_any_of(node.operands, [&](const Value* state) {
             return state != nullptr && state->kind == ValueKind::kState &&
                    absl::c_any_of(state->users, [&](const Node* user) {
                      return user->block == node.block && user->order >= begin && user->order < node.order;
                    });
           });
  }

  double TimeOf(const Unit& unit) const {
    const auto backend =
        absl::c_find_if(backends_, [&](const Backend& each) { return each.name == unit.kernel->backend; });
    return backend->microseconds(BodyOf(unit.nodes));
  }
  KernelBody BodyOf(const std::vector<Node*>& nodes) const { return llmc::BodyOf(nodes, outputs_); }

  void Join(size_t from, size_t to) {
    Unit &other = units_[from], &first = units_[to];
    if (first.beside < 0) first.longest = TimeOf(first);
    const double time = TimeOf(other);
    const double beside = std::max(first.beside, 0.0) + std::min(time, first.longest);
    const LedgerPlace place = LedgerPlaceOf(*other.nodes.front());
    if (beside > kMostBesideMicroseconds) return;
    std::vector<Node*> all = first.nodes;
    all.insert(all.end(), other.nodes.begin(), other.nodes.end());
    absl::c_sort(all, [](const Node* a, const Node* b) { return a->order < b->order; });
    if (const std::optional<Misfit> misfit = backend_.misfit(BodyOf(all))) {
      ledger_->Refused(kSideBySide, place, other.nodes.front()->op->info.name, misfit->actual, misfit->expected);
      return;
    }
    ledger_->Fired(kSideBySide, place.ToString());
    joined_.emplace_back(first.kernel, other.kernel);
    for (Node* node : other.nodes) node->kernel = first.kernel;
    first.kernel->backend = kSideBySide;
    first.nodes = std::move(all);
    first.beside = beside;
    first.longest = std::max(first.longest, time);
    other.nodes.clear();
  }

  Step* step_;
  const Backends& backends_;
  const Backend& backend_;
  Ledger* ledger_;
  absl::flat_hash_set<const Value*> outputs_;
  std::vector<Unit> units_;  // in their order; those that joined others have no nodes
  absl::flat_hash_map<const Kernel*, size_t> unit_of_;
  JoinedKernels joined_;
};

}  // namespace

absl::StatusOr<JoinedKernels> JoinSideBySide(Step* step, const Backends& backends, Ledger* ledger) {
  const auto backend = absl::c_find_if(backends, [](const Backend& each) { return each.name == kSideBySide; });
  if (backend == backends.end()) return JoinedKernels();
  return Joiner(step, backends, *backend, ledger).Run();
}

}  // namespace llmc
