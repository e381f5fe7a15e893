// attention from its products and softmax. The core is a function, since each of its parts may be absent: casts, a
// mask, a cap, a scale, a guard against NaN. What stands around it is taken in by rules of text: scales of queries and
// keys, and key-value heads that were repeated. A mask stays an operand unless it is proven to be causal; see mask.h.

#include <cmath>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/proof/literal.h"
#include "passes/proof/mask.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

// ---- the core --------------------------------------------------------------
std::string Described(const Value* value) {
  return value->def == nullptr ? value->name : absl::StrCat(value->name, " of ", value->def->op->info.name);
}

constexpr int kMostMasks = 4;  // and numbers, between a softmax and its product

// What is taken apart from the weights of an attention back to its queries and keys.
class Core {
 public:
  Core(Rewriter& rewriter, Node* node) : rewriter_(rewriter), node_(node) {}

  bool Raise() {
    const auto product = View<MatMul>(*node_);
    const Node* softmax = FindSoftmax(product.lhs);
    if (softmax == nullptr) return false;  // a product of another kind
    if (product.transpose_rhs || node_->results[0]->type.rank() != 4) {
      return rewriter_.Refuse(Described(node_->results[0]), "weights[B, heads, L, K] times values[B, heads, K, D]");
    }
    if (is_shared_) return rewriter_.Refuse("weights that are used elsewhere", "weights of this product only");
    const auto weights = View<Softmax>(*softmax);
    if (weights.axis != 3 || weights.log) return rewriter_.Refuse("another softmax", "softmax over keys");
    if (!TakeScores(WithoutCast(weights.x))) return false;
    return Build(product.rhs);
  }

 private:
  // A value that nothing else needs: else it would be computed twice.
  bool IsOwn(const Value* value, size_t users = 1) {
    return value->users.size() == users && !rewriter_.model().IsOutput(value);
  }
  static const Value* WithoutCast(const Value* value) {
    const bool is_float_cast = Is<Cast>(value->def) && IsFloat(value->def->operands[0]->type.dtype);
    return is_float_cast && IsFloat(value->type.dtype) ? value->def->operands[0] : value;
  }

  // Through casts and where(is_nan(weights), 0, weights).
  const Node* FindSoftmax(const Value* weights) {
    const Value* value = WithoutCast(weights);
    is_shared_ = !IsOwn(weights) || !IsOwn(value);
    if (!Is<Where>(value->def)) return SoftmaxOf(value);
    const auto guard = View<Where>(*value->def);
    const bool guards =
        Is<IsNan>(guard.condition->def) && guard.condition->def->operands[0] == guard.y && NumberOf(guard.x) == 0.0;
    if (!guards) return nullptr;
    is_shared_ = is_shared_ || !IsOwn(guard.condition) || !IsOwn(guard.y, 2);
    return SoftmaxOf(WithoutCast(guard.y));
  }
  static const Node* SoftmaxOf(const Value* value) { return Is<Softmax>(value->def) ? value->def : nullptr; }

  // From the softmax inwards: masks that are added, or that choose between scores and the lowest number, and numbers
  // that all within is multiplied by. Within all of them is the product, which may be capped and scaled.
  bool TakeScores(const Value* value) {
    if (Descend(value, 1, 0)) return true;
    if (Is<Where>(value->def)) {
      return rewriter_.Refuse(Described(value), "a product of queries and keys, filled with the lowest number");
    }
    return rewriter_.Refuse(Described(value), "a product of queries and keys that nothing else uses, and masks");
  }

  bool Descend(const Value* value, double factor, int depth) {
    value = WithoutCast(value);
    if (TakeProduct(value)) {
      if (softcap_ != 0 && factor != 1) return false;
      scale_ *= factor;
      return true;
    }
    const Node* node = value->def;
    if (depth == kMostMasks || node == nullptr || !IsOwn(value)) return false;
    if (Is<Add>(node)) {
      for (const int scores : {0, 1}) {
        if (!Descend(node->operands[scores], factor, depth + 1)) continue;
        masks_.push_back({.value = node->operands[1 - scores], .factor = factor});
        return true;
      }
      return false;
    }
    if (Is<Where>(node)) {
      for (const int scores : {1, 2}) {
        const Value* hidden = node->operands[3 - scores];
        const std::optional<double> number = NumberOf(hidden);
        // f16 has digits for scores beside its lowest number: a row in which all is hidden would differ.
        const bool hides = number.has_value() && HidesScores(*number, hidden->type.dtype) &&
                           (hidden->type.dtype != DType::kF16 || std::isinf(*number));
        if (!hides || factor != 1) continue;
        if (!Descend(node->operands[scores], factor, depth + 1)) continue;
        masks_.push_back({.value = node->operands[0], .hidden = hidden, .hides_where_true = scores == 2});
        return true;
      }
      return false;
    }
    if (Is<Div>(node) && IsScalarNumber(node->operands[1]) && *NumberOf(node->operands[1]) != 0) {
      return Descend(node->operands[0], factor / *NumberOf(node->operands[1]), depth + 1);
    }
    if (!Is<Mul>(node)) return false;
    const auto [scaled, by] = NumberFactor(*node);
    return scaled != nullptr && Descend(scaled, factor * by, depth + 1);
  }

  // The sum of all masks; null if there is none, or if they do not fit each other.
  Value* SumOfMasks() {
    Value* sum = nullptr;
    for (const Mask& mask : masks_) {
      Value* added = mask.value;
      if (mask.hidden != nullptr) {
        Value* seen = sum != nullptr ? sum : rewriter_.Add(Constant{.value = Filled(mask.hidden->type.dtype, {}, 0)});
        Value* hidden = rewriter_.Add(Constant{.value = Filled(mask.hidden->type.dtype, {}, *NumberOf(mask.hidden))});
        added = rewriter_.Add(Where{.condition = mask.value,
                                    .x = mask.hides_where_true ? hidden : seen,
                                    .y = mask.hides_where_true ? seen : hidden});
        if (added == nullptr) return nullptr;
        sum = added;
        continue;
      }
      if (mask.factor != 1) {
        Value* factor = rewriter_.Add(Constant{.value = Filled(added->type.dtype, {}, mask.factor)});
        added = rewriter_.Add(Mul{.lhs = added, .rhs = factor});
      }
      sum = sum == nullptr ? added : rewriter_.Add(Add{.lhs = sum, .rhs = added});
      if (sum == nullptr) return nullptr;
    }
    return sum;
  }

  bool TakeProduct(const Value* value) {
    scale_ = 1;
    softcap_ = 0;
    if (!TakeCap(&value)) return false;
    TakeScale(&value);
    value = WithoutCast(value);
    if (!Is<MatMul>(value->def) || value->type.rank() != 4 || !IsOwn(value)) return false;
    product_ = value->def;
    return true;
  }

  // cap * tanh(scores / cap)
  bool TakeCap(const Value** value) {
    if (!Is<Mul>((*value)->def)) return true;
    auto [capped, cap] = NumberFactor(*(*value)->def);
    if (capped == nullptr || !Is<Tanh>(capped->def)) return true;
    const Value* quotient = capped->def->operands[0];
    if (!Is<Div>(quotient->def) || !IsOwn(*value) || !IsOwn(capped) || !IsOwn(quotient)) return false;
    const auto ratio = View<Div>(*quotient->def);
    if (!IsScalarNumber(ratio.rhs) || NumberOf(ratio.rhs) != cap || cap <= 0) return false;
    softcap_ = cap;
    *value = ratio.lhs;
    return true;
  }
  void TakeScale(const Value** value) {
    const Node* node = (*value)->def;
    if (!IsOwn(*value)) return;
    if (Is<Div>(node) && IsScalarNumber(node->operands[1])) {
      scale_ = 1 / *NumberOf(node->operands[1]);
      *value = node->operands[0];
    } else if (Is<Mul>(node)) {
      auto [scaled, factor] = NumberFactor(*node);
      if (scaled == nullptr) return;
      scale_ = factor;
      *value = scaled;
    }
  }
  static std::pair<const Value*, double> NumberFactor(const Node& product) {
    for (const int number : {0, 1}) {
      if (IsScalarNumber(product.operands[number])) {
        return {product.operands[1 - number], *NumberOf(product.operands[number])};
      }
    }
    return {nullptr, 0};
  }

  bool Build(Value* v) {
    const auto product = View<MatMul>(*product_);
    Value* k = product.rhs;
    if (!product.transpose_rhs) k = rewriter_.Add(Transpose{.x = k, .perm = {0, 1, 3, 2}});
    // A product broadcasts batches and heads; attention shares only heads, those of keys and values alike.
    const Dims& queries = product.lhs->type.shape;
    const auto is_one_head = [](const Value* value) {
      return value->type.rank() == 4 && value->type.shape[1] == Dim(1);
    };
    const bool shares_head = k != nullptr && is_one_head(k) && is_one_head(v);
    for (const Value* value : {k, v}) {
      const bool fits = value != nullptr && value->type.rank() == 4 && value->type.shape[0] == queries[0] &&
                        (shares_head || value->type.shape[1] == queries[1]);
      if (fits) continue;
      return rewriter_.Refuse(value == nullptr ? "no keys" : value->type.ToString(),
                              absl::StrCat("batch and heads of ", product.lhs->type.ToString()));
    }
    Value* mask = SumOfMasks();
    if (mask == nullptr && !masks_.empty()) return rewriter_.Refuse("masks of several types", "masks of one type");
    Value* result =
        rewriter_.Add(Attention{.q = product.lhs, .k = k, .v = v, .mask = mask, .scale = scale_, .softcap = softcap_});
    if (rewriter_.ReplaceWith(result)) return true;
    return rewriter_.Refuse(
        absl::StrCat(product.lhs->type.ToString(), ", ", k->type.ToString(), ", ", v->type.ToString()),
        "operands of attention");
  }

  // What is added to scores: a tensor times a number, or `hidden` where a condition holds, or where it does not.
  struct Mask {
    Value* value;
    double factor = 1;
    const Value* hidden = nullptr;  // a number
    bool hides_where_true = false;
  };

  Rewriter& rewriter_;
  Node* node_;
  Node* product_ = nullptr;
  std::vector<Mask> masks_;
  double scale_ = 1, softcap_ = 0;
  bool is_shared_ = false;  // the weights
};

bool RaiseAttention(Rewriter& rewriter, Node* node) { return Core(rewriter, node).Raise(); }

// ---- masks -----------------------------------------------------------------
bool ProveMask(Rewriter& rewriter, Node* node) {
  auto op = View<Attention>(*node);
  if (op.mask == nullptr || op.causal) return false;
  const MaskProof proof = ProveMask(rewriter.model(), *node);
  if (proof.kind == MaskKind::kUnknown) return rewriter.Refuse(proof.why, "a mask that is proven to be causal");
  op.mask = nullptr;
  op.causal = proof.kind != MaskKind::kFull;
  op.causal_from_end = proof.kind == MaskKind::kCausalFromEnd;
  return rewriter.ReplaceWith(rewriter.Add(op));
}

// ---- around the core -------------------------------------------------------
bool IsNumber(const Match& m) { return IsScalarNumber(m["%c"]); }
Attr TimesNumber(const Match& m) { return std::get<double>(m.GetAttr("$s")) * *NumberOf(m["%c"]); }
Attr OverNumber(const Match& m) { return std::get<double>(m.GetAttr("$s")) / *NumberOf(m["%c"]); }

// [.., n, k] as [N, n, k], transposed, and back.
bool IsProductLayout(const Match& m) {
  const Dims &three = m["%a"]->type.shape, &out = m["%y"]->type.shape;
  const size_t rank = out.size();
  return three.size() == 3 && rank >= 3 && out[rank - 2] == three[2] && out[rank - 1] == three[1];
}
Attr BeforeTranspose(const Match& m) {
  Dims shape = m["%y"]->type.shape;
  std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
  return shape;
}
Attr LastTwoSwapped(const Match& m) {
  std::vector<int64_t> perm(m["%y"]->type.rank());
  for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return perm;
}

// x[B, kv_heads, K, D] with each head repeated: [B, kv_heads, 1, K, D], [B, kv_heads, n, K, D], [B, kv_heads * n, K,
// D].
bool RepeatsHeads(const Value* x, const Value* unsqueezed, const Value* repeated, const Value* heads) {
  const Dims &a = x->type.shape, &b = unsqueezed->type.shape, &c = repeated->type.shape, &d = heads->type.shape;
  if (a.size() != 4 || b.size() != 5 || c.size() != 5 || d.size() != 4) return false;
  return b == Dims{a[0], a[1], Dim(1), a[2], a[3]} && c == Dims{a[0], a[1], c[2], a[2], a[3]} &&
         d == Dims{a[0], a[1] * c[2], a[2], a[3]};
}
bool RepeatsKeysAndValues(const Match& m) {
  return RepeatsHeads(m["%k"], m["%k1"], m["%k2"], m["%k3"]) && RepeatsHeads(m["%v"], m["%v1"], m["%v2"], m["%v3"]);
}

constexpr auto kAttentionRules = Rules(
    Rule("raise-attention")
        .Apply("matmul", RaiseAttention)
        .Rounds(Rounding::kAnywhere)
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 6]; "
                 "%p = matmul %q, %k {transpose_rhs = true}; %w = softmax %p {axis = 3}; %y = matmul %w, %v")
        .Example("%q: f32[2, 3, 4, 8]; %kt: f32[2, 3, 8, 5]; %v: f32[2, 3, 5, 6]; %m: f32[4, 5]; "
                 "%c = constant {value = 0.5} : f32[]; %cap = constant {value = 20} : f32[]; "
                 "%zero = constant {value = 0} : f32[]; %p = matmul %q, %kt; %s = mul %p, %c; %d = div %s, %cap; "
                 "%t = tanh %d; %l = mul %t, %cap; %a = add %l, %m; %w = softmax %a {axis = 3}; %n = is_nan %w; "
                 "%g = where %n, %zero, %w; %y = matmul %g, %v")
        .Example("%q: f16[2, 3, 4, 8]; %k: f16[2, 3, 5, 8]; %v: f16[2, 3, 5, 6]; %c = constant {value = 2} : f16[]; "
                 "%p = matmul %q, %k {transpose_rhs = true}; %d = div %p, %c; %f = cast %d; "
                 "%w = softmax %f {axis = 3}; %h = cast %w {to = f16}; %y = matmul %h, %v")
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 6]; %m: f32[2, 1, 1, 5]; "
                 "%zero = constant {value = 0} : f32[]; %c = less %m, %zero; "
                 "%low = constant {value = -3e38} : f32[]; %p = matmul %q, %k {transpose_rhs = true}; "
                 "%s = where %c, %low, %p; %w = softmax %s {axis = 3}; %y = matmul %w, %v"),

    Rule("prove-mask")
        .Apply("attention", ProveMask)
        .Rounds(Rounding::kAnywhere)
        .Example("%q: f32[2, 3, 5, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 8]; "
                 "%b = constant {value = 0} : i64[]; %e = dims {values = [5], scalar = true}; "
                 "%o = constant {value = 1} : i64[]; %r = range %b, %e, %o; %i = reshape %r {shape = [5, 1]}; "
                 "%m = less_equal %r, %i; %y = attention %q, %k, %v, %m"),

    Rule("scale-queries-in-attention")
        .Find(R"(%x = mul %q, %c
                 %y = attention %x, %k, %v, %_m {scale = $s, causal = $a, causal_from_end = $e, softcap = $t})")
        .When("a number", IsNumber)
        .Let("$r", TimesNumber)
        .Replace("%y = attention %q, %k, %v, %_m {scale = $r, causal = $a, causal_from_end = $e, softcap = $t}")
        .Rounds(Rounding::kAnywhere)
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 6]; %c = constant {value = 0.5} : f32[]")
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 6]; %c = constant {value = 0.5} : f32[]; "
                 "%_m: f32[4, 5]; $s = 0.5; $t = 30")
        .Quiet(),
    Rule("divide-queries-in-attention")
        .Find(R"(%x = div %q, %c
                 %y = attention %x, %k, %v, %_m {scale = $s, causal = $a, causal_from_end = $e, softcap = $t})")
        .When("a number", IsNumber)
        .Let("$r", OverNumber)
        .Replace("%y = attention %q, %k, %v, %_m {scale = $r, causal = $a, causal_from_end = $e, softcap = $t}")
        .Rounds(Rounding::kAnywhere)
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 6]; %c = constant {value = 2} : f32[]")
        .Quiet(),
    Rule("scale-keys-in-attention")
        .Find(R"(%x = mul %k, %c
                 %y = attention %q, %x, %v, %_m {scale = $s, causal = $a, causal_from_end = $e, softcap = $t})")
        .When("a number", IsNumber)
        .Let("$r", TimesNumber)
        .Replace("%y = attention %q, %k, %v, %_m {scale = $r, causal = $a, causal_from_end = $e, softcap = $t}")
        .Rounds(Rounding::kAnywhere)
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 6]; %c = constant {value = 0.5} : f32[]")
        .Quiet(),
    Rule("scale-keys-before-transpose")
        .Find(R"(%x = mul %k, %c
                 %t = transpose %x {perm = $p}
                 %y = attention %q, %t, %v, %_m {scale = $s, causal = $a, causal_from_end = $e, softcap = $cap})")
        .When("a number", IsNumber)
        .Let("$r", TimesNumber)
        .Replace(R"(%u = transpose %k {perm = $p}
                    %y = attention %q, %u, %v, %_m {scale = $r, causal = $a, causal_from_end = $e, softcap = $cap})")
        .Rounds(Rounding::kAnywhere)
        .Example("%q: f32[2, 3, 4, 8]; %k: f32[2, 3, 8, 5]; %v: f32[2, 3, 5, 6]; %c = constant {value = 0.5} : f32[]; "
                 "$p = [0, 1, 3, 2]")
        .Quiet(),

    Rule("unflatten-transpose")
        .Find(R"(%a = reshape %x {shape = $s}
                 %b = transpose %a {perm = [0, 2, 1]}
                 %y = reshape %b {shape = $u})")
        .When("the same last axes", IsProductLayout)
        .Let("$r", BeforeTranspose)
        .Let("$p", LastTwoSwapped)
        .Replace(R"(%c = reshape %x {shape = $r}
                    %y = transpose %c {perm = $p})")
        .Example("%x: f32[2, 3, 4, 5]; $s = [6, 4, 5]; $u = [2, 3, 5, 4]")
        .Quiet(),

    Rule("share-heads-in-attention")
        .Find(R"(%k1 = reshape %k {shape = $ka}
                 %k2 = expand %k1 {shape = $kb}
                 %k3 = reshape %k2 {shape = $kc}
                 %v1 = reshape %v {shape = $va}
                 %v2 = expand %v1 {shape = $vb}
                 %v3 = reshape %v2 {shape = $vc}
                 %y = attention %q, %k3, %v3, %_m {scale = $s, causal = $a, causal_from_end = $e, softcap = $t})")
        .When("heads that are repeated", RepeatsKeysAndValues)
        .Replace("%y = attention %q, %k, %v, %_m {scale = $s, causal = $a, causal_from_end = $e, softcap = $t}")
        .Example("%q: f32[2, 6, 4, 8]; %k: f32[2, 3, 5, 8]; %v: f32[2, 3, 5, 7]; $ka = [2, 3, 1, 5, 8]; "
                 "$kb = [2, 3, 2, 5, 8]; $kc = [2, 6, 5, 8]; $va = [2, 3, 1, 5, 7]; $vb = [2, 3, 2, 5, 7]; "
                 "$vc = [2, 6, 5, 7]; $s = 0.25"));

}  // namespace

RuleSpan RaiseAttentionRules() { return kAttentionRules; }

}  // namespace llmc
