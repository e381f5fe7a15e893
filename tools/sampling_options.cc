#include "tools/sampling_options.h"

#include <cstdio>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/engine/generation_config.h"

namespace llmc {
namespace {

std::string CheckSeed(const std::string& text) {
  uint64_t seed = 0;
  return absl::SimpleAtoi(text, &seed) ? "" : absl::StrCat("'", text, "' is not a number from 0 to 2^64 - 1");
}

SamplingParams Overlay(const SamplingOptions& options, SamplingParams params) {
  params.temperature = options.temperature.value_or(params.temperature);
  params.top_k = options.top_k.value_or(params.top_k);
  params.top_p = options.top_p.value_or(params.top_p);
  params.min_p = options.min_p.value_or(params.min_p);
  params.repetition_penalty = options.repetition_penalty.value_or(params.repetition_penalty);
  params.presence_penalty = options.presence_penalty.value_or(params.presence_penalty);
  params.frequency_penalty = options.frequency_penalty.value_or(params.frequency_penalty);
  params.seed = options.seed.value_or(params.seed);
  return params;
}

}  // namespace

void AddSamplingOptions(CLI::App* command, SamplingOptions* options) {
  const std::string otherwise = "; default: the model's generation_config.json, else ";
  command->add_option("--temperature", options->temperature, "0 takes the likeliest token" + otherwise + "0");
  command->add_option("--top-k", options->top_k, "only the k likeliest tokens; 0: all" + otherwise + "0");
  command->add_option("--top-p", options->top_p, "only the likeliest tokens up to this probability" + otherwise + "1");
  command->add_option("--min-p", options->min_p,
                      "only tokens at least so probable, relative to the likeliest" + otherwise + "0");
  command->add_option("--repetition-penalty", options->repetition_penalty,
                      "weakens tokens of the prompt and the text" + otherwise + "1");
  command->add_option("--presence-penalty", options->presence_penalty, "subtracted from logits of generated tokens");
  command->add_option("--frequency-penalty", options->frequency_penalty, "likewise, once for each time");
  command
      ->add_option(
          "--seed", options->seed,
          "of the random draws, that of each further prompt is one more; default: a random one, which is printed")
      ->check(CheckSeed);
}

absl::Status CheckSamplingOptions(const SamplingOptions& options) {
  return CheckSamplingParams(Overlay(options, SamplingParams()));
}

absl::StatusOr<SamplingParams> MergeSampling(const SamplingOptions& options, const SamplingParams& defaults) {
  SamplingParams params = Overlay(options, defaults);
  if (absl::Status status = CheckSamplingParams(params); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("the model's generation_config.json: ", status.message(),
                                                    "; give the option of that name"));
  }
  // 32 bits, which any reader of JSON keeps.
  if (params.temperature > 0 && !options.seed.has_value()) params.seed = std::random_device()();
  return params;
}

nlohmann::ordered_json SamplingJson(const SamplingParams& sampling) {
  return {{"temperature", sampling.temperature},
          {"top_k", sampling.top_k},
          {"top_p", sampling.top_p},
          {"min_p", sampling.min_p},
          {"repetition_penalty", sampling.repetition_penalty},
          {"presence_penalty", sampling.presence_penalty},
          {"frequency_penalty", sampling.frequency_penalty},
          {"seed", sampling.seed}};
}

void PrintSampling(const SamplingParams& sampling) {
  if (sampling.temperature == 0 && !sampling.has_penalties()) return;
  const std::string seed = sampling.temperature > 0 ? absl::StrCat(", seed ", sampling.seed) : "";
  std::fprintf(stderr, "note: sampling with %s%s\n", SamplingText(sampling).c_str(), seed.c_str());
}

}  // namespace llmc
