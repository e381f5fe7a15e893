#include "ir/kv_components.h"

#include <optional>
#include <utility>

#include "ir/ops_internal.h"

namespace llmc::ops {

Size KvComponents::TokenBytes() const {
  return Size(keys == values ? keys->TokenBytes() : keys->TokenBytes() + values->TokenBytes());
}

absl::StatusOr<KvComponents> FindKv(absl::string_view label, const Value* kv, absl::string_view keys,
                                    absl::string_view values) {
  if (kv->state == nullptr || kv->state->kind != StateKind::kPaged) {
    return Fail(label, ": ", kv->name, " ", Str(kv), " is no paged state");
  }
  const KvComponents found = {kv->state->Find(keys), kv->state->Find(values)};
  for (const auto& [name, component] : {std::pair(keys, found.keys), {values, found.values}}) {
    if (component == nullptr) return Fail(label, ": ", kv->name, " ", Str(kv), " has no component ", name);
    if (!IsFloat(component->type.dtype) || component->type.dtype != found.keys->type.dtype) {
      return Fail(label, ": components ", keys, " and ", values, " of ", Str(kv), " are not of one type of floats");
    }
  }
  if (found.keys->Heads() != found.values->Heads()) {
    return Fail(label, ": components ", keys, " and ", values, " of ", Str(kv), " have not equally many heads");
  }
  return found;
}

absl::Status CheckStaticScales(absl::string_view label, const KvComponents& kv, const Value* k_scale,
                               const Value* v_scale) {
  for (const auto& [component, scale] : {std::pair(kv.keys, k_scale), {kv.values, v_scale}}) {
    const std::optional<TensorType> expected = component->StaticScale();
    const absl::string_view name = scale == k_scale ? "k_scale" : "v_scale";
    if (expected.has_value() && scale == nullptr) {
      return Fail(label, ": component ", component->name, ": ", component->type.ToString(), " needs a scale ",
                  expected->ToString());
    }
    if (scale == nullptr || (expected.has_value() && TypeOf(scale) == *expected)) continue;
    return Fail(label, ": ", name, " ", Str(scale), ": component ", component->name, ": ", component->type.ToString(),
                " takes ", expected.has_value() ? expected->ToString() : "none");
  }
  return absl::OkStatus();
}

KvMemory::KvMemory(const Value* kv, absl::string_view keys, absl::string_view values, const Tensor& memory,
                   const Tensor* k_scale, const Tensor* v_scale)
    : keys(*kv->state, *kv->state->Find(keys), memory, k_scale),
      values(*kv->state, *kv->state->Find(values), memory, v_scale) {}

void KvMemory::Write(const float* row, int64_t slot, CachedRows* to) {
  for (int64_t head = 0; head < to->heads(); ++head) to->Write(row + head * to->head_dim(), slot, head);
}

absl::Status KvMemory::CheckSlots(absl::string_view op, const std::vector<int64_t>& slots) const {
  for (size_t t = 0; t < slots.size(); ++t) {
    if (slots[t] < 0 || slots[t] >= keys.slots()) {
      return Fail(op, ": slot ", slots[t], " of token ", t, " is not one of ", keys.slots());
    }
  }
  return absl::OkStatus();
}

}  // namespace llmc::ops
