#pragma once

#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/blocks.h"

namespace llmc::hf {

// The vectors f32[B, size] of texts, of their hidden states `x` [B, L, hidden] and `mask` i64[B, L], 0 at padding. All
// behind the hidden states is computed in f32.
Value* BuildEmbeddings(const EmbeddingSpec& spec, Value* x, Value* mask, BlockGraph* blocks);

}  // namespace llmc::hf
