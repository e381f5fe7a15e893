// What the nodes of a kernel say, as its selector takes it: of heads that are rotated and written to the cache, and of
// what stands around a product.
#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "passes/driver/match.h"
#include "passes/lower/backend.h"

namespace llmc {

// The nodes, all of them and no others, as a rule names them that forms kernels of a backend: its left side says what
// the nodes of one are.
std::optional<Match> MatchFormed(absl::string_view backend, absl::Span<const Node* const> nodes);

// Queries, keys and values of a kernel that rotates heads and writes the KV cache.
struct QkvParts {
  const Value* out = nullptr;  // the rotated queries [T, heads * head_dim]; absent where only keys are rotated
  const Value* qkv = nullptr;  // [T, (heads + 2 * kv_heads) * head_dim], or:
  const Value *k = nullptr, *v = nullptr;
  const Value *kv = nullptr, *pos = nullptr, *inv_freq = nullptr, *slots = nullptr;
  const Value *k_scale = nullptr, *v_scale = nullptr;  // of the cache; or absent
  const Value *q_norm = nullptr, *k_norm = nullptr;  // weights of a norm of each head, before it is rotated; or absent
  double eps = 0;                                    // of the norms
  int64_t heads = 0;                                 // of queries
  bool interleaved = false;
  double scale = 1;
};

// From a kv_write with what comes before it: rope of the keys, and the same of queries that come merged with them.
std::optional<Misfit> ReadQkv(absl::Span<const Node* const> nodes, QkvParts* parts);

// A norm before the product of a kernel, and what is done with its result.
struct ProductChain {
  const Node* norm = nullptr;     // of the product's left factor
  const Node* product = nullptr;  // matmul or linear
  struct Link {
    const Node* node;    // of an elementwise op, a cast among them, or silu_mul
    const Value* value;  // the operand that comes from the product
  };
  std::vector<Link> links;      // one after the other; views are not told
  std::optional<QkvParts> qkv;  // of what comes last
  const Value* out = nullptr;   // what the kernel gives
  // Of a kernel that rounds once (passes/lower/round_once.h): the type that its operands are cast from and its result
  // to.
  std::optional<DType> narrow;
};

// What an operand was cast from, in a kernel that rounds once; else the operand.
const Value* SourceOf(const Value* operand, const KernelBody& body);

std::optional<Misfit> ReadChain(const KernelBody& body, ProductChain* chain);

}  // namespace llmc
