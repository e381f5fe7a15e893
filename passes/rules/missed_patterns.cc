#include "passes/rules/missed_patterns.h"

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/driver/why_not.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

constexpr size_t kMaxSteps = 8;    // from the telling op to the anchor of a rule
constexpr size_t kMaxNodes = 128;  // looked at for one telling op

// ---- what gives a thing away ---------------------------------------------------
bool IsLinkOfWeights(const Node* node) {
  return Is<Cast>(node) || Is<Where>(node) || Is<Mul>(node) || Is<Div>(node) || Is<Add>(node) || Is<Sub>(node) ||
         Is<Reshape>(node) || Is<Transpose>(node) || Is<Expand>(node) || Is<Slice>(node) || Is<Concat>(node) ||
         Is<Identity>(node);
}

// The nodes that `from` reaches through its users and links, nearest first.
template <class F>
std::vector<Node*> Reached(const Node* from, F is_link) {
  std::vector<std::pair<Node*, size_t>> queue;
  absl::flat_hash_set<const Node*> seen = {from};
  const auto push = [&](const Node* node, size_t steps) {
    for (const Value* result : node->results) {
      for (Node* user : result->users) {
        if (queue.size() < kMaxNodes && seen.insert(user).second) queue.emplace_back(user, steps);
      }
    }
  };
  push(from, 1);
  for (size_t i = 0; i < queue.size(); ++i) {
    const auto [node, steps] = queue[i];
    if (steps < kMaxSteps && is_link(node)) push(node, steps + 1);
  }
  std::vector<Node*> nodes;
  for (const auto& [node, steps] : queue) nodes.push_back(node);
  return nodes;
}

bool IsProductOfTokens(const Node* node) {
  if (!Is<MatMul>(node)) return false;
  return std::all_of(node->operands.begin(), node->operands.end(), [&](const Value* operand) {
    return operand->kind == ValueKind::kParam || (operand->def != nullptr && operand->def->block == node->block);
  });
}

bool WeighsValues(const Node* node) {
  if (!Is<Softmax>(node) || View<Softmax>(*node).log) return false;
  const std::vector<Node*> reached = Reached(node, IsLinkOfWeights);
  return std::any_of(reached.begin(), reached.end(), IsProductOfTokens);
}

bool IsRootOfMean(const Node* node) {
  if (!Is<Sqrt>(node) && !Is<Rsqrt>(node)) return false;
  std::vector<const Node*> queue = {node};
  for (size_t i = 0; i < queue.size() && i < kMaxSteps; ++i) {
    for (const Value* operand : queue[i]->operands) {
      const Node* def = operand == nullptr ? nullptr : operand->def;
      if (Is<ReduceMean>(def)) return true;
      if (Is<Add>(def) || Is<Mul>(def) || Is<Cast>(def) || Is<Max>(def)) queue.push_back(def);
    }
  }
  return false;
}

bool IsGateOfGelu(const Node* node) {
  if (!Is<Erf>(node) && !Is<Tanh>(node)) return false;
  const auto& users = node->results[0]->users;
  return std::any_of(users.begin(), users.end(), [](const Node* user) {
    return Is<Add>(user) && (IsNear(user->operands[0], 1) || IsNear(user->operands[1], 1));
  });
}

// [-high, low] of one tensor, or a * c - b * s beside b * c + a * s.
bool IsTurned(const Node* node) {
  if (Is<Concat>(node) && node->operands.size() == 2) {
    const Node *minus = node->operands[0]->def, *low = node->operands[1]->def;
    if (!Is<Neg>(minus)) return false;
    const Node* high = minus->operands[0]->def;
    return Is<Slice>(high) && Is<Slice>(low) && high->operands[0] == low->operands[0];
  }
  if (!Is<Sub>(node)) return false;
  const Node *first = node->operands[0]->def, *second = node->operands[1]->def;
  if (!Is<Mul>(first) || !Is<Mul>(second)) return false;
  // b * c, for a * c.
  const auto crosses = [&](const Node* user) {
    if (!Is<Mul>(user) || user == first) return false;
    const auto has = [&](const Node* product, const Value* value) {
      return product->operands[0] == value || product->operands[1] == value;
    };
    return (has(user, second->operands[0]) || has(user, second->operands[1])) &&
           (has(user, first->operands[0]) || has(user, first->operands[1]));
  };
  for (const Value* operand : first->operands) {
    const auto& users = operand->users;
    if (users.size() <= kMaxNodes && std::any_of(users.begin(), users.end(), crosses)) return true;
  }
  return false;
}

// Whether numbers of 4 or 8 bits, of weights only or of any value, were dequantized to `value`.
bool IsFromQuantized(const Value* value, bool weights_only) {
  std::vector<const Value*> queue = {value};
  for (size_t i = 0; i < queue.size() && i < kMaxSteps * 2; ++i) {
    const Node* def = queue[i]->def;
    const bool is_link =
        Is<Mul>(def) || Is<Sub>(def) || Is<Cast>(def) || Is<Reshape>(def) || Is<Transpose>(def) || Is<Slice>(def);
    if (!is_link) continue;
    for (const Value* operand : def->operands) {
      const DType dtype = operand->type.dtype;
      const bool is_quantized =
          dtype == DType::kI8 || dtype == DType::kU8 || dtype == DType::kI4 || dtype == DType::kU4;
      const bool may_be = !weights_only || operand->name[0] == '@';
      if (Is<Cast>(def) && is_quantized && may_be && operand->type.rank() >= 2) return true;
      queue.push_back(operand);
    }
  }
  return false;
}

bool IsOfQuantized(const Node* node) {
  if (!Is<MatMul>(node)) return false;
  const auto op = View<MatMul>(*node);
  const bool both = IsFromQuantized(op.lhs, false) && IsFromQuantized(op.rhs, false);
  return both || (IsFloat(op.rhs->type.dtype) && IsFromQuantized(op.rhs, true));
}

// ---- why the rules did not take it -------------------------------------------------
struct MissedPatternKind {
  absl::string_view ledger_name;
  bool (*tells)(const Node*);
  bool (*is_link)(const Node*);  // what may stand between the telling op and the anchors of the rules
  std::vector<absl::string_view> rules;
  absl::string_view expected;  // where no rule came near
  bool is_anchor = false;      // the telling op may be the anchor of a rule
};

const std::vector<MissedPatternKind>& Kinds() {
  const auto any = [](const Node*) { return true; };
  static const auto* const kinds = new std::vector<MissedPatternKind>{
      {kLeftAttention,
       WeighsValues,
       IsLinkOfWeights,
       {"raise-attention"},
       "softmax right before a product with values"},
      {kLeftNorm,
       IsRootOfMean,
       any,
       {"raise-rms-norm", "raise-rsqrt-of-norm", "raise-rsqrt"},
       "x * rsqrt(mean(x * x) + eps), or x / sqrt(mean(x * x) + eps)"},
      {kLeftGelu,
       IsGateOfGelu,
       any,
       {"raise-gelu", "raise-gelu-of-quotient", "raise-gelu-tanh-of-power", "raise-gelu-tanh-of-products",
        "raise-gelu-tanh-of-factor"},
       "x * (1 + erf(x / sqrt(2))) / 2, or its form with tanh"},
      {kLeftRotary, IsTurned, any, {"raise-rotary", "raise-rotary-of-halves"}, "x * cos + [-high, low] * sin"},
      {kLeftQuantized,
       IsOfQuantized,
       [](const Node* node) { return Is<Cast>(node) || Is<Reshape>(node); },
       {"raise-quantized-linear", "raise-integer-linear"},
       "(q - zero) * scale as a factor, or a product of q - zero that is cast and scaled",
       true}};
  return *kinds;
}

class Notes {
 public:
  Notes(Model* model, Ledger* ledger) : model_(model), ledger_(ledger) {}

  absl::Status Compile() {
    for (const MissedPatternKind& kind : Kinds()) {
      for (const absl::string_view name : kind.rules) {
        ASSIGN_OR_RETURN(CompiledRule compiled, CompileRule(*FindRule(name)));
        rules_.emplace(name, std::move(compiled));
      }
    }
    return absl::OkStatus();
  }

  void Take(const Block& block) {
    std::vector<std::pair<const MissedPatternKind*, Node*>> found;
    for (const auto& node : block.nodes) {
      for (const MissedPatternKind& kind : Kinds()) {
        if (kind.tells(node.get())) found.emplace_back(&kind, node.get());
      }
    }
    for (const auto& [kind, node] : found) Take(*kind, node);
  }

 private:
  void Take(const MissedPatternKind& kind, Node* node) {
    best_.reset();
    best_part_ = 0;
    std::vector<Node*> anchors = Reached(node, kind.is_link);
    if (kind.is_anchor) anchors.insert(anchors.begin(), node);
    for (Node* anchor : anchors) {
      for (const absl::string_view name : kind.rules) {
        const CompiledRule& rule = rules_.at(name);
        if (anchor->op != rule.anchor) continue;
        if (rule.rule->function() != nullptr) {
          Call(rule, anchor);
        } else {
          Match(rule, node, anchor);
        }
      }
    }
    if (!best_.has_value()) {
      const auto& users = node->results[0]->users;
      const std::string actual = users.empty() ? "an output" : std::string(users[0]->op->info.name);
      best_ = Refusal{std::string(node->op->info.name),
                      absl::StrCat(actual, " of ", node->results[0]->name),
                      std::string(kind.expected),
                      {}};
    }
    ledger_->Refused(kind.ledger_name, LedgerPlaceOf(*node), best_->line, best_->actual, best_->expected);
  }

  // The rule that matched the most around the telling op says why.
  void Match(const CompiledRule& rule, const Node* node, Node* anchor) {
    const bool has_line =
        std::any_of(rule.find.begin(), rule.find.end(), [&](const PatternLine& line) { return line.op == node->op; });
    if (!has_line) return;
    Refusal refusal = WhyNot(rule, model_, anchor, node);
    const double part = static_cast<double>(refusal.nodes.size()) / static_cast<double>(rule.find.size());
    if (refusal.nodes.size() < 2 || (best_.has_value() && part <= best_part_)) return;
    best_part_ = part;
    best_ = std::move(refusal);
  }

  void Call(const CompiledRule& rule, Node* anchor) {
    Rewriter rewriter(model_, anchor);
    if (best_.has_value() || rule.rule->function()(rewriter, anchor)) return;
    rewriter.Discard();
    if (rewriter.refused())
      best_ = Refusal{std::string(View(rule.rule->op())), rewriter.actual(), rewriter.expected(), {}};
  }

  Model* model_;
  Ledger* ledger_;
  absl::flat_hash_map<absl::string_view, CompiledRule> rules_;
  std::optional<Refusal> best_;
  double best_part_ = 0;
};

}  // namespace

absl::Status NoteMissedPatterns(Model* model, Ledger* ledger) {
  Notes notes(model, ledger);
  RETURN_IF_ERROR(notes.Compile());
  for (const auto& step : model->steps) notes.Take(step->block);
  return absl::OkStatus();
}

}  // namespace llmc
