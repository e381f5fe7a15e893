#include "tools/language_run.h"

#include <algorithm>

#include "base/status_macros.h"
#include "tools/language_files.h"
#include "tools/runnable.h"

namespace llmc {

absl::StatusOr<LanguageRun> LoadLanguage(const ModelSource& source, const std::string& tokenizer,
                                         const SamplingOptions& sampling, Progress* progress) {
  LanguageRun run;
  ASSIGN_OR_RETURN(run.model, LoadRunnable(source, tokenizer, progress));
  RETURN_IF_ERROR(run.model->executor().status());
  if (!run.model->generation().ok()) return run.model->generation().status();
  ASSIGN_OR_RETURN(run.sampling, MergeSampling(sampling, run.model->generation()->sampling));
  progress->Clear();
  WarnOfLeftOut(run.model->generation());
  return run;
}

absl::StatusOr<std::unique_ptr<Engine>> NewEngineFor(size_t sequences, bool prefix_cache, LoadedPlan* model) {
  ASSIGN_OR_RETURN(const Executor* executor, model->executor());
  const ExecutorLimits& limits = executor->limits();
  return model->NewEngine({.max_tokens_per_step = limits.max_step_tokens,
                           .max_sequences = std::min(static_cast<int64_t>(sequences),
                                                     std::min(limits.max_sequences, limits.max_step_tokens)),
                           .prefix_cache = prefix_cache});
}

}  // namespace llmc
