// One stack of layers of an encoder, with what goes into it.
#pragma once

#include "frontend/huggingface/block_graph.h"
#include "frontend/huggingface/blocks.h"
#include "ir/graph.h"

namespace llmc::hf {

struct TowerValues {
  Value* hidden = nullptr;  // [B, L, hidden]
  Value* ids = nullptr;     // of texts: i64[B, L]
  Value* words = nullptr;   // of texts: the table
  Value* mask = nullptr;    // of texts: i64[B, L], 0 where they are padded
};

// Adds the inputs to `step`: input_ids, attention_mask and token_type_ids of texts, [B, L], or pixel_values [B,
// channels, size, size].
TowerValues BuildTower(const TowerSpec& spec, BlockGraph* blocks, Model* model, Step* step);

}  // namespace llmc::hf
