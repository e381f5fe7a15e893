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
// With `packed`, of texts that lie one after the other: input_ids, position_ids (the place of each in its text) and
// token_type_ids, i64[T]; starts i32[B + 1], where each text begins, and T; places i64[B, L], the rows of T that are
// the text's tokens (any, where it is shorter), and attention_mask i64[B, L], which of these are its own. What comes
// out is padded, with numbers of no meaning.
TowerValues BuildTower(const TowerSpec& spec, bool packed, BlockGraph* blocks, Model* model, Step* step);

}  // namespace llmc::hf
