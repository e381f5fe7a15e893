// The inputs of a language model's step: one packed message from the host becomes the tensors that the step reads
// (ir/ops_lm.h). Tokens that the last step sampled never leave the device: the message names their draw instead.
//
// The host writes messages alternately into two places of its own memory that the device can read, so that it can
// prepare a step while another runs; `state` counts the steps and so tells which one is next. A message is, in 32-bit
// words: StepHeader, Draw[draws], then ids, pos, slots [tokens], lens [sequences], starts [sequences + 1],
// rows [rows], first_pages [sequences + 1], and the page tables of all sequences one after the other.
//
// One block: a message is some kilobytes, and the latency of the host's memory is what costs. It does not let its
// successors start early, because attention reads pages, lens and starts before it waits for its predecessors.
#pragma once

#include "kernels/common/common.cuh"

namespace llmc {

// runtime/engine/step_message.h has the same.
struct StepHeader {
  i32 words;  // of the whole message
  i32 tokens, sequences, rows, draws;
  i32 unused[11];
};
static_assert(sizeof(StepHeader) == 64, "as in runtime/engine/step_message.h");

// What one draw is asked for. runtime/engine/step_message.h has the same.
struct Draw {
  u64 random;                 // 64 bits
  u64 top_p;                  // in units of 2^-64; 0: all
  u64 min_weight;             // of a token that may be drawn
  u32* counts;                // [kVocab], for penalties, or nullptr: how often a token was generated, and kInPrompt
  struct DrawResult* result;  // nullptr: no draw, padding
  float log2_scale;           // log2(e) / temperature; 0: greedy
  u32 top_k;                  // 0: all
  float repetition, frequency, presence;
  i32 log_probs;  // likeliest tokens to report; -1: not even that of the token itself
  i32 row;        // of the logits
  i32 unused;
};
static_assert(sizeof(Draw) == 72, "as in runtime/engine/step_message.h");

// Those of a step stand behind its header.
__device__ __forceinline__ const Draw* DrawsOf(const StepHeader* step) {
  return reinterpret_cast<const Draw*>(step + 1);
}

// Of the host's memory, past all caches.
__device__ __forceinline__ void LoadFromHost(const u32* p, u32 (&x)[4]) {
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(p));
}

// `messages`: the host's two places, `message_words` each, a multiple of 4 and at least 4 * kThreads; `message` gets a
// copy. Negative ids stand for draws of the last step: -1 for the first. Of a page table, 64 entries at a time are
// written, zeros after those that count, up to `table_width`.
template <class Config>
__device__ void StepInputs(const u32* messages, i64 message_words, u32* state, const i32* sampled, u32* message,
                           i32* ids, i32* pos, i32* slots, i32* lens, i32* starts, i32* rows, i32* pages,
                           i64 table_width) {
  constexpr int kThreads = Config::kThreads;
  const u32* from = messages + (*state & 1) * message_words;
  // What fits into one load of each thread comes before its size is known: that is most steps.
  __shared__ i32 words;
  u32 x[4];
  LoadFromHost(from + 4 * threadIdx.x, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) message[4 * threadIdx.x + i] = x[i];
  if (threadIdx.x == 0) words = static_cast<i32>(x[0]);
  __syncthreads();
  for (int at = 4 * (kThreads + threadIdx.x); at < words; at += 4 * kThreads) {
    LoadFromHost(from + at, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) message[at + i] = x[i];
  }
  if (threadIdx.x == 0) *state += 1;
  __syncthreads();

  const StepHeader& header = *reinterpret_cast<const StepHeader*>(message);
  const int tokens = header.tokens, sequences = header.sequences;
  const i32* part = reinterpret_cast<const i32*>(message) + (sizeof(StepHeader) + header.draws * sizeof(Draw)) / 4;
  const auto copy = [&](i32* to, int count) {
    for (int i = threadIdx.x; i < count; i += kThreads) to[i] = part[i];
    part += count;
  };
  for (int i = threadIdx.x; i < tokens; i += kThreads) ids[i] = part[i] < 0 ? sampled[-1 - part[i]] : part[i];
  part += tokens;
  copy(pos, tokens);
  copy(slots, tokens);
  copy(lens, sequences);
  copy(starts, sequences + 1);
  copy(rows, header.rows);
  const i32* first_pages = part;
  const i32* tables = part + sequences + 1;
  for (int s = threadIdx.x / 32; s < sequences; s += kThreads / 32) {
    const int first = first_pages[s], count = first_pages[s + 1] - first;
    const int written = min(static_cast<int>(table_width), (count + 63) / 64 * 64);
    for (int i = threadIdx.x % 32; i < written; i += 32) pages[s * table_width + i] = i < count ? tables[first + i] : 0;
  }
}

}  // namespace llmc
