#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/tensor_files.h"
#include "tools/text_options.h"
#include "tools/text_scores.h"

namespace llmc {
namespace score_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Scores texts, or texts for a query, with a model that classifies.";
constexpr char kDetails[] =
    "With --query each text is a document for it, as for a cross-encoder (reranker); with --pairs each text is two, "
    "with\n"
    "a tab between them; else each is classified by itself. Texts are the arguments, the lines of --file, or those of\n"
    "standard input. Scores are what CrossEncoder.predict of sentence-transformers gives for pairs, and the pipeline "
    "of\n"
    "transformers for single texts; --activation chooses otherwise.\n"
    "Examples:\n"
    "  llmc score ms-marco-MiniLM-L6-v2/ --query \"where did it sit\" \"the cat sat on a mat\" \"dogs bark\"\n"
    "  llmc score reranker/ --query \"where did it sit\" --file=documents.txt --sort --json\n"
    "  llmc score nli/ --pairs --file=pairs.tsv --activation=softmax -o scores.npy\n"
    "  llmc score sentiment/ \"what a day\" \"not again\"";

struct Options {
  TextOptions text;
  std::optional<std::string> query;
  bool pairs = false, sort = false;
  std::optional<std::string> activation;

  bool of_pairs() const { return query.has_value() || pairs; }
};

struct Result {
  TextScores scores;
  ScoreActivation activation = ScoreActivation::kNone;
};

absl::StatusOr<std::vector<ScoredText>> Split(const std::vector<std::string>& texts, const Options& options) {
  std::vector<ScoredText> scored;
  for (const std::string& text : texts) {
    if (!options.pairs) {
      scored.push_back(options.query.has_value() ? ScoredText{*options.query, text} : ScoredText{text, ""});
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(text, '\t');
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat("--pairs: text ", scored.size() + 1, " has ", parts.size() - 1,
                                                     " tabs; one stands between its two texts"));
    }
    scored.push_back({parts[0], parts[1]});
  }
  return scored;
}

absl::StatusOr<TextCut> Score(const Options& options, const std::vector<ScoredText>& texts, TextRun& run,
                              Result* result) {
  const TextScoreOptions wanted = {.of_pairs = options.of_pairs(),
                                   .truncate = options.text.truncate,
                                   .prompt = run.prompt,
                                   .batching = run.batching};
  ASSIGN_OR_RETURN(result->scores, ScoresOf(texts, run.files, run.dims, wanted, run.model.get()));
  const auto chosen = options.activation.has_value()
                          ? ParseScoreActivation(*options.activation)
                          : ActivationOf(run.files, options.of_pairs(), result->scores.labels.size());
  if (!chosen.ok()) return chosen.status();
  result->activation = *chosen;
  Activate(result->activation, &result->scores.rows);
  return TextCut{result->scores.truncated, result->scores.max_tokens};
}

// The places of texts in the order in which they are shown. By --sort that of the first label, the best first.
absl::StatusOr<std::vector<size_t>> Order(const Options& options, const TextScores& scores) {
  std::vector<size_t> order(scores.tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!options.sort) return order;
  if (scores.labels.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.text.source.path, ": --sort needs a model with one label; this has ", scores.labels.size()));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores.rows.values[a] > scores.rows.values[b]; });
  return order;
}

std::string Shown(const ScoredText& text, const Options& options) {
  return options.query.has_value() ? text.second
         : options.pairs           ? absl::StrCat(text.first, "\t", text.second)
                                   : text.first;
}

void Print(const Options& options, const std::vector<ScoredText>& texts, const std::vector<size_t>& order,
           const TextScores& scores) {
  for (const size_t i : order) {
    std::string line = absl::StrCat(i);
    const std::vector<float> row = scores.rows.Row(i);
    for (size_t label = 0; label < row.size(); ++label) {
      absl::StrAppend(&line, "  ", row.size() > 1 ? scores.labels[label] + " " : "",
                      absl::StrFormat("%.6f", row[label]));
    }
    PrintText(absl::StrCat(line, "  ", Shown(texts[i], options), "\n"));
  }
}

void PrintAsJson(const Options& options, const std::vector<size_t>& order, const Result& result) {
  const TextScores& scores = result.scores;
  Json data = Json::array();
  for (const size_t i : order) {
    const std::vector<float> row = scores.rows.Row(i);
    Json item = {{"index", i}};
    if (row.size() == 1) {
      item["score"] = row[0];
    } else {
      item["scores"] = row;
      item["label"] = scores.labels[static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin())];
    }
    item["tokens"] = scores.tokens[i];
    data.push_back(std::move(item));
  }
  PrintJson({{"model", options.text.source.path},
             {"labels", scores.labels},
             {"activation", ScoreActivationName(result.activation)},
             {"data", std::move(data)}});
}

absl::Status Run(const Options& options) {
  RETURN_IF_ERROR(CheckOutput(options.text.output, {options.text.file}));
  ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadTexts(options.text));
  ASSIGN_OR_RETURN(const std::vector<ScoredText> texts, Split(lines, options));
  Result result;
  RETURN_IF_ERROR(
      WithTextModel(options.text, texts.size(), [&](TextRun& run) { return Score(options, texts, run, &result); }));
  const TextScores& scores = result.scores;
  ASSIGN_OR_RETURN(const std::vector<size_t> order, Order(options, scores));
  if (!options.text.output.empty()) {
    const Shape shape = {static_cast<int64_t>(texts.size()), scores.rows.size};
    const Tensor tensor = Tensor::FromValues(DType::kF32, shape, scores.rows.values);
    RETURN_IF_ERROR(WriteTensorFile(options.text.output, {{"scores", tensor}}));
  }
  if (options.text.json) {
    PrintAsJson(options, order, result);
  } else if (options.text.output.empty()) {
    Print(options, texts, order, scores);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace score_command

void AddScore(CLI::App& app, Command* chosen) {
  using namespace score_command;
  CLI::App* command = AddCommand(app, "score", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddTextOptions(command, "the scores, f32 [texts, labels], in the order of the texts,", &options->text);
  CLI::Option* query = command->add_option("--query", options->query, "each text is scored as a document for it");
  command->add_flag("--pairs", options->pairs, "each text is two, with a tab between them")->excludes(query);
  command->add_flag("--sort", options->sort, "the best first; of a model with one label");
  command
      ->add_option("--activation", options->activation,
                   "what is made of the model's numbers: none, sigmoid or softmax; else what its files say")
      ->check([](const std::string& text) { return std::string(ParseScoreActivation(text).status().message()); });
  command->callback([options, chosen] {
    options->text.source.output = options->text.output;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
