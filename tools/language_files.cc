#include "tools/language_files.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "frontend/huggingface/rope.h"
#include "runtime/engine/past_kv_executor.h"
#include "runtime/host/host_model.h"
#include "runtime/host/paged_model.h"

namespace llmc {
namespace {

// What is wrong with generation_config.json, and what stands in for it; empty if it was read, or there is none.
std::string LeftOut(const absl::StatusOr<GenerationConfig>& generation) {
  if (!generation.ok() || generation->left_out.ok()) return "";
  return absl::StrCat(generation->left_out.message(),
                      "; the end tokens are those of the model's other files, and sampling is greedy");
}

}  // namespace

bool IsLanguageModel(const Model& model) {
  if (IsPagedLanguageModel(model)) return true;
  const absl::StatusOr<ModelDescription> description = Describe(model);
  return description.ok() && IsPastKvLanguageModel(*description);
}

absl::StatusOr<int64_t> MaxContextOf(const SideFiles& files) {
  if (!files.config.ok()) return files.config.status();
  if (files.config->empty()) return 0;
  ASSIGN_OR_RETURN(const std::optional<int64_t> context, ReadContextLength(*files.config, files.NameOf("config.json")));
  return context.value_or(0);
}

LanguageFiles ReadLanguageFiles(const SideFiles& files) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ReadTokenizer(files);
  const auto usable = [&] { return tokenizer.ok() ? tokenizer->get() : nullptr; };
  return LanguageFiles{.generation = ReadGenerationConfig(files, usable),
                       .tokenizer = absl::IsNotFound(tokenizer.status()) ? absl::OkStatus() : tokenizer.status()};
}

std::string LanguageFilesText(const LanguageFiles& files, absl::string_view indent) {
  std::string text;
  if (!files.tokenizer.ok()) {
    absl::StrAppend(&text, indent, "the tokenizer cannot be used: ", files.tokenizer.message(), "\n");
  }
  if (const std::string left_out = LeftOut(files.generation); !left_out.empty()) {
    absl::StrAppend(&text, indent, "not used: ", left_out, "\n");
  }
  return text;
}

nlohmann::ordered_json LanguageFilesJson(const LanguageFiles& files) {
  auto json = nlohmann::ordered_json::object();
  if (!files.tokenizer.ok()) json["tokenizer"] = std::string(files.tokenizer.message());
  if (const std::string left_out = LeftOut(files.generation); !left_out.empty()) json["generation"] = left_out;
  return json;
}

void WarnOfLeftOut(const absl::StatusOr<GenerationConfig>& generation) {
  const std::string left_out = LeftOut(generation);
  if (!left_out.empty()) std::fprintf(stderr, "warning: not used: %s\n", left_out.c_str());
}

}  // namespace llmc
