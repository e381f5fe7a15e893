#include "runtime/engine/generation_config.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "runtime/text/json_node.h"

namespace llmc {
namespace {

using nlohmann::json;

// A JSON object of a side file; null for a file that is absent.
struct JsonFile {
  std::string name;
  json object;
  JsonNode root() const { return {&object, name, ""}; }
};

absl::StatusOr<JsonFile> ReadJsonObject(const SideFiles& files, const char* name,
                                        const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return text.status();
  JsonFile document{.name = files.NameOf(name)};
  if (text->empty()) return document;
  ASSIGN_OR_RETURN(json parsed, ParseTokenizerJson(*text, document.name));
  document.object = std::move(parsed);
  RETURN_IF_ERROR(document.root().ExpectObject());
  return document;
}

// The ids of a key that is a number or a list of them, without numbers that can be no token. nullopt: it is absent.
absl::StatusOr<std::optional<std::vector<int32_t>>> ReadTokenIds(const JsonFile& file, const char* key) {
  const auto node = file.root().Find(key);
  if (!node) return std::nullopt;
  std::vector<int32_t> ids;
  const json list = node->value().is_array() ? node->value() : json::array({node->value()});
  for (const json& id : list) {
    if (!id.is_number_integer()) return node->Error("must be a token id or a list of them");
    if (id >= 0 && id <= INT32_MAX) ids.push_back(id.get<int32_t>());
  }
  return ids;
}

absl::Status ReadJsonNumber(const JsonFile& file, const char* key, double* number) {
  const auto node = file.root().Find(key);
  if (!node) return absl::OkStatus();
  if (!node->value().is_number()) return node->Error(absl::StrCat("must be a number, is ", node->value().type_name()));
  *number = node->value().get<double>();
  return absl::OkStatus();
}

absl::Status ReadTopK(const JsonFile& file, bool samples, int64_t* top_k) {
  // A null switches it off.
  if (!file.object.is_object() || !file.object.contains("top_k")) {
    if (samples) *top_k = 50;
    return absl::OkStatus();
  }
  const auto node = file.root().Find("top_k");
  if (!node) return absl::OkStatus();
  const absl::StatusOr<int64_t> value = node->AsInt(INT32_MIN, INT32_MAX);
  if (value.ok()) *top_k = std::max<int64_t>(*value, 0);
  return value.status();
}

absl::Status ReadSamplingDefaults(const JsonFile& file, SamplingParams* sampling) {
  ASSIGN_OR_RETURN(const bool samples, file.root().GetBool("do_sample", false));
  double temperature = 1;
  absl::Status status = ReadJsonNumber(file, "temperature", &temperature);
  if (status.ok()) status = ReadTopK(file, samples, &sampling->top_k);
  if (status.ok()) status = ReadJsonNumber(file, "top_p", &sampling->top_p);
  if (status.ok()) status = ReadJsonNumber(file, "min_p", &sampling->min_p);
  if (status.ok()) status = ReadJsonNumber(file, "repetition_penalty", &sampling->repetition_penalty);
  if (samples) sampling->temperature = temperature;
  return status;
}

// The tokens that begin and end a text, in place of those of a file before, where this one names them.
absl::Status ReadEnds(const JsonFile& file, GenerationConfig* result, bool* names_end) {
  const auto eos = ReadTokenIds(file, "eos_token_id"), bos = ReadTokenIds(file, "bos_token_id");
  if (!eos.ok()) return eos.status();
  if (!bos.ok()) return bos.status();
  *names_end = *names_end || eos->has_value();
  if (eos->has_value()) result->eos_token_ids = **eos;
  if (bos->has_value()) result->bos_token_id.reset();
  if (bos->has_value() && !(*bos)->empty()) result->bos_token_id = (*bos)->front();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer(const SideFiles& files) {
  if (!files.tokenizer.ok()) return files.tokenizer.status();
  if (!files.tokenizer_config.ok()) return files.tokenizer_config.status();
  std::vector<TokenizerFile> all;
  for (const SideFile& file : *files.tokenizer) all.push_back({file.name, file.text});
  all.push_back({"tokenizer_config.json", *files.tokenizer_config});
  const auto is_config = [](const TokenizerFile& file) { return file.name == "config.json"; };
  if (std::none_of(all.begin(), all.end(), is_config)) all.push_back({"config.json", files.config.value_or("")});
  return Tokenizer::FromFiles(all, files.prefix);
}

absl::StatusOr<GenerationConfig> ReadGenerationConfig(const SideFiles& files,
                                                      absl::FunctionRef<const Tokenizer*()> tokenizer,
                                                      const std::optional<std::vector<int32_t>>& end_tokens) {
  ASSIGN_OR_RETURN(const JsonFile config, ReadJsonObject(files, "config.json", files.config));
  GenerationConfig result;
  bool names_end = false;
  RETURN_IF_ERROR(ReadEnds(config, &result, &names_end));
  const absl::StatusOr<JsonFile> generation = ReadJsonObject(files, "generation_config.json", files.generation_config);
  result.left_out = generation.status();
  if (generation.ok()) {
    result.left_out.Update(ReadEnds(*generation, &result, &names_end));
    result.left_out.Update(ReadSamplingDefaults(generation->object.is_null() ? config : *generation, &result.sampling));
  }
  if (!result.left_out.ok()) result.sampling = SamplingParams();
  if (end_tokens.has_value()) {
    result.eos_token_ids = *end_tokens;
    return result;
  }
  if (names_end) return result;
  const Tokenizer* with_names = tokenizer();
  if (with_names != nullptr && with_names->eos_token_id()) {
    result.eos_token_ids = {*with_names->eos_token_id()};
  } else if (!result.left_out.ok()) {
    return result.left_out;
  }
  return result;
}

std::string SamplingText(const SamplingParams& sampling) {
  std::vector<std::string> parts;
  const SamplingParams plain;
  const auto add = [&parts](absl::string_view name, auto value, auto other) {
    if (value != other) parts.push_back(absl::StrCat(name, " ", value));
  };
  add("temperature", sampling.temperature, plain.temperature);
  if (sampling.temperature != 0) {
    add("top_k", sampling.top_k, plain.top_k);
    add("top_p", sampling.top_p, plain.top_p);
    add("min_p", sampling.min_p, plain.min_p);
  }
  add("repetition_penalty", sampling.repetition_penalty, plain.repetition_penalty);
  add("presence_penalty", sampling.presence_penalty, plain.presence_penalty);
  add("frequency_penalty", sampling.frequency_penalty, plain.frequency_penalty);
  return parts.empty() ? "greedy" : absl::StrJoin(parts, ", ");
}

}  // namespace llmc
