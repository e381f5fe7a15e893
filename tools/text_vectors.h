// Texts to vectors, with a model that takes token ids and gives one vector for each text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "runtime/llmc.h"

namespace llmc {

// What a model asks of a batch of texts.
struct TextModel {
  std::string output;                     // "embeddings" f32[B, size]
  bool has_types = false;                 // token_type_ids
  bool packed = false;                    // texts lie one after the other (frontend/huggingface/tower_graph.h)
  std::string rows, tokens;               // its dims of attention_mask
  int64_t max_texts = 0, max_tokens = 0;  // in a batch, and of a text
  int64_t max_packed = 0;                 // tokens in a batch of packed texts
};

// `dims` are the model's bounds. InvalidArgument, with what to do: it has no output of vectors, or takes other inputs.
absl::StatusOr<TextModel> FindTextModel(const LoadedPlan& model, const DimEnv& dims);

struct TextVectorOptions {
  bool truncate = true;          // texts of too many tokens lose those at their end; else they are an error
  int64_t batch_tokens = 16384;  // at most, in a batch, padding among them, but for one text alone
  std::function<void(int64_t done, int64_t total)> on_batch = {};  // texts
};

struct TextVectors {
  int64_t size = 0;             // of a vector
  std::vector<float> values;    // [texts, size], in the order of the texts
  std::vector<int64_t> tokens;  // of each text, special ones among them
  int64_t truncated = 0;        // texts
};

// How many of the next texts make a batch: `lengths` in tokens, the longest first. All texts of a batch are padded to
// its longest. A batch of at least kFullBatchTokens ends before padding is more than a twentieth of it.
inline constexpr int64_t kFullBatchTokens = 2048;
int64_t TextsOfBatch(absl::Span<const int64_t> lengths, int64_t batch_tokens, int64_t max_texts);

// The same of a model that takes packed texts, which have no padding.
int64_t PackedTextsOfBatch(absl::Span<const int64_t> lengths, int64_t batch_tokens, int64_t max_texts);

// Special tokens stand around each text as the tokenizer's files say, and those that it spells out are such tokens, as
// in sentence-transformers. Texts of similar length share a batch, padded at the end. InvalidArgument names the text
// that is wrong by its place, counted from 1.
absl::StatusOr<TextVectors> VectorsOf(const std::vector<std::string>& texts, const TextModel& text_model,
                                      const TextVectorOptions& options, LoadedPlan* model);

}  // namespace llmc
