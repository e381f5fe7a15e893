// What the attention operators of all domains share.
#pragma once

#include "frontend/onnx/node.h"

namespace llmc {

// [B, L, heads * D] to [B, heads, L, D].
Value* SplitHeads(OnnxNode& n, Value* x, int64_t heads, absl::string_view attr);
// And back.
Value* JoinHeads(OnnxNode& n, Value* x);

// A mask shorter than the keys hides the keys that it does not cover. Which is shorter may be known only at run time:
// then as many hidden columns as there are keys follow it, and what is past the keys is cut off.
Value* WidenedMask(OnnxNode& n, Value* mask, const Value* keys);

// The rotation of x[B, heads, L, D] by the rows of cos and sin [positions, r / 2] that positions[B or 1, L] name.
Value* RotatedAt(OnnxNode& n, Value* x, Value* cos, Value* sin, Value* positions, bool interleaved);
// cos or sin for every sequence of x; exporters give one row of positions for the whole batch.
Value* ForBatch(OnnxNode& n, Value* angles, const Value* x);

// The scale of scores where no attribute gives one: 1 / sqrt(width of a head). If only a run tells the width, q takes
// it.
double ScaleOfHeads(OnnxNode& n, Value** q);

// Attention with what operators of com.microsoft add to the language's own.
struct OnnxAttention {
  Value* q = nullptr;  // [B, heads, L, D]
  Value* k = nullptr;
  Value* v = nullptr;
  Value* mask = nullptr;  // nullptr: none
  double scale = 1;
  double softcap = 0;
  bool causal = false, causal_from_end = false;
  Value* sink = nullptr;  // [heads] or []: a score that takes part in the softmax, with a value of zeros
};
Value* Attend(OnnxNode& n, OnnxAttention attention);

// The additive mask f32[B, 1, 1 or L, keys] that gives `filter` to keys that are padding. `mask` is [B] (the number of
// keys that are not), [2 * B] (these, then the first that is not), [3 * B + 2] (these first), [B, keys] or
// [B, L, keys] of 0 and 1.
Value* PaddingMask(OnnxNode& n, Value* mask, double filter, const Value* q, const Value* k);

// How much longer a present is than its past.
enum class CacheGrowth {
  kNone,    // a buffer that both share
  kNew,     // by the new tokens
  kByTotal  // as a run tells: not at all if all tokens fit into the past, else by the new ones
};

// A past has as many heads, as wide, as what goes behind it: OnnxNode::Learn.
void LearnHeads(OnnxNode& n, const Value* past, const Value* added);

// past[B, heads, P, D], longer by `growth`, with `added` [B, heads, L, D] written from place starts[B] of each sequence
// on; `total` is how many tokens there are with them.
Value* CachedAt(OnnxNode& n, Value* past, Value* added, Value* starts, Value* total, CacheGrowth growth);

}  // namespace llmc
