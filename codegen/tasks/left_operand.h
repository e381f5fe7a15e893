// What kernels share whose weights are left operands in registers (kernels/linear/left_operand.cuh).
#pragma once

#include <optional>

#include "codegen/tasks/kernel_call.h"
#include "codegen/tasks/select.h"
#include "codegen/tasks/weight_parts.h"

namespace llmc {

// Why left_gemm.cuh, with tiles of so many rows of a weight [n, k] and `tokens` of x in so much shared memory, cannot
// read it; nothing if it can.
std::optional<Misfit> LeftOperandMisfit(const WeightParts& weight, int64_t n, int64_t k, int tile_rows, int tokens,
                                        int shared_bytes);

// Rows of x up to which codes of a format are decoded in registers: numbers of a codebook that are two of 16 bits each
// take so many instructions that of more rows decoding them to memory, once, takes less.
int64_t MostRowsInRegisters(const EncodingFormat& format);

// Puts `rows` rows of x, of k elements each, into the order that goes with an encoded weight.
KernelCall OrderColumnsCall(const WeightParts& weight, const Value* x, const Size& rows, int64_t k, KernelArg out);

}  // namespace llmc
