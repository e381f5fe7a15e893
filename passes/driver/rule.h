// A rewrite rule: the language written twice, before and after.
//
//   constexpr auto kFuse = Rules(
//       Rule("raise-silu")
//           .Find(R"(%s = sigmoid %x
//                    %y = mul %x, %s)")
//           .Replace("%y = silu %x")
//           .Example("%x: f32[4, 64]"));
//
// Names are the contract. A name left of '=' on both sides is replaced; a result that the right side does not define
// must have no other use. A free name is an input; "@w" binds weights and states only; "$eps" binds an attribute; an
// attribute that a line does not write must have its default; "_" is an absent operand, and "%_mask" may be bound to an
// absent one. Commutative ops match in both orders. An `identity` on the right side makes no node: its result becomes
// another name of its operand. The last line of the left side is the anchor: it is what the driver looks for, and what
// the ledger counts.
//
// A rule of the pass `lower` has no right side: the nodes of its lines become a kernel (Form), or join one (Join) that
// a border line names. `%y in $k`: a node of kernel k makes %y. `$k reads %n`: a node of kernel k reads %n, which the
// rule must define. In place of an op such a rule may have a trait, of which every op with that trait is one:
//       Rule("absorb-norm")
//           .Find(R"(%n = rms_norm %x, @g {eps = $e}
//                    $k reads %n)")
//           .Join(Readers::kAll)
#pragma once

#include <array>
#include <string_view>

#include "absl/status/status.h"
#include "passes/driver/rule_text.h"

namespace llmc {

class Match;
class Rewriter;

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

enum class Rounding { kNowhere, kIn16Bit, kAnywhere };

// Which kernels a node joins that kernels read.
enum class Readers {
  kOne,  // the one that all its readers are in
  kAll,  // all that read it, each with a copy of its own; nothing else may read it
  kAny,  // one of those that read it; others get its result from there
};

class Rule {
 public:
  using Predicate = bool (*)(const Match&);
  using Compute = Attr (*)(const Match&);
  // Rewrites around `node`; true if it did. The driver removes what it built in vain. Where a rewrite was near, it
  // calls Rewriter::Refuse with what stopped it.
  using Function = bool (*)(Rewriter& rewriter, Node* node);
  static constexpr int kMaxParts = 4;

  struct Condition {
    std::string_view reason;
    Predicate holds = nullptr;
  };
  struct Binding {
    std::string_view name;  // "$heads"
    Compute compute = nullptr;
  };

  constexpr explicit Rule(std::string_view name) : name_(name) {}

  // A copy that `change` has changed. First, since a compiler that follows the letter evaluates only what it has seen.
  template <class F>
  constexpr Rule With(F change) const {
    Rule rule = *this;
    change(rule);
    return rule;
  }

  constexpr Rule Find(std::string_view text) const {
    return With([&](Rule& r) { r.find_ = text; });
  }
  constexpr Rule Replace(std::string_view text) const {
    return With([&](Rule& r) { r.replace_ = text; });
  }
  // Refuses the match, with the reason, unless `holds`.
  constexpr Rule When(std::string_view reason, Predicate holds) const {
    return With([&](Rule& r) { r.conditions_[r.num_conditions_++] = {reason, holds}; });
  }
  // Computes an attribute of the right side, after the conditions hold.
  constexpr Rule Let(std::string_view name, Compute compute) const {
    return With([&](Rule& r) { r.lets_[r.num_lets_++] = {name, compute}; });
  }
  // Instead of Find and Replace: `function` is called with each node of `op`.
  constexpr Rule Apply(std::string_view op, Function function) const {
    return With([&](Rule& r) {
      r.op_ = op;
      r.function_ = function;
    });
  }
  // Instead of Replace: the nodes join the kernel of the border line, if its backend can run them too.
  constexpr Rule Join(Readers readers = Readers::kOne) const {
    return With([&](Rule& r) {
      r.joins_ = true;
      r.readers_ = readers;
    });
  }
  // Instead of Replace: the nodes become a kernel of `backend`, if it can run them.
  constexpr Rule Form(std::string_view backend) const {
    return With([&](Rule& r) { r.forms_ = backend; });
  }
  // Types of the inputs, for the self-test; items are separated by ';':
  //   %x: f32[4, 64]   @w: f32[64]   state @kv: paged[…] {…}   $eps = 1e-5   %c = constant {value = 0}: f32[]
  // Op lines define inputs; for rules with Apply they are the program that it must rewrite. Of rules with Join they are
  // the kernel that reads what the rule defines, or that makes what it reads.
  constexpr Rule Example(std::string_view text) const {
    return With([&](Rule& r) { r.examples_[r.num_examples_++] = text; });
  }
  // The ledger keeps no refusals: for algebra, where a refusal is the normal case.
  constexpr Rule Quiet() const {
    return With([](Rule& r) { r.quiet_ = true; });
  }

  // The right side computes in another order, or rounds at other places, in these types. All other rules keep every
  // bit.
  constexpr Rule Rounds(Rounding where) const {
    return With([&](Rule& r) { r.rounding_ = where; });
  }

  constexpr std::string_view name() const { return name_; }
  constexpr std::string_view find() const { return find_; }
  constexpr std::string_view replace() const { return replace_; }
  constexpr std::string_view op() const { return op_; }
  constexpr Function function() const { return function_; }
  constexpr bool quiet() const { return quiet_; }
  constexpr bool joins() const { return joins_; }
  constexpr Readers readers() const { return readers_; }
  constexpr std::string_view forms() const { return forms_; }
  constexpr bool lowers() const { return joins_ || !forms_.empty(); }
  constexpr Rounding rounding() const { return rounding_; }
  absl::Span<const Condition> conditions() const { return {conditions_.data(), static_cast<size_t>(num_conditions_)}; }
  absl::Span<const Binding> lets() const { return {lets_.data(), static_cast<size_t>(num_lets_)}; }
  absl::Span<const std::string_view> examples() const { return {examples_.data(), static_cast<size_t>(num_examples_)}; }

  // Calls BadRule if anything is wrong; see rule_text.h.
  constexpr void Check() const {
    if (name_.empty()) BadRule("the rule has no name");
    if (num_examples_ == 0) BadRule("the rule has no Example: it could not test itself");
    if (function_ != nullptr) {
      if (!rule_text::FindForm(op_).has_value()) BadRule("unknown op");
      return;
    }
    rule_text::Bindings bound = rule_text::CheckFind(find_, lowers());
    if (lowers()) {
      if (!replace_.empty()) BadRule("a rule with Join or Form has no right side");
      if (joins_ != (bound.borders == 1)) BadRule("Join takes one border line, and Form none");
      return;
    }
    for (int i = 0; i < num_lets_; ++i) {
      if (bound.attrs.Has(lets_[i].name)) BadRule("Let defines an attribute that the left side binds");
      bound.attrs.Add(lets_[i].name);
    }
    rule_text::CheckReplace(replace_, bound);
  }

 private:
  std::string_view name_, find_, replace_, op_;
  Function function_ = nullptr;
  std::array<Condition, kMaxParts> conditions_{};
  std::array<Binding, kMaxParts> lets_{};
  std::array<std::string_view, kMaxParts> examples_{};
  int num_conditions_ = 0, num_lets_ = 0, num_examples_ = 0;
  bool quiet_ = false, joins_ = false;
  Readers readers_ = Readers::kOne;
  std::string_view forms_;
  Rounding rounding_ = Rounding::kNowhere;
};

// A table of rules. Every rule is checked while this compiles.
template <class... R>
consteval std::array<Rule, sizeof...(R)> Rules(R... rules) {
  (rules.Check(), ...);
  return {rules...};
}

using RuleSpan = absl::Span<const Rule>;

}  // namespace llmc
