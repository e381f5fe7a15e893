// Scores of labels for texts, or for pairs of texts, with a model that classifies them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "files/side_files.h"
#include "tools/text_model.h"

namespace llmc {

// What is made of the numbers of labels.
enum class ScoreActivation { kNone, kSigmoid, kSoftmax };
// By "none", "sigmoid", "softmax", and back; InvalidArgument lists them.
absl::StatusOr<ScoreActivation> ParseScoreActivation(const std::string& name);
const char* ScoreActivationName(ScoreActivation activation);

// Of pairs as CrossEncoder.predict of sentence-transformers has it: what the model's files name, else a sigmoid of one
// label and nothing of several. Of single texts as the pipeline of transformers: by `problem_type`, else a sigmoid of
// one label and a softmax of several. Unimplemented: a function that llmc does not have, by its name.
absl::StatusOr<ScoreActivation> ActivationOf(const SideFiles& files, bool of_pairs, size_t labels);

// One that is scored: two texts, or `first` alone.
struct ScoredText {
  std::string first, second;
};

struct TextScoreOptions {
  bool of_pairs = false;
  bool truncate = true;  // the longer of two texts loses tokens at its end first; else it is an error
  std::string prompt;    // put before the first text
  TextBatching batching;
};

struct TextScores {
  std::vector<std::string> labels;  // their names
  TextRows rows;                    // numbers of the labels of each text
  std::vector<int64_t> tokens;
  int64_t truncated = 0;   // texts
  int64_t max_tokens = 0;  // that the model takes
};

// `dims` are the model's bounds. InvalidArgument: the model does not classify texts, or a text is wrong, by its place
// counted from 1.
absl::StatusOr<TextScores> ScoresOf(const std::vector<ScoredText>& texts, const SideFiles& files, const DimEnv& dims,
                                    const TextScoreOptions& options, LoadedPlan* model);

void Activate(ScoreActivation activation, TextRows* rows);

}  // namespace llmc
