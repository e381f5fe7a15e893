// How a model's files ask for text to be generated: end tokens, and what is sampled where a request does not say.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "files/side_files.h"
#include "runtime/engine/sampler.h"
#include "runtime/text/tokenizer.h"

namespace llmc {

// The tokenizer that the files describe. NotFound: they hold none; else the error of Tokenizer::FromFiles, or why they
// could not be read.
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadTokenizer(const SideFiles& files);

struct GenerationConfig {
  // Of generation_config.json, else of config.json, else the eos_token of tokenizer_config.json. A number below 0 is no
  // token, as in transformers: such a file has no end token.
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;  // of generation_config.json, else of config.json
  // Of generation_config.json (of config.json where there is none, as in transformers): without do_sample the
  // temperature is 0, with it that of the file, else 1, and top_k is 50 where the file gives none. top_k, top_p, min_p
  // and repetition_penalty are those of the file also where the temperature is 0, for requests with another one. They
  // are not checked (CheckSamplingParams). The seed is 0; other keys of the file are not used.
  SamplingParams sampling;
  // Why what generation_config.json asks for was left out: it cannot be read, is no JSON object, or a key has another
  // type. The defaults are those above, and for sampling greedy. OK: nothing was.
  absl::Status left_out;
};

// `end_tokens` are those that are known otherwise, which take the place of those of the files. `tokenizer` is called
// only if they are not, and no other file names an end token; it may give nullptr. An error: config.json is no JSON
// object, or a token of it has another type; or generation_config.json is damaged, and nothing else names an end token.
absl::StatusOr<GenerationConfig> ReadGenerationConfig(
    const SideFiles& files, absl::FunctionRef<const Tokenizer*()> tokenizer,
    const std::optional<std::vector<int32_t>>& end_tokens = std::nullopt);

// "temperature 0.8, top_k 50": what is not as without any file; "greedy" if nothing is.
std::string SamplingText(const SamplingParams& sampling);

}  // namespace llmc
