// What the selectors share.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"
#include "ir/state_type.h"
#include "ir/text.h"

namespace llmc {

Misfit NoKernel(const Node& node, absl::string_view why) {
  return {absl::StrCat(node.op->info.name, ": there is no GPU kernel for this op ", why, "\n  in: ", PrintNode(node)),
          ""};
}

bool Is16BitOrF32(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

KernelParam In(const Value* value, const std::string& name, std::string type) {
  KernelParam param = Out(value, name, std::move(type));
  param.type.insert(0, "const ");
  return param;
}
KernelParam Out(const Value* value, const std::string& name, std::string type) {
  if (type.empty()) type = DeviceType(value);
  return {type + "*", name, KernelArg::Of(value)};
}
KernelParam Count(const Size& size, const std::string& name) {
  return {"llmc::i64", name, KernelArg::OfSize(size.ToString())};
}
KernelParam Float(double number, const std::string& name) { return {"float", name, KernelArg::OfNumber(number)}; }

std::string NumberText(double value, const std::string& name, DType dtype, KernelCall* call) {
  if (dtype == DType::kF64) return FloatLiteral(value, true);
  call->params.push_back(Float(value, name));
  return name;
}

void AddDeviceErrors(std::vector<KernelDeviceError> device_errors, KernelCall* call) {
  KernelArg record, first;
  record.is_device_error_record = true;
  first.device_errors = std::move(device_errors);
  call->AddParams({{"llmc::DeviceErrorRecord*", "device_error", std::move(record)},
                   {"llmc::i64", "first_device_error", std::move(first)}});
}

Size Blocks(const Size& threads, int64_t per_block) { return Size::FloorDiv(threads + Size(per_block - 1), per_block); }

Size RowsOf(const TensorType& type) {
  return ElementsOf(Dims(type.shape.begin(), type.shape.end() - (type.shape.empty() ? 0 : 1)));
}

int64_t VectorOf(int64_t columns, DType dtype) { return ElementsOfVector(columns, DTypeBits(dtype)); }

int ThreadsForRow(int64_t columns, DType dtype, int64_t most) {
  const int64_t vectors = columns / VectorOf(columns, dtype);
  return static_cast<int>(std::clamp<int64_t>((vectors + 31) / 32 * 32, 32, most));
}

bool ConstantLast(const Value* value) { return value->type.rank() > 0 && value->type.shape.back().is_constant(); }

KvPages KvPagesOf(const Value* state, const std::string& keys, const std::string& values) {
  return {{state->state->Find(keys), state->state->Find(values)}, state};
}

namespace {

void AddCodes(const KvPages& kv, KernelCall* call) {
  const StateType& type = *kv.state->state;
  const Encoding& e = *kv.keys->type.encoding;
  const bool is_static = kv.keys->StaticScale().has_value();
  call->types.insert(call->types.end(),
                     {{"KvCode", DeviceType(e.format->codes)}, {"KvScale", DeviceType(e.scale->dtype)}});
  const auto at = [&](const StateComponent& component, size_t part) {
    return part < component.parts() ? type.OffsetOf(component, part) : 0;
  };
  call->AddConstants({{"kPageSize", type.page_size},
                      {"kKvHeads", kv.heads()},
                      {"kKvGroup", e.group > 0 ? e.group : kv.head_dim()},
                      {"kKvZeros", e.zero.has_value()},
                      {"kStaticScales", !is_static                             ? 0
                                        : e.scale->per == Granularity::kTensor ? 1
                                                                               : 2},
                      {"kPageBytes", type.RecordBytes()},
                      {"kKeysAt", at(*kv.keys, 0)},
                      {"kValuesAt", at(*kv.values, 0)},
                      {"kKeyScalesAt", at(*kv.keys, 1)},
                      {"kValueScalesAt", at(*kv.values, 1)},
                      {"kKeyZerosAt", at(*kv.keys, 2)},
                      {"kValueZerosAt", at(*kv.values, 2)}});
}

}  // namespace

std::optional<Misfit> KvMisfit(const KvPages& kv) {
  if (!kv.is_encoded()) return std::nullopt;
  if (kv.keys->type != kv.values->type)
    return Misfit{"keys and values that are encoded differently, or of two sizes", "alike"};
  if (kv.keys->type.rank() > 2 || kv.head_dim() % 2 != 0) return Misfit{"encoded heads of odd sizes", "even ones"};
  return std::nullopt;
}

void AddStaticScales(const Value* k_scale, const Value* v_scale, KernelCall* call, absl::string_view before) {
  if (k_scale == nullptr || v_scale == nullptr) return;
  if (call->arguments.empty()) {
    const auto name = [](std::string* to, const KernelParam& p) { to->append(p.name); };
    call->arguments = absl::StrJoin(call->params, ", ", name);
  }
  absl::StrAppend(&call->arguments, before, ",\n      llmc::StaticScales{k_scale, v_scale}");
  call->AddParams({In(k_scale, "k_scale"), In(v_scale, "v_scale")});
}

void AddKv(const KvPages& kv, KernelCall* call) {
  if (kv.is_encoded()) return AddCodes(kv, call);
  const StateType& type = *kv.state->state;
  const int64_t element = DTypeBits(kv.dtype()) / 8;
  call->AddConstants({{"kPageSize", type.page_size},
                      {"kKvHeads", kv.heads()},
                      {"kPageElements", type.RecordBytes() / element},
                      {"kKeysAt", type.OffsetOf(*kv.keys) / element},
                      {"kValuesAt", type.OffsetOf(*kv.values) / element}});
}

bool IsThereBeforeStep(const Value* value) {
  return value->kind != ValueKind::kResult || value->name[0] == '@' || Is<Constant>(value->def);
}

}  // namespace llmc
