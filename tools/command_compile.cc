#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "codegen/memory_plan.h"
#include "codegen/plan_writer.h"
#include "frontend/path_check.h"
#include "frontend/side_files.h"
#include "nlohmann/json.hpp"
#include "runtime/host/host_executor.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/runnable.h"
#include "tools/summary.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kAbout[] =
    "Compiles an ONNX file or a Hugging Face folder to a plan.\n"
    "Examples:\n"
    "  llmc compile model.onnx -o plan.bin\n"
    "  llmc compile my-llama/ -o plan.bin --dtype=f32 --dump-ir=ir && cat ir/index.txt\n"
    "  llmc compile my-llama/ -o plan.bin --weights=external     the plan refers to the model's files";

struct Options {
  ModelSource source;
  std::string out, dump_dir, stop_after, weights = "inside";
  bool json = false, check_numerics = false;
};

// The files that the model's weights come from, and its config: by name relative to the model's folder.
std::vector<PlanInputFile> InputFiles(const Model& model, const std::string& path, const std::string& folder) {
  std::set<std::string> names;
  if (path != folder) names.insert(fs::path(path).filename().string());
  for (const Value* weight : model.weights) names.insert(weight->source.substr(0, weight->source.find('#')));
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
    return absl::InvalidArgumentError(
        absl::StrCat("--weights=external: the plan must be written to the model's folder, ", folder,
                     ", or to one above it, since it refers to the model's files by relative path"));
  }
  return relative == "." ? std::string() : relative.string() + "/";
}

absl::Status UseExternalWeights(const Model& model, const Options& options, const std::string& folder,
                                PlanOptions* plan) {
  absl::StatusOr<std::string> prefix = ExternalPrefix(options.out, folder);
  if (!prefix.ok()) return prefix.status();
  auto located = LocateExternalWeights(model, folder, *prefix);
  if (!located.ok()) return located.status();
  plan->external_weights = *std::move(located);
  std::set<std::string> used;
  for (const auto& [name, weight] : plan->external_weights) used.insert(weight.recorded_path);
  for (PlanInputFile& file : plan->files) {
    if (!used.contains(absl::StrCat(*prefix, file.recorded_path))) continue;
    file.recorded_path = absl::StrCat(*prefix, file.recorded_path);
    file.external = true;
  }
  return absl::OkStatus();
}

std::optional<plan::LanguageModel> DescribeLanguageModel(const Model& model, const SideFiles& side) {
  if (!IsPagedLanguageModel(model)) return std::nullopt;
  plan::LanguageModel lm;
  lm.set_vocab_size(model.steps[0]->outputs[0].value->type.shape.back().value());
  lm.set_page_size(model.states[0]->type.shape[2].value());
  lm.set_max_context(MaxContext(model));
  lm.set_num_layers(static_cast<int64_t>(model.states.size()));
  for (const Value* state : model.states) lm.add_kv_states(state->name);
  for (const int64_t id : side.eos_ids) lm.add_eos_ids(id);
  if (side.bos_id.has_value()) lm.set_bos_id(*side.bos_id);
  return lm;
}

std::vector<std::string> RecordedFlags(const Options& options) {
  std::vector<std::string> flags;
  if (!options.source.dtype.empty()) flags.push_back(absl::StrCat("--dtype=", options.source.dtype));
  if (!options.stop_after.empty()) flags.push_back(absl::StrCat("--stop-after=", options.stop_after));
  return flags;
}

absl::StatusOr<PlanOptions> MakePlanOptions(const Model& model, const Options& options, const Ledger& ledger) {
  const std::string folder = options.source.Folder();
  absl::StatusOr<SideFiles> side = ReadUsableSideFiles(folder, IsPagedLanguageModel(model));
  if (!side.ok()) return side.status();
  PlanOptions plan;
  plan.compiler_version = LLMC_VERSION;
  plan.flags = RecordedFlags(options);
  plan.files = InputFiles(model, options.source.path, folder);
  plan.ledger = ledger.ToString();
  plan.tokenizer_json = side->tokenizer.value_or("");
  plan.tokenizer_config = side->tokenizer_config.value_or("");
  plan.chat_template = side->chat_template.value_or("");
  plan.generation_config = side->generation_config.value_or("");
  plan.config_json = side->config.value_or("");
  plan.language_model = DescribeLanguageModel(model, *side);
  if (options.weights == "external") {
    if (absl::Status status = UseExternalWeights(model, options, folder, &plan); !status.ok()) return status;
  }
  return plan;
}

absl::Status WriteMemoryPlans(const Model& model, const std::string& folder) {
  std::string text;
  const DimEnv bounds(model.dims.begin(), model.dims.end());
  for (const auto& step : model.steps) absl::StrAppend(&text, MemoryPlanText(PlanMemory(*step, bounds)));
  return WriteTextFile((fs::path(folder) / "plan.txt").string(), text);
}

void Report(const Model& model, const Options& options) {
  size_t ops = 0;
  for (const auto& step : model.steps) ops += step->block.nodes.size();
  const auto bytes = static_cast<int64_t>(fs::file_size(options.out));
  if (options.json) {
    const Json json = {
        {"plan", options.out}, {"bytes", bytes}, {"ops", ops}, {"prepare_ops", model.prepare.nodes.size()}};
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("%s: %s, %zu ops in a step\n", options.out.c_str(), HumanBytes(bytes).c_str(), ops);
  }
}

absl::Status Run(const Options& options) {
  PipelineOptions pipeline{.dtype = std::nullopt,
                           .from = "",
                           .stop_after = options.stop_after,
                           .skip = {},
                           .dump_dir = options.dump_dir,
                           .target = "host",
                           .check_numerics = options.check_numerics};
  if (IsPlanFile(options.source.path)) {
    return absl::InvalidArgumentError(absl::StrCat(options.source.path, ": is a plan already"));
  }
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
  if (absl::Status status = WritePlan(**model, *plan, options.out); !status.ok()) return status;
  Report(**model, options);
  return absl::OkStatus();
}

}  // namespace

void AddCompile(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("compile", kAbout);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source, "an ONNX file, a Hugging Face folder or a dump (.lir)");
  command->add_option("-o,--output", options->out, "the plan to write")->required();
  command->add_option("--dump-ir", options->dump_dir, "folder for the text after each pass, index.txt and plan.txt");
  command->add_option("--stop-after", options->stop_after, "last pass to run, by name or number");
  command->add_option("--weights", options->weights, "inside the plan, or external")
      ->check(CLI::IsMember({"inside", "external"}))
      ->capture_default_str();
  command->add_flag("--check-numerics", options->check_numerics, "compare numbers before and after each pass");
  command->add_flag("--json", options->json, "report as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
