// Over 500 lines: one planner, whose parts share the plan that they fill.
#include "codegen/device_plan.h"

#include <limits>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/memory/size_rules.h"
#include "codegen/plan_pools.h"
#include "codegen/task_writer.h"
#include "codegen/tasks/decode_fusion.h"
#include "codegen/tasks/product_fusion.h"
#include "codegen/tasks/sampling.h"
#include "codegen/tasks/select.h"
#include "ir/ops.h"
#include "ir/step_inputs.h"
#include "ir/text.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_arena.h"
#include "runtime/plan/plan_format.h"
#include "runtime/plan/target_code.h"

namespace llmc {
namespace {

// Programs for steps of one token of up to so many sequences.
constexpr int64_t kDecodeBatches[] = {1, 2, 4, 8, 256};

// Whether every size of a step is one that a plan can hold.
bool HasWholeSizes(const plan::Step& step) {
  std::vector<absl::string_view> texts(step.launch().grid().begin(), step.launch().grid().end());
  for (const plan::Arg& arg : step.args()) {
    if (arg.has_dim()) texts.push_back(arg.dim());
  }
  if (step.has_copy()) texts.push_back(step.copy().bytes());
  if (const plan::Gemm& gemm = step.gemm(); step.has_gemm()) {
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
  const ProgramScope all = {.target = target, .bounds = DimEnv(model.dims.begin(), model.dims.end())};
  const absl::StatusOr<StepContract> contract = ContractOf(step);
  std::vector<ProgramScope> scopes;
  int64_t most = contract.ok() ? std::numeric_limits<int64_t>::max() : 0;
  std::vector<std::string> symbols;
  for (const StepAxis axis : {StepAxis::kToken, StepAxis::kSequence, StepAxis::kRow}) {
    if (most == 0) break;
    symbols.push_back(contract->SizeOf(axis));
    const auto bound = all.bounds.find(symbols.back());
    most = bound == all.bounds.end() ? 0 : std::min(most, bound->second);
  }
  for (const int64_t batch : kDecodeBatches) {
    if (most == 0 || model.states.empty()) break;
    ProgramScope scope = all;
    scope.decode = true;
    for (const std::string& symbol : symbols) scope.bounds[symbol] = std::min(batch, most);
    scopes.push_back(scope);
    if (batch >= most) break;
  }
  scopes.push_back(all);
  return scopes;
}

// Over 250 lines: one planner, whose parts share the program that they fill.
// Plans what one target runs. What targets share is in `pools`.
class TargetPlanner {
 public:
  // `missing` gets what has no form for GPUs.
  TargetPlanner(const Model& model, const Target& target, const plan::Manifest& manifest, PlanPools* pools,
                std::set<std::string>* missing)
      : model_(model),
        target_(target),
        manifest_(manifest),
        pools_(pools),
        missing_(missing),
        writer_(model, target, pools) {
    for (size_t i = 0; i < model.weights.size(); ++i) weights_[model.weights[i]] = static_cast<int>(i);
  }

  absl::StatusOr<plan::TargetPrograms> Run() {
    plan::TargetPrograms programs;
    programs.set_target(target_.name);
    plan::Program prepare;
    RETURN_IF_ERROR(PlanPrepare(&prepare));
    for (const auto& step : model_.steps) {
      for (const ProgramScope& scope : ProgramScopes(model_, *step, target_)) {
        ASSIGN_OR_RETURN(const plan::Program program, PlanStep(*step, scope));
        programs.add_programs(pools_->AddProgram(program));
      }
    }
    programs.set_prepare(pools_->AddProgram(prepare));
    if (const std::optional<SamplingCode> code = SelectSampling(model_)) {
      ASSIGN_OR_RETURN(const plan::Program sampling, PlanSampling(*code));
      programs.set_sampling(pools_->AddProgram(sampling));
    }
    return programs;
  }

 private:
  // What the steps read, seen through views.
  absl::flat_hash_set<const Value*> ReadBySteps() const {
    absl::flat_hash_set<const Value*> values;
    for (const auto& step : model_.steps) {
      for (const auto& node : step->block.nodes) {
        for (const Value* operand : node->operands) {
          if (operand != nullptr) values.insert(ViewedValue(operand));
        }
      }
      for (const Output& output : step->outputs) values.insert(ViewedValue(output.value));
    }
    return values;
  }

  // A buffer for each prepared value, with its lifetime.
  absl::Status AddPreparedBuffers(plan::Program* program, std::vector<const Value*>* values,
                                  std::vector<BufferRange>* ranges) const {
    TaskWriter::Buffers prepared;
    int64_t index = 0;
    for (const auto& node : model_.prepare.nodes) {
      ++index;
      for (const Value* operand : node->operands) {
        if (operand == nullptr) continue;
        if (const auto it = prepared.find(ViewedValue(operand)); it != prepared.end())
          (*ranges)[it->second].last = index;
      }
      for (const Value* result : node->results) {
        if (IsViewOp(*node) || Is<Constant>(node.get())) continue;
        const Dim elements = Product(result->type.shape);
        if (!elements.is_constant())
          return absl::InternalError(absl::StrCat(result->name, ": prepared, of unknown size"));
        const int64_t bytes = (elements.value() * DTypeBits(result->type.dtype) + 7) / 8;
        prepared[result] = static_cast<uint32_t>(program->buffers_size());
        plan::Buffer* buffer = program->add_buffers();
        buffer->set_name(result->name);
        buffer->set_size(absl::StrCat(bytes));
        buffer->set_bytes(static_cast<uint64_t>(bytes));
        buffer->add_values(result->name);
        values->push_back(result);
        ranges->push_back({.bytes = bytes, .first = index, .last = index});
      }
    }
    return absl::OkStatus();
  }

  // Prepared values that steps read stay, each at its own place; behind them the others share memory that is free
  // afterwards.
  absl::Status PlanPrepare(plan::Program* program) {
    program->set_entry_point("prepare");
    std::vector<const Value*> values;
    std::vector<BufferRange> ranges, temporary;
    RETURN_IF_ERROR(AddPreparedBuffers(program, &values, &ranges));
    const absl::flat_hash_set<const Value*> kept = ReadBySteps();
    uint64_t size = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!kept.contains(values[i])) {
        temporary.push_back(ranges[i]);
        continue;
      }
      program->mutable_buffers(static_cast<int>(i))->set_offset(size);
      size = plan::AlignUp(size + static_cast<uint64_t>(ranges[i].bytes), kBufferAlignment);
    }
    const uint64_t temporary_bytes = static_cast<uint64_t>(AssignOffsets(&temporary));
    for (size_t i = 0, next = 0; i < values.size(); ++i) {
      if (kept.contains(values[i])) continue;
      const uint64_t offset = size + static_cast<uint64_t>(temporary[next++].offset);
      program->mutable_buffers(static_cast<int>(i))->set_offset(offset);
    }
    program->set_arena_bytes(size + temporary_bytes);
    program->set_temporary_bytes(temporary_bytes);
    program->set_lower_bound_bytes(size + static_cast<uint64_t>(LowerBound(temporary)));
    TaskWriter::Buffers prepared;
    for (size_t i = 0; i < values.size(); ++i) prepared[values[i]] = static_cast<uint32_t>(i);
    writer_.SetPrepared(std::move(prepared));
    for (const auto& node : model_.prepare.nodes) {
      for (const Value* operand : node->operands) {
        RETURN_IF_ERROR(DrawWeight(operand, program));
      }
      RETURN_IF_ERROR(AddNodes({node.get()}, {.target = target_}, program));
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
    const auto it = weights_.find(value);
    if (it == weights_.end()) return absl::OkStatus();
    const plan::Weight& weight = manifest_.weights(it->second);
    if (!weight.has_random() || !drawn_.insert(value).second) return absl::OkStatus();
    return writer_.Add(RandomWeightsCall(value, weight.random()), absl::StrCat(weight.name(), " = random numbers"),
                       program);
  }

  absl::StatusOr<plan::Program> PlanStep(const Step& step, const ProgramScope& scope) {
    Fusion fusion = FuseProducts(model_, step, scope);
    absl::flat_hash_set<const Node*> claimed;
    for (const auto& [node, calls] : fusion.calls) claimed.insert(node);
    const ElementwiseGroups groups(step, claimed);
    FuseDecodeStep(model_, step, groups, scope, &fusion);
    ASSIGN_OR_RETURN(plan::Program program, PlanMemory(step, scope.bounds, groups, fusion.memory));
    program.clear_steps();
    program.set_decode(scope.decode);
    if (!program.sample().empty()) {  // its offsets are not for all sizes
      program.set_unplanned(program.sample());
      program.clear_sample();
      program.clear_bounds();
      for (const auto& [name, max] : scope.bounds) {
        plan::DimBound* bound = program.add_bounds();
        bound->set_name(name);
        bound->set_max(max);
      }
    }
    writer_.SetBuffers(BuffersOf(step, program));
    std::vector<uint32_t> begins;  // the first step of each node
    SizeRules rules(model_, step);
    for (const auto& node : step.block.nodes) {
      begins.push_back(static_cast<uint32_t>(program.steps_size()));
      if (absl::Status status = rules.Add(*node); !status.ok()) missing_->insert(std::string(status.message()));
      if (groups.IsInner(node.get())) continue;
      absl::Status status = fusion.calls.contains(node.get()) ? AddFused(*node, fusion, &program)
                                                              : AddNodes(groups.NodesOf(node.get()), scope, &program);
      if (!status.ok()) return status;
    }
    program.mutable_size_rules()->Assign(rules.rules().begin(), rules.rules().end());
    WaitAtStart(&program);
    for (const Output& output : step.outputs) {
      RETURN_IF_ERROR(NoteMissing(writer_.AddOutput(output, &program)));
    }
    // Outputs live to the end, which comes after the last node.
    begins.resize(begins.size() + 2, static_cast<uint32_t>(program.steps_size()));
    for (plan::Buffer& buffer : *program.mutable_buffers()) {
      buffer.set_first_step(begins[buffer.first_step()]);
      buffer.set_last_step(std::max(buffer.first_step(), begins[buffer.last_step() + 1]));
    }
    return program;
  }

  static TaskWriter::Buffers BuffersOf(const Step& step, const plan::Program& program) {
    absl::flat_hash_map<absl::string_view, uint32_t> by_name;
    for (int i = 0; i < program.buffers_size(); ++i) {
      for (const std::string& value : program.buffers(i).values()) by_name[value] = static_cast<uint32_t>(i);
    }
    TaskWriter::Buffers buffers;
    const auto add = [&](const Value* value) {
      if (const auto it = by_name.find(value->name); it != by_name.end()) buffers[value] = it->second;
    };
    for (const Value* param : step.params) add(param);
    for (const auto& node : step.block.nodes) {
      for (const Value* result : node->results) add(result);
    }
    return buffers;
  }

  absl::StatusOr<plan::Program> PlanSampling(const SamplingCode& code) {
    plan::Program program = code.memory;
    for (const SamplingCode::Launch& launch : code.launches) {
      RETURN_IF_ERROR(writer_.Add(launch.call, launch.label, &program));
    }
    for (plan::Buffer& buffer : *program.mutable_buffers()) {
      buffer.set_last_step(static_cast<uint32_t>(program.steps_size()));
    }
    return program;
  }

  absl::Status NoteMissing(const absl::Status& status) {
    if (!absl::IsUnimplemented(status)) return status;
    missing_->insert(std::string(status.message()));
    return absl::OkStatus();
  }

  // A node, or a group of them.
  absl::Status AddNodes(const std::vector<const Node*>& nodes, const ProgramScope& scope, plan::Program* program) {
    if (Is<Constant>(nodes.back())) return writer_.AddConstant(*nodes.back());
    absl::StatusOr<std::vector<DeviceCall>> calls = SelectCalls(nodes, scope);
    if (!calls.ok()) return NoteMissing(calls.status());
    return AddCalls(nodes, *calls, program);
  }

  absl::Status AddFused(const Node& node, const Fusion& fusion, plan::Program* program) {
    const auto nodes = fusion.nodes.find(&node);
    return AddCalls(nodes == fusion.nodes.end() ? std::vector<const Node*>{&node} : nodes->second,
                    fusion.calls.at(&node), program);
  }

  absl::Status AddCalls(const std::vector<const Node*>& nodes, const std::vector<DeviceCall>& calls,
                        plan::Program* program) {
    const std::string label =
        absl::StrJoin(nodes, "\n", [](std::string* out, const Node* node) { absl::StrAppend(out, PrintNode(*node)); });
    for (const DeviceCall& call : calls) {
      RETURN_IF_ERROR(writer_.Add(call, label, program));
      if (!HasWholeSizes(program->steps(program->steps_size() - 1))) missing_->insert(TooLong(*nodes.back()));
    }
    return absl::OkStatus();
  }

  // The first launch waits for all that came before: kernels may then read a step's inputs before they wait themselves.
  static void WaitAtStart(plan::Program* program) {
    if (program->steps_size() > 0 && program->steps(0).has_launch()) {
      program->mutable_steps(0)->mutable_launch()->set_pdl(false);
    }
  }

  const Model& model_;
  const Target& target_;
  const plan::Manifest& manifest_;
  PlanPools* pools_;
  std::set<std::string>* missing_;
  TaskWriter writer_;
  absl::flat_hash_map<const Value*, int> weights_;
  absl::flat_hash_set<const Value*> drawn_;  // weights that a step of prepare fills
};

}  // namespace

absl::Status PlanDevice(const Model& model, absl::Span<const Target> targets, plan::Manifest* manifest,
                        DeviceCode* code) {
  if (targets.empty()) return absl::InternalError("a device plan needs a target");
  PlanPools pools(manifest);
  std::set<std::string> missing;
  manifest->clear_targets();
  for (const Target& target : targets) {
    ASSIGN_OR_RETURN(*manifest->add_targets(), TargetPlanner(model, target, *manifest, &pools, &missing).Run());
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
