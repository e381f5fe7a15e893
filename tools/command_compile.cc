#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "codegen/memory_plan.h"
#include "codegen/plan_writer.h"
#include "files/file_writer.h"
#include "files/path_check.h"
#include "frontend/side_files.h"
#include "frontend/weight_places.h"
#include "nlohmann/json.hpp"
#include "runtime/host/feedback_executor.h"
#include "runtime/host/paged_model.h"
#include "runtime/plan.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/runnable.h"
#include "tools/summary.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Compiles an ONNX file or a Hugging Face folder to a plan.";
constexpr char kDetails[] =
    "Examples:\n"
    "  llmc compile model.onnx -o plan.bin\n"
    "  llmc compile my-llama/ -o plan.bin --dtype=f32 --dump-ir=ir && cat ir/index.txt\n"
    "  llmc compile my-llama/ -o my-llama/plan.bin --weights=external     the plan refers to the model's files\n"
    "  llmc compile model.onnx -o plan.bin --bound batch=4 --bound sequence=512";

struct Options {
  ModelSource source;
  std::string out, dump_dir, stop_after, weights = "inside";
  std::vector<std::string> bounds;
  std::vector<std::string> targets;
  bool json = false, check_numerics = false;
};

// The files that the model's weights come from, and its config: by name relative to the model's folder.
std::vector<PlanInputFile> InputFiles(const Model& model, const std::string& path, const std::string& folder) {
  std::set<std::string> names;
  if (path != folder) names.insert(fs::path(path).filename().string());
  for (const Value* weight : model.weights) {
    if (const auto source = SplitWeightSource(weight->source)) names.insert(source->first);
  }
  if (path == folder) names.insert("config.json");
  std::vector<PlanInputFile> files;
  for (const std::string& name : names) {
    if (fs::is_regular_file(fs::path(folder) / name)) {
      files.push_back(PlanInputFile{.recorded_path = name, .path = (fs::path(folder) / name).string()});
    }
  }
  return files;
}

// External weights are found from the plan's folder, so the model must be in it or below it.
absl::StatusOr<std::string> ExternalPrefix(const std::string& out, const std::string& folder) {
  std::error_code error;
  const fs::path base = fs::weakly_canonical(fs::absolute(FolderOf(out)), error);
  const fs::path relative = fs::weakly_canonical(fs::absolute(folder), error).lexically_relative(base);
  if (relative.empty() || *relative.begin() == "..") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--weights=external: the plan refers to the model's files by relative path, so it must be written to the "
        "model's folder, ",
        folder, ", or to one above it; if neither can be written, leave --weights=external out or copy the model"));
  }
  return relative == "." ? std::string() : relative.string() + "/";
}

absl::Status UseExternalWeights(const Model& model, const Options& options, const std::string& folder,
                                PlanOptions* plan) {
  absl::StatusOr<std::string> prefix = ExternalPrefix(options.out, folder);
  if (!prefix.ok()) return prefix.status();
  absl::StatusOr<std::map<std::string, WeightPlace>> located = LocateWeights(model, folder);
  if (!located.ok()) return located.status();
  if (located->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--weights=external: no weight of ", options.source.path,
                     " lies in a file as it is, so none can stay outside; leave --weights=external out"));
  }
  std::map<std::string, PlanInputFile> files;  // by path relative to the model's folder
  for (PlanInputFile& file : plan->files) files.emplace(file.recorded_path, file);
  for (const auto& [name, place] : *located) {
    const std::string recorded = absl::StrCat(*prefix, place.file);
    plan->external_weights[name] = {recorded, place.offset};
    // The plan would not load where a link leads out of its folder.
    absl::StatusOr<std::string> found = ResolveInside(FolderOf(options.out), recorded);
    if (!found.ok()) return found.status();
    files[place.file] = {.recorded_path = recorded, .path = (fs::path(folder) / place.file).string(), .external = true};
  }
  plan->files.clear();
  for (const auto& [name, file] : files) plan->files.push_back(file);
  return absl::OkStatus();
}

// Nothing for other models.
absl::StatusOr<std::optional<plan::LanguageModel>> DescribeLanguageModel(const Model& model, const SideFiles& side) {
  plan::LanguageModel lm;
  if (IsPagedLanguageModel(model)) {
    const absl::StatusOr<PagedModel> paged = DescribePagedModel(model);
    if (!paged.ok()) return paged.status();
    lm.set_vocab_size(paged->vocab_size);
    lm.set_page_size(paged->page_size);
    lm.set_max_context(std::min(paged->max_context, side.max_positions.value_or(paged->max_context)));
    lm.set_num_layers(static_cast<int64_t>(model.states.size()));
    for (const Value* state : model.states) lm.add_kv_states(state->name);
  } else if (IsFeedbackLanguageModel(model)) {
    lm.set_max_context(side.max_positions.value_or(0));
  } else {
    return std::optional<plan::LanguageModel>();
  }
  for (const int64_t id : side.eos_ids) lm.add_eos_ids(id);
  if (side.bos_id.has_value()) lm.set_bos_id(*side.bos_id);
  return std::optional<plan::LanguageModel>(lm);
}

std::vector<std::string> RecordedFlags(const Options& options) {
  std::vector<std::string> flags;
  if (!options.source.dtype.empty()) flags.push_back(absl::StrCat("--dtype=", options.source.dtype));
  if (!options.stop_after.empty()) flags.push_back(absl::StrCat("--stop-after=", options.stop_after));
  for (const std::string& target : options.targets) flags.push_back(absl::StrCat("--target=", target));
  for (const auto& [name, max] : options.source.bounds) flags.push_back(absl::StrCat("--bound=", name, "=", max));
  return flags;
}

absl::StatusOr<PlanOptions> MakePlanOptions(const Model& model, const Options& options, const Ledger& ledger) {
  const std::string folder = options.source.Folder();
  absl::StatusOr<SideFiles> side = ReadUsableSideFiles(folder, IsPagedLanguageModel(model));
  if (!side.ok()) return side.status();
  PlanOptions plan;
  plan.compiler_version = LLMC_VERSION;
  plan.flags = RecordedFlags(options);
  plan.targets = options.targets;
  plan.files = InputFiles(model, options.source.path, folder);
  plan.ledger = ledger.ToString();
  plan.tokenizer_json = side->tokenizer.value_or("");
  plan.tokenizer_config = side->tokenizer_config.value_or("");
  plan.chat_template = side->chat_template.value_or("");
  plan.generation_config = side->generation_config.value_or("");
  plan.config_json = side->config.value_or("");
  absl::StatusOr<std::optional<plan::LanguageModel>> language_model = DescribeLanguageModel(model, *side);
  if (!language_model.ok()) return language_model.status();
  plan.language_model = *std::move(language_model);
  if (options.weights == "external") {
    if (absl::Status status = UseExternalWeights(model, options, folder, &plan); !status.ok()) return status;
  }
  return plan;
}

absl::Status WriteMemoryPlans(const Model& model, const std::string& folder) {
  std::string text;
  const DimEnv bounds(model.dims.begin(), model.dims.end());
  for (const auto& step : model.steps) {
    absl::StatusOr<plan::Program> program = PlanMemory(*step, bounds);
    if (!program.ok()) return program.status();
    absl::StrAppend(&text, text.empty() ? "" : "\n", MemoryPlanText(*program));
  }
  return WriteWholeFile((fs::path(folder) / "plan.txt").string(), text);
}

void Report(const Model& model, const Options& options) {
  size_t ops = 0;
  for (const auto& step : model.steps) ops += step->block.nodes.size();
  std::error_code error;
  const uintmax_t size = fs::file_size(options.out, error);
  const int64_t bytes = error ? 0 : static_cast<int64_t>(size);  // a device has none
  if (options.json) {
    const Json json = {
        {"plan", options.out}, {"bytes", bytes}, {"ops", ops}, {"prepare_ops", model.prepare.nodes.size()}};
    PrintJson(json);
  } else {
    std::printf("%s: %s, %zu ops in a step\n", options.out.c_str(), HumanBytes(bytes).c_str(), ops);
  }
}

// "NAME=MAX" of each --bound.
absl::StatusOr<DimEnv> ParseBounds(const std::vector<std::string>& texts) {
  DimEnv bounds;
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    int64_t max = 0;
    if (parts.first.empty() || !absl::SimpleAtoi(parts.second, &max) || max <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("--bound: '", text, "' is not NAME=MAX with a positive MAX"));
    }
    if (!bounds.emplace(parts.first, max).second) {
      return absl::InvalidArgumentError(absl::StrCat("--bound: ", parts.first, " is given twice"));
    }
  }
  return bounds;
}

absl::Status Run(Options options) {
  PipelineOptions pipeline{.dtype = std::nullopt,
                           .from = "",
                           .stop_after = options.stop_after,
                           .skip = {},
                           .dump_dir = options.dump_dir,
                           .target = options.targets.empty() ? "host" : absl::StrJoin(options.targets, ","),
                           .check_numerics = options.check_numerics};
  absl::StatusOr<DimEnv> bounds = ParseBounds(options.bounds);
  if (!bounds.ok()) return bounds.status();
  options.source.bounds = *std::move(bounds);
  Ledger ledger;
  Progress progress;
  absl::StatusOr<std::unique_ptr<Model>> model = LoadOptimized(options.source, pipeline, &ledger, &progress);
  if (!model.ok()) return model.status();
  if (!options.dump_dir.empty()) {
    if (absl::Status status = WriteMemoryPlans(**model, options.dump_dir); !status.ok()) return status;
  }
  absl::StatusOr<PlanOptions> plan = MakePlanOptions(**model, options, ledger);
  if (!plan.ok()) return plan.status();
  progress.Stage("write");
  plan->on_weight = [&](int64_t done, int64_t total) { progress.Count(done, total); };
  if (absl::Status status = WritePlan(**model, *plan, options.out); !status.ok()) return status;
  progress.Clear();
  Report(**model, options);
  return absl::OkStatus();
}

}  // namespace

void AddCompile(CLI::App& app, Command* chosen) {
  CLI::App* command = AddCommand(app, "compile", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source, "an ONNX file, a Hugging Face folder or a dump (.lir)");
  command->add_option("-o,--output", options->out, "the plan to write")->required();
  command->add_option("--target", options->targets, "GPU to compile for, such as sm_90a; may be given several times");
  command->add_option("--dump-ir", options->dump_dir, "folder for the text after each pass, index.txt and plan.txt");
  command->add_option("--stop-after", options->stop_after, "last pass to run, by name or number")->check(CheckPassName);
  command->add_option("--weights", options->weights, "inside the plan, or external")
      ->check(CLI::IsMember({"inside", "external"}))
      ->capture_default_str();
  command
      ->add_option("--bound", options->bounds, "NAME=MAX: the largest size of a dim that `llmc show` names; repeatable")
      ->allow_extra_args(false);
  command->add_flag("--check-numerics", options->check_numerics, "compare numbers before and after each pass");
  command->add_flag("--json", options->json, "report as JSON");
  command->callback([options, chosen] {
    options->source.output = options->out;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
