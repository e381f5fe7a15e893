#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/substitute.h"
#include "codegen/memory/small_tensors.h"
#include "ir/op.h"

namespace llmc {
namespace {

// What is elementwise, as sizes are written: $0, $1 and $2 are the elements of operands. `real` is of floating-point
// operands.
struct Formula {
  absl::string_view op, integer, real;
};
constexpr Formula kFormulas[] = {
    {"neg", "0-($0)", "real_neg($0)"},
    {"abs", "max($0,0-($0))", "real_abs($0)"},
    {"sign", "less(0,$0)-less($0,0)", ""},
    {"relu", "max($0,0)", ""},
    {"floor", "", "real_floor($0)"},
    {"ceil", "", "real_ceil($0)"},
    {"round", "", "real_round($0)"},
    {"sqrt", "", "real_sqrt($0)"},
    {"reciprocal", "", "real_div(real(1),$0)"},
    {"not", "-1-($0)", ""},
    {"add", "($0)+($1)", "real_add($0,$1)"},
    {"sub", "($0)-($1)", "real_sub($0,$1)"},
    {"mul", "($0)*($1)", "real_mul($0,$1)"},
    {"div", "quotient($0,$1)", "real_div($0,$1)"},
    {"mod", "modulo($0,$1)", ""},
    {"fmod", "remainder($0,$1)", ""},
    {"pow", "power($0,$1)", "real_power($0,$1)"},
    {"max", "max($0,$1)", "real_max($0,$1)"},
    {"min", "min($0,$1)", "real_min($0,$1)"},
    {"equal", "equal($0,$1)", "real_equal($0,$1)"},
    {"less", "less($0,$1)", "real_less($0,$1)"},
    {"less_equal", "less_equal($0,$1)", "real_less_equal($0,$1)"},
    {"greater", "less($1,$0)", "real_less($1,$0)"},
    {"greater_equal", "less_equal($1,$0)", "real_less_equal($1,$0)"},
    {"and", "bit_and($0,$1)", ""},
    {"or", "bit_or($0,$1)", ""},
    {"xor", "bit_xor($0,$1)", ""},
    {"where", "where($0,$1,$2)", "where($0,$1,$2)"},
    // Of two elements. The order of a sum of floats matters.
    {"reduce_sum", "($0)+($1)", ""},
    {"reduce_prod", "($0)*($1)", ""},
    {"reduce_max", "max($0,$1)", ""},
    {"reduce_min", "min($0,$1)", ""},
};

}  // namespace

std::optional<Size> ApplySizeFormula(const Node& node, const SizeList& operands) {
  const auto formula = absl::c_find_if(kFormulas, [&](const Formula& f) { return f.op == node.op->info.name; });
  if (formula == std::end(kFormulas)) return std::nullopt;
  const absl::string_view text = IsFloat(node.operands.back()->type.dtype) ? formula->real : formula->integer;
  if (text.empty()) return std::nullopt;
  std::vector<std::string> texts;
  for (const Size& operand : operands) texts.push_back(operand.ToString());
  texts.resize(3);
  return Size::Text(absl::Substitute(text, texts[0], texts[1], texts[2]));
}

}  // namespace llmc
