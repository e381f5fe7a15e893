#include "tools/text_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/tokenizer.h"

namespace llmc {
namespace {

constexpr EncodeOptions kPlain = {.add_special_tokens = false, .parse_special_tokens = true};
constexpr EncodeOptions kWhole = {.add_special_tokens = true, .parse_special_tokens = true, .repeat_bos = true};

constexpr const char* kPackedInputs[] = {"position_ids", "starts", "places"};

absl::Status ReadInput(const TensorInfo& input, TextModel* found) {
  if (found->packed && absl::c_linear_search(kPackedInputs, input.name)) return absl::OkStatus();
  const bool is_ids = input.name == "input_ids", is_types = input.name == "token_type_ids";
  const bool is_pooling_mask = input.name == "pooling_mask";
  if (!is_ids && !is_types && !is_pooling_mask && input.name != "attention_mask") {
    return absl::InvalidArgumentError(
        absl::StrCat("the model takes '", input.name,
                     "', which is none of input_ids, attention_mask, token_type_ids and pooling_mask"));
  }
  const size_t rank = found->packed && (is_ids || is_types) ? 1 : 2;
  if (input.type != DType::kI64 || input.shape.size() != rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's input ", input.name, " must be i64 of ", rank == 1 ? "one dim" : "two dims"));
  }
  found->has_types |= is_types;
  found->has_pooling_mask |= is_pooling_mask;
  if (is_ids && rank == 1) found->all_tokens = input.shape[0];
  if (rank == 1 || (!is_ids && !found->packed)) return absl::OkStatus();
  found->rows = input.shape[0];
  found->tokens = input.shape[1];
  return absl::OkStatus();
}

size_t LongestOf(const std::vector<EncodedText>& all, absl::Span<const size_t> rows) {
  size_t longest = 0;
  for (const size_t row : rows) longest = std::max(longest, all[row].ids.size());
  return longest;
}

// The inputs that texts `rows` are, one after the other.
absl::StatusOr<NamedHostTensors> PackedInputs(const std::vector<EncodedText>& all, absl::Span<const size_t> rows,
                                              const TextModel& text_model) {
  const size_t longest = LongestOf(all, rows);
  std::vector<int64_t> ids, types, positions, starts = {0};
  std::vector<int64_t> places(rows.size() * longest), mask(places.size()), counted(places.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const EncodedText& own = all[rows[i]];
    for (size_t at = 0; at < longest; ++at) {
      places[i * longest + at] = starts.back() + static_cast<int64_t>(std::min(at, own.ids.size() - 1));
      mask[i * longest + at] = at < own.ids.size() ? 1 : 0;
      counted[i * longest + at] = at < own.ids.size() && at >= own.prompt_tokens ? 1 : 0;
    }
    ids.insert(ids.end(), own.ids.begin(), own.ids.end());
    types.insert(types.end(), own.types.begin(), own.types.end());
    types.resize(ids.size());
    for (size_t at = 0; at < own.ids.size(); ++at) positions.push_back(static_cast<int64_t>(at));
    starts.push_back(static_cast<int64_t>(ids.size()));
  }
  const std::vector<int64_t> tokens = {starts.back()};
  const std::vector<int64_t> padded = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)};
  NamedHostTensors inputs;
  ASSIGN_OR_RETURN(inputs["input_ids"], HostTensor::FromInts(ids, tokens));
  ASSIGN_OR_RETURN(inputs["position_ids"], HostTensor::FromInts(positions, tokens));
  ASSIGN_OR_RETURN(inputs["places"], HostTensor::FromInts(places, padded));
  ASSIGN_OR_RETURN(inputs["attention_mask"], HostTensor::FromInts(mask, padded));
  ASSIGN_OR_RETURN(inputs["starts"], HostTensor::FromInts(DType::kI32, starts, {static_cast<int64_t>(starts.size())}));
  if (text_model.has_types) {
    ASSIGN_OR_RETURN(inputs["token_type_ids"], HostTensor::FromInts(types, tokens));
  }
  if (text_model.has_pooling_mask) {
    ASSIGN_OR_RETURN(inputs["pooling_mask"], HostTensor::FromInts(counted, padded));
  }
  return inputs;
}

// The same, padded to the longest.
absl::StatusOr<NamedHostTensors> PaddedInputs(const std::vector<EncodedText>& all, absl::Span<const size_t> rows,
                                              const TextModel& text_model) {
  const size_t longest = LongestOf(all, rows);
  std::vector<int64_t> ids(rows.size() * longest), mask(ids.size()), types(ids.size()), counted(ids.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const EncodedText& own = all[rows[i]];
    const auto begin = static_cast<int64_t>(i * longest);
    absl::c_copy(own.ids, ids.begin() + begin);
    absl::c_copy(own.types, types.begin() + begin);
    std::fill_n(mask.begin() + begin, own.ids.size(), 1);
    std::fill_n(counted.begin() + begin + static_cast<int64_t>(own.prompt_tokens), own.ids.size() - own.prompt_tokens,
                1);
  }
  const std::vector<int64_t> shape = {static_cast<int64_t>(rows.size()), static_cast<int64_t>(longest)};
  NamedHostTensors inputs;
  ASSIGN_OR_RETURN(inputs["input_ids"], HostTensor::FromInts(ids, shape));
  ASSIGN_OR_RETURN(inputs["attention_mask"], HostTensor::FromInts(mask, shape));
  if (text_model.has_types) {
    ASSIGN_OR_RETURN(inputs["token_type_ids"], HostTensor::FromInts(types, shape));
  }
  if (text_model.has_pooling_mask) {
    ASSIGN_OR_RETURN(inputs["pooling_mask"], HostTensor::FromInts(counted, shape));
  }
  return inputs;
}

// Texts `rows` in one run: f32 [rows, size].
absl::StatusOr<std::vector<float>> RunBatch(const std::vector<EncodedText>& all, absl::Span<const size_t> rows,
                                            const TextModel& text_model, LoadedPlan* model) {
  ASSIGN_OR_RETURN(const NamedHostTensors inputs,
                   text_model.packed ? PackedInputs(all, rows, text_model) : PaddedInputs(all, rows, text_model));
  ASSIGN_OR_RETURN(const NamedHostTensors outputs, model->Run(inputs));
  const HostTensor& result = outputs.at(text_model.output);
  if (result.shape.size() != 2 || result.shape[0] != static_cast<int64_t>(rows.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the output ", text_model.output, " is no row for each text"));
  }
  return result.ToFloats();
}

absl::Status CheckFinite(absl::Span<const float> row, size_t text) {
  if (absl::c_all_of(row, [](float x) { return std::isfinite(x); })) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("text ", text + 1,
                   ": its numbers are not finite: those of the model are too large for its type; try --dtype=f32"));
}

}  // namespace

absl::StatusOr<TextModel> FindTextModel(const LoadedPlan& model, const DimEnv& dims,
                                        absl::Span<const char* const> outputs) {
  TextModel found;
  for (const TensorInfo& output : model.outputs()) {
    const bool is_known = absl::c_linear_search(outputs, output.name);
    if (is_known && output.shape.size() == 2 && found.output.empty()) found.output = output.name;
  }
  if (found.output.empty() || model.has_paged_cache()) return absl::NotFoundError("the model has no such output");
  for (const TensorInfo& input : model.inputs()) found.packed |= input.name == "starts";
  for (const TensorInfo& input : model.inputs()) RETURN_IF_ERROR(ReadInput(input, &found));
  const auto rows = dims.find(found.rows), tokens = dims.find(found.tokens), all = dims.find(found.all_tokens);
  if (rows == dims.end() || tokens == dims.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the model's input_ids has the fixed shape [", found.rows, ", ",
                                                   found.tokens, "]; texts and tokens must be symbols"));
  }
  if (found.packed && all == dims.end()) {
    return absl::InvalidArgumentError("the model takes a fixed number of packed tokens; it must be a symbol");
  }
  if (found.packed) found.max_packed = all->second;
  found.max_texts = rows->second;
  found.max_tokens = tokens->second;
  return found;
}

std::vector<float> TextRows::Row(size_t text) const {
  const auto begin = values.begin() + static_cast<int64_t>(text) * size;
  return {begin, begin + size};
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

absl::StatusOr<TextRows> RunTexts(const std::vector<EncodedText>& texts, const TextModel& text_model,
                                  const TextBatching& batching, LoadedPlan* model) {
  std::vector<size_t> order(texts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // The longest first: what needs too much memory fails at once.
  absl::c_stable_sort(order, [&](size_t a, size_t b) { return texts[a].ids.size() > texts[b].ids.size(); });
  std::vector<int64_t> lengths;
  for (const size_t text : order) lengths.push_back(static_cast<int64_t>(texts[text].ids.size()));
  TextRows result;
  for (size_t begin = 0; begin < order.size();) {
    const auto next = absl::MakeConstSpan(lengths).subspan(begin);
    const int64_t most = text_model.max_texts, packed = std::min(batching.batch_tokens, text_model.max_packed);
    const auto count = static_cast<size_t>(text_model.packed ? PackedTextsOfBatch(next, packed, most)
                                                             : TextsOfBatch(next, batching.batch_tokens, most));
    const absl::Span<const size_t> rows = absl::MakeConstSpan(order).subspan(begin, count);
    ASSIGN_OR_RETURN(const std::vector<float> values, RunBatch(texts, rows, text_model, model));
    const size_t size = values.size() / count;
    result.size = static_cast<int64_t>(size);
    result.values.resize(texts.size() * size);
    for (size_t i = 0; i < count; ++i) {
      const absl::Span<const float> row = absl::MakeConstSpan(values).subspan(i * size, size);
      RETURN_IF_ERROR(CheckFinite(row, rows[i]));
      absl::c_copy(row, result.values.begin() + static_cast<int64_t>(rows[i] * size));
    }
    begin += count;
    if (batching.on_batch) batching.on_batch(static_cast<int64_t>(begin), static_cast<int64_t>(order.size()));
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> EncodePlain(const std::string& text, const Tokenizer& tokenizer,
                                                 absl::string_view place) {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text, kPlain);
  if (ids.ok() || place.empty()) return ids;
  return absl::Status(ids.status().code(), absl::StrCat(place, ": ", ids.status().message()));
}

std::vector<int32_t> SpecialTokens::Around(absl::Span<const int32_t> ids, size_t room) const {
  const absl::Span<const int32_t> kept = ids.subspan(0, room);
  std::vector<int32_t> all = before;
  all.insert(all.end(), kept.begin(), kept.end());
  all.insert(all.end(), after.begin(), after.end());
  return all;
}

absl::StatusOr<SpecialTokens> FindSpecialTokens(const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> plain, tokenizer.Encode("a", kPlain));
  ASSIGN_OR_RETURN(const std::vector<int32_t> whole, tokenizer.Encode("a", kWhole));
  const auto at = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
  if (at == whole.end() || plain.empty()) {
    return absl::UnimplementedError("the tokenizer changes more than the ends of a text where it adds special tokens");
  }
  return SpecialTokens{{whole.begin(), at}, {at + static_cast<int64_t>(plain.size()), whole.end()}};
}

absl::Status CheckTokenizer(const LoadedPlan& model) {
  if (model.tokenizer() != nullptr) return absl::OkStatus();
  const absl::Status status = model.tokenizer_status();
  return absl::Status(absl::IsNotFound(status) ? absl::StatusCode::kInvalidArgument : status.code(),
                      absl::StrCat("has no tokenizer that can be used; give --tokenizer DIR: ", status.message()));
}

}  // namespace llmc
