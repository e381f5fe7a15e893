#include "tools/folder_check.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "runtime/engine/generation_config.h"
#include "tools/gpu_form.h"
#include "tools/model_folder.h"
#include "tools/weight_numbers.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

struct KindName {
  HfFinding::Kind kind;
  const char* name;
};
constexpr KindName kFolderKinds[] = {{HfFinding::Kind::kConfig, "config"},
                                     {HfFinding::Kind::kCheckpoint, "checkpoint"},
                                     {HfFinding::Kind::kMissing, "missing tensor"},
                                     {HfFinding::Kind::kWrong, "wrong tensor"},
                                     {HfFinding::Kind::kExtra, "extra tensor"}};

FolderFinding Described(const HfFinding& finding) {
  FolderFinding described{.is_error = true,
                          .kind = "",
                          .file = finding.file,
                          .place = finding.place,
                          .text = finding.message,
                          .found = finding.found,
                          .expected = finding.expected};
  for (const KindName& row : kFolderKinds) {
    if (row.kind == finding.kind) described.kind = row.name;
  }
  if (!described.text.empty()) return described;
  described.text = absl::StrCat(finding.file.empty() ? "the checkpoint" : finding.file, ": tensor ",
                                Quoted(finding.place), ": found ", finding.found, ", expected ", finding.expected);
  return described;
}

void CheckTokenizer(const SideFiles& files, FolderCheck* check) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = ReadTokenizer(files);
  const bool has_file = files.tokenizer.ok() && !files.tokenizer->empty();
  const std::string file = has_file ? files.tokenizer->front().name : "tokenizer.json";
  const auto add = [&](const std::string& text) {
    check->findings.push_back({.kind = "tokenizer", .file = file, .place = "", .text = text});
  };
  if (absl::IsNotFound(tokenizer.status())) return;
  if (!tokenizer.ok()) return add(std::string(tokenizer.status().message()));
  const int64_t ids = (*tokenizer)->vocab_size(), rows = check->report.vocab_size;
  if (rows == 0 || ids <= rows) return;
  add(absl::StrCat(files.NameOf(file), ": has ids up to ", ids - 1, "; vocab_size of config.json is ", rows,
                   ", so an embedding has ids up to ", rows - 1));
}

// Ids of special tokens, which generation uses: NAME_token_id, a number or a list.
void CheckTokens(const char* name, const absl::StatusOr<std::string>& text, FolderCheck* check) {
  const int64_t rows = check->report.vocab_size;
  if (!text.ok() || text->empty() || rows == 0) return;
  const absl::StatusOr<nlohmann::json> config = ParseJson(*text, name);
  if (!config.ok() || !config->is_object()) return;  // the reader of the file says so
  for (const auto& [key, value] : config->items()) {
    if (!absl::EndsWith(key, "_token_id")) continue;
    const nlohmann::json ids = value.is_array() ? value : nlohmann::json::array({value});
    for (const nlohmann::json& id : ids) {
      if (!id.is_number_integer() || id < rows) continue;
      const std::string found = id.dump(), expected = absl::StrCat("an id from 0 to ", rows - 1);
      check->findings.push_back(
          {.kind = "token",
           .file = name,
           .place = key,
           .text = absl::StrCat(check->path, "/", name, ": \"", key, "\" is ", found, ", expected ", expected,
                                " (vocab_size of config.json is ", rows, ")"),
           .found = found,
           .expected = expected});
    }
  }
}

// As the names of models tell: "Qwen2-0.5B-Instruct", "gemma-2-2b-it".
bool IsForChats(const std::string& path) {
  std::error_code error;
  const std::string name = absl::AsciiStrToLower(std::filesystem::absolute(path, error).lexically_normal().string());
  const auto is_end = [&](const std::string& word) {
    const size_t at = name.rfind(word);
    return at != std::string::npos && (at + word.size() == name.size() || name[at + word.size()] == '/');
  };
  return absl::StrContains(name, "instruct") || is_end("-chat") || is_end("-it");
}

void NoteTemplate(const SideFiles& files, FolderCheck* check) {
  if (!IsForChats(check->path)) return;
  if (!files.chat_template.ok() || !files.chat_template->empty()) return;
  if (!files.tokenizer_config.ok()) return;
  const absl::StatusOr<nlohmann::json> config = ParseJson(*files.tokenizer_config, "", int64_t{16} << 20);
  if (config.ok() && config->is_object() && config->contains("chat_template")) return;
  check->notes.push_back(absl::StrCat(check->path,
                                      ": by its name the model is for chats, but there is no chat template: found "
                                      "neither chat_template.jinja nor \"chat_template\" in tokenizer_config.json"));
}

void NoteKeys(FolderCheck* check) {
  std::vector<std::string> keys;
  for (const std::string& key : check->report.unread_keys) keys.push_back(Quoted(key));
  if (keys.empty()) return;
  check->notes.push_back(
      absl::StrCat(check->path, "/config.json: nothing reads ", absl::StrJoin(keys, ", "), " for this architecture"));
}

void AddWarnings(FolderCheck* check) {
  for (const IgnoredTensor& warning : check->report.warnings) {
    check->findings.push_back({.kind = "quantization", .file = "", .place = warning.name, .text = warning.reason});
  }
}

void AddQuantization(const Model& model, FolderCheck* check) {
  absl::StatusOr<QuantizationReport> report =
      ReportQuantization(model, {.has_signed_scales = check->report.has_signed_scales});
  if (!report.ok()) {
    check->notes.push_back(absl::StrCat("the quantized weights were not looked at: ", report.status().message()));
    return;
  }
  check->quantization = *std::move(report);
  for (const std::string& warning : check->quantization.warnings) {
    check->findings.push_back({.kind = "quantization", .file = "", .place = "", .text = warning});
  }
}

void AddNumbers(const Model& model, FolderCheck* check) {
  for (const WeightFinding& finding : WeightsThatAreNotFinite(model)) {
    check->findings.push_back({.kind = "number", .file = finding.file, .place = finding.tensor, .text = finding.text});
  }
}

}  // namespace

absl::Status FolderCheck::Verdict() const {
  if (report.status.ok()) return absl::OkStatus();
  const auto is_error = [](const FolderFinding& finding) { return finding.is_error; };
  const auto first = std::find_if(findings.begin(), findings.end(), is_error);
  const auto errors = std::count_if(findings.begin(), findings.end(), is_error);
  return absl::Status(report.status.code(),
                      absl::StrCat(path, ": the model cannot be compiled: ", errors,
                                   errors == 1 ? " finding: " : " findings, the first: ",
                                   first == findings.end() ? report.status.message() : first->text));
}

FolderCheck CheckFolderOf(const std::string& folder, std::unique_ptr<Model>* model) {
  FolderCheck check{.path = folder,
                    .report = CheckHuggingFace(folder, model),
                    .findings = {},
                    .notes = {},
                    .quantization = {},
                    .files = {}};
  for (const HfFinding& finding : check.report.findings) check.findings.push_back(Described(finding));
  AddWarnings(&check);
  if (*model != nullptr) AddQuantization(**model, &check);
  if (*model != nullptr) AddNumbers(**model, &check);
  for (const std::string& asked : check.report.asked) check.notes.push_back(absl::StrCat(folder, ": ", asked));
  NoteKeys(&check);
  if (!check.report.is_decoder) return check;
  const SideFiles files = SideFilesOf(folder);
  CheckTokenizer(files, &check);
  CheckTokens("config.json", files.config, &check);
  CheckTokens("generation_config.json", files.generation_config, &check);
  NoteTemplate(files, &check);
  check.files = ReadLanguageFiles(files);
  return check;
}

std::string FolderCheckText(const FolderCheck& check) {
  std::string text;
  for (const FolderFinding& finding : check.findings) {
    absl::StrAppend(&text, finding.is_error ? "wrong: " : "warning: ", finding.text, "\n");
  }
  for (const std::string& note : check.notes) absl::StrAppend(&text, "note: ", note, "\n");
  if (!check.report.quantization.empty()) absl::StrAppend(&text, "  quantization: ", check.report.quantization, "\n");
  absl::StrAppend(&text, LanguageFilesText(check.files, "  "), QuantizationText(check.quantization));
  // Those that are alike but for their layers are one line.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> ignored;
  for (const IgnoredTensor& tensor : check.report.ignored) {
    ignored[{KindOfModule(tensor.name), tensor.reason}].push_back(tensor.name);
  }
  for (const auto& [kind_and_reason, names] : ignored) {
    const auto& [kind, reason] = kind_and_reason;
    absl::StrAppend(&text, "  not used: ", names.size() == 1 ? names[0] : absl::StrCat(kind, " (", names.size(), ")"),
                    ": ", reason, "\n");
  }
  if (!check.report.status.ok()) return text;
  absl::StrAppend(&text, check.path, ": every ", check.report.ignored.empty() ? "" : "other ",
                  "tensor is used, every op is supported\n");
  if (check.gpu.has_value()) absl::StrAppend(&text, GpuLine(*check.gpu));
  return text;
}

Json FolderCheckJson(const FolderCheck& check, bool is_strict) {
  const bool is_ok = check.report.status.ok() && !(is_strict && !check.findings.empty());
  Json json = {{"ok", is_ok}, {"findings", Json::array()}, {"notes", check.notes}};
  for (const FolderFinding& finding : check.findings) {
    Json row = {{"severity", finding.is_error ? "error" : "warning"}, {"kind", finding.kind}};
    if (!finding.file.empty()) row["file"] = finding.file;
    if (!finding.place.empty()) row["place"] = finding.place;
    if (!finding.found.empty()) row["found"] = finding.found;
    if (!finding.expected.empty()) row["expected"] = finding.expected;
    row["message"] = finding.text;
    json["findings"].push_back(row);
  }
  if (!check.report.quantization.empty()) json["quantization"] = check.report.quantization;
  if (!check.quantization.groups.empty()) json["quantized"] = QuantizationJson(check.quantization);
  json["ignored"] = Json::array();
  for (const IgnoredTensor& tensor : check.report.ignored) {
    json["ignored"].push_back({{"tensor", tensor.name}, {"reason", tensor.reason}});
  }
  if (check.gpu.has_value()) json.update(Json{{"gpu", check.gpu->ok()}, {"gpu_reasons", GpuReasonsJson(*check.gpu)}});
  json.update(LanguageFilesJson(check.files));
  return json;
}

}  // namespace llmc
