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
  // Of a kernel that rounds once (passes/lower/round_once.h): the type that its operands are cast from and its result
  // to.
  std::optional<DType> narrow;
};

// What an operand was cast from, in a kernel that rounds once; else the operand.
const Value* SourceOf(const Value* operand, const KernelBody& body);

std::optional<Misfit> ReadChain(const KernelBody& body, ProductChain* chain);

}  // namespace llmc
