// Models that take token ids and give a row of numbers for each text: vectors, or scores of labels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "ir/graph.h"
#include "runtime/llmc.h"

namespace llmc {

// What a model asks of a batch of texts.
struct TextModel {
  std::string output;                     // "embeddings" f32[B, size]
  bool has_types = false;                 // token_type_ids
  bool has_pooling_mask = false;          // which tokens count: all but those of the prompt
  bool packed = false;                    // texts lie one after the other (frontend/huggingface/tower_graph.h)
  std::string rows, tokens;               // its dims of attention_mask
  int64_t max_texts = 0, max_tokens = 0;  // in a batch, and of a text
  std::string all_tokens;                 // its dim of input_ids where texts are packed, and the most of them
  int64_t max_packed = 0;
};

// The model with the first of `outputs` that it has with two dims. `dims` are the model's bounds. NotFound: it has none
// of them. InvalidArgument, with what to do: it takes other inputs.
absl::StatusOr<TextModel> FindTextModel(const LoadedPlan& model, const DimEnv& dims,
                                        absl::Span<const char* const> outputs);

struct EncodedText {
  std::vector<int32_t> ids;
  std::vector<int32_t> types = {};  // of each token; empty: all 0
  size_t prompt_tokens = 0;         // at its beginning
};

struct TextBatching {
  int64_t batch_tokens = 16384;  // at most, in a batch, padding among them, but for one text alone
  std::function<void(int64_t done, int64_t total)> on_batch = {};  // texts
};

// Finite numbers of each text.
struct TextRows {
  int64_t size = 0;           // of a row
  std::vector<float> values;  // [texts, size], in the order of the texts
  std::vector<float> Row(size_t text) const;
};

// How many of the next texts make a batch: `lengths` in tokens, the longest first. All texts of a batch are padded to
// its longest. A batch of at least kFullBatchTokens ends before padding is more than a twentieth of it.
inline constexpr int64_t kFullBatchTokens = 2048;
int64_t TextsOfBatch(absl::Span<const int64_t> lengths, int64_t batch_tokens, int64_t max_texts);

// The same of a model that takes packed texts, which have no padding.
int64_t PackedTextsOfBatch(absl::Span<const int64_t> lengths, int64_t batch_tokens, int64_t max_texts);

// Texts of similar length share a batch, padded at the end if they are not packed.
absl::StatusOr<TextRows> RunTexts(const std::vector<EncodedText>& texts, const TextModel& text_model,
                                  const TextBatching& batching, LoadedPlan* model);

// Without special tokens around it; those that the text spells out are such tokens, as in sentence-transformers. Errors
// begin with `place`, "text 3".
absl::StatusOr<std::vector<int32_t>> EncodePlain(const std::string& text, const Tokenizer& tokenizer,
                                                 absl::string_view place = "");

// The special tokens around a text.
struct SpecialTokens {
  std::vector<int32_t> before, after;
  int64_t size() const { return static_cast<int64_t>(before.size() + after.size()); }
  // Around the first `room` of those ids.
  std::vector<int32_t> Around(absl::Span<const int32_t> ids, size_t room) const;
};
absl::StatusOr<SpecialTokens> FindSpecialTokens(const Tokenizer& tokenizer);

// InvalidArgument: there is no tokenizer, and why.
absl::Status CheckTokenizer(const LoadedPlan& model);

}  // namespace llmc
