#include "tools/bench_cost.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "ir/op.h"
#include "runtime/plan/step_programs.h"

namespace llmc {
namespace {

// Prepared values have no shape in the plan: those that are larger are matrices. They have no type either: that of the
// KV cache is taken or, in models without one, that of the result.
constexpr uint64_t kMostVectorBytes = 65536;

// The parts of a step's label that costs depend on: "%a, %b = op %x {window = 8} : bf16[T, 64], …".
struct Label {
  absl::string_view op;
  double rows = 1, width = 0;  // of the first result: its last dim, and all others
  int64_t window = 0;
  std::string dtype;  // of the first result
};

double Evaluate(absl::string_view text, const StepDims& dims) {
  const absl::StatusOr<DimExpression> expression = DimExpression::Parse(text);
  if (!expression.ok()) return 0;
  return static_cast<double>(expression->Evaluate(dims).value_or(0));
}

Label ReadLabel(absl::string_view text, const StepDims& run_dims) {
  Label label;
  const size_t equals = text.find(" = "), types = text.find(" : ");
  const size_t brace = text.find('{');
  absl::string_view rest = equals < brace ? text.substr(equals + 3) : text;
  label.op = rest.substr(0, rest.find(' '));
  if (const size_t at = text.find("window = "); at != absl::string_view::npos) {
    const absl::string_view number = text.substr(at + 9);
    if (!absl::SimpleAtoi(number.substr(0, number.find_first_not_of("0123456789")), &label.window)) label.window = 0;
  }
  if (types == absl::string_view::npos) return label;
  rest = text.substr(types + 3);
  const size_t open = rest.find('['), close = rest.find(']');
  label.dtype = std::string(rest.substr(0, open));
  if (open < close && close != absl::string_view::npos) {
    const std::vector<absl::string_view> dims = absl::StrSplit(rest.substr(open + 1, close - open - 1), ", ");
    label.width = Evaluate(dims.back(), run_dims);
    for (size_t i = 0; i + 1 < dims.size(); ++i) label.rows *= Evaluate(dims[i], run_dims);
  }
  return label;
}

// Pairs of a query and a key, and keys, of all sequences.
struct Attended {
  double pairs = 0, keys = 0, tokens = 0;
};
Attended CountAttended(const std::vector<BenchSequence>& sequences, int64_t window) {
  Attended sum;
  for (const BenchSequence& s : sequences) {
    const int64_t length = s.position + s.tokens;
    sum.keys += static_cast<double>(window == 0 ? length : std::min(length, window + s.tokens - 1));
    sum.tokens += static_cast<double>(s.tokens);
    for (int64_t position = s.position; position < length; ++position) {
      sum.pairs += static_cast<double>(window == 0 ? position + 1 : std::min(position + 1, window));
    }
  }
  return sum;
}

void AddWeight(double bytes, double element_bytes, bool is_matrix, const Label& label, StepCost* cost) {
  if (label.op == "gather") {
    cost->weight_bytes += label.rows * label.width * element_bytes;
    return;
  }
  cost->weight_bytes += bytes;
  if (is_matrix) cost->flops += 2 * label.rows * bytes / element_bytes;
}

double ElementBytes(absl::string_view dtype) {
  const absl::StatusOr<ElementType> type = ElementTypeNamed(dtype);
  return type.ok() ? ElementTypeBits(*type) / 8.0 : 1;
}

// A program for prompts has two kernels for attention, one for sequences of a few tokens and one for all others.
std::vector<BenchSequence> SequencesOf(const plan::Manifest& manifest, const plan::Step& step, const BenchStep& run) {
  const std::string entry =
      step.has_launch() ? manifest.kernels(static_cast<int>(step.launch().kernel())).entry() : std::string();
  const bool few = absl::StrContains(entry, "attention_decode"), many = absl::StrContains(entry, "attention_prefill");
  std::vector<BenchSequence> sequences;
  for (const BenchSequence& sequence : run.sequences) {
    if (few ? sequence.tokens == 1 : !many || sequence.tokens > 1) sequences.push_back(sequence);
  }
  return sequences;
}

void AddState(const plan::Manifest& manifest, uint32_t index, const Label& label,
              const std::vector<BenchSequence>& sequences, StepCost* cost) {
  const absl::StatusOr<int64_t> page = StatePageBytes(manifest.states(static_cast<int>(index)));
  const int64_t page_size = std::max<int64_t>(manifest.language_model().page_size(), 1);
  const double token = static_cast<double>(page.value_or(0)) / static_cast<double>(page_size);
  const Attended attended = CountAttended(sequences, label.window);
  const OpDef* op = FindOp(label.op);
  const bool reads = op != nullptr && op->info.Has(kReadsState);
  cost->kv_bytes += token * (reads ? attended.keys : attended.tokens);
  if (reads) cost->flops += 4 * label.width * attended.pairs;
}

// The page table, which is mostly not read.
std::string TableOf(const plan::Manifest& manifest) {
  if (manifest.entry_points_size() == 0) return "";
  const absl::StatusOr<StepContract> contract = ContractOf(manifest.entry_points(0));
  return contract.ok() ? absl::StrCat("%", contract->NameOf(StepRole::kPageTable)) : "";
}

}  // namespace

StepCost CostOf(const TargetCode& code, const plan::Program& program, const plan::Step& step, const BenchStep& run) {
  const plan::Manifest& manifest = code.manifest();
  const Label label = ReadLabel(step.label(), run.dims);
  const std::vector<BenchSequence> sequences = SequencesOf(manifest, step, run);
  StepCost cost;
  if (sequences.empty()) return cost;
  const std::string table = TableOf(manifest);
  std::set<std::pair<plan::Arg::WhatCase, uint32_t>> seen;  // a kernel may get two places in one weight
  for (const plan::Arg& arg : step.args()) {
    const bool is_weight = arg.what_case() == plan::Arg::kWeight || arg.what_case() == plan::Arg::kPrepared;
    const uint32_t index = arg.what_case() == plan::Arg::kWeight ? arg.weight() : arg.prepared();
    if (is_weight && !seen.emplace(arg.what_case(), index).second) continue;
    if (arg.what_case() == plan::Arg::kWeight) {
      const plan::Weight& weight = manifest.weights(static_cast<int>(arg.weight()));
      AddWeight(static_cast<double>(weight.bytes()), ElementBytes(weight.dtype()), weight.shape_size() > 1, label,
                &cost);
    } else if (arg.what_case() == plan::Arg::kPrepared) {
      const plan::Buffer& buffer = code.prepare().buffers(static_cast<int>(arg.prepared()));
      const std::string dtype = manifest.states_size() > 0 ? manifest.states(0).dtype() : label.dtype;
      AddWeight(static_cast<double>(buffer.bytes()), ElementBytes(dtype), buffer.bytes() > kMostVectorBytes, label,
                &cost);
    } else if (arg.what_case() == plan::Arg::kState) {
      AddState(manifest, arg.state(), label, sequences, &cost);
    } else if (arg.what_case() == plan::Arg::kBuffer) {
      const plan::Buffer& buffer = program.buffers(static_cast<int>(arg.buffer()));
      if (buffer.name() != table) cost.activation_bytes += Evaluate(buffer.size(), run.dims);
    }
  }
  if (step.has_gemm()) {
    const plan::Gemm& gemm = step.gemm();
    cost.flops = 2;
    for (const std::string* size : {&gemm.m(), &gemm.n(), &gemm.k(), &gemm.batch()}) {
      cost.flops *= Evaluate(*size, run.dims);
    }
  }
  return cost;
}

StepCost CostOf(const TargetCode& code, const plan::Program& program, const BenchStep& run) {
  // A node may take several launches, any of which are given its weights.
  std::map<std::string, StepCost> nodes;
  for (const plan::Step& step : program.steps()) {
    const StepCost cost = CostOf(code, program, step, run);
    StepCost& node = nodes[step.label()];
    node.weight_bytes = std::max(node.weight_bytes, cost.weight_bytes);
    node.kv_bytes = std::max(node.kv_bytes, cost.kv_bytes);
    node.flops = std::max(node.flops, cost.flops);
  }
  StepCost sum;
  for (const auto& [label, cost] : nodes) {
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
