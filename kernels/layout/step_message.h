// The message with which the host starts a step of a language model, and what comes back of each draw.
#pragma once
#include "kernels/layout/base.h"

namespace llmc {

struct StepHeader {
  i32 words = 0;  // of the whole message, of 32 bits
  i32 tokens = 0, sequences = 0, rows = 0, draws = 0;
  i32 unused[11] = {};
};
static_assert(sizeof(StepHeader) == 64, "draws behind it are aligned");

constexpr int kMaxDeviceTop = 20;  // likeliest tokens that a draw can report

struct DrawResult {
  i32 token = 0;
  i32 status = 0;     // 0; 1: the logit of `token` is NaN or infinite; 2: no token can be
  float logit = 0;    // of the token, without penalties
  float largest = 0;  // logit
  u64 total = 0;      // of the weights at temperature 1, in units of 2^-kWeightBits (sampling.h)
  i32 top_count = 0;
  i32 unused = 0;
  i32 top_tokens[kMaxDeviceTop] = {};
  float top_logits[kMaxDeviceTop] = {};
};
static_assert(sizeof(DrawResult) == 192, "both sides count on no padding");

constexpr u32 kInPrompt = 1u << 31;  // of a token's count, beside how often it was generated

// What one draw is asked for. Addresses are the device's.
struct DrawRequest {
  u64 random = 0;                // 64 bits
  u64 top_p = 0;                 // in units of 2^-64; 0: all
  u64 min_weight = 1;            // of a token that may be drawn
  u32* counts = nullptr;         // [vocabulary]: kInPrompt and how often it was generated; nullptr: no penalties
  DrawResult* result = nullptr;  // nullptr: no draw, padding
  float log2_scale = 0;          // log2(e) / temperature; 0: greedy
  u32 top_k = 0;                 // 0: all
  float repetition = 1, frequency = 0, presence = 0;
  i32 log_probs = -1;  // likeliest tokens to report; -1: not even that of the token itself
  i32 row = 0;         // of the logits
  i32 unused = 0;
};
static_assert(sizeof(DrawRequest) == 72, "both sides count on no padding");

// Where the parts of a message begin, in words of 32 bits from its first. The header and the draws come before.
struct StepMessageParts {
  i64 ids, pos;     // [tokens]
  i64 slots;        // [pools, tokens]
  i64 lens;         // [sequences]
  i64 starts;       // [sequences + 1]
  i64 rows;         // [rows]
  i64 first_pages;  // [sequences + 1]: where the page tables of each sequence begin, and where the last end
  i64 page_tables;  // of each sequence, of each pool, one after the other, to the end of the message
};
LLMC_HOST_DEVICE constexpr StepMessageParts PartsOfStepMessage(i64 tokens, i64 sequences, i64 rows, i64 draws,
                                                               i64 pools) {
  StepMessageParts parts = {};
  parts.ids = static_cast<i64>(sizeof(StepHeader) + draws * sizeof(DrawRequest)) / 4;
  parts.pos = parts.ids + tokens;
  parts.slots = parts.pos + tokens;
  parts.lens = parts.slots + pools * tokens;
  parts.starts = parts.lens + sequences;
  parts.rows = parts.starts + sequences + 1;
  parts.first_pages = parts.rows + rows;
  parts.page_tables = parts.first_pages + sequences + 1;
  return parts;
}

// The kernel that takes a message copies it 16 bytes a thread at a time, the first time before it knows its size: so
// much memory has to be there.
constexpr int kStepInputsThreads = 1024;
constexpr int kMessageAlignment = 16, kLeastMessageBytes = kMessageAlignment * kStepInputsThreads;

}  // namespace llmc
