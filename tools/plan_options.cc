#include "tools/plan_options.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "files/side_files.h"
#include "frontend/import.h"
#include "frontend/weight_places.h"
#include "runtime/host/paged_model.h"
#include "tools/commands.h"
#include "tools/fixed_options.h"
#include "tools/language_files.h"
#include "tools/ledger_json.h"
#include "tools/model_folder.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

// The files that the model's weights come from, and its config: by name relative to the model's folder.
std::vector<PlanInputFile> InputFiles(const Model& model, const std::string& path, const std::string& folder) {
  std::set<std::string> names;
  if (path != folder) names.insert(fs::path(path).filename().string());
  for (const Value* weight : model.weights) {
    if (const auto source = SplitWeightSource(weight->source)) names.insert(source->first);
  }
  if (path == folder) {
    const std::string transformer = TransformerFolder(folder);
    names.insert((fs::path(transformer).lexically_relative(folder) / "config.json").lexically_normal().string());
  }
  std::vector<PlanInputFile> files;
  for (const std::string& name : names) {
    if (fs::is_regular_file(fs::path(folder) / name)) {
      files.push_back(PlanInputFile{.recorded_path = name, .path = (fs::path(folder) / name).string()});
    }
  }
  return files;
}

// External weights are found from the plan's folder, so the model must be in it or below it.
absl::StatusOr<std::string> ExternalPrefix(const std::string& from, const std::string& folder) {
  std::error_code error;
  const fs::path base = fs::weakly_canonical(fs::absolute(from), error);
  const fs::path relative = fs::weakly_canonical(fs::absolute(folder), error).lexically_relative(base);
  if (relative.empty() || *relative.begin() == "..") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--weights=external: the plan refers to the model's files by relative path, so it must be written to the "
        "model's folder, ",
        folder, ", or to one above it; if neither can be written, leave --weights=external out or copy the model"));
  }
  return relative == "." ? std::string() : relative.string() + "/";
}

absl::Status UseExternalWeights(const Model& model, const ModelSource& source, const PlanRequest& request,
                                PlanOptions* plan) {
  const std::string folder = source.Folder();
  const std::string base = request.temporary ? folder : FolderOf(request.output);
  ASSIGN_OR_RETURN(std::string prefix, ExternalPrefix(base, folder));
  ASSIGN_OR_RETURN(auto located, LocateWeights(model, folder));
  if (located.empty() && request.temporary) return absl::OkStatus();
  if (located.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--weights=external: no weight of ", source.path,
                     " lies in a file as it is, so none can stay outside; leave --weights=external out"));
  }
  std::map<std::string, PlanInputFile> files;  // by path relative to the model's folder
  for (PlanInputFile& file : plan->files) files.emplace(file.recorded_path, file);
  for (const auto& [name, place] : located) {
    const std::string recorded = absl::StrCat(prefix, place.file);
    plan->external_weights[name] = {recorded, place.offset};
    // The plan would not load where a link leads out of its folder.
    RETURN_IF_ERROR(ResolveInside(base, recorded).status());
    files[place.file] = {.recorded_path = recorded, .path = (fs::path(folder) / place.file).string(), .external = true};
  }
  plan->files.clear();
  for (const auto& [name, file] : files) plan->files.push_back(file);
  return absl::OkStatus();
}

// End tokens, and a note where texts will need another tokenizer.
absl::Status DescribeGeneration(const LanguageFiles& side, int64_t vocab_size, plan::LanguageModel* lm) {
  if (!side.generation.ok()) return side.generation.status();
  WarnOfLeftOut(side.generation);
  if (!side.tokenizer.ok()) {
    std::fprintf(stderr, "note: the plan's tokenizer is of no use, texts need another (--tokenizer): %s\n",
                 std::string(side.tokenizer.message()).c_str());
  }
  // What lies outside the vocabulary is never generated.
  for (const int64_t id : side.generation->eos_token_ids) {
    if (id < vocab_size) lm->add_eos_ids(id);
  }
  const std::optional<int32_t> bos = side.generation->bos_token_id;
  if (bos.has_value() && *bos < vocab_size) lm->set_bos_id(*bos);
  return absl::OkStatus();
}

// Nothing for other models.
absl::StatusOr<std::optional<plan::LanguageModel>> DescribeLanguageModel(const Model& model, const SideFiles& files,
                                                                         bool generates, bool skips_hidden) {
  if (!IsLanguageModel(model)) return std::optional<plan::LanguageModel>();
  ASSIGN_OR_RETURN(const int64_t max_context, MaxContextOf(files));
  plan::LanguageModel lm;
  lm.set_max_context(max_context);
  int64_t vocab_size = int64_t{1} << 31;
  if (IsPagedLanguageModel(model)) {
    ASSIGN_OR_RETURN(const PagedModel paged, DescribePagedModel(model));
    vocab_size = paged.vocab_size;
    lm.set_vocab_size(vocab_size);
    for (const StatePool& from : paged.pools) {
      plan::LanguageModel::Pool* pool = lm.add_pools();
      pool->set_dim(from.dim);
      pool->set_window(from.window);
      pool->set_page_size(from.page_size);
    }
    lm.set_max_context(max_context == 0 ? paged.max_context : std::min(paged.max_context, max_context));
    lm.set_num_layers(static_cast<int64_t>(model.states.size()));
    lm.set_skips_hidden(skips_hidden);
    for (const Value* state : model.states) lm.add_kv_states(state->name);
  }
  if (generates) {
    if (absl::Status s = DescribeGeneration(ReadLanguageFiles(files), vocab_size, &lm); !s.ok()) return s;
  }
  return std::optional<plan::LanguageModel>(lm);
}

std::vector<std::string> RecordedFlags(const ModelSource& source, const PlanRequest& request) {
  std::vector<std::string> flags;
  if (!source.dtype.empty()) flags.push_back(absl::StrCat("--dtype=", source.dtype));
  if (source.pagination == Pagination::kRequired) flags.push_back("--paginate");
  if (source.pagination == Pagination::kNever) flags.push_back("--no-paginate");
  for (std::string& flag : source.page_sizes.Flags()) flags.push_back(std::move(flag));
  if (!source.kv.empty()) flags.push_back(absl::StrCat("--kv=", source.kv));
  if (source.fixed.quantized.activations) flags.emplace_back("--quantize-activations");
  if (const PoolingChoice& pooling = source.fixed.pooling; !pooling.pool.empty()) {
    flags.push_back(absl::StrCat("--pool=", pooling.pool));
    if (pooling.normalize) flags.push_back("--normalize");
  }
  if (source.fixed.pooling.packing == Packing::kAlways) flags.push_back("--packed");
  if (source.fixed.form != DecoderForm::kServed) flags.push_back("--form=" + FormName(source.fixed.form));
  if (source.random_weights) flags.push_back(absl::StrCat("--random-weights=", source.seed));
  if (request.fast_compile) flags.emplace_back("--fast-compile");
  if (!request.stop_after.empty()) flags.push_back(absl::StrCat("--stop-after=", request.stop_after));
  for (const Target& target : request.targets) {
    if (!request.default_targets) flags.push_back(absl::StrCat("--target=", target.name));
  }
  for (std::string& flag : FixedFlags(source.fixed, /*with_paths=*/false)) flags.push_back(std::move(flag));
  for (const auto& [name, max] : source.bounds) flags.push_back(absl::StrCat("--bound=", name, "=", max));
  return flags;
}

// Adds the bound that "NAME=MAX" gives.
absl::Status ParseBound(const std::string& text, DimEnv* bounds) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
  int64_t max = 0;
  if (parts.first.empty() || !absl::SimpleAtoi(parts.second, &max) || max <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("--bound: '", text, "' is not NAME=MAX with a positive MAX"));
  }
  if (!bounds->emplace(parts.first, max).second) {
    return absl::InvalidArgumentError(absl::StrCat("--bound: ", parts.first, " is given twice"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PlanOptions> MakePlanOptions(const Model& model, const ModelSource& source, const PlanRequest& request,
                                            const Ledger& ledger) {
  const std::string folder = source.Folder();
  PlanOptions plan;
  plan.compiler_version = LLMC_VERSION;
  plan.flags = RecordedFlags(source, request);
  plan.compile.fast_compile = request.fast_compile;
  plan.targets = request.targets;
  plan.files = InputFiles(model, source.path, folder);
  plan.ledger = LedgerJson(ledger).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  const SideFiles side = SideFilesOf(source.SideFolder());
  plan.tokenizer = side.tokenizer.value_or(std::vector<SideFile>());
  plan.tokenizer_config = side.tokenizer_config.value_or("");
  plan.chat_template = side.chat_template.value_or("");
  plan.generation_config = side.generation_config.value_or("");
  plan.config_json = side.config.value_or("");
  ASSIGN_OR_RETURN(std::optional<plan::LanguageModel> language_model,
                   DescribeLanguageModel(model, side, request.generates, source.IsHuggingFace()));
  plan.language_model = std::move(language_model);
  plan.hash_files = !request.temporary;
  if (request.weights == "external" || request.temporary) {
    RETURN_IF_ERROR(UseExternalWeights(model, source, request, &plan));
  }
  return plan;
}

void AddDeviceOptions(CLI::App* command, DevicePlanOptions* options) {
  static const std::map<std::string, StepForm> kForms = {
      {"launches", StepForm::kLaunches}, {"persistent", StepForm::kPersistent}, {"auto", StepForm::kAuto}};
  command
      ->add_option_function<std::string>(
          "--steps", [options](const std::string& form) { options->steps = kForms.at(form); },
          "how decode steps of up to 4 sequences run on the GPU: launches (one for each task), persistent (many tasks "
          "in one launch that stays on all multiprocessors, where they can be) or auto (if not given: of one sequence "
          "persistent on sm_90a by rules that were measured on an H100, and with fewer models on an H200, and of two "
          "with weights in 16 bits by such of an H200, where it is mostly faster; `llmc explain PLAN` says "
          "which tasks, and why not others)")
      ->check(CLI::IsMember({"launches", "persistent", "auto"}));
  command->add_flag("--tf32", options->tf32,
                    "of products in f32 that cuBLASLt computes: factors in TF32, which has 10 bits of mantissa, for "
                    "tensor cores; if not given factors keep all of their bits. It changes nothing in other types");
}

void AddBoundOption(CLI::App* command, ModelSource* source) {
  command
      ->add_option_function<std::vector<std::string>>(
          "--bound",
          [source](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) RequireUsage(ParseBound(text, &source->bounds));
          },
          "NAME=MAX: the largest size of a dim that `llmc show` names; repeatable")
      ->allow_extra_args(false);
}

}  // namespace llmc
