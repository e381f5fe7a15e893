// A model or plan, ready to run on the host.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/side_files.h"
#include "ir/graph.h"
#include "runtime/executor.h"
#include "runtime/plan.h"
#include "runtime/text/tokenizer.h"
#include "tools/model_source.h"
#include "tools/progress.h"

namespace llmc {

struct Runnable {
  std::unique_ptr<Plan> plan;  // null for models
  std::unique_ptr<Model> model;
  bool paged = false;          // a language model with paged KV states
  std::string tokenizer_json;  // empty if there is none
  std::vector<int32_t> eos_ids;
};

// Declares MODEL (which may be a plan), --dtype and --weights-folder.
void AddRunnableOptions(CLI::App* command, ModelSource* source);

// Loads a plan, imports a model and runs the passes, or reads a dump, which runs as it stands.
absl::StatusOr<Runnable> LoadRunnable(const ModelSource& source, Progress* progress);

// Tokens that a sequence of a paged model can have.
int64_t MaxContext(const Model& model);

// Logits f32[S, V] or f32[B, S, V] of token ids [S] or [B, S]; `mask` (may be null) has the shape of `ids`, 0 where
// there is no token.
absl::StatusOr<Tensor> ScoreTokens(Runnable* runnable, const Tensor& ids, const Tensor* mask);

// What the engine runs: with room in the KV cache for `tokens` tokens at once, or, of a model without paged KV states,
// by feeding its outputs back. Refers to `runnable`.
absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor(Runnable* runnable, int64_t tokens);

// The tokenizer in `given` (a folder or file), or the one that came with the model at `path`; nullptr if there is none.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& given, const std::string& path,
                                                         const Runnable& runnable);

// ReadSideFiles, with a tokenizer that can be loaded. One of a kind that is not supported is left out with a note on
// stderr, unless it is `needed`.
absl::StatusOr<SideFiles> ReadUsableSideFiles(const std::string& folder, bool needed);

}  // namespace llmc
