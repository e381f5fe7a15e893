#include "passes/driver/match.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/text.h"
#include "passes/driver/why_not.h"
#include "passes/proof/literal.h"

namespace llmc {
namespace {

constexpr size_t kMaxUsers = 64;    // users of one value that are tried
constexpr int kMaxAttempts = 4096;  // nodes tried for one anchor

bool TouchesState(const OpDef& op) { return op.info.touches_state(); }

bool IsOptionalName(absl::string_view name) { return name.size() > 1 && name[1] == '_'; }

std::string Describe(const Value* value) {
  if (value == nullptr) return "nothing";
  switch (value->kind) {
    case ValueKind::kParam:
      return absl::StrCat("the input ", value->name);
    case ValueKind::kWeight:
      return absl::StrCat("the weight ", value->name);
    case ValueKind::kState:
      return absl::StrCat("the state ", value->name);
    case ValueKind::kResult:
      break;
  }
  return absl::StrCat(value->name, " of ", value->def->op->info.name);
}

// Binds one rule at one anchor, with backtracking. Lines are bound from the anchor outwards; of the lines that touch a
// bound value, the one with the fewest candidate nodes comes next.
// Over 250 lines: the steps of one search, which bind and undo the same slots.
class Matcher {
 public:
  Matcher(const CompiledRule& rule, Model* model, Refusal* refusal, const Node* telling = nullptr)
      : rule_(rule), model_(model), match_(&rule, model), refusal_(refusal), telling_(telling) {
    for (size_t i = 0; i < rule.find.size() && telling != nullptr; ++i) {
      if (rule.find[i].op == telling->op) telling_line_ = i;
    }
  }

  using Judge = absl::FunctionRef<std::optional<Misfit>(const Match&)>;

  bool Run(Node* anchor) { return Try(rule_.find.size() - 1, anchor); }
  bool Run(size_t line, Node* node, Judge judge) {
    judge_ = &judge;
    return Try(line, node);
  }
  Match Take() { return std::move(match_); }

 private:
  struct Undo {
    bool attr;
    int slot;
  };

  // Tries `node` as line `i`, in both orders if the op is commutative, and then the lines that are left.
  bool Try(size_t i, Node* node) {
    const PatternLine& line = rule_.find[i];
    if (++attempts_ > kMaxAttempts) return Fail(i, "too many ways to match", "fewer");
    if (node->op != line.op) {
      return Fail(
          i, [&] { return std::string(node->op->info.name); }, line.op->info.name);
    }
    if (node == telling_ && i != telling_line_) return false;
    if (InMatch(node)) return Fail(i, "a node that another line has", absl::StrCat("another ", line.op->info.name));
    if (match_.nodes.back() != nullptr && node->block != match_.nodes.back()->block) {
      return Fail(i, "a node of another block", line.op->info.name);
    }
    const bool swappable = line.op->commutative() && node->operands.size() >= 2;
    for (int order = 0; order < (swappable ? 2 : 1); ++order) {
      const size_t mark = trail_.size();
      match_.nodes[i] = node;
      ++bound_;
      if (BindLine(i, *node, order == 1) && BindNext()) return true;
      --bound_;
      match_.nodes[i] = nullptr;
      Rollback(mark);
    }
    return false;
  }

  bool BindNext() {
    if (bound_ == static_cast<int>(rule_.find.size())) return Accept();
    size_t best_line = rule_.find.size();
    size_t best_count = SIZE_MAX;
    Value* through = nullptr;
    for (size_t i = 0; i < rule_.find.size(); ++i) {
      if (match_.nodes[i] != nullptr) continue;
      for (int slot : rule_.find[i].results) {
        if (Value* value = match_.values[slot]; value != nullptr) return BindDefinition(i, value);
      }
      for (int slot : rule_.find[i].operands) {
        Value* value = slot < 0 ? nullptr : match_.values[slot];
        if (value == nullptr || value->users.size() >= best_count) continue;
        best_line = i;
        best_count = value->users.size();
        through = value;
      }
    }
    if (through == nullptr) return Fail(0, "lines that share no name", "a connected rule");
    return BindUser(best_line, through);
  }

  bool BindDefinition(size_t i, Value* value) {
    if (value->def == nullptr)
      return Fail(
          i, [&] { return Describe(value); }, rule_.find[i].op->info.name);
    return Try(i, value->def);
  }

  bool BindUser(size_t i, Value* through) {
    if (through->users.size() > kMaxUsers) return Fail(i, "a value with more than 64 users", "fewer users");
    const std::vector<Node*> users = through->users;
    bool any = false;
    for (Node* user : users) {
      if (user->op != rule_.find[i].op) continue;
      any = true;
      if (Try(i, user)) return true;
    }
    if (any) return false;
    return Fail(
        i, [&] { return absl::StrCat("other users of ", through->name); }, rule_.find[i].op->info.name);
  }

  bool BindLine(size_t i, const Node& node, bool swapped) {
    const PatternLine& line = rule_.find[i];
    const size_t count = std::max(line.operands.size(), node.operands.size());
    for (size_t k = 0; k < count; ++k) {
      const size_t from = swapped && k < 2 ? 1 - k : k;
      Value* value = from < node.operands.size() ? node.operands[from] : nullptr;
      const int slot = k < line.operands.size() ? line.operands[k] : -1;
      if (!BindValue(i, slot, value)) return false;
    }
    for (size_t k = 0; k < line.results.size(); ++k) {
      if (!BindValue(i, line.results[k], node.results[k])) return false;
    }
    return BindAttrs(i, node);
  }

  bool BindValue(size_t i, int slot, Value* value) {
    if (slot < 0 && value == nullptr) return true;
    if (value == nullptr && IsOptionalName(rule_.names[slot])) return true;
    if (slot < 0 || value == nullptr) {
      return Fail(
          i, [&] { return Describe(value); }, slot < 0 ? "no operand" : rule_.names[slot]);
    }
    if (rule_.names[slot][0] == '@') {
      const bool state = value->kind == ValueKind::kState;
      if (value->name[0] != '@' || (state && !TouchesState(*rule_.find[i].op))) {
        return Fail(
            i, [&] { return Describe(value); }, "a weight");
      }
    }
    Value*& bound = match_.values[slot];
    if (bound == nullptr) {
      bound = value;
      trail_.push_back({false, slot});
      return true;
    }
    if (bound == value) return true;
    return Fail(
        i, [&] { return Describe(value); }, [&] { return Describe(match_.values[slot]); });
  }

  bool BindAttrs(size_t i, const Node& node) {
    for (absl::string_view name : node.op->attrs) {
      auto it = node.attrs.find(name);
      const Attr& value = it != node.attrs.end() ? it->second : node.op->defaults.find(name)->second;
      const AttrPattern* pattern = rule_.find[i].FindAttr(name);
      const Attr* expected = nullptr;
      if (pattern == nullptr) {
        expected = &node.op->defaults.find(name)->second;
      } else if (pattern->slot < 0) {
        expected = &pattern->literal;
      } else if (std::optional<Attr>& bound = match_.attrs[pattern->slot]; bound.has_value()) {
        expected = &*bound;
      } else {
        bound = value;
        trail_.push_back({true, pattern->slot});
        continue;
      }
      if (value == *expected) continue;
      return Fail(
          i, [&] { return absl::StrCat(name, " = ", AttrToString(value)); },
          [&] { return absl::StrCat(name, " = ", AttrToString(*expected)); });
    }
    return true;
  }

  // All lines are bound: may the rule fire?
  bool Accept() {
    for (const Rule::Condition& condition : rule_.rule->conditions()) {
      if (!condition.holds(match_)) {
        return Fail(
            rule_.find.size() - 1, [&] { return Inputs(); }, [&] { return std::string(View(condition.reason)); });
      }
    }
    if (judge_ == nullptr) return ResultsAreFree() && InputsStay() && PlaceReplacement();
    const std::optional<Misfit> misfit = (*judge_)(match_);
    if (misfit.has_value() && misfit->expected.empty()) return false;
    return !misfit.has_value() || Fail(rule_.find.size() - 1, misfit->actual, misfit->expected);
  }

  // A name that the left side only reads may be bound to what another of its lines makes: the right side would then
  // read its own result.
  bool InputsStay() {
    std::vector<bool> defined(match_.values.size(), false);
    for (const PatternLine& line : rule_.find) {
      for (int slot : line.results) defined[slot] = true;
    }
    for (size_t i = 0; i < rule_.find.size(); ++i) {
      for (int slot : rule_.find[i].operands) {
        const Value* value = slot < 0 || defined[slot] ? nullptr : match_.values[slot];
        if (value == nullptr || value->def == nullptr || !Leaves(value->def)) continue;
        return Fail(
            i, [&] { return absl::StrCat(value->name, ", which is replaced"); }, "an input");
      }
    }
    return true;
  }

  // "%x: f32[4, 8], %c = 0.5, $a = [1]": what the left side takes in, without the names in the model, which differ from
  // layer to layer.
  std::string Inputs() const {
    std::vector<bool> defined(match_.values.size(), false);
    for (const PatternLine& line : rule_.find) {
      for (int slot : line.results) defined[slot] = true;
    }
    std::vector<std::string> parts;
    for (size_t slot = 0; slot < defined.size(); ++slot) {
      const Value* value = defined[slot] ? nullptr : match_.values[slot];
      if (value == nullptr) continue;
      const std::optional<double> number = NumberOf(value);
      parts.push_back(number.has_value() ? absl::StrCat(rule_.names[slot], " = ", *number)
                                         : absl::StrCat(rule_.names[slot], ": ", TypeText(*value)));
    }
    for (size_t i = 0; i < match_.attrs.size(); ++i) {
      if (!match_.attrs[i].has_value()) continue;
      parts.push_back(absl::StrCat(rule_.attr_names[i], " = ", AttrToString(*match_.attrs[i])));
    }
    return absl::StrJoin(parts, ", ");
  }

  bool InMatch(const Node* node) const {
    return std::find(match_.nodes.begin(), match_.nodes.end(), node) != match_.nodes.end();
  }
  bool Leaves(const Node* node) const {
    for (size_t i = 0; i < match_.nodes.size(); ++i) {
      if (match_.nodes[i] == node) return !rule_.line_stays[i];
    }
    return false;
  }

  // A result that the right side does not define must have no use outside of the nodes that go.
  bool ResultsAreFree() {
    for (size_t i = 0; i < rule_.find.size(); ++i) {
      if (rule_.line_stays[i]) continue;
      for (int slot : rule_.find[i].results) {
        const Value* value = match_.values[slot];
        if (rule_.redefined[slot]) continue;
        for (const Node* user : value->users) {
          if (Leaves(user)) continue;
          return Fail(
              i, [&] { return absl::StrCat(value->name, " also used by ", user->op->info.name); }, "no other user");
        }
        if (model_->IsOutput(value)) {
          return Fail(
              i, [&] { return absl::StrCat("the output ", value->name); }, "no other user");
        }
      }
    }
    return true;
  }

  // The right side goes after the last node that goes, or earlier if a value that it defines is used before that.
  bool PlaceReplacement() {
    Node* last = nullptr;
    for (Node* node : match_.nodes) {
      if (Leaves(node) && (last == nullptr || node->order > last->order)) last = node;
    }
    if (last == nullptr) return Fail(0, "a rule that removes nothing", "a rewrite");
    auto next = std::next(last->self);
    match_.insert_before = next == last->block->nodes.end() ? nullptr : next->get();
    Node* first_user = nullptr;
    for (size_t i = 0; i < rule_.find.size(); ++i) {
      if (rule_.line_stays[i]) continue;
      for (int slot : rule_.find[i].results) {
        for (Node* user : match_.values[slot]->users) {
          if (Leaves(user) || user->block != last->block) continue;
          if (user->order < last->order && (first_user == nullptr || user->order < first_user->order))
            first_user = user;
        }
      }
    }
    if (first_user != nullptr) match_.insert_before = first_user;
    if (first_user != nullptr && !InputsAreDefinedBefore(first_user)) return false;
    return StatesKeepTheirOrder();
  }

  bool InputsAreDefinedBefore(const Node* place) {
    for (size_t i = 0; i < rule_.replace.size(); ++i) {
      if (rule_.kept_line[i] >= 0) continue;
      for (int slot : rule_.replace[i].operands) {
        const Value* value = slot < 0 ? nullptr : match_.values[slot];
        if (value == nullptr || value->def == nullptr || value->def->block != place->block || Leaves(value->def))
          continue;
        if (value->def->order >= place->order) {
          return Fail(
              0, [&] { return absl::StrCat(place->op->info.name, " uses a result before ", value->name); },
              "inputs that come before");
        }
      }
    }
    return true;
  }

  // No other use of a state may stand between where the matched uses were and where the new ones go.
  bool StatesKeepTheirOrder() {
    const int64_t place = match_.insert_before == nullptr ? INT64_MAX : match_.insert_before->order;
    for (size_t i = 0; i < match_.nodes.size(); ++i) {
      Node* node = match_.nodes[i];
      if (rule_.line_stays[i] || !TouchesState(*node->op)) continue;
      for (const Value* state : node->operands) {
        if (state == nullptr || state->kind != ValueKind::kState) continue;
        for (const Node* user : state->users) {
          if (InMatch(user) || user->block != node->block) continue;
          const bool between = place < node->order ? place <= user->order && user->order < node->order
                                                   : node->order < user->order && user->order < place;
          if (between) {
            return Fail(
                i, [&] { return absl::StrCat(user->op->info.name, " of ", state->name, " in between"); },
                "no other use of the state in between");
          }
        }
      }
    }
    return true;
  }

  void Rollback(size_t mark) {
    for (; trail_.size() > mark; trail_.pop_back()) {
      if (trail_.back().attr) {
        match_.attrs[trail_.back().slot].reset();
      } else {
        match_.values[trail_.back().slot] = nullptr;
      }
    }
  }

  template <class T>
  static std::string Text(const T& text) {
    if constexpr (std::is_invocable_v<T>) {
      return text();
    } else {
      return std::string(text);
    }
  }
  // Keeps the failure that came furthest; texts are made only if somebody asks.
  template <class Actual, class Expected>
  bool Fail(size_t line, const Actual& actual, const Expected& expected) {
    if (refusal_ != nullptr && bound_ > furthest_) {
      furthest_ = bound_;
      *refusal_ = {rule_.find[line].text, Text(actual), Text(expected), {}};
      for (const Node* node : match_.nodes) {
        if (node != nullptr) refusal_->nodes.push_back(node);
      }
    }
    return false;
  }

  const CompiledRule& rule_;
  Model* model_;
  Match match_;
  Refusal* refusal_;
  Judge* judge_ = nullptr;
  std::vector<Undo> trail_;
  int bound_ = 0;
  int attempts_ = 0;
  int furthest_ = -1;
  const Node* telling_;
  size_t telling_line_ = SIZE_MAX;
};

}  // namespace

Match::Match(const CompiledRule* r, Model* model)
    : rule(r), values(r->names.size()), attrs(r->attr_names.size()), nodes(r->find.size()), model_(model) {}

Value* Match::operator[](absl::string_view name) const {
  const int slot = rule->Slot(name);
  return slot < 0 ? nullptr : values[slot];
}

const Attr& Match::GetAttr(absl::string_view name) const {
  auto it = std::find(rule->attr_names.begin(), rule->attr_names.end(), name);
  return attrs[it - rule->attr_names.begin()].value();
}

std::optional<Match> FindMatch(const CompiledRule& rule, Model* model, Node* anchor, Refusal* refusal) {
  Matcher matcher(rule, model, refusal);
  if (!matcher.Run(anchor)) return std::nullopt;
  return matcher.Take();
}

std::optional<Match> FindMatch(const CompiledRule& rule, Model* model, size_t line, Node* node,
                               absl::FunctionRef<std::optional<Misfit>(const Match&)> judge, Refusal* refusal) {
  Matcher matcher(rule, model, refusal);
  if (!matcher.Run(line, node, judge)) return std::nullopt;
  return matcher.Take();
}

Refusal WhyNot(const CompiledRule& rule, Model* model, Node* anchor, const Node* telling) {
  Refusal refusal;
  Matcher(rule, model, &refusal, telling).Run(anchor);
  return refusal;
}

}  // namespace llmc
