#include "codegen/device_plan.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/memory_plan.h"
#include "codegen/nvrtc.h"
#include "codegen/select.h"
#include "ir/ops.h"
#include "ir/text.h"

namespace llmc {
namespace {

constexpr int64_t kFewTokens = 8;  // programs for decoding a few sequences
constexpr uint64_t kAlignment = 256;

uint64_t AlignUp(uint64_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

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

// Bounds of the programs of a step, the narrowest first.
std::vector<DimEnv> ProgramBounds(const Model& model, const Step& step) {
  const DimEnv all(model.dims.begin(), model.dims.end());
  DimEnv few = all;
  bool token_major = false;
  for (const Value* param : step.params) {
    const std::string name = param->name.substr(1);
    if ((name != "ids" && name != "lens" && name != "rows") || param->type.rank() != 1) continue;
    if (const auto it = few.find(param->type.shape[0].ToString()); it != few.end()) {
      it->second = std::min(it->second, kFewTokens);
      token_major = true;
    }
  }
  return token_major ? std::vector<DimEnv>{few, all} : std::vector<DimEnv>{all};
}

class DevicePlanner {
 public:
  DevicePlanner(const Model& model, plan::Manifest* manifest) : model_(model), manifest_(manifest) {
    for (size_t i = 0; i < model.weights.size(); ++i) weights_[model.weights[i]] = static_cast<uint32_t>(i);
    for (size_t i = 0; i < model.states.size(); ++i) states_[model.states[i]] = static_cast<uint32_t>(i);
  }

  absl::Status Run() {
    manifest_->clear_programs();
    if (absl::Status status = PlanPrepare(); !status.ok()) return status;
    for (const auto& step : model_.steps) {
      for (const DimEnv& bounds : ProgramBounds(model_, *step)) {
        if (absl::Status status = PlanStep(*step, bounds); !status.ok()) return status;
      }
    }
    if (missing_.empty()) return absl::OkStatus();
    return absl::UnimplementedError(absl::StrJoin(missing_, "\n"));
  }

  const std::vector<std::string>& sources() const { return sources_; }

 private:
  // Prepared values stay, each at its own place.
  absl::Status PlanPrepare() {
    plan::Program* program = manifest_->mutable_prepare();
    program->set_entry_point("prepare");
    uint64_t size = 0;
    for (const auto& node : model_.prepare.nodes) {
      for (const Value* result : node->results) {
        if (Is<Reshape>(node.get()) || Is<Identity>(node.get()) || Is<Constant>(node.get())) continue;
        const Dim elements = Product(result->type.shape);
        if (!elements.is_constant())
          return absl::InternalError(absl::StrCat(result->name, ": prepared, of unknown size"));
        const uint64_t bytes = static_cast<uint64_t>(elements.value() * DTypeBits(result->type.dtype) / 8);
        prepared_[result] = static_cast<uint32_t>(program->buffers_size());
        plan::Buffer* buffer = program->add_buffers();
        buffer->set_name(result->name);
        buffer->set_size(absl::StrCat(bytes));
        buffer->set_bytes(bytes);
        buffer->set_offset(size);
        buffer->add_values(result->name);
        size = AlignUp(size + bytes);
      }
    }
    program->set_arena_bytes(size);
    program->set_lower_bound_bytes(size);
    buffers_.clear();
    for (const auto& [value, index] : prepared_) buffers_[value] = index;
    for (const auto& node : model_.prepare.nodes) {
      if (absl::Status status = AddNode(*node, {}, program); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status PlanStep(const Step& step, const DimEnv& bounds) {
    absl::StatusOr<plan::Program> memory = PlanMemory(step, bounds);
    if (!memory.ok()) return memory.status();
    if (!memory->unplanned().empty() || !memory->sample().empty()) {
      return absl::InvalidArgumentError(absl::StrCat("step ", step.name,
                                                     " does not fit a GPU at its bounds: ", memory->unplanned(),
                                                     memory->sample(), "; lower them with --bound"));
    }
    plan::Program* program = manifest_->add_programs();
    *program = *std::move(memory);
    program->clear_steps();
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
    for (const auto& node : step.block.nodes) {
      begins.push_back(static_cast<uint32_t>(program->steps_size()));
      if (absl::Status status = AddNode(*node, bounds, program); !status.ok()) return status;
    }
    // Outputs live to the end, which comes after the last node.
    begins.resize(begins.size() + 2, static_cast<uint32_t>(program->steps_size()));
    for (plan::Buffer& buffer : *program->mutable_buffers()) {
      buffer.set_first_step(begins[buffer.first_step()]);
      buffer.set_last_step(std::max(buffer.first_step(), begins[buffer.last_step() + 1]));
    }
    return absl::OkStatus();
  }

  absl::Status AddNode(const Node& node, const DimEnv& bounds, plan::Program* program) {
    if (Is<Constant>(&node)) return AddConstant(node);
    absl::StatusOr<std::vector<DeviceCall>> calls = SelectCalls(node, bounds);
    if (absl::IsUnimplemented(calls.status())) {
      missing_.insert(std::string(calls.status().message()));
      return absl::OkStatus();
    }
    if (!calls.ok()) return calls.status();
    for (const DeviceCall& call : *calls) {
      plan::Step* step = program->add_steps();
      step->set_label(PrintNode(node));
      absl::Status status = std::visit([&](const auto& c) { return Add(c, step); }, call);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AddConstant(const Node& node) {
    if (constants_.contains(node.results[0])) return absl::OkStatus();
    absl::StatusOr<std::string> bytes = LiteralBytes(node);
    if (!bytes.ok()) return bytes.status();
    constants_[node.results[0]] = static_cast<uint32_t>(manifest_->constants_size());
    manifest_->add_constants(*bytes);
    return absl::OkStatus();
  }

  absl::Status Add(const KernelCall& call, plan::Step* step) {
    plan::Launch* launch = step->mutable_launch();
    launch->set_kernel(KernelIndex(call));
    for (const Dim& blocks : call.grid) launch->add_grid(blocks.ToString());
    for (const KernelParam& param : call.params) {
      plan::Arg* arg = step->add_args();
      if (param.arg.value != nullptr) {
        if (absl::Status status = SetValue(param.arg.value, arg); !status.ok()) return status;
      } else if (param.arg.is_dim) {
        arg->set_dim(param.arg.dim.ToString());
      } else {
        arg->set_number(param.arg.number);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Add(const GemmCall& call, plan::Step* step) {
    plan::Gemm* gemm = step->mutable_gemm();
    gemm->set_m(call.m.ToString());
    gemm->set_n(call.n);
    gemm->set_k(call.k);
    gemm->set_in_dtype(std::string(DTypeName(call.x->type.dtype)));
    gemm->set_out_dtype(std::string(DTypeName(call.out->type.dtype)));
    absl::Status status = SetValue(call.out, step->add_args());
    status.Update(SetValue(call.x, step->add_args()));
    status.Update(SetValue(call.weight, step->add_args()));
    return status;
  }

  absl::Status Add(const CopyCall& call, plan::Step* step) {
    if (!call.to_offset.is_constant())
      return absl::UnimplementedError("concat: there is no GPU form of parts of unknown size");
    step->mutable_copy()->set_bytes(call.bytes.ToString());
    plan::Arg* to = step->add_args();
    absl::Status status = SetValue(call.to, to);
    to->set_offset(static_cast<uint64_t>(call.to_offset.value()));
    status.Update(SetValue(call.from, step->add_args()));
    return status;
  }

  absl::Status SetValue(const Value* value, plan::Arg* arg) {
    // Views in `prepare` are their operand under another shape.
    while (value->def != nullptr && value->def->block == &model_.prepare &&
           (Is<Reshape>(value->def) || Is<Identity>(value->def))) {
      value = value->def->operands[0];
    }
    if (const auto it = prepared_.find(value); it != prepared_.end()) {
      arg->set_prepared(it->second);
    } else if (const auto it = buffers_.find(value); it != buffers_.end()) {
      if (constants_.contains(value)) {
        arg->set_constant(constants_[value]);
      } else {
        arg->set_buffer(it->second);
      }
    } else if (const auto it = constants_.find(value); it != constants_.end()) {
      arg->set_constant(it->second);
    } else if (const auto it = weights_.find(value); it != weights_.end()) {
      arg->set_weight(it->second);
    } else if (const auto it = states_.find(value); it != states_.end()) {
      arg->set_state(it->second);
    } else {
      return absl::InternalError(absl::StrCat(value->name, " has no place on the device"));
    }
    return absl::OkStatus();
  }

  // Calls that need the same code share a kernel.
  uint32_t KernelIndex(const KernelCall& call) {
    const std::string text = EmitKernel(call, "ENTRY");
    const auto [it, added] = kernels_.try_emplace(text, static_cast<uint32_t>(kernels_.size()));
    if (added) {
      plan::Kernel* kernel = manifest_->add_kernels();
      kernel->set_entry(absl::StrCat("k", it->second, "_", call.header));
      kernel->set_threads(static_cast<uint32_t>(call.threads));
      sources_.push_back(EmitKernel(call, kernel->entry()));
    }
    return it->second;
  }

  const Model& model_;
  plan::Manifest* manifest_;
  absl::flat_hash_map<const Value*, uint32_t> weights_, states_, prepared_, constants_, buffers_;
  std::map<std::string, uint32_t> kernels_;
  std::vector<std::string> sources_;
  std::set<std::string> missing_;
};

// Runs f(0), …, f(n - 1) on all cores.
template <class F>
void OnAllCores(size_t n, F f) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < n; i = next++) f(i);
  };
  std::vector<std::thread> threads;
  const size_t count = std::min<size_t>(n, std::max(1u, std::thread::hardware_concurrency()));
  for (size_t t = 1; t < count; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

absl::Status PlanDevice(const Model& model, const std::vector<std::string>& targets, plan::Manifest* manifest,
                        DeviceCode* code) {
  DevicePlanner planner(model, manifest);
  if (absl::Status status = planner.Run(); !status.ok()) return status;
  const std::vector<std::string>& sources = planner.sources();
  std::vector<absl::StatusOr<std::string>> cubins(sources.size() * targets.size(), absl::UnknownError("not compiled"));
  OnAllCores(cubins.size(), [&](size_t i) {
    const size_t kernel = i / targets.size();
    cubins[i] =
        CompileToCubin(sources[kernel], absl::StrCat(manifest->kernels(static_cast<int>(kernel)).entry(), ".cu"),
                       targets[i % targets.size()]);
  });
  for (size_t i = 0; i < cubins.size(); ++i) {
    if (!cubins[i].ok()) return cubins[i].status();
    plan::Kernel* kernel = manifest->mutable_kernels(static_cast<int>(i / targets.size()));
    if (i % targets.size() == 0) {
      kernel->set_source_offset(code->sources.size());
      kernel->set_source_bytes(sources[i / targets.size()].size());
      code->sources += sources[i / targets.size()];
    }
    plan::Cubin* cubin = kernel->add_cubins();
    cubin->set_target(targets[i % targets.size()]);
    cubin->set_offset(code->cubins.size());
    cubin->set_bytes(cubins[i]->size());
    code->cubins += *cubins[i];
  }
  return absl::OkStatus();
}

}  // namespace llmc
