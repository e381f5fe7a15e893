// What the engine is asked for, and what it answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/sampler.h"

namespace llmc {

using RequestId = int64_t;

enum class FinishReason : uint8_t {
  kStop,    // a stop token or a stop string
  kLength,  // max_new_tokens, the context or the KV cache is full
  kCancelled,
  kError,
};
// "stop", "length", "cancelled", "error".
absl::string_view FinishReasonName(FinishReason reason);

struct Request {
  std::vector<int32_t> prompt_ids;  // at least one, all in the vocabulary
  int64_t max_new_tokens = 128;     // at least 1
  SamplingParams sampling;
  std::vector<int32_t> stop_token_ids;    // beside the engine's end-of-sequence tokens
  std::vector<std::string> stop_strings;  // not empty; need a tokenizer
  bool ignore_eos = false;                // the engine's end-of-sequence tokens are as any other
  // The number of likeliest tokens whose log-probabilities come with each token; 0: of the token itself only.
  // Of the model's own distribution, before temperature, top_k and top_p.
  std::optional<int64_t> log_probs;
};

// One new token of a request, or its end, or both.
struct TokenEvent {
  RequestId request = 0;
  std::optional<int32_t> token;  // a stop token too
  // New text, whole characters of UTF-8; may belong to earlier tokens, or be empty while later tokens can change it or
  // it may be the beginning of a stop string. A stop string and what follows it never comes, nor does a stop token's.
  std::string text;
  std::optional<double> log_prob;  // natural logarithm
  std::vector<TokenLogProb> top_log_probs;
  std::optional<FinishReason> finish;  // set in the last event of a request
  absl::Status status;                 // why, for kError
};

// Called by Engine::Step, on its thread. May add and cancel requests, but not call Step.
using TokenCallback = std::function<void(const TokenEvent&)>;

// All events of one request together.
struct Completion {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<double> log_probs;  // one for each token, if wanted
  std::optional<FinishReason> finish;
  absl::Status status;

  void Add(const TokenEvent& event);
};

}  // namespace llmc
