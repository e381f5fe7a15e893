// What stands around the product of a kernel: a norm before it, and what is done with its result.
#pragma once

#include <optional>
#include <vector>

#include "codegen/tasks/qkv_parts.h"
#include "ir/graph.h"
#include "passes/lower/backend.h"

namespace llmc {

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
};

// Kernels that round once (passes/lower/round_once.h) cast what they read: an operand stands for what was cast.
const Value* SourceOf(const Value* operand, const KernelBody& body);

std::optional<Misfit> ReadChain(const KernelBody& body, ProductChain* chain);

}  // namespace llmc
