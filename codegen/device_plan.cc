#include "codegen/device_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "codegen/join_heads.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/memory/size_rules.h"
#include "codegen/persistent_runs.h"
#include "codegen/plan_pools.h"
#include "codegen/step_work.h"
#include "codegen/task_cost.h"
#include "codegen/task_order.h"
#include "codegen/task_writer.h"
#include "codegen/tasks/left_operand.h"
#include "codegen/tasks/sampling.h"
#include "codegen/tasks/select.h"
#include "files/random_source.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/step_inputs.h"
#include "ir/text.h"
#include "kernels/layout/linear.h"
#include "passes/lower/lower.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_arena.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/target_code.h"

namespace llmc {
namespace {

// Programs for steps of one token of up to so many sequences.
constexpr int64_t kDecodeBatches[] = {1, 2, 4, 8, 32, 64, 128, 256}, kMostDecodeBatch = 256;
// Whose steps may be persistent launches, and are if nobody says otherwise. Tasks of several sequences wait for all
// blocks, which takes weights of so many times the bytes to hide, and no codes that many warps would decode for each.
constexpr int64_t kMostRunSequences = 4, kMostAutoRunSequences = 2;
constexpr double kTimesTheBytesOfSeveral = 3;

bool HasCodes(const Step& step) {
  return absl::c_any_of(step.block.nodes, [](const auto& node) {
    return Is<Linear>(node.get()) && node->operands[1]->type.encoding != nullptr;
  });
}

// Rows up to which products with encoded weights have kernels of their own, the fewest first; none where there are no
// such products, or all are decoded to memory.
std::set<int64_t> RowsOfCodes(const Step& step, const Target& target) {
  std::set<int64_t> rows;
  for (const auto& node : step.block.nodes) {
    const Encoding* encoding = Is<Linear>(node.get()) ? node->operands[1]->type.encoding : nullptr;
    if (target.wgmma && encoding != nullptr) rows.insert({kMaxEncodedGemmRows, MostRowsInRegisters(*encoding->format)});
  }
  return rows;
}

// Numbers of rows over 8 up to which products have kernels of their own, each of which is a program: of codes, if there
// are any, else of elements of 16 bits.
std::set<int64_t> RowsOfKernels(const Step& step, const Target& target) {
  if (!target.wgmma) return {};
  if (HasCodes(step)) return {kFewEncodedGemmRows, kEncodedGemmMost};
  const bool has_elements = absl::c_any_of(step.block.nodes, [](const auto& node) {
    return Is<Linear>(node.get()) && DTypeBits(node->operands[1]->type.dtype) == 16;
  });
  return has_elements ? std::set<int64_t>{kFewStreamedRows, kMaxStreamedElementRows} : std::set<int64_t>{};
}

// Whether every size of a task is one that a plan can hold.
bool HasWholeSizes(const plan::Task& task) {
  std::vector<absl::string_view> texts(task.kernel().tiles().begin(), task.kernel().tiles().end());
  for (const plan::Arg& arg : task.args()) {
    if (arg.has_dim()) texts.push_back(arg.dim());
    if (arg.has_tiles() && !arg.tiles().all_rows()) texts.push_back(arg.tiles().rows());
  }
  if (task.has_copy()) texts.push_back(task.copy().bytes());
  if (const plan::Gemm& gemm = task.gemm(); task.has_gemm()) {
    texts.insert(texts.end(), {gemm.m(), gemm.n(), gemm.k(), gemm.batch(), gemm.x_stride(), gemm.weight_stride()});
  }
  return absl::c_all_of(texts, [](absl::string_view text) { return DimExpression::Parse(text).ok(); });
}

std::string TooLong(const Node& node) {
  return absl::StrCat(node.op->info.name, ": there is no GPU form of a result whose sizes take more than ",
                      DimExpression::kMaxLength, " characters or ", DimExpression::kMaxDepth,
                      " nested parentheses to write\n  in: ", PrintNode(node));
}

// The programs of a step for a target, the narrowest first: that of a language model has some for decode steps.
std::vector<ProgramScope> ProgramScopes(const Model& model, const Step& step, const Target& target) {
  const ProgramScope all = {.target = target, .bounds = model.dims};
  const absl::StatusOr<StepContract> contract = ContractOf(step);
  if (!contract.ok() || model.states.empty()) return {all};
  int64_t most = std::numeric_limits<int64_t>::max();
  std::vector<std::string> symbols;
  for (const StepAxis axis : {StepAxis::kToken, StepAxis::kSequence, StepAxis::kRow}) {
    symbols.push_back(contract->SizeOf(axis));
    const auto bound = all.bounds.find(symbols.back());
    if (bound == all.bounds.end()) return {all};
    most = std::min(most, bound->second);
  }
  std::vector<ProgramScope> scopes;
  const std::set<int64_t> rows_of_codes = RowsOfCodes(step, target);
  const std::set<int64_t> rows = RowsOfKernels(step, target);
  for (const int64_t batch : kDecodeBatches) {
    if (most == 0) break;
    if (batch > kMaxGemvRows && batch < kMostDecodeBatch && !rows.contains(batch)) continue;
    ProgramScope scope = all;
    scope.decode = std::min(batch, most);
    for (const std::string& symbol : symbols) scope.bounds[symbol] = scope.decode;
    scopes.push_back(scope);
    if (batch >= most) break;
  }
  // Prompts that kernels of fewer rows take less time for.
  for (const int64_t tokens : rows_of_codes) {
    if (tokens >= all.bounds.at(symbols[0])) break;
    ProgramScope scope = all;
    scope.tokens = tokens;
    for (const std::string& symbol : symbols) scope.bounds[symbol] = std::min(scope.bounds[symbol], scope.tokens);
    scopes.push_back(scope);
  }
  scopes.push_back(all);
  return scopes;
}

// Over 250 lines: one planner, whose parts share the program that they fill.
// Plans what one target runs. What targets share is in `pools`.
class TargetPlanner {
 public:
  // `missing` gets what has no form for GPUs.
  TargetPlanner(const Model& model, const Target& target, const DevicePlanOptions& options, PlanPools* pools,
                std::set<std::string>* missing)
      : model_(model),
        target_(target),
        options_(options),
        pools_(pools),
        missing_(missing),
        sampling_(SelectSampling(model)),
        writer_(model, target, options.tf32, pools) {}

  // Adds to `lowering`.
  absl::StatusOr<plan::TargetPrograms> Run(plan::Lowering* lowering) {
    plan::TargetPrograms programs;
    programs.set_target(target_.name);
    plan::Program prepare;
    RETURN_IF_ERROR(PlanPrepare(&prepare));
    std::vector<plan::Program> steps;
    std::vector<plan::LoweredProgram> lowered;
    for (const auto& step : model_.steps) {
      for (const ProgramScope& scope : ProgramScopes(model_, *step, target_)) {
        ASSIGN_OR_RETURN(steps.emplace_back(), PlanStep(*step, scope, &lowered.emplace_back()));
      }
    }
    programs.mutable_persistent()->Assign(writer_.persistent().begin(), writer_.persistent().end());
    for (size_t i = 0; i < steps.size(); ++i) {
      SetTaskOrder(programs, /*is_prepare=*/false, &steps[i]);
      programs.add_programs(pools_->AddProgram(steps[i]));
      lowered[i].set_program(programs.programs(static_cast<int>(i)));
      *lowering->add_programs() = std::move(lowered[i]);
    }
    SetTaskOrder(programs, /*is_prepare=*/true, &prepare);
    programs.set_prepare(pools_->AddProgram(prepare));
    return programs;
  }

 private:
  // What the steps read, seen through views.
  absl::flat_hash_set<const Value*> ReadBySteps() const {
    absl::flat_hash_set<const Value*> values;
    for (const auto& step : model_.steps) {
      for (const auto& node : step->block.nodes) {
        for (const Value* stored : StoredOperands(*node)) values.insert(stored);
      }
      for (const Output& output : step->outputs) values.insert(ViewedValue(output.value));
    }
    return values;
  }

  // A buffer for each prepared value, and for the scratch memory of calls. Values that steps read stay, each at its own
  // place; behind them the others share memory that is free afterwards.
  absl::Status AddPreparedBuffers(const std::vector<StepUnit>& units, plan::Program* program) {
    const absl::flat_hash_set<const Value*> read = ReadBySteps();
    TaskWriter::Buffers by_name;
    std::vector<BufferRange> shared;  // what each buffer takes of it
    std::vector<bool> stays;
    int64_t time = 0;
    const auto add = [&](const std::string& name, const Size& size, bool stay) -> absl::StatusOr<plan::Buffer*> {
      if (!size.is_number()) return absl::InternalError(absl::StrCat(name, ": prepared, of unknown size"));
      by_name[name] = static_cast<uint32_t>(program->buffers_size());
      shared.push_back({.bytes = stay ? 0 : size.number(), .first = time, .last = time});
      stays.push_back(stay);
      plan::Buffer* buffer = program->add_buffers();
      buffer->set_name(name);
      buffer->set_size(size.ToString());
      buffer->set_bytes(static_cast<uint64_t>(size.number()));
      return buffer;
    };
    for (const StepUnit& unit : units) {
      const Node& node = *unit.nodes.back();
      ++time;
      for (const Value* stored : StoredOperands(node)) {
        if (const auto it = by_name.find(stored->name); it != by_name.end()) shared[it->second].last = time;
      }
      for (const Value* result : node.results) {
        if (NeedsNoKernel(node)) continue;
        ASSIGN_OR_RETURN(plan::Buffer * buffer, add(result->name, result->type.Bytes(), read.contains(result)));
        buffer->add_values(result->name);
      }
      if (const std::optional<Size> scratch = ScratchOf(unit)) {
        RETURN_IF_ERROR(add(ScratchName(unit), *scratch, false).status());
      }
    }
    PlacePrepared(stays, &shared, program);
    writer_.SetPrepared(by_name);
    return absl::OkStatus();
  }

  static void PlacePrepared(const std::vector<bool>& stays, std::vector<BufferRange>* shared, plan::Program* program) {
    const auto shared_bytes = static_cast<uint64_t>(AssignOffsets(shared));
    uint64_t size = 0;
    for (size_t i = 0; i < stays.size(); ++i) {
      if (!stays[i]) continue;
      plan::Buffer* buffer = program->mutable_buffers(static_cast<int>(i));
      buffer->set_offset(size);
      size = plan::AlignUp(size + buffer->bytes(), kBufferAlignment);
    }
    for (size_t i = 0; i < stays.size(); ++i) {
      const uint64_t offset = size + static_cast<uint64_t>((*shared)[i].offset);
      if (!stays[i]) program->mutable_buffers(static_cast<int>(i))->set_offset(offset);
    }
    program->set_arena_bytes(size + shared_bytes);
    program->set_temporary_bytes(shared_bytes);
    program->set_lower_bound_bytes(size + static_cast<uint64_t>(LowerBound(*shared)));
  }

  absl::Status PlanPrepare(plan::Program* program) {
    program->set_entry_point("prepare");
    std::vector<StepUnit> units;
    for (const auto& node : model_.prepare.nodes) {
      units.push_back({.nodes = {node.get()}});
      RETURN_IF_ERROR(SetCalls(SelectNode(*node, {.target = target_}), missing_, &units.back()));
    }
    RETURN_IF_ERROR(AddPreparedBuffers(units, program));
    for (const StepUnit& unit : units) {
      for (const Value* operand : unit.nodes.back()->operands) {
        RETURN_IF_ERROR(DrawWeight(operand, program));
      }
      RETURN_IF_ERROR(AddUnit(unit, program));
    }
    for (const Value* weight : model_.weights) {
      RETURN_IF_ERROR(DrawWeight(weight, program));
    }
    return absl::OkStatus();
  }

  // Where `value` is a weight of random numbers, or a view of one, that nobody asked for yet: what draws it. Not before
  // it is needed, so that weights that only `prepare` reads are not all there at once.
  absl::Status DrawWeight(const Value* value, plan::Program* program) {
    if (value == nullptr) return absl::OkStatus();
    value = ViewedValue(value);
    const std::optional<RandomNumbers> random = ParseRandomSource(value->source);
    if (!random.has_value() || !drawn_.insert(value).second) return absl::OkStatus();
    return AddCall({absl::StrCat(value->name, " = random numbers"), RandomWeightsCall(value, *random), {}}, program);
  }

  absl::StatusOr<plan::Program> PlanStep(const Step& original, const ProgramScope& scope,
                                         plan::LoweredProgram* report) {
    const LowerOptions options = {.bounds = scope.bounds, .check_numerics = options_.check_numerics};
    absl::StatusOr<LoweredStep> made = LowerStep(model_, original, BackendsFor(scope), options);
    std::string name = absl::StrCat(target_.name, "/", original.name);
    if (scope.decode > 0) absl::StrAppend(&name, "-", scope.decode);             // "sm_90a/main-8"
    if (scope.tokens > 0) absl::StrAppend(&name, "-", scope.tokens, "-tokens");  // "sm_90a/main-256-tokens"
    if (!made.ok()) return absl::Status(made.status().code(), absl::StrCat(name, ": ", made.status().message()));
    const LoweredStep& lowered = *made;
    missing_->insert(lowered.missing.begin(), lowered.missing.end());
    const Step& step = *lowered.step;
    ASSIGN_OR_RETURN(std::vector<StepUnit> units, SelectStep(step, scope, missing_));
    std::vector<KernelReport> reports = lowered.reports;
    const std::optional<std::vector<std::string>> why_no_run = WhyNoRun(step, units, scope);
    if (scope.decode == 1 && (why_no_run.has_value() || !RunsPersistently(scope))) {
      JoinHeads(OutputsOf(step), &units, &reports);
    }
    ASSIGN_OR_RETURN(plan::Program program, PlanMemory(step, scope.bounds, units));
    program.clear_tasks();
    program.set_decode(scope.decode > 0);
    if (!program.sample().empty()) {  // its offsets are not for all sizes
      program.set_unplanned(program.sample());
      program.clear_sample();
      SetBounds(scope.bounds, program.mutable_bounds());
    }
    runs_.emplace(target_);
    ASSIGN_OR_RETURN(const std::vector<uint32_t> begins, AddTasks(*lowered.model, step, units, &program));
    if (why_no_run.has_value()) {
      for (const std::string& line : *why_no_run) report->add_runs(line);
    } else if (RunsPersistently(scope)) {
      for (std::string& line : WriteRuns(step, scope, &program)) report->add_runs(std::move(line));
    }
    report->set_name(name);
    report->set_text(PrintModel(*lowered.model));
    report->set_ledger(lowered.ledger.ToString());
    DescribeKernels(units, begins, reports, report);
    return program;
  }

  // The tasks of a step, what it runs before and after the model included; and what it must know of sizes. Returns the
  // first task of each unit, and of what comes after them.
  absl::StatusOr<std::vector<uint32_t>> AddTasks(const Model& model, const Step& step,
                                                 const std::vector<StepUnit>& units, plan::Program* program) {
    TaskWriter::Buffers by_name;
    for (int i = 0; i < program->buffers_size(); ++i) {
      by_name[program->buffers(i).name()] = static_cast<uint32_t>(i);
      for (const std::string& value : program->buffers(i).values()) by_name[value] = static_cast<uint32_t>(i);
    }
    writer_.SetBuffers(std::move(by_name));
    if (sampling_.has_value()) RETURN_IF_ERROR(AddCall(sampling_->inputs, program));
    const int first = program->tasks_size();
    std::vector<uint32_t> begins;  // the first task of each unit
    SizeRules rules(model, step);
    for (const StepUnit& unit : units) {
      begins.push_back(static_cast<uint32_t>(program->tasks_size()));
      for (const Node* node : unit.nodes) {
        if (absl::Status status = rules.Add(*node); !status.ok()) missing_->insert(std::string(status.message()));
      }
      RETURN_IF_ERROR(AddUnit(unit, program));
    }
    program->mutable_size_rules()->Assign(rules.rules().begin(), rules.rules().end());
    // The first launch of a model waits for all that came before: kernels may then read a step's inputs before they
    // wait themselves.
    if (first < program->launches_size()) program->mutable_launches(first)->set_mode(plan::Launch::SERIAL);
    for (const Output& output : step.outputs) {
      if (runs_.has_value()) runs_->AddOutput(output.value);
      const int before = program->tasks_size();
      RETURN_IF_ERROR(NoteMissing(writer_.AddOutput(output, program), missing_));
      if (runs_.has_value() && program->tasks_size() > before) runs_->Add(CopyCall(), {});
    }
    for (size_t i = 0; sampling_.has_value() && i < sampling_->choice.size(); ++i) {
      RETURN_IF_ERROR(AddCall(sampling_->choice[i], program));
    }
    // Outputs live to the end, which comes after the last unit. Inputs are there from the beginning.
    begins.resize(begins.size() + 2, static_cast<uint32_t>(program->tasks_size()));
    for (plan::Buffer& buffer : *program->mutable_buffers()) {
      const bool is_input =
          absl::c_any_of(step.params, [&](const Value* param) { return param->name == buffer.name(); });
      const uint32_t begin = is_input ? 0 : begins[buffer.first_task()];
      buffer.set_last_task(std::max(begin, begins[buffer.last_task() + 1]));
      buffer.set_first_task(begin);
    }
    return begins;
  }

  // On a GPU where memory can be read ahead.
  bool RunsPersistently(const ProgramScope& scope) const {
    const bool is_chosen =
        options_.steps == StepForm::kPersistent || (options_.steps == StepForm::kAuto && target_.persistent_bytes > 0);
    const int64_t most = options_.steps == StepForm::kAuto ? kMostAutoRunSequences : kMostRunSequences;
    return is_chosen && scope.decode > 0 && scope.decode <= most && target_.bulk_copies;
  }

  // Why the step of one sequence is launches, where nobody asked for either; nothing if some of it is a run. Numbers of
  // tasks would be those before heads are joined.
  std::optional<std::vector<std::string>> WhyNoRun(const Step& step, const std::vector<StepUnit>& units,
                                                   const ProgramScope& scope) const {
    if (options_.steps != StepForm::kAuto || scope.decode != 1 || !RunsPersistently(scope)) return std::nullopt;
    PersistentRuns runs(target_);
    if (sampling_.has_value()) runs.Add(sampling_->inputs.call, sampling_->inputs.kinds);
    for (const StepUnit& unit : units) {
      for (size_t i = 0; i < unit.calls.size(); ++i) {
        runs.Add(unit.calls[i], {}, WeightBytes(CostOf(unit.nodes, unit.calls, i)));
      }
    }
    for (const Output& output : step.outputs) runs.AddOutput(output.value);
    for (size_t i = 0; sampling_.has_value() && i < sampling_->choice.size(); ++i) {
      runs.Add(sampling_->choice[i].call, sampling_->choice[i].kinds);
    }
    return runs.WhyNone(target_.persistent_bytes);
  }
  // What depends on the sizes of a step, as rows of an embedding do, is little.
  static double WeightBytes(const std::optional<plan::Cost>& cost) {
    double bytes = 0;
    return cost.has_value() && absl::SimpleAtod(cost->weight_bytes(), &bytes) ? bytes : 0;
  }

  // Returns what there is to say of them.
  std::vector<std::string> WriteRuns(const Step& step, const ProgramScope& scope, plan::Program* program) {
    if (options_.steps != StepForm::kAuto) return runs_->Write(/*least_weight_bytes=*/0, &writer_, program);
    if (scope.decode == 1) return runs_->Write(target_.persistent_bytes, &writer_, program);
    if (HasCodes(step)) {
      return {"launches, since weights are encoded, with which one launch is not faster for several sequences"};
    }
    return runs_->Write(kTimesTheBytesOfSeveral * target_.persistent_bytes, &writer_, program);
  }

  absl::Status AddUnit(const StepUnit& unit, plan::Program* program) {
    if (Is<Constant>(unit.nodes.back())) return writer_.AddConstant(*unit.nodes.back());
    const auto print = [](std::string* out, const Node* node) { absl::StrAppend(out, PrintNode(*node)); };
    const std::string label = absl::StrJoin(unit.nodes, "\n", print);
    for (size_t i = 0; i < unit.calls.size(); ++i) {
      const TaskWriter::TaskInfo info = {
          .label = label, .scratch = ScratchName(unit), .cost = CostOf(unit.nodes, unit.calls, i)};
      RETURN_IF_ERROR(writer_.Add(unit.calls[i], info, program));
      if (runs_.has_value()) runs_->Add(unit.calls[i], {}, WeightBytes(info.cost));
      if (!HasWholeSizes(program->tasks(program->tasks_size() - 1))) missing_->insert(TooLong(*unit.nodes.back()));
    }
    return absl::OkStatus();
  }

  absl::Status AddCall(const SamplingCalls::Call& call, plan::Program* program) {
    const plan::Cost cost = CostOf({}, {call.call}, 0);
    if (runs_.has_value()) runs_->Add(call.call, call.kinds);
    return writer_.Add(call.call, {.label = call.label, .cost = cost, .kinds = call.kinds}, program);
  }

  const Model& model_;
  const Target& target_;
  const DevicePlanOptions& options_;
  PlanPools* pools_;
  std::set<std::string>* missing_;
  const std::optional<SamplingCalls> sampling_;
  TaskWriter writer_;
  std::optional<PersistentRuns> runs_;       // of the program of a step that is written
  absl::flat_hash_set<const Value*> drawn_;  // weights that a task of prepare fills
};

}  // namespace

absl::Status PlanDevice(const Model& model, absl::Span<const Target> targets, plan::Manifest* manifest,
                        DeviceCode* code, const DevicePlanOptions& options) {
  if (targets.empty()) return absl::InternalError("a device plan needs a target");
  PlanPools pools(manifest);
  std::set<std::string> missing;
  for (const Value* state : model.states) {
    if (state->state->kind == StateKind::kPaged) continue;
    missing.insert(absl::StrCat("state ", state->name, ": there is no GPU kernel yet for a state ", TypeText(*state)));
  }
  manifest->clear_targets();
  for (const Target& target : targets) {
    TargetPlanner planner(model, target, options, &pools, &missing);
    ASSIGN_OR_RETURN(*manifest->add_targets(), planner.Run(&code->lowering));
  }
  if (!missing.empty()) return absl::UnimplementedError(absl::StrJoin(missing, "\n"));
  pools.WriteSources(&code->sources);
  return absl::OkStatus();
}

absl::Status CompileDevicePlan(const CompileOptions& options, plan::Manifest* manifest, DeviceCode* code) {
  const absl::string_view sources = code->sources;
  std::vector<SourceFile> headers;
  for (const plan::Header& header : manifest->headers()) {
    headers.push_back({header.name(), sources.substr(header.offset(), header.bytes())});
  }
  std::vector<KernelSource> kernels;
  std::vector<plan::Kernel*> owners;  // of each of them
  for (int target = 0; target < manifest->targets_size(); ++target) {
    for (const int index : TargetCode(*manifest, target).Kernels()) {
      plan::Kernel* kernel = manifest->mutable_kernels(index);
      kernels.push_back({kernel->entry(), sources.substr(kernel->source_offset(), kernel->source_bytes()),
                         manifest->targets(target).target()});
      owners.push_back(kernel);
    }
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> cubins, CompileKernels(kernels, headers, options));
  for (size_t i = 0; i < cubins.size(); ++i) {
    plan::Cubin* cubin = owners[i]->add_cubins();
    cubin->set_target(kernels[i].target);
    cubin->set_offset(code->cubins.size());
    cubin->set_bytes(cubins[i].size());
    code->cubins += cubins[i];
  }
  return absl::OkStatus();
}

}  // namespace llmc
