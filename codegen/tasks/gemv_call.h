// GEMV: products of 1 to 8 rows as calls of kernels/linear/gemv.cuh, with what comes before and after them.
#pragma once

#include <optional>

#include "codegen/tasks/product_chain.h"
#include "codegen/tasks/select.h"
#include "codegen/tasks/weight_parts.h"

namespace llmc {

struct GemvParts {
  const Value* out = nullptr;
  const Value* x = nullptr;  // [..., k]
  WeightParts weight;        // [n, k]
  Dim rows;                  // of x
  int64_t most_rows = 0;
  int64_t n = 0, k = 0;

  const Value* norm = nullptr;  // x is normalized first, with this weight
  double eps = 0;

  const Value* bias = nullptr;    // [n], added to the sums
  const Value* addend = nullptr;  // [..., n], added to the sums
  bool silu_mul = false;
  std::optional<QkvParts> qkv;  // the sums are queries, keys and values, which are rotated and written
};

// Nothing but the product; nothing if this is no product of 1 to 8 rows of floats and a weight, which may be encoded.
std::optional<GemvParts> GemvPartsOf(const Node& product, const ProgramScope& scope);
// Those and what stands around the product; or why there is no kernel for all of it.
std::optional<Misfit> ReadGemv(const KernelBody& body, const ProgramScope& scope, GemvParts* parts);
KernelCall GemvCall(const GemvParts& parts, const ProgramScope& scope);

}  // namespace llmc
