#include "tools/bench_cost.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/step_contract.h"

namespace llmc {
namespace {

// Keys that all queries of a sequence see together, or pairs of a query and a key that it sees, of all sequences.
// `window`: positions that a token sees at most; 0: all.
int64_t CountKeys(const BenchStep& run, int64_t window) {
  int64_t keys = 0;
  for (const BenchSequence& s : run.sequences) {
    const int64_t length = s.position + s.tokens;
    keys += window == 0 ? length : std::min(length, window + s.tokens - 1);
  }
  return keys;
}
int64_t CountPairs(const BenchStep& run, int64_t window) {
  int64_t pairs = 0;
  for (const BenchSequence& s : run.sequences) {
    for (int64_t position = s.position; position < s.position + s.tokens; ++position) {
      pairs += window == 0 ? position + 1 : std::min(position + 1, window);
    }
  }
  return pairs;
}

// "step:keys", or "step:keys:8" with a window of 8, is `name`: false for other symbols.
bool IsAttended(absl::string_view symbol, absl::string_view name, int64_t* window) {
  if (!absl::StartsWith(symbol, name)) return false;
  symbol.remove_prefix(name.size());
  *window = 0;
  return symbol.empty() || (symbol[0] == ':' && absl::SimpleAtoi(symbol.substr(1), window));
}

double Evaluate(const std::string& text, const BenchStep& run) {
  if (text.empty()) return 0;
  const absl::StatusOr<DimExpression> expression = DimExpression::Parse(text);
  if (!expression.ok()) return 0;
  StepDims dims = run.dims;
  for (const std::string& symbol : expression->Symbols()) {
    int64_t window = 0;
    if (IsAttended(symbol, kAttendedKeys, &window)) dims[symbol] = CountKeys(run, window);
    if (IsAttended(symbol, kAttendedPairs, &window)) dims[symbol] = CountPairs(run, window);
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
