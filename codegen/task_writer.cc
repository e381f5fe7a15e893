#include "codegen/task_writer.h"

#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/layout/run_clocks.h"
#include "runtime/plan/plan_arena.h"
#include "runtime/plan/plan_format.h"

namespace llmc {

TaskWriter::TaskWriter(const Model& model, const Target& target, bool tf32, PlanPools* pools)
    : pdl_(target.pdl), tf32_(tf32), pools_(pools) {
  for (size_t i = 0; i < model.weights.size(); ++i) {
    kept_[model.weights[i]->name].set_weight(static_cast<uint32_t>(i));
  }
  for (size_t i = 0; i < model.states.size(); ++i) kept_[model.states[i]->name].set_state(static_cast<uint32_t>(i));
}

void TaskWriter::SetPrepared(const Buffers& prepared) {
  for (const auto& [name, buffer] : prepared) kept_[name].set_prepared(buffer);
}

absl::Status TaskWriter::AddConstant(const Node& node) {
  ASSIGN_OR_RETURN(const uint32_t index, pools_->AddConstant(node));
  kept_[node.results[0]->name].set_constant(index);
  return absl::OkStatus();
}

absl::Status TaskWriter::Add(const DeviceCall& call, const TaskInfo& info, plan::Program* program) {
  const auto* kernel = std::get_if<KernelCall>(&call);
  plan::Launch* launch = program->add_launches();
  launch->set_first(static_cast<uint32_t>(program->tasks_size()));
  launch->set_count(1);
  launch->set_mode(kernel != nullptr && kernel->pdl && pdl_ ? plan::Launch::DEPENDENT : plan::Launch::SERIAL);
  plan::Task* task = program->add_tasks();
  task->set_label(info.label);
  for (const plan::Sampling kind : info.kinds) task->add_sampling(kind);
  if (info.cost.has_value()) *task->mutable_cost() = *info.cost;
  return std::visit([&](const auto& c) { return Add(c, info, task); }, call);
}

absl::Status TaskWriter::Add(const KernelCall& call, const TaskInfo& info, plan::Task* task) {
  plan::KernelTask* kernel = task->mutable_kernel();
  kernel->set_kernel(pools_->AddKernel(call, task->label()));
  for (const Size& tiles : call.grid) kernel->add_tiles(tiles.ToString());
  for (const KernelParam& param : call.params) {
    RETURN_IF_ERROR(SetArg(param, info, task->add_args()));
  }
  return absl::OkStatus();
}

absl::Status TaskWriter::SetArg(const KernelParam& param, const TaskInfo& info, plan::Arg* arg) {
  const KernelArg& from = param.arg;
  arg->set_writes(param.writes());
  if (from.tile_rows > 0) {
    plan::TileMap* map = arg->mutable_tiles();
    map->set_rows(from.rows);
    map->set_all_rows(from.rows.empty());
    map->set_row_bytes(static_cast<uint64_t>(from.row_bytes));
    map->set_tile_rows(static_cast<uint32_t>(from.tile_rows));
    map->set_read_once(from.read_once);
  }
  if (from.value != nullptr) {
    arg->set_directs(IsInteger(from.value->type.dtype));
    return SetValue(from.value, arg);
  }
  if (from.is_scratch) {
    arg->set_directs(true);
    arg->set_offset(static_cast<uint64_t>(from.offset));
    return SetPlace(info.scratch, arg);
  }
  if (from.is_dim) {
    arg->set_dim(from.dim);
  } else if (!from.persistent.empty()) {
    arg->set_persistent(PersistentBuffer(from.persistent, from.bytes.number()));
  } else if (from.is_step_messages) {
    arg->set_step_messages(true);
  } else if (from.is_device_error_record) {
    arg->set_device_error_record(true);
  } else if (!from.device_errors.empty()) {
    arg->set_dim(absl::StrCat(pools_->AddDeviceErrors(from.device_errors)));
  } else {
    arg->set_number(from.number);
  }
  return absl::OkStatus();
}

void TaskWriter::AddRun(const RunCall& call, uint32_t first, plan::Program* program) {
  const std::string label = absl::StrCat("tasks ", first, " to ", first + call.tasks.size() - 1, " in one launch");
  plan::Run* run = program->add_runs();
  run->set_first(first);
  run->set_count(static_cast<uint32_t>(call.tasks.size()));
  run->set_kernel(pools_->AddRun(call, label));
  run->set_blocks(static_cast<uint32_t>(call.blocks));
  // A line of memory by itself, since all blocks read it all the time.
  plan::Arg* counter = run->add_args();
  counter->set_persistent(PersistentBuffer("tasks done", kBufferAlignment));
  counter->set_writes(true);
  run->add_args()->set_device_error_record(true);
  std::vector<KernelDeviceError> errors;  // in the order of RunWait
  for (const char* what : {"all other blocks", "numbers of other blocks", "a stage of weights", "room for a stage",
                           "copies of other stages"}) {
    errors.push_back(
        {.what = absl::StrCat("task $0 of a launch of many waited for ", what, " for too long, in block $1"),
         .label = label});
  }
  run->add_args()->set_dim(absl::StrCat(pools_->AddDeviceErrors(errors)));
  plan::Arg* rows = run->add_args();
  rows->set_persistent(
      PersistentBuffer(absl::StrCat(call.RowBytes(), " bytes of rows between ", label), call.RowBytes()));
  rows->set_writes(true);
  plan::Arg* clocks = run->add_args();
  const int64_t words = RunClocks::Words(call.blocks, static_cast<int>(call.tasks.size()));
  clocks->set_persistent(PersistentBuffer(absl::StrCat("clocks of ", words, " words"), words * 8));
  clocks->set_writes(true);
}

uint32_t TaskWriter::PersistentBuffer(const std::string& name, int64_t bytes) {
  const auto it = absl::c_find_if(persistent_, [&](const plan::Buffer& buffer) { return buffer.name() == name; });
  if (it != persistent_.end()) return static_cast<uint32_t>(it - persistent_.begin());
  const uint64_t end = persistent_.empty() ? 0 : persistent_.back().offset() + persistent_.back().bytes();
  plan::Buffer& buffer = persistent_.emplace_back();
  buffer.set_name(name);
  buffer.set_size(absl::StrCat(bytes));
  buffer.set_bytes(static_cast<uint64_t>(bytes));
  buffer.set_offset(plan::AlignUp(end, kBufferAlignment));
  return static_cast<uint32_t>(persistent_.size() - 1);
}

absl::Status TaskWriter::Add(const GemmCall& call, const TaskInfo& info, plan::Task* task) {
  for (const auto& [part, as] : {std::pair(call.weight, call.x), {call.bias, call.out}, {call.residual, call.out}}) {
    if (part == nullptr || part->type.dtype == as->type.dtype) continue;
    return absl::InternalError(
        absl::StrCat("a product reads ", part->name, ": ", part->type.ToString(), " as ", DTypeName(as->type.dtype)));
  }
  plan::Gemm* gemm = task->mutable_gemm();
  gemm->set_m(call.m.ToString());
  gemm->set_n(call.n.ToString());
  gemm->set_k(call.k.ToString());
  gemm->set_transposed(call.transposed);
  gemm->set_batch(call.batch.ToString());
  gemm->set_x_stride(call.x_stride.ToString());
  gemm->set_weight_stride(call.weight_stride.ToString());
  gemm->set_in_dtype(std::string(DTypeName(call.x->type.dtype)));
  gemm->set_out_dtype(std::string(DTypeName(call.out->type.dtype)));
  gemm->set_tf32(tf32_ && call.x->type.dtype == DType::kF32);
  plan::Arg* out = task->add_args();
  out->set_writes(true);
  absl::Status status = SetValue(call.out, out);
  plan::Arg* x = task->add_args();
  status.Update(call.x_in_scratch.has_value() ? SetPlace(info.scratch, x) : SetValue(call.x, x));
  if (call.x_in_scratch.has_value()) x->set_offset(static_cast<uint64_t>(*call.x_in_scratch));
  plan::Arg* weight = task->add_args();
  status.Update(call.weight != nullptr ? SetValue(call.weight, weight) : SetPlace(info.scratch, weight));
  gemm->set_bias(call.bias != nullptr);
  gemm->set_residual(call.residual != nullptr);
  gemm->set_gelu_tanh(call.gelu_tanh);
  if (call.x_scale != nullptr) {
    const bool is_of_all = !call.x_scale_in_scratch && ElementsOf(call.x_scale->type.shape).Is(1) &&
                           ElementsOf(call.weight_scale->type.shape).Is(1);
    gemm->set_scales(is_of_all ? plan::SCALE_OF_ALL : plan::SCALES_OF_ROWS);
  }
  for (const Value* part : {call.bias, call.residual, call.x_scale, call.weight_scale}) {
    if (part == nullptr) continue;
    const bool is_made = part == call.x_scale && call.x_scale_in_scratch;
    status.Update(is_made ? SetPlace(info.scratch, task->add_args()) : SetValue(part, task->add_args()));
  }
  return status;
}

absl::Status TaskWriter::Add(const CopyCall& call, const TaskInfo&, plan::Task* task) {
  task->mutable_copy()->set_bytes(call.bytes.ToString());
  plan::Arg* to = task->add_args();
  if (const auto buffer = buffers_.find(call.to->name); buffer != buffers_.end()) {
    to->set_buffer(buffer->second);  // also of an output that is a view of something kept
  } else {
    RETURN_IF_ERROR(SetValue(call.to, to));
  }
  to->set_offset(static_cast<uint64_t>(call.to_offset));
  to->set_writes(true);
  return SetValue(call.from, task->add_args());
}

absl::Status TaskWriter::AddOutput(const Output& output, plan::Program* program) {
  const Value* root = ViewedValue(output.value);
  if (!kept_.contains(root->name)) return absl::OkStatus();
  const std::string label = absl::StrCat("output ", output.name);
  if (!buffers_.contains(output.value->name)) {
    return absl::UnimplementedError(absl::StrCat(label, ": there is no GPU form of an output that is a weight"));
  }
  const CopyCall copy = {.to = output.value, .from = root, .bytes = output.value->type.Bytes()};
  return Add(copy, {.label = label}, program);
}

absl::Status TaskWriter::SetValue(const Value* value, plan::Arg* arg) const {
  // What no arena holds is known by its own name, whatever views of it are called, and so is what a view within a
  // kernel is of.
  const Value* root = ViewedValue(value);
  return SetPlace(kept_.contains(root->name) || !buffers_.contains(value->name) ? root->name : value->name, arg);
}

absl::Status TaskWriter::SetPlace(const std::string& name, plan::Arg* arg) const {
  if (const auto kept = kept_.find(name); kept != kept_.end()) {
    arg->MergeFrom(kept->second);
  } else if (const auto buffer = buffers_.find(name); buffer != buffers_.end()) {
    arg->set_buffer(buffer->second);
  } else {
    return absl::InternalError(absl::StrCat(name, " has no place on the device"));
  }
  return absl::OkStatus();
}

}  // namespace llmc
