#include "codegen/task_writer.h"

#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "codegen/memory/memory_plan.h"
#include "codegen/tasks/strided.h"

namespace llmc {

TaskWriter::TaskWriter(const Model& model, const Target& target, PlanPools* pools) : pdl_(target.pdl), pools_(pools) {
  for (size_t i = 0; i < model.weights.size(); ++i) weights_[model.weights[i]] = static_cast<uint32_t>(i);
  for (size_t i = 0; i < model.states.size(); ++i) states_[model.states[i]] = static_cast<uint32_t>(i);
}

absl::Status TaskWriter::AddConstant(const Node& node) {
  ASSIGN_OR_RETURN(const uint32_t index, pools_->AddConstant(node));
  constants_[node.results[0]] = index;
  return absl::OkStatus();
}

absl::Status TaskWriter::Add(const DeviceCall& call, const std::string& label, plan::Program* program) {
  plan::Step* step = program->add_steps();
  step->set_label(label);
  return std::visit([&](const auto& c) { return Add(c, program, step); }, call);
}

absl::Status TaskWriter::Add(const KernelCall& call, plan::Program* program, plan::Step* step) {
  plan::Launch* launch = step->mutable_launch();
  launch->set_kernel(pools_->AddKernel(call, step->label()));
  launch->set_pdl(call.pdl && pdl_);
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
      arg->set_dim(absl::StrCat(pools_->AddDeviceErrors(param.arg.device_errors)));
    } else {
      arg->set_number(param.arg.number);
    }
  }
  return absl::OkStatus();
}

void TaskWriter::SetScratch(const Size& size, plan::Program* program, plan::Arg* arg) {
  arg->set_scratch(true);
  const std::string bytes = size.ToString();
  if (!absl::c_linear_search(program->scratch_bytes(), bytes)) program->add_scratch_bytes(bytes);
}

absl::Status TaskWriter::Add(const GemmCall& call, plan::Program* program, plan::Step* step) {
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

absl::Status TaskWriter::Add(const CopyCall& call, plan::Program*, plan::Step* step) {
  if (!call.to_offset.is_constant())
    return absl::UnimplementedError("concat: there is no GPU form of parts of unknown size");
  step->mutable_copy()->set_bytes(call.bytes.ToString());
  plan::Arg* to = step->add_args();
  absl::Status status = SetValue(call.to, to);
  to->set_offset(static_cast<uint64_t>(call.to_offset.value()));
  status.Update(SetValue(call.from, step->add_args()));
  return status;
}

absl::Status TaskWriter::AddOutput(const Output& output, plan::Program* program) {
  const Value* root = ViewedValue(output.value);
  if (!IsKept(root)) return absl::OkStatus();
  const auto place = buffers_.find(output.value);
  if (place == buffers_.end()) {
    return absl::UnimplementedError(
        absl::StrCat("output ", output.name, ": there is no GPU form of an output that is a weight"));
  }
  plan::Step* step = program->add_steps();
  step->set_label(absl::StrCat("output ", output.name));
  const Size bits = ElementsOf(output.value->type.shape) * Size(DTypeBits(output.value->type.dtype));
  step->mutable_copy()->set_bytes(Size::FloorDiv(bits + Size(7), 8).ToString());
  step->add_args()->set_buffer(place->second);
  return SetValue(root, step->add_args());
}

bool TaskWriter::IsKept(const Value* value) const {
  return prepared_.contains(value) || constants_.contains(value) || weights_.contains(value) || states_.contains(value);
}

absl::Status TaskWriter::SetValue(const Value* value, plan::Arg* arg) const {
  // What no arena holds is known by its own name, whatever views of it are called.
  if (const Value* root = ViewedValue(value); IsKept(root)) value = root;
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

}  // namespace llmc
