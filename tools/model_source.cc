#include "tools/model_source.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/hub_cache.h"
#include "files/path_check.h"
#include "frontend/import.h"
#include "frontend/onnx/import.h"
#include "passes/paginate/kv_encoding.h"
#include "runtime/plan/plan.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"
#include "tools/commands.h"
#include "tools/fixed_options.h"
#include "tools/model_folder.h"
#include "tools/output.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<Model>> LoadDump(const ModelSource& source) {
  const bool is_of_folders = !source.fixed.pooling.pool.empty() || source.fixed.form != DecoderForm::kServed ||
                             source.fixed.quantized.activations;
  if (is_of_folders) return ImportModel(source.path, nullptr, source.fixed);  // which refuses
  ImportOptions fixed = source.fixed;
  std::set<std::string> known;
  fixed.known = &known;
  absl::StatusOr<std::unique_ptr<Model>> model = ImportText(source.path, source.Folder(), fixed);
  if (model.ok()) {
    absl::Status status = FixDump(fixed, model->get());
    if (!status.ok()) return absl::Status(status.code(), absl::StrCat(source.path, ": ", status.message()));
  }
  if (model.ok() || !source.weights_folder.empty() || !absl::StartsWith(model.status().message(), "weight ")) {
    return model;
  }
  return absl::Status(model.status().code(),
                      absl::StrCat(model.status().message(), " (give the model's folder: --weights-folder)"));
}

absl::StatusOr<std::unique_ptr<Model>> LoadConfig(const ModelSource& source) {
  if (!source.fixed.empty()) return ImportModel(source.path, nullptr, source.fixed);  // which refuses
  std::error_code error;
  const std::string& folder = source.given_folder.empty() ? source.path : source.given_folder;
  if (!fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": --random-weights is for Hugging Face folders, whose config.json says which weights there are"));
  }
  RandomWeights random{.seed = source.seed};
  if (!source.dtype.empty()) {
    ASSIGN_OR_RETURN(DType dtype, ParseDType(source.dtype));
    random.dtype = dtype;
  }
  return ImportHuggingFaceConfig(folder, random, source.fixed.pooling, source.fixed.form, source.fixed.quantized);
}

// A model folder that is none is told what it lacks.
absl::Status CheckFolder(const ModelSource& source) {
  const std::string& folder = source.path;
  // One with a single ONNX file is no longer here.
  if (const auto file = OnnxFileOf(folder); !file.ok() && !source.random_weights) return file.status();
  std::error_code error;
  const std::string transformer = TransformerFolder(folder);
  if (fs::exists(fs::path(transformer) / "config.json", error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(transformer,
                   ": has no config.json and no ONNX file; a Hugging Face folder holds config.json, model.safetensors "
                   "(or its parts and model.safetensors.index.json) and, for text, the tokenizer's files",
                   DownloadHint(folder)));
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
  return fs::is_directory(path, error) ? CheckFolder(source) : absl::OkStatus();
}

// Adds the size that "TOKENS" gives to all pools, or "POOL=TOKENS" to one.
absl::Status ParsePageSize(const std::string& text, PageSizeWishes* sizes) {
  const size_t equals = text.find('=');
  const std::string pool = equals == std::string::npos ? "" : text.substr(0, equals);
  int64_t& size = equals == std::string::npos ? sizes->all : sizes->of_pools[pool];
  if (size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--page-size: that of ", pool.empty() ? "all pools" : pool, " is given twice"));
  }
  constexpr int64_t kSizes[] = {8, 16, 32, 64, 128, 256};
  const bool is_pool = equals == std::string::npos || !pool.empty();
  if (is_pool && absl::SimpleAtoi(text.substr(equals + 1), &size) && absl::c_linear_search(kSizes, size)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--page-size: '", text, "' is not TOKENS or POOL=TOKENS, with 8, 16, 32, 64, 128 or 256 TOKENS"));
}

// All files that a model is read from.
std::vector<std::string> FilesOf(const Model& model, const ModelSource& source) {
  std::set<std::string> names = {"config.json",           "generation_config.json", "genai_config.json",
                                 "tokenizer_config.json", "chat_template.jinja",    "model.safetensors.index.json"};
  for (const Value* weight : model.weights) {
    if (const auto source = SplitWeightSource(weight->source)) names.insert(source->first);
  }
  for (const std::string& folder : {source.given_folder, source.Folder()}) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (Tokenizer::IsTokenizerFile(name)) names.insert(name);
    }
  }
  std::vector<std::string> files = {source.path};
  for (const std::string& name : names) {
    if (!source.given_folder.empty()) files.push_back((fs::path(source.given_folder) / name).string());
    files.push_back((fs::path(source.Folder()) / name).string());
    files.push_back((fs::path(TransformerFolder(source.Folder())) / name).string());
    if (!absl::EndsWith(name, ".onnx")) continue;
    const absl::StatusOr<std::vector<std::string>> data = OnnxExternalFiles(files.back());
    if (data.ok()) files.insert(files.end(), data->begin(), data->end());
  }
  return files;
}

absl::Status SetBounds(const DimEnv& bounds, const ImportOptions& fixed, Model* model) {
  for (const auto& [name, max] : bounds) {
    const auto dim = model->dims.find(name);
    if (fixed.dims.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat("--bound: ", name, " is fixed by --dim already"));
    }
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

std::string ModelSource::SideFolder() const {
  if (absl::EndsWith(path, ".gguf")) return path;
  return given_folder.empty() ? Folder() : given_folder;
}

std::string ModelSource::Folder() const { return FolderOf(weights_folder.empty() ? path : weights_folder); }

bool ModelSource::IsHuggingFace() const {
  const absl::StatusOr<ModelKind> kind = FindModelKind(path);
  return kind.ok() && (*kind == ModelKind::kHuggingFace || *kind == ModelKind::kGguf);
}

void AddModelOptions(CLI::App* command, ModelSource* source, const std::string& what) {
  AddModelPath(command, &source->path, &source->given_folder, what);
  command
      ->add_option(
          "--dtype", source->dtype,
          "of a model: f32, f16 or bf16 for its floats; with f16 and bf16 those that count (positions, indices, "
          "comparisons: computed from integers alone) keep their type, as a language model's logits do")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}));
  command->add_option("--weights-folder", source->weights_folder, "of a dump: where the model was that it came from");
  AddFixedOptions(command, &source->fixed);
  AddQuantizedOption(command, &source->fixed.quantized);
}

void AddPaginationOptions(CLI::App* command, ModelSource* source) {
  CLI::Option* paginate = command->add_flag_callback(
      "--paginate,--promote", [source] { source->pagination = Pagination::kRequired; },
      "of an ONNX decoder: fail, and say why, where it cannot get a paged cache");
  command
      ->add_flag_callback(
          "--no-paginate,--no-promote", [source] { source->pagination = Pagination::kNever; },
          "of an ONNX decoder: leave its cache as tensors that go in and out; then `llmc run` takes any mask and "
          "positions")
      ->excludes(paginate);
  command
      ->add_option_function<std::vector<std::string>>(
          "--page-size",
          [source](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) RequireUsage(ParsePageSize(text, &source->page_sizes));
          },
          "tokens in a page of the KV cache, 16 if not given: large pages make short page tables, but sequences "
          "waste half a page each and share only whole ones. POOL=TOKENS: of those layers alone whose pages the dim "
          "POOL counts (`llmc show` names it: N512, if they have a window of 512); repeatable, such as --page-size 64 "
          "--page-size N512=16")
      ->allow_extra_args(false);
  AddKvOption(command, source);
}

void AddKvOption(CLI::App* command, ModelSource* source) {
  command->add_option_function<std::string>(
      "--kv",
      [source](const std::string& text) {
        RequireUsage(pagination::CheckKvName(text));
        source->kv = text;
        source->fixed.quantized.kv = text == "checkpoint"      ? QuantizedUse::Kv::kAsCheckpoint
                                     : text == "f8e4m3:tensor" ? QuantizedUse::Kv::kF8IfSaid
                                                               : QuantizedUse::Kv::kFloats;
      },
      "how keys and values are cached: auto (if not given: floats, or as a dump says), checkpoint (as a quantized "
      "checkpoint says, with its scales), none (as the floats of the model), f8e4m3, f8e5m2 or int8 (a scale for each "
      "head of a token), int4 (groups of 32 elements), f8e4m3:tensor (the checkpoint's scales, else 1), f8e4m3:head "
      "(those of a dump), or an encoding written out, such as \"int4 group=64 scale=f16\"");
}

void AddRandomWeightsOptions(CLI::App* command, ModelSource* source) {
  command->add_flag("--random-weights", source->random_weights,
                    "random numbers for weights: of a folder only config.json is needed then");
  command->add_option("--weights-seed", source->seed, "of the random weights")->capture_default_str();
}

bool HasConfigOnly(const std::string& folder) {
  std::error_code error;
  const fs::path place = TransformerFolder(folder);
  const auto has = [&](const char* name) { return fs::exists(place / name, error); };
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

absl::StatusOr<std::string> ReadCorpus(const std::string& path) {
  absl::StatusOr<std::string> text = ReadTextFile(path, int64_t{1} << 30, InputKind::kFileOrPipe);
  if (!text.ok()) return text;
  for (absl::string_view rest = *text; !rest.empty();) {
    const Utf8Char c = ReadUtf8(rest);
    if (c.kind != Utf8Char::kValid) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is not valid UTF-8 at byte ", text->size() - rest.size(), "; convert it to UTF-8"));
    }
    rest.remove_prefix(c.bytes);
  }
  return text;
}

absl::StatusOr<std::string> ReadStandardInput(int64_t max_bytes) {
  std::string text;
  char part[1 << 16];
  for (size_t n = 1; n > 0;) {
    n = std::fread(part, 1, sizeof part, stdin);
    text.append(part, n);
    if (static_cast<int64_t>(text.size()) > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("standard input: larger than ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(stdin) != 0) return absl::InvalidArgumentError("standard input cannot be read");
  return text;
}

namespace {

void PrintWarnings(const std::string& path, const std::vector<std::string>& warnings, Progress* progress) {
  constexpr size_t kShown = 3;
  if (!warnings.empty()) progress->Clear();
  for (size_t i = 0; i < warnings.size() && i < kShown; ++i) std::fprintf(stderr, "warning: %s\n", warnings[i].c_str());
  if (warnings.size() <= kShown) return;
  std::fprintf(stderr, "warning: %zu more; `llmc check %s` lists them\n", warnings.size() - kShown, path.c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelSource& given, Progress* progress) {
  progress->Stage("import");
  ModelSource source = given;
  ASSIGN_OR_RETURN(ImportOptions fixed, WithFiles(given.fixed));
  source.fixed = std::move(fixed);
  RETURN_IF_ERROR(CheckSource(source));
  RETURN_IF_ERROR(CheckOutput(source.output, {source.path}));
  std::vector<std::string> warnings;
  source.fixed.quantized.notes = &warnings;
  ImportOptions options = source.fixed;
  options.warnings = &warnings;
  absl::StatusOr<std::unique_ptr<Model>> model = source.random_weights     ? LoadConfig(source)
                                                 : IsTextFile(source.path) ? LoadDump(source)
                                                                           : ImportModel(source.path, nullptr, options);
  if (!model.ok()) return model;
  PrintWarnings(source.path, warnings, progress);
  std::error_code error;
  if (!fs::exists(source.output, error)) return model;
  RETURN_IF_ERROR(CheckOutput(source.output, FilesOf(**model, source)));
  return model;
}

absl::StatusOr<std::unique_ptr<Model>> LoadOptimized(const ModelSource& source, PipelineOptions options, Ledger* ledger,
                                                     Progress* progress) {
  if (!source.dtype.empty()) {
    ASSIGN_OR_RETURN(DType dtype, ParseDType(source.dtype));
    options.dtype = dtype;
  }
  options.pagination = source.pagination.value_or(Pagination::kWhereProven);
  options.page_sizes = source.page_sizes;
  options.kv = source.kv;
  options.weight_flags = FixedFlags(source.fixed, /*with_paths=*/true);
  absl::StatusOr<std::unique_ptr<Model>> model = LoadModel(source, progress);
  if (!model.ok()) return model;
  RETURN_IF_ERROR(SetBounds(source.bounds, source.fixed, model->get()));
  progress->Stage("passes");
  RETURN_IF_ERROR(RunPipeline(model->get(), options, ledger));
  return model;
}

}  // namespace llmc
