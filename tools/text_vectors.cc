#include "tools/text_vectors.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "runtime/text/tokenizer.h"

namespace llmc {
namespace {

using Ids = std::vector<int32_t>;

constexpr const char* kVectorOutputs[] = {"embeddings", "sentence_embedding"};  // llmc's, and optimum's

absl::Status NoVectors(const LoadedPlan& model) {
  std::vector<std::string> names;
  for (const TensorInfo& output : model.outputs()) names.push_back(output.name);
  return absl::InvalidArgumentError(absl::StrCat(
      "the model gives ", absl::StrJoin(names, ", "),
      ", no vector for each text (\"embeddings\"): say how the vectors of tokens become one with --pool=mean, cls, "
      "last or max, here for a folder and at `llmc compile` for a plan; its model card should say which is right"));
}

// Tokens of the prompt at the beginning of a text, as sentence-transformers counts them: those of the prompt as a text,
// but for a special one at its end.
absl::StatusOr<size_t> PromptTokens(const std::string& prompt, size_t room, const SpecialTokens& around,
                                    const Tokenizer& tokenizer) {
  if (prompt.empty()) return 0;
  ASSIGN_OR_RETURN(const Ids plain, EncodePlain(prompt, tokenizer));
  const Ids ids = around.Around(plain, room);
  const bool ends_special = !ids.empty() && tokenizer.IsSpecial(ids.back());
  return ids.size() - (ends_special ? 1 : 0);
}

struct EncodedTexts {
  std::vector<EncodedText> texts;
  int64_t truncated = 0;
};

absl::StatusOr<EncodedTexts> EncodeAll(const std::vector<std::string>& texts, const TextModel& text_model,
                                       const TextVectorOptions& options, const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const SpecialTokens around, FindSpecialTokens(tokenizer));
  if (text_model.max_tokens - around.size() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model takes ", text_model.max_tokens, " tokens, too few for a text with special tokens"));
  }
  const auto room = static_cast<size_t>(text_model.max_tokens - around.size());
  EncodedTexts encoded;
  size_t prompt_tokens = 0;
  if (text_model.has_pooling_mask) {
    ASSIGN_OR_RETURN(prompt_tokens, PromptTokens(options.prompt, room, around, tokenizer));
  }
  for (const std::string& text : texts) {
    const std::string place = absl::StrCat("text ", encoded.texts.size() + 1);
    ASSIGN_OR_RETURN(const Ids plain, EncodePlain(options.prompt + text, tokenizer, place));
    if (plain.size() > room) {
      if (!options.truncate) {
        return absl::InvalidArgumentError(absl::StrCat(
            place, ": has ", static_cast<int64_t>(plain.size()) + around.size(), " tokens, the model takes ",
            text_model.max_tokens, "; leave out --no-truncate to cut it, or split it"));
      }
      ++encoded.truncated;
    }
    EncodedText own{.ids = around.Around(plain, room), .prompt_tokens = prompt_tokens};
    if (own.ids.size() <= prompt_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(place, prompt_tokens > 0 ? ": has no token behind the prompt" : ": is empty, and has no token"));
    }
    encoded.texts.push_back(std::move(own));
  }
  return encoded;
}

constexpr std::pair<const char*, Similarity> kSimilarities[] = {{"cosine", Similarity::kCosine},
                                                                {"dot", Similarity::kDot},
                                                                {"euclidean", Similarity::kEuclidean},
                                                                {"manhattan", Similarity::kManhattan}};

double Compared(absl::Span<const float> a, absl::Span<const float> b, Similarity similarity) {
  double product = 0, of_a = 0, of_b = 0, squares = 0, distance = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    product += x * y;
    of_a += x * x;
    of_b += y * y;
    squares += (x - y) * (x - y);
    distance += std::abs(x - y);
  }
  switch (similarity) {
    case Similarity::kCosine:
      return product / (std::max(std::sqrt(of_a), 1e-12) * std::max(std::sqrt(of_b), 1e-12));
    case Similarity::kDot:
      return product;
    case Similarity::kEuclidean:
      return 0 - std::sqrt(squares);
    case Similarity::kManhattan:
      return 0 - distance;
  }
  return 0;
}

}  // namespace

absl::StatusOr<TextModel> FindVectorModel(const LoadedPlan& model, const DimEnv& dims) {
  absl::StatusOr<TextModel> found = FindTextModel(model, dims, kVectorOutputs);
  return absl::IsNotFound(found.status()) ? NoVectors(model) : found;
}

absl::StatusOr<TextVectors> VectorsOf(const std::vector<std::string>& texts, const TextModel& text_model,
                                      const TextVectorOptions& options, LoadedPlan* model) {
  ASSIGN_OR_RETURN(const EncodedTexts encoded, EncodeAll(texts, text_model, options, *model->tokenizer()));
  TextVectors vectors{.truncated = encoded.truncated};
  for (const EncodedText& text : encoded.texts) vectors.tokens.push_back(static_cast<int64_t>(text.ids.size()));
  ASSIGN_OR_RETURN(vectors.rows, RunTexts(encoded.texts, text_model, options.batching, model));
  return vectors;
}

absl::StatusOr<Similarity> ParseSimilarity(const std::string& name) {
  for (const auto& [known, similarity] : kSimilarities) {
    if (name == known) return similarity;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", name, "' is no similarity of vectors; there are ",
      absl::StrJoin(kSimilarities, ", ", [](std::string* out, const auto& row) { absl::StrAppend(out, row.first); })));
}

const char* SimilarityName(Similarity similarity) {
  return absl::c_find_if(kSimilarities, [&](const auto& row) { return row.second == similarity; })->first;
}

std::vector<float> Compare(const TextRows& rows, Similarity similarity) {
  const auto size = static_cast<size_t>(rows.size), count = size == 0 ? 0 : rows.values.size() / size;
  const absl::Span<const float> all = rows.values;
  std::vector<float> scores(count * count);
  for (size_t a = 0; a < count; ++a) {
    for (size_t b = a; b < count; ++b) {
      const double score = Compared(all.subspan(a * size, size), all.subspan(b * size, size), similarity);
      scores[a * count + b] = scores[b * count + a] = static_cast<float>(score);
    }
  }
  return scores;
}

}  // namespace llmc
