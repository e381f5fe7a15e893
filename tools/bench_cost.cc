#include "tools/bench_cost.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/step_contract.h"

namespace llmc {
namespace {

// Keys that all queries of a sequence see together, or pairs of a query and a key that it sees, of all sequences.
int64_t CountKeys(const BenchStep& run, const AttendedRange& range) {
  int64_t keys = 0;
  for (const BenchSequence& s : run.sequences) keys += s.position + s.tokens - range.First(s.position);
  return keys;
}
int64_t CountPairs(const BenchStep& run, const AttendedRange& range) {
  int64_t pairs = 0;
  for (const BenchSequence& s : run.sequences) {
    for (int64_t position = s.position; position < s.position + s.tokens; ++position) {
      pairs += position + 1 - range.First(position);
    }
  }
  return pairs;
}

// Whether the symbol is AttendedSize(name, *range) of some range.
bool IsAttended(absl::string_view symbol, absl::string_view name, AttendedRange* range) {
  *range = {};
  if (!absl::ConsumePrefix(&symbol, name)) return false;
  if (symbol.empty()) return true;
  if (absl::ConsumePrefix(&symbol, ":chunk")) return absl::SimpleAtoi(symbol, &range->chunk);
  return absl::ConsumePrefix(&symbol, ":") && absl::SimpleAtoi(symbol, &range->window);
}

double Evaluate(const std::string& text, const BenchStep& run) {
  if (text.empty()) return 0;
  const absl::StatusOr<DimExpression> expression = DimExpression::Parse(text);
  if (!expression.ok()) return 0;
  StepDims dims = run.dims;
  for (const std::string& symbol : expression->Symbols()) {
    AttendedRange range;
    if (IsAttended(symbol, kAttendedKeys, &range)) dims[symbol] = CountKeys(run, range);
    if (IsAttended(symbol, kAttendedPairs, &range)) dims[symbol] = CountPairs(run, range);
  }
  return static_cast<double>(expression->Evaluate(dims).value_or(0));
}

}  // namespace

StepCost CostOf(const plan::Task& task, const BenchStep& run) {
  const plan::Cost& cost = task.cost();
  return {.weight_bytes = Evaluate(cost.weight_bytes(), run),
          .kv_bytes = Evaluate(cost.state_bytes(), run),
          .activation_bytes = Evaluate(cost.activation_bytes(), run),
          .flops = Evaluate(cost.flops(), run)};
}

StepCost CostOf(const plan::Program& program, const BenchStep& run) {
  StepCost sum;
  for (const plan::Task& task : program.tasks()) {
    const StepCost cost = CostOf(task, run);
    sum.weight_bytes += cost.weight_bytes;
    sum.kv_bytes += cost.kv_bytes;
    sum.flops += cost.flops;
  }
  return sum;
}

double FloorSeconds(const StepCost& cost, const Target& target) {
  return std::max(cost.bytes() / target.bandwidth, cost.flops / target.flops_f16);
}

}  // namespace llmc
