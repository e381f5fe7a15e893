// The keys and values of a KV cache, as its ops see them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/cached_rows.h"
#include "ir/op.h"

namespace llmc::ops {

struct KvComponents {
  const StateComponent* keys = nullptr;
  const StateComponent* values = nullptr;

  DType dtype() const { return keys->type.dtype; }  // logical, of components that are encoded
  bool is_encoded() const { return keys->type.encoding != nullptr || values->type.encoding != nullptr; }
  int64_t heads() const { return keys->Heads(); }
  int64_t head_dim() const { return keys->HeadDim(); }  // of keys
  int64_t value_dim() const { return values->HeadDim(); }
  Size TokenBytes() const;
};

// An error, which begins with `label`: `kv` is no paged state, or these are no such components.
absl::StatusOr<KvComponents> FindKv(absl::string_view label, const Value* kv, absl::string_view keys,
                                    absl::string_view values);

// Static scales of the keys and values (ir/state_type.h) are there exactly where the components need them, in their
// type; an error begins with `label`.
absl::Status CheckStaticScales(absl::string_view label, const KvComponents& kv, const Value* k_scale,
                               const Value* v_scale);

// Both in a run; `kv` has passed FindKv. Scales are nullptr where there are none.
struct KvMemory {
  CachedRows keys, values;
  KvMemory(const Value* kv, absl::string_view keys, absl::string_view values, const Tensor& memory,
           const Tensor* k_scale, const Tensor* v_scale);

  // A token's key or value, in all heads, rounded to the component's type or encoded.
  static void Write(const float* row, int64_t slot, CachedRows* to);
  absl::Status CheckSlots(absl::string_view op, const std::vector<int64_t>& slots) const;
};

}  // namespace llmc::ops
