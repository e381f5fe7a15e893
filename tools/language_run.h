// A language model that is loaded to generate text: what `generate` and `chat` set up.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/engine/engine.h"
#include "runtime/llmc.h"
#include "tools/model_source.h"
#include "tools/progress.h"
#include "tools/sampling_options.h"

namespace llmc {

struct LanguageRun {
  std::unique_ptr<LoadedPlan> model;
  SamplingParams sampling;  // what the model's files say, with what the user chose
};

// Errors are those of LoadRunnable, of a model that generates nothing, and of its generation_config.json; a warning
// says if that was left out. Whether there is a tokenizer is for the caller to ask.
absl::StatusOr<LanguageRun> LoadLanguage(const ModelSource& source, const std::string& tokenizer,
                                         const SamplingOptions& sampling, Progress* progress);

// For so many sequences at once, or as many of them as the plan takes in a step.
absl::StatusOr<std::unique_ptr<Engine>> NewEngineFor(size_t sequences, bool prefix_cache, LoadedPlan* model);

}  // namespace llmc
