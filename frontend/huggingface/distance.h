// Distances of queries and keys as rows of tables. `distance` is i64[L, L]: the place of the query less that of the
// key.
#pragma once

#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/blocks.h"

namespace llmc::hf {

// i64[L, L], from 0 to buckets - 1.
Value* RelativeBucket(const RelativeBias& bias, Value* distance, BlockGraph* blocks);
// i64[L, L], from 0 to 2 * span - 1.
Value* DistanceRow(const Disentangled& spec, Value* distance, BlockGraph* blocks);

}  // namespace llmc::hf
