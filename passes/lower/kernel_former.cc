#include "passes/lower/kernel_former.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "passes/driver/rewrite_driver.h"

namespace llmc {
namespace {

constexpr size_t kMaxReaders = 64;              // of a value, that are tried
constexpr int64_t kMaxSpan = int64_t{1} << 30;  // of the members of a kernel: 1024 nodes as Block::Renumber counts

bool IsBefore(const Node* a, const Node* b) { return a->order < b->order; }

KernelFormer::Members Union(const KernelFormer::Members& members, const std::vector<Node*>& more) {
  KernelFormer::Members all = members;
  all.insert(all.end(), more.begin(), more.end());
  std::sort(all.begin(), all.end(), IsBefore);
  return all;
}

bool HasTrait(const std::string& trait, const Node& node) {
  const OpInfo& info = node.op->info;
  return trait == ":view" ? info.is_view() : info.computes_elements();
}

// The line of the rule that reads what the kernel makes.
size_t LineThatReads(const CompiledRule& rule) {
  for (size_t i = 0; i < rule.find.size(); ++i) {
    if (absl::c_linear_search(rule.find[i].operands, rule.border)) return i;
  }
  return 0;
}

std::string NameOf(const CompiledRule& rule) { return std::string(View(rule.rule->name())); }

std::string Fired(const std::string& rule, const LedgerPlace& place) { return absl::StrCat(rule, ": ", place.value); }

bool Writes(const Node& node) { return node.op->info.Has(kWritesState); }

// Later nodes that must stay behind `node` because of a state.
template <class F>
void ForEachBehindByState(const Node& node, F f) {
  if (!node.op->info.touches_state()) return;
  for (const Value* state : node.operands) {
    if (state == nullptr || state->kind != ValueKind::kState) continue;
    for (Node* user : state->users) {
      if (user->order > node.order && user->block == node.block && (Writes(node) || Writes(*user))) f(user);
    }
  }
}

}  // namespace

KernelBody BodyOf(absl::Span<const Node* const> nodes, const absl::flat_hash_set<const Value*>& outputs) {
  KernelBody body = {.nodes = {nodes.begin(), nodes.end()}};
  const absl::flat_hash_set<const Node*> members(nodes.begin(), nodes.end());
  for (const Node* node : nodes) {
    for (const Value* result : node->results) {
      const bool leaves = absl::c_any_of(result->users, [&](const Node* user) { return !members.contains(user); });
      if (leaves || outputs.contains(result)) body.results.push_back(result);
    }
  }
  return body;
}

absl::flat_hash_set<const Value*> OutputsOf(const Step& step) {
  absl::flat_hash_set<const Value*> outputs;
  for (const Output& output : step.outputs) outputs.insert(output.value);
  return outputs;
}

bool Backend::Begins(const OpDef* op) const { return absl::c_linear_search(begins, op); }

KernelFormer::KernelFormer(Model* model, Step* step, const Backends& backends, const std::vector<CompiledRule>& rules,
                           Ledger* ledger)
    : model_(model), step_(step), backends_(backends), rules_(rules), ledger_(ledger), outputs_(OutputsOf(*step)) {
  step->block.Renumber();
  for (const auto& node : step->block.nodes) {
    if (node->kernel == nullptr) continue;
    members_[node->kernel].push_back(node.get());
    reports_[node->kernel].backend = node->kernel->backend;
  }
}

void KernelFormer::Run() {
  std::vector<Node*> nodes;
  for (const auto& node : step_->block.nodes) nodes.push_back(node.get());
  for (Kernel& kernel : step_->kernels) Grow(&kernel);
  for (Node* node : nodes) {
    const bool is_root =
        absl::c_any_of(backends_, [&](const Backend& backend) { return backend.is_root && backend.Begins(node->op); });
    if (is_root) Begin(node);
  }
  for (Node* node : nodes) {
    for (const CompiledRule& rule : rules_) {
      if (rule.rule->joins() || node->kernel != nullptr || rule.anchor != node->op) continue;
      Form(rule, node);
    }
  }
  std::reverse(nodes.begin(), nodes.end());
  for (Node* node : nodes) {
    if (node->kernel == nullptr && !JoinKernels(node) && !NeedsNoKernel(*node)) Begin(node);
  }
}

// ---- first nodes of kernels
// ------------------------------------------------------------------------------------------

void KernelFormer::Begin(Node* node) {
  if (node->kernel != nullptr) return;
  std::vector<Draft> drafts;
  std::vector<KernelReport::Reason> unable;
  std::string why;
  for (const Backend& backend : backends_) {
    if (!backend.Begins(node->op)) continue;
    Draft draft{.backend = &backend, .members = {node}, .report = {.backend = backend.name}};
    if (const std::optional<Misfit> misfit = MisfitOf(backend, draft.members)) {
      const std::string reason = misfit->expected.empty()
                                     ? misfit->actual
                                     : absl::StrCat("found ", misfit->actual, ", expected ", misfit->expected);
      unable.push_back({backend.name, reason});
      if (why.empty() || misfit->expected.empty()) why = reason;
      ledger_->Refused(backend.name, LedgerPlaceOf(*node), node->op->info.name, misfit->actual, misfit->expected);
      continue;
    }
    JoinReaders(&draft);
    drafts.push_back(std::move(draft));
  }
  if (drafts.empty()) {
    missing_.push_back(
        !why.empty()
            ? why
            : absl::StrCat(node->op->info.name, ": there is no GPU kernel for this op yet\n  in: ", PrintNode(*node)));
    return;
  }
  ChooseCheapest(&drafts);
  Draft& best = drafts.front();
  best.report.others.insert(best.report.others.begin(), unable.begin(), unable.end());
  Commit(std::move(best));
}

// The cheapest comes first. Each is compared by what all of them have taken: what it leaves to others costs what these
// take alone.
void KernelFormer::ChooseCheapest(std::vector<Draft>* drafts) const {
  if (drafts->size() < 2) return;
  absl::flat_hash_set<const Node*> all;
  for (const Draft& draft : *drafts) all.insert(draft.members.begin(), draft.members.end());
  std::vector<double> costs;
  for (const Draft& draft : *drafts) {
    double cost = draft.backend->microseconds(BodyOf(draft.members));
    for (const Node* node : all) {
      if (!absl::c_linear_search(draft.members, node)) cost += CostAlone(*node);
    }
    costs.push_back(cost);
  }
  const size_t best = static_cast<size_t>(std::min_element(costs.begin(), costs.end()) - costs.begin());
  for (size_t i = 0; i < drafts->size(); ++i) {
    if (i == best) continue;
    (*drafts)[best].report.others.push_back(
        {(*drafts)[i].backend->name,
         absl::StrFormat("takes %.3g us, %s %.3g us", costs[i], (*drafts)[best].backend->name, costs[best])});
  }
  std::swap(drafts->front(), (*drafts)[best]);
}

double KernelFormer::CostAlone(const Node& node) const {
  double least = 0;
  const Members alone = {const_cast<Node*>(&node)};
  bool found = false;
  for (const Backend& backend : backends_) {
    if (!backend.Begins(node.op) || MisfitOf(backend, alone).has_value()) continue;
    const double cost = backend.microseconds(BodyOf(alone));
    least = found ? std::min(least, cost) : cost;
    found = true;
  }
  return least;
}

// A kernel that the text had already.
void KernelFormer::Grow(Kernel* kernel) {
  Draft draft{.backend = &BackendOf(*kernel), .members = members_[kernel], .report = {.backend = kernel->backend}};
  JoinReaders(&draft);
  Commit(std::move(draft), kernel);
}

void KernelFormer::Commit(Draft draft) {
  ledger_->Fired(draft.backend->name, LedgerPlaceOf(*draft.members.front()).ToString());
  Kernel* kernel = &step_->kernels.emplace_back(Kernel{.backend = draft.backend->name});
  Commit(std::move(draft), kernel);
}

void KernelFormer::Commit(Draft draft, Kernel* kernel) {
  // A view at the end makes nothing.
  while (draft.members.size() > 1 && draft.members.back()->op->info.is_view()) draft.members.pop_back();
  for (Node* node : draft.members) node->kernel = kernel;
  for (const auto& [rule, place] : draft.fired) {
    ledger_->Fired(rule, place.ToString());
    draft.report.absorbed.push_back(Fired(rule, place));
  }
  for (const Draft::Refused& refused : draft.refused) {
    NoteRefusal(*refused.rule, refused.place, refused.misfit, &draft.report);
  }
  members_[kernel] = std::move(draft.members);
  reports_[kernel] = std::move(draft.report);
}

// ---- rules
// -----------------------------------------------------------------------------------------------------------

void KernelFormer::Form(const CompiledRule& rule, Node* node) {
  const auto backend = absl::c_find_if(
      backends_, [&](const Backend& other) { return other.name == std::string_view(rule.rule->forms()); });
  if (backend == backends_.end()) return;
  Refusal refusal;
  const auto judge = [&](const Match& match) -> std::optional<Misfit> {
    for (const Node* other : match.nodes) {
      if (other->kernel != nullptr) return Misfit{absl::StrCat(other->op->info.name, " of a kernel"), "nodes of none"};
    }
    return MisfitOf(*backend, Union({}, match.nodes));
  };
  const std::optional<Match> match = FindMatch(rule, model_, rule.find.size() - 1, node, judge, &refusal);
  if (!match.has_value()) {
    ledger_->Refused(NameOf(rule), LedgerPlaceOf(*node), refusal.line, refusal.actual, refusal.expected,
                     refusal.IsNear(rule));
    return;
  }
  Commit({.backend = &*backend,
          .members = Union({}, match->nodes),
          .report = {.backend = backend->name},
          .fired = {{NameOf(rule), LedgerPlaceOf(*node)}}});
}

void KernelFormer::JoinReaders(Draft* draft) {
  for (bool grown = true; grown;) {
    grown = false;
    for (const Value* result : BodyOf(draft->members).results) {
      if (grown || result->users.size() > kMaxReaders) break;
      const std::vector<Node*> readers = result->users;
      for (Node* reader : readers) {
        if (grown || reader->kernel != nullptr || absl::c_linear_search(draft->members, reader)) continue;
        grown = absl::c_any_of(rules_, [&](const CompiledRule& rule) {
          return rule.rule->joins() && !rule.kernel_reads && JoinReader(rule, reader, draft);
        });
      }
    }
  }
}

bool KernelFormer::JoinReader(const CompiledRule& rule, Node* reader, Draft* draft) {
  const auto misfit_with = [&](const std::vector<Node*>& nodes) -> std::optional<Misfit> {
    for (const Node* node : nodes) {
      if (node->kernel != nullptr) return Misfit{absl::StrCat(node->op->info.name, " of a kernel"), "nodes of none"};
    }
    const Members all = Union(draft->members, nodes);
    if (const std::optional<Misfit> misfit = MisfitOf(*draft->backend, all)) return misfit;
    if (DependsOnItself(all)) return Misfit{"a value that others make of its results", "values from before it"};
    return std::nullopt;
  };
  const LedgerPlace place = LedgerPlaceOf(*reader);
  if (!rule.trait.empty()) {
    if (!HasTrait(rule.trait, *reader)) return false;
    if (const std::optional<Misfit> misfit = misfit_with({reader})) {
      draft->refused.push_back({&rule, place, *misfit});
      return false;
    }
    draft->members = Union(draft->members, {reader});
  } else {
    const size_t line = LineThatReads(rule);
    if (rule.find[line].op != reader->op) return false;
    Refusal refusal;
    const auto judge = [&](const Match& match) -> std::optional<Misfit> {
      const Value* made = match.values[static_cast<size_t>(rule.border)];
      if (!absl::c_linear_search(draft->members, made->def)) return Misfit();  // another order of the operands
      return misfit_with(match.nodes);
    };
    const std::optional<Match> match = FindMatch(rule, model_, line, reader, judge, &refusal);
    if (!match.has_value()) {
      if (refusal.IsNear(rule)) draft->refused.push_back({&rule, place, {refusal.actual, refusal.expected}});
      return false;
    }
    draft->members = Union(draft->members, match->nodes);
  }
  draft->fired.emplace_back(NameOf(rule), place);
  return true;
}

bool KernelFormer::JoinKernels(Node* node) {
  return absl::c_any_of(rules_, [&](const CompiledRule& rule) {
    return rule.rule->joins() && rule.kernel_reads && Matches(rule, node) && JoinKernels(rule, node);
  });
}

bool KernelFormer::Matches(const CompiledRule& rule, Node* node) const {
  if (!rule.trait.empty()) return HasTrait(rule.trait, *node);
  if (rule.find.back().op != node->op) return false;
  return FindMatch(
             rule, model_, rule.find.size() - 1, node, [](const Match&) { return std::nullopt; }, nullptr)
      .has_value();
}

bool KernelFormer::JoinKernels(const CompiledRule& rule, Node* node) {
  const Value* value = node->results[0];
  std::vector<Kernel*> readers;  // nullptr: a node that is in none
  if (value->users.size() > kMaxReaders) return false;
  for (const Node* user : value->users) {
    Kernel* reader = user->block == node->block ? user->kernel : nullptr;
    if (!absl::c_linear_search(readers, reader)) readers.push_back(reader);
  }
  if (outputs_.contains(value) && !absl::c_linear_search(readers, nullptr)) readers.push_back(nullptr);
  const bool others = absl::c_linear_search(readers, nullptr);
  readers.erase(std::remove(readers.begin(), readers.end(), nullptr), readers.end());
  if (readers.empty()) return false;
  switch (rule.rule->readers()) {
    case Readers::kOne:
    case Readers::kAll: {
      const bool is_one = rule.rule->readers() == Readers::kOne;
      if (others || (is_one && readers.size() > 1)) {
        const Misfit misfit = {absl::StrCat("other readers of ", value->name),
                               is_one ? "readers in one kernel" : "readers in kernels"};
        for (Kernel* reader : readers) NoteRefusal(rule, LedgerPlaceOf(*node), misfit, &reports_[reader]);
        return false;
      }
      return readers.size() == 1 ? MoveInto(rule, node, readers[0]) : CopyInto(rule, node, readers);
    }
    case Readers::kAny:
      return absl::c_any_of(readers, [&](Kernel* reader) { return MoveInto(rule, node, reader); });
  }
  return false;
}

bool KernelFormer::MoveInto(const CompiledRule& rule, Node* node, Kernel* kernel) {
  Members all = Union(members_[kernel], {node});
  std::optional<Misfit> misfit = MisfitOf(BackendOf(*kernel), all);
  if (!misfit.has_value() && DependsOnItself(all)) {
    misfit = Misfit{"a value that others make of its results", "values from before it"};
  }
  if (misfit.has_value()) {
    NoteRefusal(rule, LedgerPlaceOf(*node), *misfit, &reports_[kernel]);
    return false;
  }
  node->kernel = kernel;
  members_[kernel] = std::move(all);
  NoteJoined(rule, *node, kernel);
  return true;
}

// A copy for each kernel, or none at all.
bool KernelFormer::CopyInto(const CompiledRule& rule, Node* node, const std::vector<Kernel*>& readers) {
  for (Kernel* reader : readers) {
    const std::optional<Misfit> misfit = MisfitWithCopy(BackendOf(*reader), members_[reader], node);
    if (!misfit.has_value()) continue;
    for (Kernel* kernel : readers) NoteRefusal(rule, LedgerPlaceOf(*node), *misfit, &reports_[kernel]);
    return false;
  }
  Value* value = node->results[0];
  for (size_t i = 1; i < readers.size(); ++i) {
    Node* first = nullptr;
    std::vector<Node*> users;
    for (Node* user : value->users) {
      if (user->kernel != readers[i] || absl::c_linear_search(users, user)) continue;
      users.push_back(user);
      if (first == nullptr || IsBefore(user, first)) first = user;
    }
    const Types types = {value->type};
    absl::StatusOr<Node*> copy =
        model_->AddNode(node->block, first, node->op, node->operands, node->attrs, {value->name}, node->loc, &types);
    if (!copy.ok()) return false;  // cannot be: the node was accepted once
    for (Node* user : users) {
      for (size_t k = 0; k < user->operands.size(); ++k) {
        if (user->operands[k] == value) model_->SetOperand(user, k, (*copy)->results[0]);
      }
    }
    (*copy)->kernel = readers[i];
    members_[readers[i]] = Union(members_[readers[i]], {*copy});
    NoteJoined(rule, **copy, readers[i]);
  }
  node->kernel = readers[0];
  members_[readers[0]] = Union(members_[readers[0]], {node});
  NoteJoined(rule, *node, readers[0]);
  return true;
}

void KernelFormer::NoteRefusal(const CompiledRule& rule, const LedgerPlace& place, const Misfit& misfit,
                               KernelReport* report) {
  if (rule.rule->quiet()) return;
  ledger_->Refused(NameOf(rule), place, rule.find.back().text, misfit.actual, misfit.expected);
  KernelReport::Reason reason = {Fired(NameOf(rule), place),
                                 absl::StrCat("found ", misfit.actual, ", expected ", misfit.expected)};
  const bool known = absl::c_any_of(report->refused, [&](const KernelReport::Reason& other) {
    return other.what == reason.what && other.why == reason.why;
  });
  if (!known) report->refused.push_back(std::move(reason));
}

void KernelFormer::NoteJoined(const CompiledRule& rule, const Node& node, Kernel* kernel) {
  const LedgerPlace place = LedgerPlaceOf(node);
  ledger_->Fired(NameOf(rule), place.ToString());
  reports_[kernel].absorbed.push_back(Fired(NameOf(rule), place));
}

// ---- what may be a kernel
// --------------------------------------------------------------------------------------------

std::optional<Misfit> KernelFormer::MisfitOf(const Backend& backend, const Members& members) const {
  return backend.misfit(BodyOf(members));
}

std::optional<Misfit> KernelFormer::MisfitWithCopy(const Backend& backend, const Members& members, Node* node) const {
  KernelBody body = BodyOf(Union(members, {node}));
  std::erase(body.results, node->results[0]);
  return backend.misfit(body);
}

const Backend& KernelFormer::BackendOf(const Kernel& kernel) const {
  return *absl::c_find_if(backends_, [&](const Backend& backend) { return backend.name == kernel.backend; });
}

// Whether something outside must come after one of the members and before another. What comes after the last member of
// all kernels that begin before it cannot lead back, and no kernel is longer than kMaxSpan.
bool KernelFormer::DependsOnItself(const Members& members) const {
  if (members.back()->order - members.front()->order > kMaxSpan) return true;
  // What only the last member gives others cannot come back to the members before it.
  const bool only_last =
      absl::c_all_of(BodyOf(members).results, [&](const Value* result) { return result->def == members.back(); }) &&
      absl::c_none_of(members,
                      [&](const Node* member) { return member != members.back() && member->op->info.touches_state(); });
  if (only_last) return false;
  const int64_t horizon = members.back()->order + kMaxSpan;
  const absl::flat_hash_set<const Node*> set(members.begin(), members.end());
  absl::flat_hash_set<const Node*> seen;
  std::vector<const Node*> pending;
  bool leads_back = false;
  const auto follow = [&](const Node* node, bool is_member) {
    const auto visit = [&](const Node* next) {
      if (set.contains(next)) {
        leads_back = leads_back || !is_member;
      } else if (next->block == node->block && next->order <= horizon && seen.insert(next).second) {
        pending.push_back(next);
      }
    };
    for (const Value* result : node->results) absl::c_for_each(result->users, visit);
    ForEachBehindByState(*node, visit);
    const auto unit = node->kernel == nullptr || is_member ? members_.end() : members_.find(node->kernel);
    if (unit != members_.end()) absl::c_for_each(unit->second, visit);
  };
  for (const Node* member : members) follow(member, true);
  while (!pending.empty() && !leads_back) {
    const Node* node = pending.back();
    pending.pop_back();
    follow(node, false);
  }
  return leads_back;
}

}  // namespace llmc
