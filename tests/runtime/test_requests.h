// Requests for the model of FakeExecutor, and what they must give.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/runtime/fake_executor.h"

namespace llmc {

inline std::unique_ptr<Engine> NewEngine(Executor* executor, EngineOptions options,
                                         const Tokenizer* tokenizer = nullptr) {
  auto engine = Engine::Create(executor, tokenizer, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

inline std::vector<int32_t> Prompt(int64_t length, int32_t first) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(static_cast<int32_t>((first * 7 + i * 3) % FakeExecutor::kVocabulary));
  return ids;
}

// Greedy if `first` is even; every third one has penalties.
inline Request MakeRequest(int64_t length, int32_t first, int64_t max_new_tokens) {
  SamplingParams sampling{.temperature = first % 2 == 0 ? 0.0 : 0.9, .seed = static_cast<uint64_t>(first)};
  if (first % 3 == 0) {
    sampling.repetition_penalty = 1.2;
    sampling.presence_penalty = 0.5;
    sampling.frequency_penalty = 0.3;
  }
  if (first % 5 == 0) sampling.top_p = 0.8;
  return {.prompt_ids = Prompt(length, first), .max_new_tokens = max_new_tokens, .sampling = sampling};
}

// What the request must give, computed without an engine.
inline std::vector<int32_t> Expected(const Request& request, const std::vector<int32_t>& eos = {}, int64_t limit = 256,
                                     int64_t window = 0) {
  std::vector<int32_t> tokens = request.prompt_ids, out;
  TokenCounts counts;
  counts.AddPrompt(tokens);
  while (static_cast<int64_t>(out.size()) < request.max_new_tokens && static_cast<int64_t>(tokens.size()) < limit) {
    std::vector<float> logits = FakeExecutor::LogitsAfter(FakeExecutor::LastOf(tokens, window));
    ApplyPenalties(request.sampling, counts, absl::MakeSpan(logits));
    tokens.push_back(*SampleToken(logits, request.sampling, out.size()));
    counts.AddGenerated(tokens.back());
    out.push_back(tokens.back());
    if (std::count(eos.begin(), eos.end(), out.back()) > 0) break;
  }
  return out;
}

}  // namespace llmc
