#include "tools/prompts.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "tools/model_source.h"

namespace llmc {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{64} << 20;

// Adds to `ids`; an error message, or "".
std::string ParseIds(const std::string& text, std::vector<int32_t>* ids) {
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(part, &id) || id < 0) return absl::StrCat("'", part, "' is not a token id");
    ids->push_back(id);
  }
  return "";
}

absl::StatusOr<std::vector<std::string>> ReadPromptFile(const std::string& path, bool lines) {
  ASSIGN_OR_RETURN(std::string text, path == "-" ? ReadStandardInput(kMaxPromptBytes)
                                                 : ReadTextFile(path, kMaxPromptBytes, InputKind::kFileOrPipe));
  std::vector<std::string> prompts;
  if (!lines) {
    absl::string_view rest = text;
    if (absl::ConsumeSuffix(&rest, "\n")) absl::ConsumeSuffix(&rest, "\r");
    return std::vector<std::string>{std::string(rest)};
  }
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    if (!line.empty()) prompts.emplace_back(line);
  }
  if (prompts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no line that is not empty"));
  return prompts;
}

absl::Status NeedsTokenizer(const absl::Status& status) {
  if (absl::IsNotFound(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of text needs a tokenizer, and the model comes without one: give --tokenizer DIR or "
                     "--prompt-ids (",
                     status.message(), ")"));
  }
  return absl::Status(status.code(),
                      absl::StrCat("a prompt of text needs a tokenizer, and the model's cannot be used: ",
                                   status.message(), "; give --tokenizer DIR or --prompt-ids"));
}

}  // namespace

void AddPromptOptions(CLI::App* command, PromptOptions* options) {
  CLI::Option_group* prompts = command->add_option_group("prompts");
  prompts->add_option("--prompt", options->texts, "text to continue; repeatable, as the next two are")
      ->allow_extra_args(false);
  CLI::Option* files =
      prompts->add_option("--prompt-file", options->files, "a file with such a text; -: standard input")
          ->allow_extra_args(false);
  prompts
      ->add_option_function<std::vector<std::string>>(
          "--prompt-ids",
          [options](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) ParseIds(text, &options->ids.emplace_back());
          },
          "token ids to continue, with commas")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        std::vector<int32_t> ids;
        return ParseIds(text, &ids);
      });
  prompts->require_option(1, 0);
  command->add_flag("--lines", options->lines, "each line of a --prompt-file that is not empty is a prompt")
      ->needs(files);
  command->add_flag("--plain-prompt", options->plain,
                    "special tokens that are spelled out in prompts, such as <|im_end|>, are read as plain text");
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadPrompts(const PromptOptions& options, const LoadedPlan& model) {
  std::vector<std::string> texts = options.texts;
  const bool has_text = !texts.empty() || !options.files.empty();
  if (has_text && model.tokenizer() == nullptr) return NeedsTokenizer(model.tokenizer_status());
  for (const std::string& file : options.files) {
    ASSIGN_OR_RETURN(std::vector<std::string> read, ReadPromptFile(file, options.lines));
    texts.insert(texts.end(), read.begin(), read.end());
  }
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                     model.tokenizer()->Encode(text, {.parse_special_tokens = !options.plain}));
    prompts.push_back(std::move(ids));
  }
  prompts.insert(prompts.end(), options.ids.begin(), options.ids.end());
  return prompts;
}

}  // namespace llmc
