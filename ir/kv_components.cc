#include "ir/kv_components.h"

#include "ir/ops_internal.h"

namespace llmc::ops {

Size KvComponents::TokenBytes() const {
  const Size bytes = keys->type.Bytes();
  return keys == values ? bytes : bytes + values->type.Bytes();
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

KvMemory::KvMemory(const Value* kv, absl::string_view keys, absl::string_view values, const Tensor& memory)
    : keys(*kv->state, *kv->state->Find(keys), memory), values(*kv->state, *kv->state->Find(values), memory) {}

void KvMemory::Write(const float* row, int64_t slot, ComponentView* to) {
  for (int64_t head = 0; head < to->heads(); ++head) {
    Store<float>(row + head * to->head_dim(), to->AtSlot(slot, head), to->head_dim(), &to->elements());
  }
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
