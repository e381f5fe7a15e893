#include "tools/runnable.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "files/temporary_folder.h"
#include "runtime/device/device.h"
#include "runtime/device/device_target.h"
#include "runtime/host/host_model.h"
#include "runtime/host/plan_model.h"
#include "runtime/text/tokenizer.h"
#include "tools/cache_folder.h"
#include "tools/commands.h"
#include "tools/compile_model.h"
#include "tools/fixed_options.h"
#include "tools/language_files.h"
#include "tools/model_folder.h"
#include "tools/output.h"

namespace llmc {
namespace {

// The files of a plan; those of a model are LoadModel's matter.
absl::Status CheckPlanOutput(const Plan& plan, const std::string& output) {
  std::vector<std::string> files = {plan.path()};
  for (const plan::File& file : plan.manifest().files()) {
    if (file.external()) files.push_back(absl::StrCat(FolderOf(plan.path()), "/", file.path()));
  }
  return CheckOutput(output, files);
}

absl::StatusOr<ModelParts> FromPlan(const ModelSource& source) {
  RETURN_IF_ERROR(CheckNothingFixed(source.path, source.fixed));
  if (!source.dtype.empty() || !source.weights_folder.empty() || source.pagination.has_value() ||
      !source.page_sizes.empty() || !source.kv.empty() || source.random_weights) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.path,
                     ": is a plan; --dtype, --weights-folder, --paginate, --no-paginate, --page-size, --kv and "
                     "--random-weights are for `llmc compile`"));
  }
  std::unique_ptr<Plan> plan;
  {
    const TraceSpan span(source.trace, "read the plan");
    ASSIGN_OR_RETURN(plan, Plan::Load(source.path, {.verify_when_copied = source.RunsOnGpu()}));
  }
  RETURN_IF_ERROR(CheckPlanOutput(*plan, source.output));
  return PartsOfPlan(std::move(plan));
}

void TakeSideFiles(const ModelSource& source, ModelParts* parts) {
  parts->files = SideFilesOf(source.SideFolder());
  parts->max_context = MaxContextOf(parts->files);
  parts->eos_token_ids.reset();
}

// Compiles the model for where it is to run. The plan stays mapped when its file is gone.
absl::StatusOr<ModelParts> Compiled(const ModelSource& source, Progress* progress) {
  std::vector<Target> targets;
  if (source.RunsOnGpu()) {
    const absl::StatusOr<DeviceInfo> device = DescribeDevice(source.Gpu());
    if (!device.ok()) return NeedsDevice(device.status());
    ASSIGN_OR_RETURN(targets.emplace_back(), TargetOf(*device));
  }
  const absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Create();
  if (!folder.ok()) {
    return absl::Status(folder.status().code(),
                        absl::StrCat(folder.status().message(), ", or compile the model and run the plan"));
  }
  const std::string file = folder->PathOf("plan");
  const CompileRequest request{.plan = {.output = file, .targets = targets, .temporary = true, .generates = false}};
  RETURN_IF_ERROR(CompileModel(source, request, progress).status());
  progress->Stage("load");
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan,
                   Plan::Load(file, {.verify_weights = false, .external_folder = source.Folder()}));
  ASSIGN_OR_RETURN(ModelParts parts, PartsOfPlan(std::move(plan)));
  parts.path = source.path;
  TakeSideFiles(source, &parts);
  return parts;
}

absl::StatusOr<ModelParts> FromModel(const ModelSource& source, Progress* progress) {
  if (IsTextFile(source.path) && !source.dtype.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": is a dump, which runs as it stands; --dtype is for `llmc opt` and `llmc compile`"));
  }
  // Plans are what holds random weights.
  if (source.RunsOnGpu() || source.random_weights) return Compiled(source, progress);
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, IsTextFile(source.path)
                                                     ? LoadModel(source, progress)
                                                     : LoadOptimized(source, {}, nullptr, progress));
  if (source.inspect) source.inspect(*model);
  ASSIGN_OR_RETURN(ModelParts parts, PartsOfModel(source.path, std::move(model)));
  parts.skips_hidden = source.IsHuggingFace();
  TakeSideFiles(source, &parts);
  return parts;
}

// A file alone: of a format that its name tells, else a tokenizer.json.
absl::Status UseTokenizerFile(const std::string& path, SideFiles* files) {
  ASSIGN_OR_RETURN(std::string text, ReadTextFile(path, int64_t{64} << 20));
  const std::string name = std::filesystem::path(path).filename().string();
  const bool is_known = !Tokenizer::ChooseFiles({name}).empty();
  files->tokenizer = std::vector<SideFile>{{is_known ? name : "tokenizer.json", std::move(text)}, {"config.json", ""}};
  files->tokenizer_config = "";
  files->prefix = is_known ? FolderOf(path) + "/" : path + ": ";
  return absl::OkStatus();
}

// Takes another tokenizer: of a folder with all that its files say, or a file.
absl::Status UseTokenizer(const std::string& path, SideFiles* files) {
  std::error_code error;
  if (path.empty()) return absl::OkStatus();
  if (!std::filesystem::is_directory(path, error)) return UseTokenizerFile(path, files);
  SideFiles given = ReadSideFiles(path, Tokenizer::ChooseFiles);
  if (!given.tokenizer.ok()) return given.tokenizer.status();
  given.tokenizer->push_back({"config.json", given.config.value_or("")});
  files->tokenizer = std::move(given.tokenizer);
  files->tokenizer_config = std::move(given.tokenizer_config);
  files->prefix = std::move(given.prefix);
  return absl::OkStatus();
}

}  // namespace

void AddRunnableOptions(CLI::App* command, ModelSource* source) {
  AddModelOptions(command, source,
                  "an ONNX file, a Hugging Face folder or the name of one in its cache (org/name), a GGUF file, a plan "
                  "or a dump (.lir)");
  command->add_option("--device", source->device, "where to run: host, cuda (the first GPU) or cuda:N (GPU number N)")
      ->check([](const std::string& text) { return std::string(ParseDevice(text).status().message()); })
      ->capture_default_str();
  AddMemoryFractionOption(command, &source->memory_fraction);
  command->add_flag("--check-kernels", source->check_kernels,
                    "on a GPU wait for each kernel, so that an error of the GPU names its op; slow");
}

absl::StatusOr<std::unique_ptr<LoadedPlan>> LoadRunnable(const ModelSource& source, const std::string& tokenizer,
                                                         Progress* progress) {
  ASSIGN_OR_RETURN(ModelParts parts, Plan::IsPlan(source.path) ? FromPlan(source) : FromModel(source, progress));
  if (source.inspect && parts.plan != nullptr) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, ModelFromPlan(*parts.plan));
    source.inspect(*model);
  }
  RETURN_IF_ERROR(UseTokenizer(tokenizer, &parts.files));
  if (source.side_files != nullptr) *source.side_files = parts.files;
  return LoadedPlan::FromParts(std::move(parts), {.device = source.device,
                                                  .memory_fraction = source.memory_fraction,
                                                  .trace = source.trace,
                                                  .check_kernels = source.check_kernels,
                                                  .cache_folder = CubinFolder()});
}

void NoteLaunches(const LoadedPlan& model) {
  if (model.graph_status().ok()) return;
  std::fprintf(stderr, "note: runs were launched kernel by kernel, as a capture failed: %s\n",
               std::string(model.graph_status().message()).c_str());
}

void AddTraceOptions(CLI::App* command, std::string* file, bool* kernels) {
  CLI::Option* trace = command->add_option("--trace", *file, "file for a trace of the steps on the GPU, as JSON");
  command
      ->add_flag("--trace-kernels", *kernels, "in the trace each kernel on the GPU too, without graphs and thus slower")
      ->needs(trace);
}

}  // namespace llmc
