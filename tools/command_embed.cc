#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/fixed_options.h"
#include "tools/language_files.h"
#include "tools/output.h"
#include "tools/runnable.h"
#include "tools/sentence_settings.h"
#include "tools/tensor_files.h"
#include "tools/text_vectors.h"

namespace llmc {
namespace embed_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxTextBytes = int64_t{256} << 20;

constexpr char kSummary[] = "Turns texts into vectors, with an encoder.";
constexpr char kDetails[] =
    "A folder of sentence-transformers (with modules.json) says itself how the vectors of tokens become one for each\n"
    "text, and a plan keeps what the folder said; of other encoders --pool has to say it. Texts are the arguments, "
    "the\n"
    "lines of --file, or those of standard input. A text of more tokens than the model takes is cut.\n"
    "Examples:\n"
    "  llmc embed all-MiniLM-L6-v2/ \"A cat sat on the mat.\" \"Where did it sit?\"\n"
    "  llmc embed bert-base/ --pool=mean --normalize --file=lines.txt -o vectors.npy\n"
    "  llmc compile all-MiniLM-L6-v2/ -o plan.bin && llmc embed plan.bin --json < lines.txt\n"
    "  llmc embed e5-small/ --prompt \"query: \" \"where is the cat\" --device=cuda";

struct Options {
  ModelSource source;
  std::vector<std::string> texts;
  std::string file, output, tokenizer;
  std::optional<std::string> prompt, prompt_name;
  TextVectorOptions vectors;
  bool json = false;
};

absl::StatusOr<std::vector<std::string>> ReadTexts(const Options& options) {
  if (!options.texts.empty()) return options.texts;
  const bool is_pipe = options.file.empty() || options.file == "-";
  ASSIGN_OR_RETURN(const std::string text, is_pipe ? ReadStandardInput(kMaxTextBytes)
                                                   : ReadTextFile(options.file, kMaxTextBytes, InputKind::kFileOrPipe));
  const std::string from = is_pipe ? "standard input" : options.file;
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(from, ": is empty; each of its lines is a text"));
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    lines.emplace_back(absl::StripSuffix(line, "\r"));
  }
  return lines;
}

absl::Status CheckTokenizer(const LoadedPlan& model) {
  if (model.tokenizer() != nullptr) return absl::OkStatus();
  const absl::Status status = model.tokenizer_status();
  return absl::Status(absl::IsNotFound(status) ? absl::StatusCode::kInvalidArgument : status.code(),
                      absl::StrCat("has no tokenizer that can be used; give --tokenizer DIR: ", status.message()));
}

// What the model is told to put before texts, and how many tokens it takes.
absl::Status Prepare(const Options& options, const SideFiles& files, TextModel* text_model,
                     std::vector<std::string>* texts) {
  ASSIGN_OR_RETURN(const int64_t context, MaxContextOf(files));
  if (context > 0) text_model->max_tokens = std::min(text_model->max_tokens, context);
  std::string prompt = options.prompt.value_or("");
  if (!options.prompt.has_value()) {
    ASSIGN_OR_RETURN(prompt, PromptOf(files, options.prompt_name));
  }
  for (std::string& text : *texts) text.insert(0, prompt);
  return absl::OkStatus();
}

absl::StatusOr<TextVectors> Embed(const Options& options, Progress* progress) {
  ASSIGN_OR_RETURN(std::vector<std::string> texts, ReadTexts(options));
  ModelSource source = options.source;
  DimEnv dims;
  SideFiles files;
  source.inspect = [&](const Model& model) { dims = model.dims; };
  source.side_files = &files;
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadedPlan> model, LoadRunnable(source, options.tokenizer, progress));
  const auto embed = [&]() -> absl::StatusOr<TextVectors> {
    ASSIGN_OR_RETURN(TextModel text_model, FindTextModel(*model, dims));
    RETURN_IF_ERROR(CheckTokenizer(*model));
    RETURN_IF_ERROR(Prepare(options, files, &text_model, &texts));
    progress->Stage("embed");
    TextVectorOptions vectors = options.vectors;
    vectors.on_batch = [&](int64_t done, int64_t total) { progress->Count(done, total); };
    absl::StatusOr<TextVectors> result = VectorsOf(texts, text_model, vectors, model.get());
    progress->Clear();
    NoteLaunches(*model);
    if (result.ok() && result->truncated > 0) {
      std::fprintf(
          stderr, "note: %lld of %zu texts have more than the %lld tokens that the model takes, and were cut\n",
          static_cast<long long>(result->truncated), texts.size(), static_cast<long long>(text_model.max_tokens));
    }
    return result;
  };
  absl::StatusOr<TextVectors> result = embed();
  if (result.ok() || absl::StartsWith(result.status().message(), source.path)) return result;
  return absl::Status(result.status().code(), absl::StrCat(source.path, ": ", result.status().message()));
}

std::vector<float> VectorOf(const TextVectors& vectors, size_t text) {
  const auto begin = vectors.values.begin() + static_cast<int64_t>(text) * vectors.size;
  return {begin, begin + vectors.size};
}

void PrintVectors(const TextVectors& vectors) {
  constexpr size_t kShown = 6;
  for (size_t i = 0; i < vectors.tokens.size(); ++i) {
    const std::vector<float> vector = VectorOf(vectors, i);
    std::string line = absl::StrCat(i, "  [");
    const auto append = [](std::string* out, float x) { absl::StrAppendFormat(out, "%.6f", x); };
    absl::StrAppend(&line, absl::StrJoin(absl::MakeConstSpan(vector).subspan(0, kShown), ", ", append));
    absl::StrAppend(&line, vector.size() > kShown ? ", …" : "", "]  ", vectors.size, " numbers of ", vectors.tokens[i],
                    " tokens\n");
    PrintText(line);
  }
}

void PrintVectorsAsJson(const std::string& model, const TextVectors& vectors) {
  Json data = Json::array();
  for (size_t i = 0; i < vectors.tokens.size(); ++i) {
    data.push_back({{"index", i}, {"embedding", VectorOf(vectors, i)}, {"tokens", vectors.tokens[i]}});
  }
  PrintJson({{"model", model}, {"dimensions", vectors.size}, {"data", std::move(data)}});
}

absl::Status Run(const Options& options) {
  RETURN_IF_ERROR(CheckOutput(options.output, {options.file}));
  Progress progress;
  ASSIGN_OR_RETURN(const TextVectors vectors, Embed(options, &progress));
  progress.Clear();
  if (!options.output.empty()) {
    const Shape shape = {static_cast<int64_t>(vectors.tokens.size()), vectors.size};
    RETURN_IF_ERROR(
        WriteTensorFile(options.output, {{"embeddings", Tensor::FromValues(DType::kF32, shape, vectors.values)}}));
  }
  if (options.json) {
    PrintVectorsAsJson(options.source.path, vectors);
  } else if (options.output.empty()) {
    PrintVectors(vectors);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace embed_command

void AddEmbed(CLI::App& app, Command* chosen) {
  using namespace embed_command;
  CLI::App* command = AddCommand(app, "embed", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->source);
  CLI::Option* texts = command->add_option("TEXT", options->texts, "texts; else --file or standard input");
  command->add_option("--file", options->file, "a file with a text in each line; -: standard input")->excludes(texts);
  AddPoolingOptions(command, &options->source.fixed.pooling);
  CLI::Option* prompt = command->add_option(
      "--prompt", options->prompt, "put before each text, instead of the prompt that the model's folder names");
  command->add_option("--prompt-name", options->prompt_name, "which prompt of the model's folder to put before texts")
      ->excludes(prompt);
  command->add_flag("!--no-truncate", options->vectors.truncate, "texts of too many tokens are an error, not cut");
  command
      ->add_option("--batch-tokens", options->vectors.batch_tokens,
                   "at most so many tokens are computed at once, padding among them")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24))
      ->capture_default_str();
  command->add_option("--tokenizer", options->tokenizer, "folder with tokenizer.json, or that file");
  command->add_option("-o,--output", options->output,
                      "file to write the vectors to, f32 [texts, size]: .npy, .npz, else safetensors");
  command->add_flag("--json", options->json, "all numbers, as JSON");
  command->callback([options, chosen] {
    options->source.output = options->output;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
