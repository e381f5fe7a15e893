// What kernels of products that read weights themselves compute: gemv.cuh and encoded_gemm.cuh have the same weights,
// and the same that follows from the sums.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/tasks/kernel_parts.h"
#include "codegen/tasks/select.h"
#include "codegen/tasks/weight_parts.h"

namespace llmc {

struct ProductParts {
  const Value* out = nullptr;
  const Value* x = nullptr;  // [..., k]
  DType dtype;               // of what the sums become: that of x, but for products of bytes
  WeightParts weight;        // [n, k]
  Dim rows;                  // of x
  int64_t most_rows = 0;
  int64_t n = 0, k = 0;

  const Node* norm_node = nullptr;  // of a norm of x before the product
  const Value* norm = nullptr;      // x is normalized first, with this weight: set by kernels that do so
  double eps = 0;
  bool x_is_ordered = false;  // x lies in memory in the order of the product, which a kernel before has written

  const Value* bias = nullptr;    // [n], added to the sums
  const Value* addend = nullptr;  // [..., n], added to the sums
  bool silu_mul = false;
  std::optional<QkvParts> qkv;  // the sums are queries, keys and values, which are rotated and written

  bool is_decoded() const { return !weight.is_dense() && !weight.is_of_bytes(); }
};

// Columns of the result: pairs, if two of the product make one.
int64_t ColumnsOf(const ProductParts& parts);
// The end of the names of entry points: "Add", "Bias", "SiluMul", "QkvRope" or nothing.
std::string EpilogueName(const ProductParts& parts);

// A product of 1 to `most_rows` rows of floats with a weight [n, k], which may be encoded, or of bytes, and what
// follows from it; or why the kernel is none.
std::optional<Misfit> ReadProduct(const KernelBody& body, const ProgramScope& scope, int64_t most_rows,
                                  ProductParts* parts);
// Adds the parameters of the epilogue. Gives the arguments.
std::vector<std::string> AddEpilogue(const ProductParts& parts, KernelCall* call);
// The parameters and arguments that entry points have in common: out, x, norm, weight, of the epilogue, eps, tokens.
void AddProductArguments(const ProductParts& parts, KernelCall* call);

}  // namespace llmc
