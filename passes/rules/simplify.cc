// Algebra and movement ops that do nothing, or that two make one; and common subexpressions. Every bit stays, except
// that x + 0 keeps the sign of a negative zero, and that transpose-into-matmul sums in another order.

#include <algorithm>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "passes/driver/match.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/passes.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

bool SameType(const Match& m) { return m["%x"]->type == m["%y"]->type; }
bool IsZero(const Match& m) { return NumberOf(m["%c"]) == 0.0; }
bool IsOne(const Match& m) { return NumberOf(m["%c"]) == 1.0; }

// Significant bits and exponent bits: a type holds all values of another if it has as many of both.
std::pair<int, int> FloatForm(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return {53, 11};
    case DType::kF32:
      return {24, 8};
    case DType::kF16:
      return {11, 5};
    case DType::kBF16:
      return {8, 8};
    default:
      return {0, 0};
  }
}
bool HoldsAll(DType wide, DType narrow) {
  const auto [wide_bits, wide_range] = FloatForm(wide);
  const auto [bits, range] = FloatForm(narrow);
  return bits > 0 && wide_bits >= bits && wide_range >= range;
}

Attr ComposedPerm(const Match& m) {
  const auto& first = std::get<std::vector<int64_t>>(m.GetAttr("$p"));
  std::vector<int64_t> perm = std::get<std::vector<int64_t>>(m.GetAttr("$q"));
  for (int64_t& axis : perm) axis = first[axis];
  return perm;
}
bool KeepsOrder(const Match& m) {
  const auto& perm = std::get<std::vector<int64_t>>(m.GetAttr("$p"));
  return std::is_sorted(perm.begin(), perm.end());
}
bool SwapsLastTwo(const Match& m) {
  std::vector<int64_t> perm = std::get<std::vector<int64_t>>(m.GetAttr("$p"));
  if (perm.size() < 2) return false;
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return std::is_sorted(perm.begin(), perm.end());
}
// Where a known index lies; nothing if it is not known to be in the axis.
std::optional<int64_t> KnownIndex(const Match& m) {
  const std::optional<Dims>& contents = m["%i"]->contents;
  const Dim& size = m["%x"]->type.shape[static_cast<size_t>(m.Int("$a"))];
  if (!contents.has_value() || contents->size() != 1 || !(*contents)[0].is_constant() || !size.is_constant()) {
    return std::nullopt;
  }
  const int64_t index = (*contents)[0].value() + ((*contents)[0].value() < 0 ? size.value() : 0);
  return index >= 0 && index < size.value() ? std::optional(index) : std::nullopt;
}
bool HasKnownIndex(const Match& m) { return KnownIndex(m).has_value(); }
Attr IndexOf(const Match& m) { return Dims{Dim(*KnownIndex(m))}; }
Attr AfterIndex(const Match& m) { return Dims{Dim(*KnownIndex(m) + 1)}; }
Attr ShapeOfResult(const Match& m) { return m["%y"]->type.shape; }

bool TakesFirstPart(const Match& m) {
  const Dims& end = std::get<Dims>(m.GetAttr("$e"));
  return end == Dims{m["%x"]->type.shape[static_cast<size_t>(m.Int("$a"))]};
}
Attr Flipped(const Match& m) { return !std::get<bool>(m.GetAttr("$t")); }

constexpr auto kSimplifyRules =
    Rules(Rule("remove-identity").Find("%y = identity %x").Replace("%y = identity %x").Example("%x: f32[4]").Quiet(),
          Rule("remove-cast")
              .Find("%y = cast %x {to = $t}")
              .Replace("%y = identity %x")
              .When("the same type", SameType)
              .Example("%x: f32[4]; $t = f32")
              .Quiet(),
          Rule("merge-casts")
              .Find(R"(%m = cast %x {to = $a}
                 %y = cast %m {to = $b})")
              .Replace(R"(%m = cast %x {to = $a}
                    %y = cast %x {to = $b})")
              .When("a first cast that loses nothing",
                    [](const Match& m) { return HoldsAll(m["%m"]->type.dtype, m["%x"]->type.dtype); })
              .Example("%x: f16[4]; $a = f32; $b = bf16")
              .Quiet(),
          Rule("remove-reshape")
              .Find("%y = reshape %x {shape = $s}")
              .Replace("%y = identity %x")
              .When("the same shape", SameType)
              .Example("%x: f32[4, 2]; $s = [4, 2]")
              .Quiet(),
          Rule("merge-reshapes")
              .Find(R"(%m = reshape %x {shape = $s}
                 %y = reshape %m {shape = $t})")
              .Replace(R"(%m = reshape %x {shape = $s}
                    %y = reshape %x {shape = $t})")
              .Example("%x: f32[4, 6]; $s = [24]; $t = [2, 12]")
              .Quiet(),
          Rule("remove-transpose")
              .Find("%y = transpose %x {perm = $p}")
              .Replace("%y = identity %x")
              .When("axes in order", KeepsOrder)
              .Example("%x: f32[4, 2]; $p = [0, 1]")
              .Quiet(),
          Rule("merge-transposes")
              .Find(R"(%m = transpose %x {perm = $p}
                 %y = transpose %m {perm = $q})")
              .Replace(R"(%m = transpose %x {perm = $p}
                    %y = transpose %x {perm = $r})")
              .Let("$r", ComposedPerm)
              .Example("%x: f32[2, 3, 4]; $p = [1, 2, 0]; $q = [0, 2, 1]")
              .Quiet(),
          Rule("transpose-into-matmul")
              .Find(R"(%t = transpose %w {perm = $p}
                 %y = matmul %x, %t {transpose_rhs = $t})")
              .Replace(R"(%t = transpose %w {perm = $p}
                    %y = matmul %x, %w {transpose_rhs = $u})")
              .When("a transpose of the last two axes", SwapsLastTwo)
              .Rounds(Rounding::kAnywhere)
              .Let("$u", Flipped)
              .Example("%x: f32[3, 4]; %w: f32[5, 4]; $p = [1, 0]; $t = false")
              .Quiet(),
          Rule("remove-expand")
              .Find("%y = expand %x {shape = $s}")
              .Replace("%y = identity %x")
              .When("the same shape", SameType)
              .Example("%x: f32[4, 2]; $s = [4, 2]")
              .Quiet(),
          Rule("remove-slice")
              .Find("%y = slice %x {axis = $a, start = $s, end = $e}")
              .Replace("%y = identity %x")
              .When("the whole axis", SameType)
              .Example("%x: f32[4, 2]; $a = 1; $s = [0]; $e = [2]")
              .Quiet(),
          Rule("remove-concat")
              .Find("%y = concat %x {axis = $a}")
              .Replace("%y = identity %x")
              .Example("%x: f32[4, 2]; $a = 1")
              .Quiet(),
          Rule("slice-for-gather")
              .Find("%y = gather %x, %i {axis = $a}")
              .When("one index that is known", HasKnownIndex)
              .Let("$b", IndexOf)
              .Let("$e", AfterIndex)
              .Let("$s", ShapeOfResult)
              .Replace(R"(%p = slice %x {axis = $a, start = $b, end = $e}
                          %y = reshape %p {shape = $s})")
              .Example("%x: f32[4, 3, 5]; %i = constant {value = 2} : i64[]; $a = 1")
              .Example("%x: f32[4, 3, 5]; %i = constant {value = [-1]} : i64[1]; $a = 0")
              .Quiet(),
          Rule("take-first-part")
              .Find(R"(%c = concat %x, %z {axis = $a}
                       %y = slice %c {axis = $a, start = [0], end = $e})")
              .When("the whole part", TakesFirstPart)
              .Replace(R"(%c = concat %x, %z {axis = $a}
                          %y = identity %x)")
              .Example("%x: f32[4, 2]; %z: f32[4, 3]; $a = 1; $e = [2]")
              .Quiet(),
          Rule("remove-add-zero")
              .Find("%y = add %x, %c")
              .Replace("%y = identity %x")
              .When("zero", IsZero)
              .When("the same type", SameType)
              .Example("%x: f32[4]; %c = constant {value = 0} : f32[1]")
              .Quiet(),
          Rule("remove-sub-zero")
              .Find("%y = sub %x, %c")
              .Replace("%y = identity %x")
              .When("zero", IsZero)
              .When("the same type", SameType)
              .Example("%x: f32[4]; %c = constant {value = 0} : f32[]")
              .Quiet(),
          Rule("remove-mul-one")
              .Find("%y = mul %x, %c")
              .Replace("%y = identity %x")
              .When("one", IsOne)
              .When("the same type", SameType)
              .Example("%x: f32[4]; %c = constant {value = 1} : f32[]")
              .Quiet(),
          Rule("remove-div-one")
              .Find("%y = div %x, %c")
              .Replace("%y = identity %x")
              .When("one", IsOne)
              .When("the same type", SameType)
              .Example("%x: f32[4]; %c = constant {value = 1} : f32[]")
              .Quiet(),
          Rule("remove-where-true")
              .Find("%y = where %c, %x, %z")
              .Replace("%y = identity %x")
              .When("true", IsOne)
              .When("the same type", SameType)
              .Example("%x: f32[4]; %z: f32[4]; %c = constant {value = true} : bool[4]")
              .Quiet(),
          Rule("remove-where-false")
              .Find("%y = where %c, %z, %x")
              .Replace("%y = identity %x")
              .When("false", IsZero)
              .When("the same type", SameType)
              .Example("%x: f32[4]; %z: f32[4]; %c = constant {value = false} : bool[]")
              .Quiet(),
          Rule("remove-and-true")
              .Find("%y = and %x, %c")
              .Replace("%y = identity %x")
              .When("true", IsOne)
              .When("the same type", SameType)
              .Example("%x: bool[4]; %c = constant {value = true} : bool[]")
              .Quiet(),
          Rule("remove-double-neg")
              .Find(R"(%m = neg %x
                 %y = neg %m)")
              .Replace(R"(%m = neg %x
                    %y = identity %x)")
              .Example("%x: f32[4]")
              .Quiet());

// ---- common subexpressions -------------------------------------------------------------
constexpr int64_t kMaxLiteralBytes = 1 << 16;

// Two nodes with one key compute the same. Empty: never merged.
std::string KeyOf(const Node& node) {
  if (node.op->info.touches_state() || node.results.empty()) return "";
  std::vector<uintptr_t> words = {reinterpret_cast<uintptr_t>(node.op)};
  for (const Value* operand : node.operands) words.push_back(reinterpret_cast<uintptr_t>(operand));
  if (node.op->commutative() && words.size() >= 3 && words[2] < words[1]) std::swap(words[1], words[2]);
  std::string key(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(words[0]));
  for (const auto& [name, attr] : node.attrs) {
    absl::StrAppend(&key, "|", name, "=");
    const Tensor* literal = std::get_if<Tensor>(&attr);
    if (literal == nullptr) {
      absl::StrAppend(&key, AttrToString(attr));
      continue;
    }
    if (literal->bytes() > kMaxLiteralBytes) return "";
    absl::StrAppend(&key, absl::string_view(literal->raw(), literal->bytes()));
  }
  for (const Value* result : node.results) absl::StrAppend(&key, ":", result->type.ToString());
  return key;
}

}  // namespace

RuleSpan SimplifyRules() { return kSimplifyRules; }

int64_t MergeEqualOps(Model* model, Block* block, Ledger* ledger) {
  absl::flat_hash_map<std::string, Node*> seen;
  std::vector<Node*> merged;
  for (auto it = block->nodes.begin(); it != block->nodes.end();) {
    Node* node = (it++)->get();
    std::string key = KeyOf(*node);
    if (key.empty()) continue;
    auto [first, fresh] = seen.emplace(std::move(key), node);
    if (fresh) continue;
    for (size_t i = 0; i < node->results.size(); ++i) model->ReplaceUses(node->results[i], first->second->results[i]);
    ledger->Fired(kMergeEqualOps, PlaceOf(*node));
    merged.push_back(node);
  }
  // From the back, as the lists of users are searched.
  // NOLINTNEXTLINE(modernize-loop-convert): there is no reversed range in this library
  for (auto it = merged.rbegin(); it != merged.rend(); ++it) model->Erase(*it);
  return static_cast<int64_t>(merged.size());
}

absl::Status RunToFixedPoint(Model* model, absl::Span<const Rule* const> rules, Ledger* ledger) {
  constexpr int kMaxRounds = 8;  // each needs ops that became equal, or dead, only in the round before
  Ledger refusals;
  for (int round = 0; round < kMaxRounds; ++round) {
    refusals = Ledger();  // what refused before may be gone
    RETURN_IF_ERROR(RunRules(model, rules, ledger, &refusals).status());
    int64_t changes = MergeEqualOps(model, &model->prepare, ledger);
    for (const auto& step : model->steps) changes += MergeEqualOps(model, &step->block, ledger);
    changes += RemoveDeadOps(model);
    if (changes == 0) break;
  }
  ledger->Merge(refusals);
  return absl::OkStatus();
}

absl::Status Simplify(Model* model, const PassContext& context) {
  std::vector<const Rule*> rules;
  for (const Rule& rule : SimplifyRules()) rules.push_back(&rule);
  return RunToFixedPoint(model, rules, context.ledger);
}

absl::Status Fuse(Model* model, const PassContext& context) {
  return RunRules(model, FuseRules(), context.ledger).status();
}

}  // namespace llmc
