// rms_norm and layer_norm from primitive ops. Each rule takes in one step of a spelling: a square, the core of the norm
// with a weight of ones, a weight, the mean, a bias, a cast around. A spelling is recognized when all of its steps are.

#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

bool HaveSameType(const Match& m) { return m["%x"]->type == m["%y"]->type; }

bool IsReducedSum(const Value* value) {
  if (!Is<Add>(value->def)) return false;
  for (const Value* operand : value->def->operands) {
    if (Is<ReduceMean>(operand->def)) return true;
  }
  return false;
}

int64_t LastSize(const Value* value) {
  return value->type.rank() == 0 || !value->type.shape.back().is_constant() ? 0 : value->type.shape.back().value();
}

bool IsOverLastAxis(const Match& m) {
  return std::get<std::vector<int64_t>>(m.GetAttr("$a")) == std::vector<int64_t>{m["%x"]->type.rank() - 1};
}
bool IsCore(const Match& m) {
  return IsOverLastAxis(m) && LastSize(m["%x"]) > 0 && IsScalarNumber(m["%c"]) && *NumberOf(m["%c"]) >= 0;
}

Attr Ones(const Match& m) { return Filled(m["%x"]->type.dtype, {LastSize(m["%x"])}, 1); }
Attr Epsilon(const Match& m) { return *NumberOf(m["%c"]); }
Attr LastAxis(const Match& m) { return int64_t{m["%x"]->type.rank() - 1}; }

// A value that scales or shifts each element of the last axis: [D], [1, D], …
bool IsPerElement(const Value* value, const Value* x) {
  const Dims& shape = value->type.shape;
  if (shape.empty() || shape.size() > x->type.shape.size() || LastSize(value) != LastSize(x)) return false;
  return std::all_of(shape.begin(), shape.end() - 1, [](const Dim& dim) { return dim == Dim(1); }) &&
         value->type.dtype == x->type.dtype;
}
bool TakesWeight(const Match& m) { return NumberOf(m["%ones"]) == 1.0 && IsPerElement(m["%w"], m["%x"]); }
bool TakesBias(const Match& m) { return IsPerElement(m["%b"], m["%x"]) && m.Int("$a") == m["%x"]->type.rank() - 1; }
Attr LastShape(const Match& m) { return Dims{m["%x"]->type.shape.back()}; }

// The cast of a norm that is computed in f32 anyway.
bool IsWidened(const Match& m) {
  return m["%c"]->type.dtype == DType::kF32 && DTypeBits(m["%x"]->type.dtype) == 16 &&
         m["%x"]->type.dtype == m["%y"]->type.dtype;
}
bool HasExactWeight(const Match& m) {
  const Tensor* literal = LiteralOf(m["%w"]);
  if (literal == nullptr) return false;
  const Tensor narrow = Tensor::FromValues(m["%y"]->type.dtype, literal->shape(), literal->ToDoubles());
  return narrow.ToDoubles() == literal->ToDoubles();
}
Attr NarrowWeight(const Match& m) {
  const Tensor* literal = LiteralOf(m["%w"]);
  return Tensor::FromValues(m["%y"]->type.dtype, literal->shape(), literal->ToDoubles());
}

constexpr auto kNormRules = Rules(
    Rule("raise-square")
        .Find("%y = pow %x, %c")
        .When(
            "the power 2 of floats",
            [](const Match& m) { return NumberOf(m["%c"]) == 2.0 && IsFloat(m["%x"]->type.dtype) && HaveSameType(m); })
        .Replace("%y = mul %x, %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %c = constant {value = 2} : f32[]")
        .Quiet(),
    Rule("raise-reciprocal")
        .Find("%y = div %c, %x")
        .When(
            "one, divided by a float",
            [](const Match& m) { return NumberOf(m["%c"]) == 1.0 && IsFloat(m["%x"]->type.dtype) && HaveSameType(m); })
        .Replace("%y = reciprocal %x")
        .Example("%x: f64[4, 8]; %c = constant {value = 1} : f64[]")
        .Example("%x: f16[4, 8]; %c = constant {value = 1} : f16[]")
        .Quiet(),
    Rule("raise-rsqrt")
        .Find(R"(%s = sqrt %x
                 %y = reciprocal %s)")
        .Replace("%y = rsqrt %x")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[4, 8]")
        .Quiet(),
    Rule("raise-rsqrt-of-norm")
        .Find(R"(%s = sqrt %v
                 %y = div %x, %s)")
        .When("a mean and an epsilon", [](const Match& m) { return IsReducedSum(m["%v"]) && HaveSameType(m); })
        .Replace(R"(%r = rsqrt %v
                    %y = mul %x, %r)")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %u: f32[4, 8]; %p = mul %u, %u; %m = reduce_mean %p {axes = [1], keep_dims = true}; "
                 "%e = constant {value = 1e-5} : f32[]; %v = add %m, %e")
        .Quiet(),

    Rule("raise-rms-norm")
        .Find(R"(%p = mul %x, %x
                 %m = reduce_mean %p {axes = $a, keep_dims = true}
                 %v = add %m, %c
                 %r = rsqrt %v
                 %y = mul %x, %r)")
        .When("the last axis, and a constant epsilon", IsCore)
        .Let("$ones", Ones)
        .Let("$eps", Epsilon)
        .Replace(R"(%ones = constant {value = $ones}
                    %y = rms_norm %x, %ones {eps = $eps})")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %c = constant {value = 1e-5} : f32[]; $a = [1]")
        .Quiet(),
    Rule("weigh-rms-norm")
        .Find(R"(%n = rms_norm %x, %ones {eps = $eps}
                 %y = mul %n, %w)")
        .When("a norm without a weight, and one", TakesWeight)
        .Let("$s", LastShape)
        .Replace(R"(%row = reshape %w {shape = $s}
                    %y = rms_norm %x, %row {eps = $eps})")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %w: f32[8]; %ones = constant {value = 1} : f32[8]")
        .Quiet(),
    Rule("narrow-rms-norm")
        .Find(R"(%c = cast %x {to = f32}
                 %n = rms_norm %c, %w {eps = $eps}
                 %y = cast %n {to = $t})")
        .When("casts around f32", IsWidened)
        .When("a constant weight that 16 bits hold", HasExactWeight)
        .Let("$w", NarrowWeight)
        .Replace(R"(%c = cast %x {to = f32}
                    %narrow = constant {value = $w}
                    %y = rms_norm %x, %narrow {eps = $eps})")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f16[4, 8]; $t = f16; %w = constant {value = 1} : f32[8]")
        .Quiet(),
    Rule("narrow-rms-norm-and-weight")
        .Find(R"(%c = cast %x {to = f32}
                 %w = cast %narrow {to = f32}
                 %n = rms_norm %c, %w {eps = $eps}
                 %y = cast %n {to = $t})")
        .When("casts around f32", IsWidened)
        .When("a weight of the same type",
              [](const Match& m) { return m["%narrow"]->type.dtype == m["%x"]->type.dtype; })
        .Replace(R"(%c = cast %x {to = f32}
                    %w = cast %narrow {to = f32}
                    %y = rms_norm %x, %narrow {eps = $eps})")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f16[4, 8]; %narrow: f16[8]; $t = f16")
        .Quiet(),

    // What is left of a mean is a norm of the rest.
    Rule("raise-layer-norm")
        .Find(R"(%m = reduce_mean %x {axes = $a, keep_dims = true}
                 %d = sub %x, %m
                 %y = rms_norm %d, %w {eps = $eps})")
        .When("the last axis", IsOverLastAxis)
        .Let("$axis", LastAxis)
        .Replace("%y = layer_norm %x, %w {axis = $axis, eps = $eps}")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %w: f32[8]; $a = [1]")
        .Quiet(),
    Rule("weigh-layer-norm")
        .Find(R"(%n = layer_norm %x, %ones {axis = $a, eps = $eps}
                 %y = mul %n, %w)")
        .When("a norm without a weight, and one",
              [](const Match& m) { return TakesWeight(m) && m.Int("$a") == m["%x"]->type.rank() - 1; })
        .Let("$s", LastShape)
        .Replace(R"(%row = reshape %w {shape = $s}
                    %y = layer_norm %x, %row {axis = $a, eps = $eps})")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %w: f32[8]; %ones = constant {value = 1} : f32[8]; $a = 1")
        .Quiet(),
    Rule("shift-layer-norm")
        .Find(R"(%n = layer_norm %x, %w {axis = $a, eps = $eps}
                 %y = add %n, %b)")
        .When("a bias of the last axis", TakesBias)
        .Let("$s", LastShape)
        .Replace(R"(%row = reshape %b {shape = $s}
                    %y = layer_norm %x, %w, %row {axis = $a, eps = $eps})")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %w: f32[8]; %b: f32[8]; $a = 1")
        .Quiet());

}  // namespace

RuleSpan RaiseNormRules() { return kNormRules; }

}  // namespace llmc
