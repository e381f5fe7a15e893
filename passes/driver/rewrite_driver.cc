#include "passes/driver/rewrite_driver.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "passes/driver/match.h"

namespace llmc {
namespace {

// After a rewrite, users of the values that it touched are tried again; of a value with more users than this, none.
constexpr size_t kMaxRetriedUsers = 16;
constexpr int kMaxSweeps = 64;

// The part of a name that tells where in the model it is: "l0." of "@l0.wq".
std::string PrefixOf(const std::string& name) {
  const size_t dot = name.find_last_of("./");
  return dot == std::string::npos ? "" : name.substr(1, dot);
}

// One replacement: makes the nodes of the right side, checks their types, then moves uses and names over.
class Replacement {
 public:
  Replacement(Model* model, const Match& match) : model_(model), match_(match), rule_(*match.rule) {}

  // False if the right side does not type here; the model is as it was.
  bool Build(Refusal* refusal) {
    values_ = match_.values;
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      if (rule_.redefined[slot]) values_[slot] = nullptr;
    }
    attrs_ = match_.attrs;
    for (const Rule::Binding& let : rule_.rule->lets()) {
      auto it = std::find(rule_.attr_names.begin(), rule_.attr_names.end(), View(let.name));
      attrs_[it - rule_.attr_names.begin()] = let.compute(match_);
    }
    for (size_t i = 0; i < rule_.replace.size(); ++i) {
      absl::Status status = BuildLine(i);
      if (status.ok()) status = CheckTypes(rule_.replace[i]);
      if (status.ok()) continue;
      if (refusal != nullptr)
        *refusal = {rule_.replace[i].text, std::string(status.message()), "a right side that types",
                    std::vector<const Node*>(match_.nodes.begin(), match_.nodes.end())};
      for (; !created_.empty(); created_.pop_back()) model_->Erase(created_.back());
      return false;
    }
    return true;
  }

  // Removes the left side. Afterwards the nodes of `removed` are gone.
  void Commit(std::vector<Node*>* removed) {
    std::vector<std::pair<Value*, std::string>> renames;
    for (size_t slot = 0; slot < values_.size(); ++slot) {
      Value* old = match_.values[slot];
      if (!rule_.redefined[slot] || old == nullptr || values_[slot] == old) continue;
      model_->ReplaceUses(old, values_[slot]);
      const Node* def = values_[slot]->def;
      if (std::find(created_.begin(), created_.end(), def) != created_.end()) {
        renames.emplace_back(values_[slot], old->name);
      }
    }
    for (size_t i = 0; i < match_.nodes.size(); ++i) {
      if (!rule_.line_stays[i]) removed->push_back(match_.nodes[i]);
    }
    std::sort(removed->begin(), removed->end(), [](const Node* a, const Node* b) { return a->order > b->order; });
    for (Node* node : *removed) model_->Erase(node);
    for (auto& [value, name] : renames) model_->Rename(value, name);
  }

  const std::vector<Node*>& created() const { return created_; }

 private:
  absl::Status BuildLine(size_t i) {
    const PatternLine& line = rule_.replace[i];
    if (rule_.kept_line[i] >= 0) {
      for (int slot : line.results) values_[slot] = match_.values[slot];
      return absl::OkStatus();
    }
    if (line.IsAlias()) {
      values_[line.results[0]] = values_[line.operands[0]];
      return absl::OkStatus();
    }
    std::vector<Value*> operands;
    for (int slot : line.operands) operands.push_back(slot < 0 ? nullptr : values_[slot]);
    Attrs attrs;
    for (const AttrPattern& attr : line.attrs) {
      attrs[attr.name] = attr.slot < 0 ? attr.literal : attrs_[attr.slot].value();
    }
    std::vector<std::string> names;
    Types types;
    std::string loc = match_.nodes.back()->loc;
    for (int slot : line.results) {
      const Value* old = match_.values[slot];
      names.push_back(old != nullptr ? old->name : NewName(slot));
      if (old == nullptr) continue;
      types.push_back(old->type);
      if (old->def != nullptr && !old->def->loc.empty()) loc = old->def->loc;
    }
    const bool typed = !types.empty() && types.size() == line.results.size();
    ASSIGN_OR_RETURN(Node * node,
                     model_->AddNode(match_.nodes.back()->block, match_.insert_before, line.op, std::move(operands),
                                     std::move(attrs), names, loc, typed ? &types : nullptr));
    created_.push_back(node);
    for (size_t k = 0; k < line.results.size(); ++k) values_[line.results[k]] = node->results[k];
    return absl::OkStatus();
  }

  // "%qkv" in a match around %l0.qr becomes "%l0.qkv".
  std::string NewName(int slot) const {
    const absl::string_view sigil = match_.nodes.back()->block == &model_->prepare ? "@" : "%";
    for (const bool kept : {true, false}) {  // rather from a value that is replaced than from an input
      for (size_t other = 0; other < match_.values.size(); ++other) {
        if (match_.values[other] == nullptr || rule_.redefined[other] != kept) continue;
        const std::string prefix = PrefixOf(match_.values[other]->name);
        if (!prefix.empty()) return absl::StrCat(sigil, prefix, rule_.names[slot].substr(1));
      }
    }
    return absl::StrCat(sigil, rule_.names[slot].substr(1));
  }

  // A value keeps its type.
  absl::Status CheckTypes(const PatternLine& line) const {
    for (int slot : line.results) {
      const Value* old = match_.values[slot];
      if (old == nullptr || old->type == values_[slot]->type) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(old->name, " ", old->type.ToString(), " would become ", values_[slot]->type.ToString()));
    }
    return absl::OkStatus();
  }

  Model* model_;
  const Match& match_;
  const CompiledRule& rule_;
  std::vector<Value*> values_;
  std::vector<std::optional<Attr>> attrs_;
  std::vector<Node*> created_;
};

// First in, first out, each node once. A removed node still stands in the queue, and another may come to lie where it
// lay: so places in the queue have numbers.
class Worklist {
 public:
  void Push(Node* node) {
    if (pending_.emplace(node, next_).second) queue_.emplace_back(node, next_++);
  }
  // nullptr when empty.
  Node* Pop() {
    while (!queue_.empty()) {
      const auto [node, number] = queue_.front();
      queue_.pop_front();
      const auto it = pending_.find(node);
      if (it == pending_.end() || it->second != number) continue;
      pending_.erase(it);
      return node;
    }
    return nullptr;
  }
  void Remove(Node* node) { pending_.erase(node); }

 private:
  std::deque<std::pair<Node*, int64_t>> queue_;
  absl::flat_hash_map<Node*, int64_t> pending_;
  int64_t next_ = 0;
};

class Driver {
 public:
  Driver(Model* model, Ledger* ledger) : model_(model), ledger_(ledger) {}

  const Ledger& refusals() const { return refusals_; }

  absl::Status Compile(absl::Span<const Rule* const> rules) {
    compiled_.reserve(rules.size());
    for (const Rule* rule : rules) {
      ASSIGN_OR_RETURN(CompiledRule compiled, CompileRule(*rule));
      compiled_.push_back(std::move(compiled));
      by_anchor_[compiled_.back().anchor].push_back(compiled_.size() - 1);
    }
    return absl::OkStatus();
  }

  // The neighbours of a rewrite are tried again at once, so a second sweep rarely finds anything; the last sweep, which
  // fires nothing, is the one whose refusals count.
  absl::StatusOr<int64_t> Run() {
    limit_ = 1000;
    for (const Block* block : Blocks()) limit_ += 32 * static_cast<int64_t>(block->nodes.size());
    for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
      const int64_t before = fired_;
      refusals_ = Ledger();
      RETURN_IF_ERROR(Sweep());
      if (fired_ != before) continue;
      return fired_;
    }
    return absl::InternalError(absl::StrCat("the rules do not come to an end; the last was ", last_rule_));
  }

 private:
  std::vector<Block*> Blocks() const {
    std::vector<Block*> blocks = {&model_->prepare};
    for (const auto& step : model_->steps) blocks.push_back(&step->block);
    return blocks;
  }

  absl::Status Sweep() {
    for (Block* block : Blocks()) {
      block->Renumber();
      for (const auto& node : block->nodes) {
        if (by_anchor_.contains(node->op)) worklist_.Push(node.get());
      }
      while (Node* node = worklist_.Pop()) {
        RETURN_IF_ERROR(Visit(node));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Visit(Node* node) {
    auto it = by_anchor_.find(node->op);
    if (it == by_anchor_.end()) return absl::OkStatus();
    for (size_t index : it->second) {
      const CompiledRule& rule = compiled_[index];
      const bool fired = rule.rule->function() != nullptr ? Call(rule, node) : Rewrite(rule, node);
      if (!fired) continue;
      last_rule_ = std::string(rule.rule->name());
      if (++fired_ > limit_) return absl::InternalError(absl::StrCat(last_rule_, " undoes what another rule does"));
      return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  bool Rewrite(const CompiledRule& rule, Node* node) {
    const bool explain = ledger_ != nullptr && !rule.rule->quiet();
    Refusal refusal;
    std::optional<Match> match = FindMatch(rule, model_, node, explain ? &refusal : nullptr);
    const LedgerPlace place = match.has_value() || explain ? LedgerPlaceOf(*node) : LedgerPlace();
    if (match.has_value()) {
      Replacement replacement(model_, *match);
      if (replacement.Build(&refusal)) {
        std::vector<Node*> removed;
        const std::vector<Node*> near = DefinersOf(match->nodes);
        replacement.Commit(&removed);
        for (Node* gone : removed) worklist_.Remove(gone);
        for (Node* definer : near) {
          if (std::find(removed.begin(), removed.end(), definer) == removed.end()) worklist_.Push(definer);
        }
        PushUsersOfInputs(*match);
        PushAround(replacement.created());
        if (ledger_ != nullptr) ledger_->Fired(View(rule.rule->name()), place.ToString());
        return true;
      }
    }
    if (explain) {
      refusals_.Refused(View(rule.rule->name()), place, refusal.line, refusal.actual, refusal.expected,
                        refusal.IsNear(rule));
    }
    return false;
  }

  bool Call(const CompiledRule& rule, Node* node) {
    const LedgerPlace place = LedgerPlaceOf(*node);
    const std::vector<Node*> near = DefinersOf({node});
    Rewriter rewriter(model_, node);
    if (!rule.rule->function()(rewriter, node)) {
      rewriter.Discard();
      if (rewriter.refused() && ledger_ != nullptr && !rule.rule->quiet()) {
        refusals_.Refused(View(rule.rule->name()), place, View(rule.rule->op()), rewriter.actual(),
                          rewriter.expected());
      }
      return false;
    }
    if (rewriter.replaced()) {
      worklist_.Remove(node);
    } else {
      worklist_.Push(node);
    }
    for (Node* definer : near) worklist_.Push(definer);
    PushAround(rewriter.created());
    if (ledger_ != nullptr) ledger_->Fired(View(rule.rule->name()), place.ToString());
    return true;
  }

  // Their results may have lost a user: what needed "no other user" may match now.
  static std::vector<Node*> DefinersOf(const std::vector<Node*>& nodes) {
    std::vector<Node*> definers;
    for (const Node* node : nodes) {
      for (const Value* operand : node->operands) {
        if (operand != nullptr && operand->def != nullptr) definers.push_back(operand->def);
      }
    }
    return definers;
  }

  // Inputs of the match still exist; values that it defined are gone with their nodes, or have new ones.
  void PushUsersOfInputs(const Match& match) {
    std::vector<bool> defined(match.values.size(), false);
    for (const PatternLine& line : match.rule->find) {
      for (int slot : line.results) defined[slot] = true;
    }
    for (size_t slot = 0; slot < defined.size(); ++slot) {
      if (!defined[slot] && match.values[slot] != nullptr) PushUsers(match.values[slot]);
    }
  }

  void PushUsers(const Value* value) {
    if (value->users.size() > kMaxRetriedUsers) return;
    for (Node* user : value->users) worklist_.Push(user);
  }

  void PushAround(const std::vector<Node*>& created) {
    for (Node* node : created) {
      worklist_.Push(node);
      for (const Value* result : node->results) PushUsers(result);
      for (const Value* operand : node->operands) {
        if (operand != nullptr) PushUsers(operand);
      }
    }
  }

  Model* model_;
  Ledger* ledger_;
  Ledger refusals_;
  std::vector<CompiledRule> compiled_;
  absl::flat_hash_map<const OpDef*, std::vector<size_t>> by_anchor_;
  Worklist worklist_;
  int64_t fired_ = 0;
  int64_t limit_ = 0;
  std::string last_rule_;
};

}  // namespace

LedgerPlace LedgerPlaceOf(const Node& node) {
  const Value* value = !node.results.empty() ? node.results[0] : node.operands.empty() ? nullptr : node.operands[0];
  const std::string op(node.op->info.name);
  return {.value = value != nullptr ? value->name : op, .op = op, .loc = node.loc};
}

std::string PlaceOf(const Node& node) { return LedgerPlaceOf(node).ToString(); }

Value* Rewriter::AddRaw(const OpDef* op, std::vector<Value*> operands, Attrs attrs) {
  const std::string stem = node_->results.empty() ? "" : node_->results[0]->name;
  absl::StatusOr<Node*> node =
      model_->AddNode(node_->block, node_, op, std::move(operands), std::move(attrs), {stem}, node_->loc);
  if (!node.ok()) return nullptr;
  created_.push_back(*node);
  return (*node)->results.empty() ? nullptr : (*node)->results[0];
}

bool Rewriter::ReplaceWith(Value* value) {
  Value* old = node_->results[0];
  if (value == nullptr || value->type != old->type) return false;
  const std::string name = old->name;
  model_->ReplaceUses(old, value);
  model_->Erase(node_);
  replaced_ = true;
  if (std::find(created_.begin(), created_.end(), value->def) != created_.end()) model_->Rename(value, name);
  return true;
}

bool Rewriter::Refuse(std::string actual, std::string expected) {
  actual_ = std::move(actual);
  expected_ = std::move(expected);
  return false;
}

void Rewriter::Discard() {
  for (; !created_.empty(); created_.pop_back()) model_->Erase(created_.back());
}

absl::StatusOr<int64_t> RunRules(Model* model, absl::Span<const Rule* const> rules, Ledger* ledger, Ledger* refusals) {
  Driver driver(model, ledger);
  RETURN_IF_ERROR(driver.Compile(rules));
  absl::StatusOr<int64_t> fired = driver.Run();
  if (refusals != nullptr && fired.ok()) refusals->Merge(driver.refusals());
  return fired;
}

absl::StatusOr<int64_t> RunRules(Model* model, absl::Span<const Rule* const> rules, Ledger* ledger) {
  return RunRules(model, rules, ledger, ledger);
}

absl::StatusOr<int64_t> RunRules(Model* model, RuleSpan rules, Ledger* ledger) {
  std::vector<const Rule*> pointers;
  for (const Rule& rule : rules) pointers.push_back(&rule);
  return RunRules(model, pointers, ledger);
}

}  // namespace llmc
