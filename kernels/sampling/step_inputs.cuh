// The inputs of a language model's step: one packed message from the host becomes the tensors that the step reads
// (ir/ops_lm.h). Tokens that the last step sampled never leave the device: the message names their draw instead.
//
// The host writes messages alternately into two buffers of its own memory that the device can read, so that it can
// prepare a step while another runs; `state` counts the steps and so says which one is next.
//
// One block: a message is some kilobytes, and the latency of the host's memory is what costs. It does not let its
// successors start early, because attention reads pages, lens and starts before it waits for its predecessors.
#pragma once

#include "kernels/common/context.cuh"
#include "kernels/layout/step_message.h"

namespace llmc {

// Those of a step stand behind its header.
__device__ __forceinline__ const DrawRequest* DrawsOf(const StepHeader* step) {
  return reinterpret_cast<const DrawRequest*>(step + 1);
}

// Of the host's memory, past all caches.
__device__ __forceinline__ void LoadFromHost(const u32* p, u32 (&x)[4]) {
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "l"(p));
}

// `messages`: the host's two buffers, `message_words` each, a multiple of 4 and at least 4 * kThreads; `message` gets a
// copy. Negative ids stand for draws of the last step: -1 for the first. of_pools: slots and page table of each pool.
// Of a page table, 64 entries at a time are written, zeros after those that count, up to `table_width`.
template <class Config, class Context, class... OfPools>
__device__ void StepInputs(const Context& context, const u32* messages, i64 message_words, u32* state,
                           const i32* sampled, u32* message, i32* ids, i32* pos, i32* lens, i32* starts, i32* rows,
                           i64 table_width, OfPools... of_pools) {
  constexpr int kThreads = Config::kThreads, kPools = sizeof...(of_pools) / 2;
  static_assert(sizeof...(of_pools) == 2 * kPools && kPools > 0, "of_pools: slots and pages of each");
  static_assert(kThreads == kStepInputsThreads, "kThreads: the host's messages have room for a load of each");
  const u32* from = messages + (*state & 1) * message_words;
  // What fits into one load of each thread comes before its size is known: that is most steps.
  i32& words = context.template Shared<i32>();
  u32 x[4];
  LoadFromHost(from + 4 * threadIdx.x, x);
#pragma unroll
  for (int i = 0; i < 4; ++i) message[4 * threadIdx.x + i] = x[i];
  if (threadIdx.x == 0) words = static_cast<i32>(x[0]);
  context.Sync();
  for (int at = 4 * (kThreads + threadIdx.x); at < words; at += 4 * kThreads) {
    LoadFromHost(from + at, x);
#pragma unroll
    for (int i = 0; i < 4; ++i) message[at + i] = x[i];
  }
  if (threadIdx.x == 0) *state += 1;
  context.Sync();

  const StepHeader& header = *reinterpret_cast<const StepHeader*>(message);
  const int tokens = header.tokens, sequences = header.sequences;
  const StepMessageParts parts = PartsOfStepMessage(tokens, sequences, header.rows, header.draws, kPools);
  const i32* of_message = reinterpret_cast<const i32*>(message);
  const auto copy = [&](i32* to, i64 from_word, int count) {
    for (int i = threadIdx.x; i < count; i += kThreads) to[i] = of_message[from_word + i];
  };
  for (int i = threadIdx.x; i < tokens; i += kThreads) {
    const i32 id = of_message[parts.ids + i];
    ids[i] = id < 0 ? sampled[-1 - id] : id;
  }
  copy(pos, parts.pos, tokens);
  copy(lens, parts.lens, sequences);
  copy(starts, parts.starts, sequences + 1);
  copy(rows, parts.rows, header.rows);
  i32* const places[] = {of_pools...};
#pragma unroll
  for (int pool = 0; pool < kPools; ++pool)
    copy(places[2 * pool], parts.slots + static_cast<i64>(pool) * tokens, tokens);
  const i32* first_pages = of_message + parts.first_pages;
  const i32* tables = of_message + parts.page_tables;
  for (int s = threadIdx.x / 32; s < sequences; s += kThreads / 32) {
    const int first = first_pages[s], count = (first_pages[s + 1] - first) / kPools;
    const int written = min(static_cast<int>(table_width), (count + 63) / 64 * 64);
#pragma unroll
    for (int pool = 0; pool < kPools; ++pool) {
      const i32* const from = tables + first + pool * count;
      i32* const to = places[2 * pool + 1] + s * table_width;
      for (int i = threadIdx.x % 32; i < written; i += 32) to[i] = i < count ? from[i] : 0;
    }
  }
}

}  // namespace llmc
