// silu and gelu in the spellings of exporters. First the factor 1/2 of gelu moves to the end, so that one rule for each
// of its arguments is enough.

#include <cmath>

#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/proof/literal.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

constexpr double kCubeFactor = 0.044715;
const double kRootOfTwoOverPi = std::sqrt(2 / 3.14159265358979323846);

// x * (1 + erf or tanh(…)) / 2, with the half anywhere.
bool IsGate(const Match& m) {
  const Value* e = m["%e"];
  return !NumberOf(m["%x"]).has_value() && IsNear(m["%one"], 1) && IsNear(m["%half"], 0.5) &&
         (Is<Erf>(e->def) || Is<Tanh>(e->def));
}
bool IsGeluTanh(const Match& m) {
  return IsNear(m["%k"], kCubeFactor) && IsNear(m["%root"], kRootOfTwoOverPi) && IsNear(m["%one"], 1) &&
         IsNear(m["%half"], 0.5);
}
bool CubesBySquare(const Match& m) { return IsGeluTanh(m) && IsNear(m["%one2"], 1); }
bool CubesByPower(const Match& m) { return IsGeluTanh(m) && NumberOf(m["%three"]) == 3.0; }

bool HasErfArgument(const Match& m, double factor) {
  return IsNear(m["%c"], factor) && IsNear(m["%one"], 1) && IsNear(m["%half"], 0.5);
}

bool HasHalves(const Match& m) {
  const Dims& shape = m["%x"]->type.shape;
  return m.Int("$a") == m["%x"]->type.rank() - 1 && std::get<Dims>(m.GetAttr("$d")) == Dims{shape.back()} &&
         m["%gate"]->type == m["%up"]->type;
}

constexpr auto kActivationRules = Rules(
    Rule("raise-silu")
        .Find(R"(%s = sigmoid %x
                 %y = mul %x, %s)")
        .Replace("%y = silu %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]")
        .Quiet(),

    Rule("raise-silu-mul")
        .Find(R"(%gate = slice %x {axis = $a, start = [0], end = $h}
                 %act = silu %gate
                 %up = slice %x {axis = $a, start = $h, end = $d}
                 %y = mul %act, %up)")
        .When("halves of the last axis", HasHalves)
        .Replace("%y = silu_mul %x")
        .Rounds(Rounding::kIn16Bit)
        .Example("%x: f32[4, 8]; $a = 1; $h = [4]; $d = [8]")
        .Quiet(),

    // x / 2 * (1 + e) and x * ((1 + e) / 2) become x * (1 + e) / 2.
    Rule("move-half-of-x")
        .Find(R"(%t = add %e, %one
                 %h = mul %x, %half
                 %y = mul %h, %t)")
        .When("a gate of gelu", IsGate)
        .Replace(R"(%t = add %e, %one
                    %p = mul %x, %t
                    %y = mul %p, %half)")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %z: f32[4, 8]; %e = erf %z; %one = constant {value = 1} : f32[]; "
                 "%half = constant {value = 0.5} : f32[]")
        .Quiet(),
    Rule("move-half-of-gate")
        .Find(R"(%t = add %e, %one
                 %h = mul %t, %half
                 %y = mul %x, %h)")
        .When("a gate of gelu", IsGate)
        .Replace(R"(%t = add %e, %one
                    %p = mul %x, %t
                    %y = mul %p, %half)")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %z: f32[4, 8]; %e = tanh %z; %one = constant {value = 1} : f32[]; "
                 "%half = constant {value = 0.5} : f32[]")
        .Quiet(),

    Rule("raise-gelu")
        .Find(R"(%d = mul %x, %c
                 %e = erf %d
                 %t = add %e, %one
                 %p = mul %x, %t
                 %y = mul %p, %half)")
        .When("the constants of gelu", [](const Match& m) { return HasErfArgument(m, std::sqrt(0.5)); })
        .Replace("%y = gelu %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %c = constant {value = 0.70710677} : f32[]; %one = constant {value = 1} : f32[]; "
                 "%half = constant {value = 0.5} : f32[]")
        .Quiet(),
    Rule("raise-gelu-of-quotient")
        .Find(R"(%d = div %x, %c
                 %e = erf %d
                 %t = add %e, %one
                 %p = mul %x, %t
                 %y = mul %p, %half)")
        .When("the constants of gelu", [](const Match& m) { return HasErfArgument(m, std::sqrt(2.0)); })
        .Replace("%y = gelu %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %c = constant {value = 1.4142135} : f32[]; %one = constant {value = 1} : f32[]; "
                 "%half = constant {value = 0.5} : f32[]")
        .Quiet(),

    // The argument of tanh is root * (x + k x^3), where the cube is a power or products.
    Rule("raise-gelu-tanh-of-power")
        .Find(R"(%cube = pow %x, %three
                 %kcube = mul %cube, %k
                 %sum = add %x, %kcube
                 %arg = mul %sum, %root
                 %e = tanh %arg
                 %t = add %e, %one
                 %p = mul %x, %t
                 %y = mul %p, %half)")
        .When("the constants of gelu", CubesByPower)
        .Replace("%y = gelu_tanh %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %three = constant {value = 3} : f32[]; %k = constant {value = 0.044715} : f32[]; "
                 "%root = constant {value = 0.7978846} : f32[]; %one = constant {value = 1} : f32[]; "
                 "%half = constant {value = 0.5} : f32[]")
        .Quiet(),
    Rule("raise-gelu-tanh-of-products")
        .Find(R"(%square = mul %x, %x
                 %cube = mul %square, %x
                 %kcube = mul %cube, %k
                 %sum = add %x, %kcube
                 %arg = mul %sum, %root
                 %e = tanh %arg
                 %t = add %e, %one
                 %p = mul %x, %t
                 %y = mul %p, %half)")
        .When("the constants of gelu", IsGeluTanh)
        .Replace("%y = gelu_tanh %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %k = constant {value = 0.044715} : f32[]; "
                 "%root = constant {value = 0.7978846} : f32[]; %one = constant {value = 1} : f32[]; "
                 "%half = constant {value = 0.5} : f32[]")
        .Quiet(),
    // root * x * (1 + k x * x)
    Rule("raise-gelu-tanh-of-factors")
        .Find(R"(%rx = mul %x, %root
                 %kx = mul %x, %k
                 %ksquare = mul %kx, %x
                 %factor = add %ksquare, %one2
                 %arg = mul %rx, %factor
                 %e = tanh %arg
                 %t = add %e, %one
                 %p = mul %x, %t
                 %y = mul %p, %half)")
        .When("the constants of gelu", CubesBySquare)
        .Replace("%y = gelu_tanh %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %k = constant {value = 0.044715} : f32[]; "
                 "%root = constant {value = 0.7978846} : f32[]; %one = constant {value = 1} : f32[]; "
                 "%one2 = constant {value = 1} : f32[]; %half = constant {value = 0.5} : f32[]")
        .Quiet(),
    // root * x * (1 + k x^2), with the first product in either place.
    Rule("raise-gelu-tanh-of-factor")
        .Find(R"(%square = mul %x, %x
                 %ksquare = mul %square, %k
                 %factor = add %ksquare, %one2
                 %rx = mul %x, %root
                 %arg = mul %rx, %factor
                 %e = tanh %arg
                 %t = add %e, %one
                 %p = mul %x, %t
                 %y = mul %p, %half)")
        .When("the constants of gelu", CubesBySquare)
        .Replace("%y = gelu_tanh %x")
        .Rounds(Rounding::kAnywhere)
        .Example("%x: f32[4, 8]; %k = constant {value = 0.044715} : f32[]; "
                 "%root = constant {value = 0.7978846} : f32[]; %one = constant {value = 1} : f32[]; "
                 "%one2 = constant {value = 1} : f32[]; %half = constant {value = 0.5} : f32[]")
        .Quiet());

}  // namespace

RuleSpan RaiseActivationRules() { return kActivationRules; }

}  // namespace llmc
