// Texts to vectors, with a model that takes token ids and gives one vector for each text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/text_model.h"

namespace llmc {

// InvalidArgument or Unimplemented, with what to do: the model gives no vector for each text.
absl::StatusOr<TextModel> FindVectorModel(const LoadedPlan& model, const DimEnv& dims);

struct TextVectorOptions {
  bool truncate = true;  // texts of too many tokens lose those at their end; else they are an error
  std::string prompt;    // put before each text
  TextBatching batching;
};

struct TextVectors {
  TextRows rows;
  std::vector<int64_t> tokens;  // of each text, special ones among them
  int64_t truncated = 0;        // texts
};

// Special tokens stand around each text as the tokenizer's files say. InvalidArgument names the text that is wrong by
// its place, counted from 1.
absl::StatusOr<TextVectors> VectorsOf(const std::vector<std::string>& texts, const TextModel& text_model,
                                      const TextVectorOptions& options, LoadedPlan* model);

// How sentence-transformers compares vectors. Distances are negative: the nearest texts have the largest number.
enum class Similarity { kCosine, kDot, kEuclidean, kManhattan };
// By the names of `similarity_fn_name`, and back; InvalidArgument lists them.
absl::StatusOr<Similarity> ParseSimilarity(const std::string& name);
const char* SimilarityName(Similarity similarity);
// [texts, texts], of all with all.
std::vector<float> Compare(const TextRows& rows, Similarity similarity);

}  // namespace llmc
