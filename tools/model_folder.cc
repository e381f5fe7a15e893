#include "tools/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/hub_cache.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "frontend/import.h"
#include "runtime/text/tokenizer.h"
#include "tools/commands.h"
#include "tools/sentence_settings.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr char kGenaiConfig[] = "genai_config.json";

bool ExistsIn(const std::string& folder, const char* name) {
  std::error_code error;
  return fs::exists(fs::path(folder) / name, error);
}

// genai_config.json, an object with an object "model".
absl::StatusOr<nlohmann::json> ReadGenaiConfig(const std::string& folder) {
  ASSIGN_OR_RETURN(nlohmann::json config, ReadJsonFile(folder, kGenaiConfig));
  if (config.is_object() && config.contains("model") && config["model"].is_object()) return config;
  return absl::InvalidArgumentError(absl::StrCat(folder, "/", kGenaiConfig, ": has no object \"model\""));
}

// The files that it names: model.decoder.filename, and those of other parts of the model.
absl::StatusOr<std::vector<std::string>> GenaiFiles(const std::string& folder) {
  ASSIGN_OR_RETURN(const nlohmann::json config, ReadGenaiConfig(folder));
  std::vector<std::string> files;
  for (const auto& [name, part] : config.at("model").items()) {
    if (!part.is_object() || !part.contains("filename") || !part["filename"].is_string()) continue;
    const auto file_name = part["filename"].get<std::string>();
    if (absl::StatusOr<std::string> found = ResolveInside(folder, file_name); !found.ok()) {
      return absl::Status(found.status().code(), absl::StrCat(folder, "/", kGenaiConfig, ": model.", name,
                                                              ".filename: ", found.status().message()));
    }
    files.push_back(absl::StrCat(folder, "/", file_name));
  }
  return files;
}

// The members of `from` that have those names.
nlohmann::json Members(const nlohmann::json& from, std::initializer_list<const char*> names) {
  nlohmann::json members = nlohmann::json::object();
  for (const char* name : names) {
    if (from.is_object() && from.contains(name)) members[name] = from[name];
  }
  return members;
}

// Names of files, which have the form of names on the hub when a folder stands before them.
bool EndsAsFile(absl::string_view path) {
  constexpr absl::string_view kEndings[] = {".onnx", ".lir", ".gguf", ".safetensors", ".bin", ".json"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](absl::string_view ending) { return absl::EndsWith(path, ending); });
}

}  // namespace

absl::StatusOr<std::string> PathOfModel(const std::string& given) {
  std::error_code error;
  const std::optional<HubModel> model = ParseHubModel(given);
  if (!model.has_value() || fs::exists(fs::symlink_status(given, error)) || EndsAsFile(given)) return given;
  return FindInHubCache(*model, HubCacheFolder());
}

absl::StatusOr<std::optional<std::string>> OnnxFileOf(const std::string& path) {
  std::error_code error;
  const std::string transformer = TransformerFolder(path);
  const bool is_checkpoint =
      ExistsIn(transformer, "config.json") &&
      (ExistsIn(transformer, "model.safetensors") || ExistsIn(transformer, "model.safetensors.index.json"));
  if (!fs::is_directory(path, error) || is_checkpoint) return std::nullopt;
  const std::string folder = path.size() > 1 && path.back() == '/' ? path.substr(0, path.size() - 1) : path;
  std::vector<std::string> files;
  if (ExistsIn(folder, kGenaiConfig)) {
    ASSIGN_OR_RETURN(std::vector<std::string> named, GenaiFiles(folder));
    files = std::move(named);
  }
  if (files.empty()) {
    for (const std::string& sub : {folder, folder + "/onnx"}) {
      for (const std::string& name : FilesEndingIn(sub, ".onnx")) files.push_back(absl::StrCat(sub, "/", name));
    }
  }
  if (files.empty()) return std::nullopt;
  if (files.size() == 1) return files[0];
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": holds several ONNX files; give one of them as MODEL:\n  ", absl::StrJoin(files, "\n  ")));
}

bool IsHuggingFaceFolder(const std::string& path) {
  std::error_code error;
  const absl::StatusOr<std::optional<std::string>> file = OnnxFileOf(path);
  return fs::is_directory(path, error) && ExistsIn(TransformerFolder(path), "config.json") && file.ok() &&
         !file->has_value();
}

SideFiles SideFilesOf(const std::string& folder) {
  if (absl::EndsWith(folder, ".gguf")) return GgufSideFiles(folder);
  const std::string transformer = TransformerFolder(folder);
  SideFiles files = ReadSideFiles(transformer, Tokenizer::ChooseFiles);
  AddSentenceSettings(folder, transformer, &files);
  if (!ExistsIn(folder, kGenaiConfig)) return files;
  const absl::StatusOr<nlohmann::json> config = ReadGenaiConfig(folder);
  const auto stand_in = [&](absl::StatusOr<std::string>* file, const nlohmann::json& members) {
    if (!file->ok() || !(*file)->empty()) return;
    *file = members.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  };
  if (!config.ok()) {
    files.generation_config = config.status();
    return files;
  }
  const nlohmann::json& model = config->at("model");
  nlohmann::json generation = Members(model, {"eos_token_id", "bos_token_id"});
  generation.update(Members(config->value("search", nlohmann::json::object()),
                            {"do_sample", "temperature", "top_k", "top_p", "repetition_penalty"}));
  stand_in(&files.generation_config, generation);
  if (model.contains("context_length")) stand_in(&files.config, {{"max_position_embeddings", model["context_length"]}});
  return files;
}

void AddModelPath(CLI::App* command, std::string* path, std::string* folder, const std::string& what) {
  AddModelPathOption(command, "MODEL", path, folder, what)->required();
}

CLI::Option* AddModelPathOption(CLI::App* command, const std::string& name, std::string* path, std::string* folder,
                                const std::string& what) {
  return command->add_option_function<std::string>(
      name,
      [path, folder](const std::string& given) {
        const absl::StatusOr<std::string> found = PathOfModel(given);
        RequireInput(found.status());
        *path = *found;
        const absl::StatusOr<std::optional<std::string>> file = OnnxFileOf(*found);
        if (!file.ok() || !file->has_value()) return;  // what is wrong is said when the model is read
        *path = **file;
        if (folder != nullptr) *folder = *found;
      },
      what);
}

}  // namespace llmc
