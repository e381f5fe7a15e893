#include "tools/text_vectors.h"

#include <algorithm>
#include <cmath>
#include <numeric>
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

constexpr const char* kPackedInputs[] = {"position_ids", "starts", "places"};
constexpr const char* kVectorOutputs[] = {"embeddings", "sentence_embedding"};  // llmc's, and optimum's

absl::Status NoVectors(const LoadedPlan& model) {
  if (model.has_paged_cache()) {
    return absl::UnimplementedError("the model is a decoder that generates text; vectors of such are not supported");
  }
  std::vector<std::string> names;
  for (const TensorInfo& output : model.outputs()) names.push_back(output.name);
  return absl::InvalidArgumentError(absl::StrCat(
      "the model gives ", absl::StrJoin(names, ", "),
      ", no vector for each text (\"embeddings\"): say how the vectors of tokens become one with --pool=mean, cls, "
      "last "
      "or max, here for a folder and at `llmc compile` for a plan; its model card should say which is right"));
}

// The special tokens around a text.
struct Around {
  Ids before, after;
  int64_t size() const { return static_cast<int64_t>(before.size() + after.size()); }
};

constexpr EncodeOptions kPlain = {.add_special_tokens = false, .parse_special_tokens = true};
constexpr EncodeOptions kWhole = {.add_special_tokens = true, .parse_special_tokens = true, .repeat_bos = true};

absl::StatusOr<Around> FindAround(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const Ids plain, tokenizer.Encode("a", kPlain));
  ASSIGN_OR_RETURN(const Ids whole, tokenizer.Encode("a", kWhole));
  const auto at = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  if (at == whole.end() || plain.empty()) {
    return absl::UnimplementedError("the tokenizer changes more than the ends of a text where it adds special tokens");
  }
  return Around{{whole.begin(), at}, {at + static_cast<int64_t>(plain.size()), whole.end()}};
}

struct Encoded {
  std::vector<Ids> ids;
  int64_t truncated = 0;
};

absl::StatusOr<Encoded> EncodeAll(const std::vector<std::string>& texts, const TextModel& text_model, bool truncate,
                                  const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const Around around, FindAround(tokenizer));
  const int64_t room = text_model.max_tokens - around.size();
  if (room < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model takes ", text_model.max_tokens, " tokens, too few for a text with special tokens"));
  }
  Encoded encoded;
  for (const std::string& text : texts) {
    const std::string place = absl::StrCat("text ", encoded.ids.size() + 1);
    absl::StatusOr<Ids> ids = tokenizer.Encode(text, kPlain);
    if (!ids.ok()) return absl::Status(ids.status().code(), absl::StrCat(place, ": ", ids.status().message()));
    if (static_cast<int64_t>(ids->size()) > room) {
      if (!truncate) {
        return absl::InvalidArgumentError(absl::StrCat(
            place, ": has ", static_cast<int64_t>(ids->size()) + around.size(), " tokens, the model takes ",
            text_model.max_tokens, "; leave out --no-truncate to cut it, or split it"));
      }
      ids->resize(static_cast<size_t>(room));
      ++encoded.truncated;
    }
    ids->insert(ids->begin(), around.before.begin(), around.before.end());
    ids->insert(ids->end(), around.after.begin(), around.after.end());
    if (ids->empty()) return absl::InvalidArgumentError(absl::StrCat(place, ": is empty, and has no token"));
    encoded.ids.push_back(*std::move(ids));
  }
  return encoded;
}

// The inputs that texts `rows` are, one after the other.
absl::StatusOr<NamedHostTensors> PackedInputs(const std::vector<Ids>& all, absl::Span<const size_t> rows,
                                              const TextModel& text_model) {
  size_t longest = 0;
  for (const size_t row : rows) longest = std::max(longest, all[row].size());
  std::vector<int64_t> ids, positions, starts = {0}, places(rows.size() * longest), mask(places.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Ids& own = all[rows[i]];
    for (size_t at = 0; at < longest; ++at) {
      places[i * longest + at] = starts.back() + static_cast<int64_t>(std::min(at, own.size() - 1));
      mask[i * longest + at] = at < own.size() ? 1 : 0;
    }
    ids.insert(ids.end(), own.begin(), own.end());
    for (size_t at = 0; at < own.size(); ++at) positions.push_back(static_cast<int64_t>(at));
    starts.push_back(static_cast<int64_t>(ids.size()));
  }
  const std::vector<int64_t> tokens = {starts.back()};
  const std::vector<int64_t> padded = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)};
  NamedHostTensors inputs;
  ASSIGN_OR_RETURN(inputs["input_ids"], HostTensor::FromInts(ids, tokens));
  ASSIGN_OR_RETURN(inputs["position_ids"], HostTensor::FromInts(positions, tokens));
  ASSIGN_OR_RETURN(inputs["places"], HostTensor::FromInts(places, padded));
  ASSIGN_OR_RETURN(inputs["attention_mask"], HostTensor::FromInts(mask, padded));
  if (text_model.has_types) {
    ASSIGN_OR_RETURN(inputs["token_type_ids"], HostTensor::Zeros(DType::kI64, tokens));
  }
  ASSIGN_OR_RETURN(inputs["starts"], HostTensor::FromInts(DType::kI32, starts, {static_cast<int64_t>(starts.size())}));
  return inputs;
}

// The same, padded to the longest.
absl::StatusOr<NamedHostTensors> PaddedInputs(const std::vector<Ids>& all, absl::Span<const size_t> rows,
                                              const TextModel& text_model) {
  size_t longest = 0;
  for (const size_t row : rows) longest = std::max(longest, all[row].size());
  std::vector<int64_t> ids(rows.size() * longest), mask(ids.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const Ids& own = all[rows[i]];
    absl::c_copy(own, ids.begin() + static_cast<int64_t>(i * longest));
    std::fill_n(mask.begin() + static_cast<int64_t>(i * longest), own.size(), 1);
  }
  const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)};
  NamedHostTensors inputs;
  ASSIGN_OR_RETURN(inputs["input_ids"], HostTensor::FromInts(ids, shape));
  ASSIGN_OR_RETURN(inputs["attention_mask"], HostTensor::FromInts(mask, shape));
  if (text_model.has_types) {
    ASSIGN_OR_RETURN(inputs["token_type_ids"], HostTensor::Zeros(DType::kI64, shape));
  }
  return inputs;
}

// Texts `rows` in one run: f32 [rows, size].
absl::StatusOr<std::vector<float>> RunBatch(const std::vector<Ids>& all, absl::Span<const size_t> rows,
                                            const TextModel& text_model, LoadedPlan* model) {
  ASSIGN_OR_RETURN(const NamedHostTensors inputs,
                   text_model.packed ? PackedInputs(all, rows, text_model) : PaddedInputs(all, rows, text_model));
  ASSIGN_OR_RETURN(const NamedHostTensors outputs, model->Run(inputs));
  const HostTensor& vectors = outputs.at(text_model.output);
  if (vectors.shape.size() != 2 || vectors.shape[0] != static_cast<int64_t>(rows.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the output ", text_model.output, " is no vector for each text"));
  }
  return vectors.ToFloats();
}

absl::Status CheckFinite(absl::Span<const float> vector, size_t text) {
  if (absl::c_all_of(vector, [](float x) { return std::isfinite(x); })) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("text ", text + 1,
                   ": its vector is not finite: the numbers of the model are too large for its type; try --dtype=f32"));
}

}  // namespace

absl::StatusOr<TextModel> FindTextModel(const LoadedPlan& model, const DimEnv& dims) {
  TextModel found;
  for (const TensorInfo& output : model.outputs()) {
    const bool is_known = absl::c_linear_search(kVectorOutputs, output.name);
    if (is_known && output.shape.size() == 2 && found.output.empty()) found.output = output.name;
  }
  if (found.output.empty()) return NoVectors(model);
  for (const TensorInfo& input : model.inputs()) found.packed |= input.name == "starts";
  for (const TensorInfo& input : model.inputs()) {
    if (found.packed && absl::c_linear_search(kPackedInputs, input.name)) continue;
    const bool is_ids = input.name == "input_ids", is_types = input.name == "token_type_ids";
    if (!is_ids && !is_types && input.name != "attention_mask") {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model takes '", input.name, "', which is none of input_ids, attention_mask and token_type_ids"));
    }
    found.has_types |= is_types;
    if (found.packed && is_ids && input.shape.size() == 1) {
      const auto most = dims.find(input.shape[0]);
      if (most != dims.end()) found.max_packed = most->second;
    }
    if (found.packed && (is_ids || is_types)) continue;
    if (input.type != DType::kI64 || input.shape.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat("the model's input ", input.name, " must be i64 of two dims"));
    }
    if (!is_ids && !found.packed) continue;
    found.rows = input.shape[0];
    found.tokens = input.shape[1];
  }
  const auto rows = dims.find(found.rows), tokens = dims.find(found.tokens);
  if (rows == dims.end() || tokens == dims.end() || (found.packed && found.max_packed == 0)) {
    return absl::InvalidArgumentError(absl::StrCat("the model's input_ids has the fixed shape [", found.rows, ", ",
                                                   found.tokens, "]; texts and tokens must be symbols"));
  }
  found.max_texts = rows->second;
  found.max_tokens = tokens->second;
  return found;
}

int64_t PackedTextsOfBatch(absl::Span<const int64_t> lengths, int64_t batch_tokens, int64_t max_texts) {
  const int64_t most = std::min(max_texts, static_cast<int64_t>(lengths.size()));
  int64_t count = 1;
  for (int64_t tokens = lengths[0]; count < most; ++count) {
    tokens += lengths[static_cast<size_t>(count)];
    if (tokens > batch_tokens) break;
  }
  return count;
}

int64_t TextsOfBatch(absl::Span<const int64_t> lengths, int64_t batch_tokens, int64_t max_texts) {
  constexpr int64_t kPaddedPart = 20;  // one of so many
  const int64_t longest = lengths[0], fitting = std::max<int64_t>(batch_tokens / longest, 1);
  const int64_t most = std::min({fitting, max_texts, static_cast<int64_t>(lengths.size())});
  int64_t count = 1, padding = 0;
  for (; count < most; ++count) {
    padding += longest - lengths[static_cast<size_t>(count)];
    const bool is_full = count * longest >= kFullBatchTokens;
    if (is_full && padding * kPaddedPart > (count + 1) * longest) break;
  }
  return count;
}

absl::StatusOr<TextVectors> VectorsOf(const std::vector<std::string>& texts, const TextModel& text_model,
                                      const TextVectorOptions& options, LoadedPlan* model) {
  ASSIGN_OR_RETURN(const Encoded encoded, EncodeAll(texts, text_model, options.truncate, *model->tokenizer()));
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // The longest first: what needs too much memory fails at once.
  absl::c_stable_sort(order, [&](size_t a, size_t b) { return encoded.ids[a].size() > encoded.ids[b].size(); });
  TextVectors vectors{.truncated = encoded.truncated};
  for (const Ids& ids : encoded.ids) vectors.tokens.push_back(static_cast<int64_t>(ids.size()));
  std::vector<int64_t> lengths;
  for (const size_t text : order) lengths.push_back(vectors.tokens[text]);
  for (size_t begin = 0; begin < order.size();) {
    const auto next = absl::MakeConstSpan(lengths).subspan(begin);
    const int64_t most = text_model.max_texts, packed = std::min(options.batch_tokens, text_model.max_packed);
    const auto count = static_cast<size_t>(text_model.packed ? PackedTextsOfBatch(next, packed, most)
                                                             : TextsOfBatch(next, options.batch_tokens, most));
    const absl::Span<const size_t> rows = absl::MakeConstSpan(order).subspan(begin, count);
    ASSIGN_OR_RETURN(const std::vector<float> values, RunBatch(encoded.ids, rows, text_model, model));
    const size_t size = values.size() / count;
    vectors.size = static_cast<int64_t>(size);
    vectors.values.resize(texts.size() * size);
    for (size_t i = 0; i < count; ++i) {
      const absl::Span<const float> vector = absl::MakeConstSpan(values).subspan(i * size, size);
      RETURN_IF_ERROR(CheckFinite(vector, rows[i]));
      absl::c_copy(vector, vectors.values.begin() + static_cast<int64_t>(rows[i] * size));
    }
    begin += count;
    if (options.on_batch) options.on_batch(static_cast<int64_t>(begin), static_cast<int64_t>(order.size()));
  }
  return vectors;
}

}  // namespace llmc
