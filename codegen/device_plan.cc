#include "codegen/device_plan.h"

#include <limits>
#include <map>
#include <optional>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "codegen/kernel_headers.h"
#include "codegen/kernel_listing.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/memory/size_rules.h"
#include "codegen/tasks/decode_fusion.h"
#include "codegen/tasks/product_fusion.h"
#include "codegen/tasks/sampling.h"
#include "codegen/tasks/select.h"
#include "codegen/tasks/strided.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_arena.h"
#include "runtime/plan/plan_format.h"

namespace llmc {
namespace {

// Programs for steps of one token of up to so many sequences.
constexpr int64_t kDecodeBatches[] = {1, 2, 4, 8, 256};

// A literal, with one number repeated to fill its type.
absl::StatusOr<std::string> LiteralBytes(const Node& node) {
  const Tensor& value = std::get<Tensor>(node.attrs.at("value"));
  const Dim elements = Product(node.results[0]->type.shape);
  if (!elements.is_constant()) return absl::UnimplementedError("constant: there is no GPU form of one of unknown size");
  const std::string bytes(value.raw(), static_cast<size_t>(value.bytes()));
  if (elements.value() == value.size()) return bytes;
  std::string filled;
  for (int64_t i = 0; i < elements.value(); ++i) filled += bytes;
  return filled;
}

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

// The programs of a step, the narrowest first. Those of a language model are token-major (ir/ops_lm.h).
std::vector<ProgramScope> ProgramScopes(const Model& model, const Step& step) {
  const ProgramScope all = {.bounds = DimEnv(model.dims.begin(), model.dims.end())};
  std::vector<std::string> symbols;
  for (const Value* param : step.params) {
    const std::string name = param->name.substr(1);
    if ((name != "ids" && name != "lens" && name != "rows") || param->type.rank() != 1) continue;
    if (const Dim& dim = param->type.shape[0]; dim.is_symbol()) symbols.push_back(dim.ToString());
  }
  std::vector<ProgramScope> scopes;
  if (symbols.size() == 3 && !model.states.empty()) {
    int64_t most = std::numeric_limits<int64_t>::max();
    for (const std::string& symbol : symbols) most = std::min(most, all.bounds.at(symbol));
    for (const int64_t batch : kDecodeBatches) {
      ProgramScope scope = all;
      scope.decode = true;
      for (const std::string& symbol : symbols) scope.bounds[symbol] = std::min(batch, most);
      scopes.push_back(scope);
      if (batch >= most) break;
    }
  }
  scopes.push_back(all);
  return scopes;
}

class DevicePlanner {
 public:
  DevicePlanner(const Model& model, const std::vector<std::string>& targets, plan::Manifest* manifest)
      : model_(model),
        hopper_(absl::c_linear_search(targets, "sm_90a")),
        streams_(absl::c_all_of(targets, [](const std::string& t) { return t == "sm_90a" || t == "sm_100a"; })),
        manifest_(manifest) {
    for (size_t i = 0; i < model.weights.size(); ++i) weights_[model.weights[i]] = static_cast<uint32_t>(i);
    for (size_t i = 0; i < model.states.size(); ++i) states_[model.states[i]] = static_cast<uint32_t>(i);
  }

  absl::Status Run() {
    manifest_->clear_programs();
    RETURN_IF_ERROR(PlanPrepare());
    for (const auto& step : model_.steps) {
      for (ProgramScope& scope : ProgramScopes(model_, *step)) {
        scope.hopper = hopper_;
        scope.streams = streams_;
        RETURN_IF_ERROR(PlanStep(*step, scope));
      }
    }
    RETURN_IF_ERROR(PlanSampling());
    if (missing_.empty()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrJoin(missing_, "\n"));
  }

  const std::vector<std::string>& sources() const { return sources_; }

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
                                  std::vector<BufferRange>* ranges) {
    int64_t index = 0;
    for (const auto& node : model_.prepare.nodes) {
      ++index;
      for (const Value* operand : node->operands) {
        if (operand == nullptr) continue;
        if (const auto it = prepared_.find(ViewedValue(operand)); it != prepared_.end())
          (*ranges)[it->second].last = index;
      }
      for (const Value* result : node->results) {
        if (IsViewOp(*node) || Is<Constant>(node.get())) continue;
        const Dim elements = Product(result->type.shape);
        if (!elements.is_constant())
          return absl::InternalError(absl::StrCat(result->name, ": prepared, of unknown size"));
        const int64_t bytes = (elements.value() * DTypeBits(result->type.dtype) + 7) / 8;
        prepared_[result] = static_cast<uint32_t>(program->buffers_size());
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
  absl::Status PlanPrepare() {
    plan::Program* program = manifest_->mutable_prepare();
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
    buffers_.clear();
    for (const auto& [value, index] : prepared_) buffers_[value] = index;
    for (const auto& node : model_.prepare.nodes) {
      for (const Value* operand : node->operands) {
        RETURN_IF_ERROR(DrawWeight(operand, program));
      }
      RETURN_IF_ERROR(AddNodes({node.get()}, {}, program));
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
    const plan::Weight& weight = manifest_->weights(static_cast<int>(it->second));
    if (!weight.has_random() || !drawn_.insert(value).second) return absl::OkStatus();
    plan::Step* step = program->add_steps();
    step->set_label(absl::StrCat(weight.name(), " = random numbers"));
    return Add(RandomWeightsCall(value, weight.random()), program, step);
  }

  absl::Status PlanStep(const Step& step, const ProgramScope& scope) {
    Fusion fusion = FuseProducts(model_, step, scope);
    absl::flat_hash_set<const Node*> claimed;
    for (const auto& [node, calls] : fusion.calls) claimed.insert(node);
    const ElementwiseGroups groups(step, claimed);
    FuseDecodeStep(model_, step, groups, scope, &fusion);
    ASSIGN_OR_RETURN(plan::Program memory, PlanMemory(step, scope.bounds, groups, fusion.memory));
    plan::Program* program = manifest_->add_programs();
    *program = std::move(memory);
    program->clear_steps();
    program->set_decode(scope.decode);
    if (!program->sample().empty()) {  // its offsets are not for all sizes
      program->set_unplanned(program->sample());
      program->clear_sample();
      program->clear_bounds();
      for (const auto& [name, max] : scope.bounds) {
        plan::DimBound* bound = program->add_bounds();
        bound->set_name(name);
        bound->set_max(max);
      }
    }
    absl::flat_hash_map<absl::string_view, uint32_t> by_name;
    for (int i = 0; i < program->buffers_size(); ++i) {
      for (const std::string& value : program->buffers(i).values()) by_name[value] = static_cast<uint32_t>(i);
    }
    buffers_.clear();
    const auto add = [&](const Value* value) {
      if (const auto it = by_name.find(value->name); it != by_name.end()) buffers_[value] = it->second;
    };
    for (const Value* param : step.params) add(param);
    for (const auto& node : step.block.nodes) {
      for (const Value* result : node->results) add(result);
    }
    std::vector<uint32_t> begins;  // the first step of each node
    SizeRules rules(model_, step);
    for (const auto& node : step.block.nodes) {
      begins.push_back(static_cast<uint32_t>(program->steps_size()));
      if (absl::Status status = rules.Add(*node); !status.ok()) missing_.insert(std::string(status.message()));
      if (groups.IsInner(node.get())) continue;
      absl::Status status = fusion.calls.contains(node.get()) ? AddFused(*node, fusion, program)
                                                              : AddNodes(groups.NodesOf(node.get()), scope, program);
      if (!status.ok()) return status;
    }
    program->mutable_size_rules()->Assign(rules.rules().begin(), rules.rules().end());
    WaitAtStart(program);
    for (const Output& output : step.outputs) {
      RETURN_IF_ERROR(AddOutput(output, program));
    }
    // Outputs live to the end, which comes after the last node.
    begins.resize(begins.size() + 2, static_cast<uint32_t>(program->steps_size()));
    for (plan::Buffer& buffer : *program->mutable_buffers()) {
      buffer.set_first_step(begins[buffer.first_step()]);
      buffer.set_last_step(std::max(buffer.first_step(), begins[buffer.last_step() + 1]));
    }
    return absl::OkStatus();
  }

  absl::Status PlanSampling() {
    const std::optional<SamplingCode> code = SelectSampling(model_);
    if (!code.has_value()) return absl::OkStatus();
    plan::Program* program = manifest_->mutable_sampling();
    *program = code->memory;
    for (const SamplingCode::Launch& launch : code->launches) {
      plan::Step* step = program->add_steps();
      step->set_label(launch.label);
      RETURN_IF_ERROR(Add(launch.call, program, step));
    }
    for (plan::Buffer& buffer : *program->mutable_buffers()) {
      buffer.set_last_step(static_cast<uint32_t>(program->steps_size()));
    }
    return absl::OkStatus();
  }

  // A node, or a group of them.
  absl::Status AddNodes(const std::vector<const Node*>& nodes, const ProgramScope& scope, plan::Program* program) {
    if (Is<Constant>(nodes.back())) return AddConstant(*nodes.back());
    absl::StatusOr<std::vector<DeviceCall>> calls = SelectCalls(nodes, scope);
    if (absl::IsUnimplemented(calls.status())) {
      missing_.insert(std::string(calls.status().message()));
      return absl::OkStatus();
    }
    if (!calls.ok()) return calls.status();
    return AddCalls(nodes, *calls, program);
  }

  absl::Status AddFused(const Node& node, const Fusion& fusion, plan::Program* program) {
    const auto nodes = fusion.nodes.find(&node);
    return AddCalls(nodes == fusion.nodes.end() ? std::vector<const Node*>{&node} : nodes->second,
                    fusion.calls.at(&node), program);
  }

  absl::Status AddCalls(const std::vector<const Node*>& nodes, const std::vector<DeviceCall>& calls,
                        plan::Program* program) {
    for (const DeviceCall& call : calls) {
      plan::Step* step = program->add_steps();
      step->set_label(absl::StrJoin(
          nodes, "\n", [](std::string* out, const Node* node) { absl::StrAppend(out, PrintNode(*node)); }));
      absl::Status status = std::visit([&](const auto& c) { return Add(c, program, step); }, call);
      if (!status.ok()) return status;
      if (!HasWholeSizes(*step)) missing_.insert(TooLong(*nodes.back()));
    }
    return absl::OkStatus();
  }

  // The first launch waits for all that came before: kernels may then read a step's inputs before they wait themselves.
  static void WaitAtStart(plan::Program* program) {
    if (program->steps_size() > 0 && program->steps(0).has_launch()) {
      program->mutable_steps(0)->mutable_launch()->set_pdl(false);
    }
  }

  absl::Status AddConstant(const Node& node) {
    if (constants_.contains(node.results[0])) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::string bytes, LiteralBytes(node));
    constants_[node.results[0]] = static_cast<uint32_t>(manifest_->constants_size());
    manifest_->add_constants(bytes);
    return absl::OkStatus();
  }

  absl::Status Add(const KernelCall& call, plan::Program* program, plan::Step* step) {
    plan::Launch* launch = step->mutable_launch();
    launch->set_kernel(KernelIndex(call, step->label()));
    launch->set_pdl(call.pdl);
    for (const Size& blocks : call.grid) launch->add_grid(blocks.ToString());
    for (const KernelParam& param : call.params) {
      plan::Arg* arg = step->add_args();
      if (param.arg.value != nullptr) {
        RETURN_IF_ERROR(SetValue(param.arg.value, arg));
      } else if (param.arg.buffer >= 0) {
        arg->set_buffer(static_cast<uint32_t>(param.arg.buffer));
      } else if (param.arg.is_dim) {
        arg->set_dim(param.arg.dim);
      } else if (param.arg.is_scratch) {
        SetScratch(param.arg.scratch_bytes, program, arg);
      } else if (param.arg.is_device_error_record) {
        arg->set_device_error_record(true);
      } else if (!param.arg.device_errors.empty()) {
        arg->set_dim(absl::StrCat(DeviceErrorIndex(param.arg.device_errors)));
      } else {
        arg->set_number(param.arg.number);
      }
    }
    return absl::OkStatus();
  }

  static void SetScratch(const Size& size, plan::Program* program, plan::Arg* arg) {
    arg->set_scratch(true);
    const std::string bytes = size.ToString();
    if (!absl::c_linear_search(program->scratch_bytes(), bytes)) program->add_scratch_bytes(bytes);
  }

  absl::Status Add(const GemmCall& call, plan::Program* program, plan::Step* step) {
    plan::Gemm* gemm = step->mutable_gemm();
    gemm->set_m(call.m.ToString());
    gemm->set_n(call.n.ToString());
    gemm->set_k(call.k.ToString());
    gemm->set_transposed(call.transposed);
    gemm->set_batch(call.batch.ToString());
    gemm->set_x_stride(call.x_stride.ToString());
    gemm->set_weight_stride(call.weight_stride.ToString());
    gemm->set_in_dtype(std::string(DTypeName(call.x->type.dtype)));
    gemm->set_out_dtype(std::string(DTypeName(call.out->type.dtype)));
    absl::Status status = SetValue(call.out, step->add_args());
    status.Update(SetValue(call.x, step->add_args()));
    plan::Arg* weight = step->add_args();
    if (call.weight != nullptr) {
      status.Update(SetValue(call.weight, weight));
    } else {
      SetScratch(Size(call.weight_bytes) + Size(KernelArg::kCounterBytes), program, weight);
      weight->set_offset(KernelArg::kCounterBytes);
    }
    gemm->set_bias(call.bias != nullptr);
    gemm->set_residual(call.residual != nullptr);
    gemm->set_gelu_tanh(call.gelu_tanh);
    for (const Value* part : {call.bias, call.residual}) {
      if (part != nullptr) status.Update(SetValue(part, step->add_args()));
    }
    return status;
  }

  absl::Status Add(const CopyCall& call, plan::Program*, plan::Step* step) {
    if (!call.to_offset.is_constant())
      return absl::UnimplementedError("concat: there is no GPU form of parts of unknown size");
    step->mutable_copy()->set_bytes(call.bytes.ToString());
    plan::Arg* to = step->add_args();
    absl::Status status = SetValue(call.to, to);
    to->set_offset(static_cast<uint64_t>(call.to_offset.value()));
    status.Update(SetValue(call.from, step->add_args()));
    return status;
  }

  bool IsPrepared(const Value* value) const { return prepared_.contains(value); }
  bool IsKept(const Value* value) const {
    return constants_.contains(value) || weights_.contains(value) || states_.contains(value);
  }

  // Outputs are in the arena, whatever they are.
  absl::Status AddOutput(const Output& output, plan::Program* program) {
    const Value* root = ViewedValue(output.value);
    if (!IsPrepared(root) && !IsKept(root)) return absl::OkStatus();
    const auto place = buffers_.find(output.value);
    if (place == buffers_.end()) {
      missing_.insert(absl::StrCat("output ", output.name, ": there is no GPU form of an output that is a weight"));
      return absl::OkStatus();
    }
    plan::Step* step = program->add_steps();
    step->set_label(absl::StrCat("output ", output.name));
    const Size bits = ElementsOf(output.value->type.shape) * Size(DTypeBits(output.value->type.dtype));
    step->mutable_copy()->set_bytes(Size::FloorDiv(bits + Size(7), 8).ToString());
    step->add_args()->set_buffer(place->second);
    return SetValue(root, step->add_args());
  }

  absl::Status SetValue(const Value* value, plan::Arg* arg) {
    // What no arena holds is known by its own name, whatever views of it are called.
    if (const Value* root = ViewedValue(value); IsPrepared(root) || IsKept(root)) value = root;
    if (const auto it = prepared_.find(value); it != prepared_.end()) {
      arg->set_prepared(it->second);
    } else if (const auto it = constants_.find(value); it != constants_.end()) {
      arg->set_constant(it->second);
    } else if (const auto it = buffers_.find(value); it != buffers_.end()) {
      arg->set_buffer(it->second);
    } else if (const auto it = weights_.find(value); it != weights_.end()) {
      arg->set_weight(it->second);
    } else if (const auto it = states_.find(value); it != states_.end()) {
      arg->set_state(it->second);
    } else {
      return absl::InternalError(absl::StrCat(value->name, " has no place on the device"));
    }
    return absl::OkStatus();
  }

  // The number of the first; the same ones in several programs are the same in the plan.
  int DeviceErrorIndex(const std::vector<KernelDeviceError>& device_errors) {
    std::vector<std::string> key;
    for (const KernelDeviceError& device_error : device_errors) {
      key.push_back(device_error.what);
      key.push_back(PrintNode(*device_error.node));
    }
    const auto [it, added] = device_errors_.try_emplace(key, manifest_->device_errors_size());
    for (size_t i = 0; added && i < key.size(); i += 2) {
      plan::DeviceError* device_error = manifest_->add_device_errors();
      device_error->set_what(key[i]);
      device_error->set_label(key[i + 1]);
    }
    return it->second;
  }

  // Calls that need the same code share a kernel. `label` is what it is needed for.
  uint32_t KernelIndex(const KernelCall& call, const std::string& label) {
    const std::string text = absl::StrCat(EmitKernel(call, "ENTRY").source, call.shared_bytes);
    const auto [it, added] = kernels_.try_emplace(text, static_cast<uint32_t>(kernels_.size()));
    if (added) {
      plan::Kernel* kernel = manifest_->add_kernels();
      const size_t name = call.header.rfind('/') + 1;
      kernel->set_entry(absl::StrCat("k", it->second, "_", call.header.substr(name)));
      kernel->set_threads(static_cast<uint32_t>(call.threads));
      kernel->set_shared_bytes(static_cast<uint32_t>(call.shared_bytes));
      kernel->set_adapts(call.adapts);
      kernel->set_label(label);
      EmittedKernel emitted = EmitKernel(call, kernel->entry());
      SetNotes(emitted.notes, kernel);
      sources_.push_back(std::move(emitted.source));
    }
    return it->second;
  }

  const Model& model_;
  const bool hopper_, streams_;
  plan::Manifest* manifest_;
  absl::flat_hash_map<const Value*, uint32_t> weights_, states_, prepared_, constants_, buffers_;
  std::map<std::string, uint32_t> kernels_;
  std::map<std::vector<std::string>, int> device_errors_;  // the first, by the texts of a launch's
  std::vector<std::string> sources_;
  absl::flat_hash_set<const Value*> drawn_;  // weights that a step of prepare fills
  std::set<std::string> missing_;
};

// Puts `text` at the end of the section of sources.
template <class Place>
void AddSource(absl::string_view text, Place set_place, DeviceCode* code) {
  set_place(code->sources.size(), text.size());
  absl::StrAppend(&code->sources, text);
}

// The sources go into the plan with all that they include, so that any machine can compile them.
void AddSources(const std::vector<std::string>& sources, plan::Manifest* manifest, DeviceCode* code) {
  for (const SourceFile& file : IncludedFiles(absl::StrJoin(sources, "\n"), KernelHeaders())) {
    plan::Header* header = manifest->add_headers();
    header->set_name(std::string(file.name));
    const auto set_place = [&](uint64_t offset, uint64_t bytes) {
      header->set_offset(offset);
      header->set_bytes(bytes);
    };
    AddSource(file.text, set_place, code);
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    plan::Kernel* kernel = manifest->mutable_kernels(static_cast<int>(i));
    const auto set_place = [&](uint64_t offset, uint64_t bytes) {
      kernel->set_source_offset(offset);
      kernel->set_source_bytes(bytes);
    };
    AddSource(sources[i], set_place, code);
  }
}

}  // namespace

absl::Status PlanDevice(const Model& model, const std::vector<std::string>& targets, plan::Manifest* manifest,
                        DeviceCode* code) {
  if (targets.empty()) return absl::InternalError("a device plan needs a target");
  DevicePlanner planner(model, targets, manifest);
  RETURN_IF_ERROR(planner.Run());
  AddSources(planner.sources(), manifest, code);
  return absl::OkStatus();
}

absl::Status CompileDevicePlan(const std::vector<std::string>& targets, const CompileOptions& options,
                               plan::Manifest* manifest, DeviceCode* code) {
  const absl::string_view sources = code->sources;
  std::vector<SourceFile> headers;
  for (const plan::Header& header : manifest->headers()) {
    headers.push_back({header.name(), sources.substr(header.offset(), header.bytes())});
  }
  std::vector<KernelSource> kernels;
  for (const plan::Kernel& kernel : manifest->kernels()) {
    kernels.push_back({kernel.entry(), sources.substr(kernel.source_offset(), kernel.source_bytes())});
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> cubins, CompileKernels(kernels, headers, targets, options));
  for (size_t i = 0; i < cubins.size(); ++i) {
    plan::Cubin* cubin = manifest->mutable_kernels(static_cast<int>(i / targets.size()))->add_cubins();
    cubin->set_target(targets[i % targets.size()]);
    cubin->set_offset(code->cubins.size());
    cubin->set_bytes(cubins[i].size());
    code->cubins += cubins[i];
  }
  return absl::OkStatus();
}

}  // namespace llmc
