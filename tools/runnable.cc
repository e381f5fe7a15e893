#include "tools/runnable.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cubins/targets.h"
#include "files/path_check.h"
#include "runtime/device.h"
#include "runtime/host/model_parts.h"
#include "tools/cache_folder.h"
#include "tools/compile_model.h"
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
  if (!source.dtype.empty() || !source.weights_folder.empty() || source.promotion.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": is a plan; --dtype, --weights-folder, --promote and --no-promote are for `llmc compile`"));
  }
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(source.path, {.verify_when_copied = source.device == "cuda"});
  if (!plan.ok()) return plan.status();
  if (absl::Status status = CheckPlanOutput(**plan, source.output); !status.ok()) return status;
  return PartsOfPlan(*std::move(plan));
}

// A file that goes away with this.
class TemporaryPlan {
 public:
  TemporaryPlan() : path_((std::filesystem::temp_directory_path() / "llmc-XXXXXX.plan").string()) {
    const int fd = mkstemps(path_.data(), 5);
    if (fd < 0) path_.clear();
    if (fd >= 0) close(fd);
  }
  ~TemporaryPlan() {
    if (!path_.empty()) unlink(path_.c_str());
  }
  TemporaryPlan(const TemporaryPlan&) = delete;
  TemporaryPlan& operator=(const TemporaryPlan&) = delete;
  const std::string& path() const { return path_; }  // empty: it could not be made

 private:
  std::string path_;
};

// Compiles the model for the GPU that is here. The plan stays mapped when its file is gone.
absl::StatusOr<ModelParts> CompiledForDevice(const ModelSource& source, Progress* progress) {
  const absl::StatusOr<DeviceInfo> device = DescribeDevice();
  if (!device.ok()) return NeedsDevice(device.status());
  const absl::StatusOr<std::string> target = TargetFor(device->capability);
  if (!target.ok()) return target.status();
  const TemporaryPlan file;
  if (file.path().empty()) {
    return absl::FailedPreconditionError(
        "no temporary file can be made for the compiled model; set TMPDIR, or compile "
        "it with `llmc compile` and run the plan");
  }
  const CompileRequest request{.plan = {.output = file.path(), .targets = {*target}, .temporary = true}};
  if (absl::Status status = CompileModel(source, request, progress).status(); !status.ok()) return status;
  progress->Stage("load");
  absl::StatusOr<std::unique_ptr<Plan>> plan =
      Plan::Load(file.path(), {.verify_weights = false, .external_folder = source.Folder()});
  if (!plan.ok()) return plan.status();
  absl::StatusOr<ModelParts> parts = PartsOfPlan(*std::move(plan));
  if (parts.ok()) parts->path = source.path;
  return parts;
}

absl::StatusOr<ModelParts> FromModel(const ModelSource& source, Progress* progress) {
  if (IsTextFile(source.path) && !source.dtype.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.path, ": is a dump, which runs as it stands; --dtype is for `llmc opt` and `llmc compile`"));
  }
  if (source.device == "cuda") return CompiledForDevice(source, progress);
  absl::StatusOr<std::unique_ptr<Model>> model =
      IsTextFile(source.path) ? LoadModel(source, progress) : LoadOptimized(source, {}, nullptr, progress);
  if (!model.ok()) return model.status();
  absl::StatusOr<SideFiles> side = ReadSideFiles(source.Folder());
  if (!side.ok()) return side.status();
  ModelParts parts{.path = source.path,
                   .model = *std::move(model),
                   .tokenizer_json = side->tokenizer.value_or(""),
                   .max_context = side->max_positions.value_or(0)};
  for (const int64_t id : side->eos_ids) parts.eos_token_ids.push_back(static_cast<int32_t>(id));
  return parts;
}

}  // namespace

void AddRunnableOptions(CLI::App* command, ModelSource* source) {
  AddModelOptions(command, source, "an ONNX file, a Hugging Face folder, a plan or a dump (.lir)");
  command->add_option("--device", source->device, "where to run: host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  command->add_flag("--check-kernels", source->check_kernels,
                    "on a GPU wait for each kernel, so that an error of the GPU names its op; slow");
}

absl::StatusOr<std::unique_ptr<LoadedPlan>> LoadRunnable(const ModelSource& source, const std::string& tokenizer,
                                                         Progress* progress) {
  absl::StatusOr<ModelParts> parts = Plan::IsPlan(source.path) ? FromPlan(source) : FromModel(source, progress);
  if (!parts.ok()) return parts.status();
  if (!tokenizer.empty()) {
    const std::string file = absl::EndsWith(tokenizer, ".json") ? tokenizer : tokenizer + "/tokenizer.json";
    absl::StatusOr<std::string> text = ReadTextFile(file, int64_t{64} << 20);
    if (!text.ok()) return text.status();
    parts->tokenizer_json = *std::move(text);
    parts->path = file;
  }
  return LoadedPlan::FromParts(*std::move(parts), {.device = source.device,
                                                   .trace = source.trace,
                                                   .check_kernels = source.check_kernels,
                                                   .cache_folder = CubinFolder()});
}

void AddTraceOptions(CLI::App* command, std::string* file, bool* kernels) {
  CLI::Option* trace = command->add_option("--trace", *file, "file for a trace of the steps on the GPU, as JSON");
  command
      ->add_flag("--trace-kernels", *kernels, "in the trace each kernel on the GPU too, without graphs and thus slower")
      ->needs(trace);
}

absl::StatusOr<SideFiles> ReadUsableSideFiles(const std::string& folder, bool needed) {
  absl::StatusOr<SideFiles> side = ReadSideFiles(folder);
  if (!side.ok() || !side->tokenizer.has_value()) return side;
  const auto tokenizer = Tokenizer::FromJson(*side->tokenizer, absl::StrCat(folder, "/tokenizer.json"));
  if (tokenizer.ok()) return side;
  if (needed || !absl::IsUnimplemented(tokenizer.status())) return tokenizer.status();
  std::fprintf(stderr, "note: the tokenizer is left out: %s\n", std::string(tokenizer.status().message()).c_str());
  side->tokenizer.reset();
  return side;
}

}  // namespace llmc
