#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "frontend/formats/json_file.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/fixed_options.h"
#include "tools/language_files.h"
#include "tools/output.h"
#include "tools/sentence_settings.h"
#include "tools/tensor_files.h"
#include "tools/text_options.h"
#include "tools/text_vectors.h"

namespace llmc {
namespace embed_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxCompared = 1 << 14;  // texts: their scores are as many numbers, squared

constexpr char kSummary[] = "Turns texts into vectors.";
constexpr char kDetails[] =
    "A folder of sentence-transformers (with modules.json) says itself how the vectors of tokens become one for each\n"
    "text, and a plan keeps what the folder said; of other models --pool has to say it. Texts are the arguments, the\n"
    "lines of --file, or those of standard input. A text of more tokens than the model takes is cut.\n"
    "Examples:\n"
    "  llmc embed all-MiniLM-L6-v2/ \"A cat sat on the mat.\" \"Where did it sit?\"\n"
    "  llmc embed all-MiniLM-L6-v2/ \"A cat sat on the mat.\" \"Where did it sit?\" --scores\n"
    "  llmc embed bert-base/ --pool=mean --normalize --file=lines.txt -o vectors.npy\n"
    "  llmc compile all-MiniLM-L6-v2/ -o plan.bin && llmc embed plan.bin --json < lines.txt\n"
    "  llmc embed Qwen3-Embedding-0.6B/ --prompt-name=query \"where is the cat\" --device=cuda";

struct Options {
  TextOptions text;
  bool scores = false;
  std::optional<std::string> similarity;
};

// The vectors, and what they are compared by.
struct Result {
  TextVectors vectors;
  Similarity similarity = Similarity::kCosine;
};

absl::StatusOr<Similarity> SimilarityOf(const Options& options, const SideFiles& files) {
  if (options.similarity.has_value()) return ParseSimilarity(*options.similarity);
  ASSIGN_OR_RETURN(const nlohmann::json settings, SentenceSettingsOf(files));
  const JsonFields fields(&settings, files.NameOf("config.json"));
  ASSIGN_OR_RETURN(const std::string name, fields.String("similarity_fn_name", "cosine"));
  return ParseSimilarity(name);
}

absl::StatusOr<TextCut> Embed(const Options& options, const std::vector<std::string>& texts, TextRun& run,
                              Result* result) {
  ASSIGN_OR_RETURN(TextModel text_model, FindVectorModel(*run.model, run.dims));
  RETURN_IF_ERROR(CheckTokenizer(*run.model));
  ASSIGN_OR_RETURN(const int64_t context, MaxContextOf(run.files));
  if (context > 0) text_model.max_tokens = std::min(text_model.max_tokens, context);
  if (options.scores) {
    ASSIGN_OR_RETURN(result->similarity, SimilarityOf(options, run.files));
  }
  const TextVectorOptions vectors = {.truncate = options.text.truncate, .prompt = run.prompt, .batching = run.batching};
  ASSIGN_OR_RETURN(result->vectors, VectorsOf(texts, text_model, vectors, run.model.get()));
  return TextCut{result->vectors.truncated, text_model.max_tokens};
}

std::string Numbers(absl::Span<const float> row) {
  return absl::StrJoin(row, ", ", [](std::string* out, float x) { absl::StrAppendFormat(out, "%.6f", x); });
}

void PrintVectors(const TextVectors& vectors) {
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < vectors.tokens.size(); ++i) {
    const std::vector<float> vector = vectors.rows.Row(i);
    PrintText(absl::StrCat(i, "  [", Numbers(absl::MakeConstSpan(vector).subspan(0, kShown)),
                           vector.size() > kShown ? ", …" : "", "]  ", vector.size(), " numbers of ", vectors.tokens[i],
                           " tokens\n"));
  }
}

void PrintScores(const TextRows& scores, Similarity similarity) {
  PrintText(absl::StrCat(SimilarityName(similarity), " of each text with each\n"));
  for (size_t i = 0; i < static_cast<size_t>(scores.size); ++i) {
    PrintText(absl::StrCat(i, "  [", Numbers(scores.Row(i)), "]\n"));
  }
}

void PrintAsJson(const Options& options, const Result& result, const TextRows& scores) {
  Json data = Json::array();
  for (size_t i = 0; i < result.vectors.tokens.size(); ++i) {
    data.push_back({{"index", i}, {"embedding", result.vectors.rows.Row(i)}, {"tokens", result.vectors.tokens[i]}});
    if (options.scores) data.back()["scores"] = scores.Row(i);
  }
  Json json = {{"model", options.text.source.path}, {"dimensions", result.vectors.rows.size}};
  if (options.scores) json["similarity"] = SimilarityName(result.similarity);
  json["data"] = std::move(data);
  PrintJson(json);
}

absl::Status Write(const std::string& path, const Result& result, const TextRows& scores) {
  const auto texts = static_cast<int64_t>(result.vectors.tokens.size());
  const TextRows& rows = result.vectors.rows;
  NamedTensors tensors = {{"embeddings", Tensor::FromValues(DType::kF32, {texts, rows.size}, rows.values)}};
  if (scores.size > 0) tensors["scores"] = Tensor::FromValues(DType::kF32, {texts, texts}, scores.values);
  return WriteTensorFile(path, tensors);
}

absl::Status Run(const Options& options) {
  RETURN_IF_ERROR(CheckOutput(options.text.output, {options.text.file}));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadTexts(options.text));
  if (options.scores && texts.size() > kMaxCompared) {
    return absl::InvalidArgumentError(absl::StrCat("--scores: there are ", texts.size(), " texts; at most ",
                                                   kMaxCompared, " are compared with each other"));
  }
  Result result;
  RETURN_IF_ERROR(
      WithTextModel(options.text, texts.size(), [&](TextRun& run) { return Embed(options, texts, run, &result); }));
  TextRows scores;
  if (options.scores) {
    scores = {static_cast<int64_t>(texts.size()), Compare(result.vectors.rows, result.similarity)};
  }
  if (!options.text.output.empty()) RETURN_IF_ERROR(Write(options.text.output, result, scores));
  if (options.text.json) {
    PrintAsJson(options, result, scores);
  } else if (options.scores) {
    PrintScores(scores, result.similarity);
  } else if (options.text.output.empty()) {
    PrintVectors(result.vectors);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace embed_command

void AddEmbed(CLI::App& app, Command* chosen) {
  using namespace embed_command;
  CLI::App* command = AddCommand(app, "embed", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddTextOptions(command, "the vectors, f32 [texts, size], with --scores those too, f32 [texts, texts],",
                 &options->text);
  options->text.source.fixed.pooling.packing = Packing::kWherePossible;
  AddPoolingOptions(command, &options->text.source.fixed.pooling);
  CLI::Option* scores =
      command->add_flag("--scores", options->scores, "compare each text with each, instead of showing the vectors");
  command
      ->add_option("--similarity", options->similarity,
                   "what compares: cosine, dot, euclidean or manhattan; else what the model's folder names, or cosine")
      ->check([](const std::string& text) { return std::string(ParseSimilarity(text).status().message()); })
      ->needs(scores);
  command->callback([options, chosen] {
    options->text.source.output = options->text.output;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
