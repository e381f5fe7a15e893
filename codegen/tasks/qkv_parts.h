// Queries, keys and values of a kernel that rotates heads and writes the KV cache: what its nodes say.
#pragma once

#include <optional>

#include "absl/types/span.h"
#include "ir/graph.h"
#include "passes/lower/backend.h"

namespace llmc {

struct QkvParts {
  const Value* out = nullptr;  // the rotated queries [T, heads * head_dim]; absent where only keys are rotated
  const Value* qkv = nullptr;  // [T, (heads + 2 * kv_heads) * head_dim], or:
  const Value *k = nullptr, *v = nullptr;
  const Value *kv = nullptr, *pos = nullptr, *inv_freq = nullptr, *slots = nullptr;
  const Value *q_norm = nullptr, *k_norm = nullptr;  // weights of a norm of each head, before it is rotated; or absent
  double eps = 0;                                    // of the norms
  int64_t heads = 0;                                 // of queries
  bool interleaved = false;
  double scale = 1;
};

// From a kv_write with what comes before it: rope of the keys, and the same of queries that come merged with them.
std::optional<Misfit> ReadQkv(absl::Span<const Node* const> nodes, QkvParts* parts);

}  // namespace llmc
