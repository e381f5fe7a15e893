#include "tools/model_source.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "frontend/import.h"
#include "frontend/onnx_import.h"
#include "runtime/plan.h"
#include "tools/output.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<Model>> LoadDump(const ModelSource& source) {
  absl::StatusOr<std::unique_ptr<Model>> model = ImportText(source.path, source.Folder());
  if (model.ok() || !source.weights_folder.empty() || !absl::StartsWith(model.status().message(), "weight ")) {
    return model;
  }
  return absl::Status(model.status().code(),
                      absl::StrCat(model.status().message(), " (give the model's folder: --weights-folder)"));
}

absl::StatusOr<std::unique_ptr<Model>> LoadConfig(const ModelSource& source) {
  std::error_code error;
  if (!fs::is_directory(source.path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": --random-weights is for Hugging Face folders, whose config.json says which weights there are"));
  }
  RandomWeights random{.seed = source.seed};
  if (!source.dtype.empty()) {
    absl::StatusOr<DType> dtype = ParseDType(source.dtype);
    if (!dtype.ok()) return dtype.status();
    random.dtype = *dtype;
  }
  return ImportHuggingFaceConfig(source.path, random);
}

// A model folder that is none is told what it lacks.
absl::Status CheckFolder(const std::string& folder) {
  std::error_code error;
  if (fs::exists(fs::path(folder) / "config.json", error)) return absl::OkStatus();
  std::string hint;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() != ".onnx") continue;
    hint = absl::StrCat("; give ", entry.path().string(), " for the ONNX file");
  }
  return absl::InvalidArgumentError(
      absl::StrCat(folder,
                   ": has no config.json; a Hugging Face folder holds config.json, model.safetensors (or its parts and "
                   "model.safetensors.index.json) and, for text, tokenizer.json",
                   hint));
}

absl::Status CheckSource(const ModelSource& source) {
  std::error_code error;
  const std::string& path = source.path;
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": there is no such file or folder"));
  if (Plan::IsPlan(path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is a plan already; passes ran when it was compiled, and `llmc show --ir` prints what they left"));
  }
  if (!IsTextFile(path) && !source.weights_folder.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--weights-folder is for dumps (.lir), and ", path, " is none"));
  }
  return fs::is_directory(path, error) ? CheckFolder(path) : absl::OkStatus();
}

// All files that a model is read from.
std::vector<std::string> FilesOf(const Model& model, const ModelSource& source) {
  std::set<std::string> names = {"config.json",           "generation_config.json", "tokenizer.json",
                                 "tokenizer_config.json", "chat_template.jinja",    "model.safetensors.index.json"};
  for (const Value* weight : model.weights) {
    if (const auto source = SplitWeightSource(weight->source)) names.insert(source->first);
  }
  std::vector<std::string> files = {source.path};
  for (const std::string& name : names) {
    files.push_back((fs::path(source.Folder()) / name).string());
    if (!absl::EndsWith(name, ".onnx")) continue;
    const absl::StatusOr<std::vector<std::string>> data = OnnxExternalFiles(files.back());
    if (data.ok()) files.insert(files.end(), data->begin(), data->end());
  }
  return files;
}

absl::Status SetBounds(const DimEnv& bounds, Model* model) {
  for (const auto& [name, max] : bounds) {
    const auto dim = model->dims.find(name);
    if (dim == model->dims.end()) {
      const std::string known = absl::StrJoin(model->dims, ", ", absl::PairFormatter(" <= "));
      return absl::InvalidArgumentError(
          absl::StrCat("--bound: the model has no dim ", name, "; it has ", known.empty() ? "none" : known));
    }
    if (max > dim->second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--bound: ", name, " is at most ", dim->second, " in the model, so it cannot be ", max));
    }
    dim->second = max;
  }
  return absl::OkStatus();
}

}  // namespace

std::string ModelSource::Folder() const { return FolderOf(weights_folder.empty() ? path : weights_folder); }

void AddModelOptions(CLI::App* command, ModelSource* source, const std::string& what) {
  command->add_option("MODEL", source->path, what)->required();
  command->add_option("--dtype", source->dtype, "of a model: f32, f16 or bf16 for all floating point")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  command->add_option("--weights-folder", source->weights_folder, "of a dump: where the model was that it came from");
}

void AddPromotionOptions(CLI::App* command, ModelSource* source) {
  CLI::Option* promote = command->add_flag_callback(
      "--promote", [source] { source->promotion = Promotion::kRequired; },
      "of an ONNX decoder: fail, and say why, where it cannot get a paged cache");
  command
      ->add_flag_callback(
          "--no-promote", [source] { source->promotion = Promotion::kNever; },
          "of an ONNX decoder: leave its cache as tensors that go in and out; then prompts may be padded, too")
      ->excludes(promote);
}

void AddRandomWeightsOptions(CLI::App* command, ModelSource* source) {
  command->add_flag("--random-weights", source->random_weights,
                    "random numbers for weights: of a folder only config.json is needed then");
  command->add_option("--weights-seed", source->seed, "of the random weights")->capture_default_str();
}

bool HasConfigOnly(const std::string& folder) {
  std::error_code error;
  const auto has = [&](const char* name) { return fs::exists(fs::path(folder) / name, error); };
  return has("config.json") && !has("model.safetensors") && !has("model.safetensors.index.json");
}

bool IsTextFile(const std::string& path) { return absl::EndsWith(path, ".lir"); }

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes, InputKind kind) {
  std::error_code error;
  const bool fits = kind == InputKind::kFile ? fs::is_regular_file(path, error)
                                             : fs::exists(path, error) && !fs::is_directory(path, error);
  if (!fits) return absl::NotFoundError(absl::StrCat(path, ": is not a file"));
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::vector<char> buffer(size_t{1} << 20);
  while (file && static_cast<int64_t>(text.size()) <= max_bytes) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    text.append(buffer.data(), static_cast<size_t>(file.gcount()));
  }
  if (static_cast<int64_t>(text.size()) > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has more than ", max_bytes, " bytes"));
  }
  if (!file.eof()) return absl::UnavailableError(absl::StrCat(path, ": cannot be read"));
  return text;
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& source, Progress* progress,
                                                 std::vector<IgnoredTensor>* ignored) {
  progress->Stage("import");
  if (absl::Status status = CheckSource(source); !status.ok()) return status;
  if (absl::Status status = CheckOutput(source.output, {source.path}); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Model>> model = source.random_weights     ? LoadConfig(source)
                                                 : IsTextFile(source.path) ? LoadDump(source)
                                                                           : ImportModel(source.path, ignored);
  if (!model.ok()) return model;
  std::error_code error;
  if (!fs::exists(source.output, error)) return model;
  if (absl::Status status = CheckOutput(source.output, FilesOf(**model, source)); !status.ok()) return status;
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const ModelSource& source, PipelineOptions options, Ledger* ledger,
                                                     Progress* progress) {
  if (!source.dtype.empty()) {
    absl::StatusOr<DType> dtype = ParseDType(source.dtype);
    if (!dtype.ok()) return dtype.status();
    options.dtype = *dtype;
  }
  options.promotion = source.promotion.value_or(Promotion::kWhereProven);
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(source, progress);
  if (!model.ok()) return model;
  if (absl::Status status = SetBounds(source.bounds, model->get()); !status.ok()) return status;
  progress->Stage("passes");
  if (absl::Status status = RunPipeline(model->get(), options, ledger); !status.ok()) return status;
  return model;
}

}  // namespace llmc
