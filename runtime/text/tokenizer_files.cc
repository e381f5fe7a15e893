// Which of a folder's files holds the tokenizer.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "runtime/text/json_node.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/tokenizer_config.h"
#include "runtime/text/tokenizer_formats.h"

namespace llmc {
namespace {

constexpr char kConfigName[] = "tokenizer_config.json";
constexpr size_t kMaxFileBytes = size_t{64} << 20;

// The first whose file is there counts: tokenizer.json says most, a plain vocabulary least.
const TokenizerFormat* const kFormats[] = {&kTokenizerJsonFormat, &kTekkenFormat,      &kSentencePieceFormat,
                                           &kTiktokenFormat,      &kVocabMergesFormat, &kVocabTextFormat};

// "folder" of the prefix "folder/", "plan.bin" of "plan.bin: ".
absl::string_view Place(absl::string_view prefix) {
  if (!absl::ConsumeSuffix(&prefix, ": ")) absl::ConsumeSuffix(&prefix, "/");
  return prefix.empty() ? "the folder" : prefix;
}

}  // namespace

std::vector<std::string> Tokenizer::ChooseFiles(const std::vector<std::string>& names) {
  for (const TokenizerFormat* format : kFormats) {
    const auto reads = [&](const std::string& name) { return format->reads(name, ""); };
    const auto has_usual_name = [&](const std::string& name) {
      return reads(name) && absl::StartsWith(name, "tokenizer.");
    };
    auto main = std::find_if(names.begin(), names.end(), has_usual_name);
    if (main == names.end()) main = std::find_if(names.begin(), names.end(), reads);
    if (main == names.end()) continue;
    std::vector<std::string> chosen = {*main};
    for (const char* name : format->beside) {
      if (name != nullptr && absl::c_linear_search(names, name)) chosen.emplace_back(name);
    }
    return chosen;
  }
  return {};
}

bool Tokenizer::IsTokenizerFile(absl::string_view name) {
  if (name == kConfigName || name == "added_tokens.json" || name == "merges.txt") return true;
  return std::any_of(std::begin(kFormats), std::end(kFormats),
                     [&](const TokenizerFormat* format) { return format->reads(name, ""); });
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromFiles(absl::Span<const TokenizerFile> files,
                                                                absl::string_view prefix) {
  for (const TokenizerFile& file : files) {
    if (file.text.size() <= kMaxFileBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat(prefix, file.name, ": larger than ", kMaxFileBytes, " bytes"));
  }
  nlohmann::json config = nlohmann::json::object();
  TokenizerInput input{nullptr, files, std::string(prefix), JsonNode(&config, absl::StrCat(prefix, kConfigName), "")};
  TokenizerConfig settings;
  if (const TokenizerFile* file = input.Find(kConfigName); file != nullptr && !file->text.empty()) {
    ASSIGN_OR_RETURN(settings, ReadTokenizerConfig(file->text, input.NameOf(kConfigName)));
    ASSIGN_OR_RETURN(config, ParseTokenizerJson(file->text, input.NameOf(kConfigName)));
  }
  for (const TokenizerFormat* format : kFormats) {
    const auto main = std::find_if(files.begin(), files.end(), [&](const TokenizerFile& file) {
      return !file.text.empty() && format->reads(file.name, file.text);
    });
    if (main == files.end()) continue;
    input.main = &*main;
    auto parts = std::make_unique<Parts>();
    parts->name = input.NameOf(main->name);
    RETURN_IF_ERROR(format->read(input, parts.get(), &settings));
    parts->Apply(settings);
    return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
  }
  return absl::NotFoundError(absl::StrCat(Place(prefix),
                                          ": holds no tokenizer: looked for tokenizer.json, tekken.json, *.model, "
                                          "*.tiktoken, vocab.json with merges.txt, and vocab.txt"));
}

}  // namespace llmc
