#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "runtime/device/device.h"
#include "runtime/device/device_target.h"
#include "runtime/device/plan_kernels.h"
#include "runtime/plan/memory_needs.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/step_programs.h"
#include "tools/bench_cost.h"
#include "tools/commands.h"
#include "tools/fixed_options.h"
#include "tools/gpu_form.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/plan_options.h"

namespace llmc {
namespace fit_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Says whether a model fits into a GPU's memory, and with which batch and context.";
constexpr char kDetails[] =
    "Nothing is run and no weights are read: a plan, or a folder with only config.json, is enough. It is the "
    "arithmetic\n"
    "by which --device=cuda gives memory to the KV cache. The floor of a step is the time to read the weights and the\n"
    "cache of its sequences once at the bandwidth of the GPU's data sheet (of the GPU that is here: at its own).\n"
    "Exit code 0: it fits; 1: it does not, and by how much.\n"
    "Examples:\n"
    "  llmc fit plan.bin\n"
    "  llmc fit tools/bench/configs/llama-3.1-70b --gpu-memory=141GiB --memory-fraction=0.98\n"
    "  llmc fit my-llama/ --gpu-memory=24GiB --context 8192 --batch 16 --json\n"
    "  llmc fit my-llama/ --gpu-memory=80GiB --target=sm_80";

// What a process has on a GPU before it asks for anything.
constexpr int64_t kDriverBytes = int64_t{600} << 20;

struct Options {
  ModelSource source;
  int64_t gpu_memory = 0;  // 0: that of the GPU that is there
  int64_t context = 0, batch = 0;
  std::optional<Target> target;
  double memory_fraction = kDefaultMemoryFraction;
  bool json = false;
};

// "80GiB", "24 GB", "500000000". An error message, or "".
std::string ParseBytes(const std::string& text, int64_t* bytes) {
  const size_t end = text.find_first_not_of("0123456789.");
  std::string unit = end == std::string::npos ? "" : text.substr(end);
  absl::StripAsciiWhitespace(&unit);
  absl::AsciiStrToLower(&unit);
  double number = 0, scale = 1, binary = 1, decimal = 1;
  bool known = unit.empty() || unit == "b";
  for (const char* prefix : {"k", "m", "g", "t"}) {
    binary *= 1024;
    decimal *= 1000;
    if (unit == absl::StrCat(prefix, "ib")) scale = binary;
    if (unit == absl::StrCat(prefix, "b") || unit == prefix) scale = decimal;
    known = known || scale > 1;
  }
  const bool wrong = !known || !absl::SimpleAtod(text.substr(0, end), &number) || number * scale < 1 ||
                     number * scale >= static_cast<double>(int64_t{1} << 62);
  if (wrong) return absl::StrCat("'", text, "' is no size of memory, such as 80GiB");
  *bytes = static_cast<int64_t>(number * scale);
  return "";
}

absl::StatusOr<plan::Manifest> ManifestOfModel(ModelSource source, const Target& target, Progress* progress) {
  source.random_weights = source.random_weights || HasConfigOnly(source.path);
  Ledger ledger;
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadOptimized(source, {.target = target.name}, &ledger, progress));
  ASSIGN_OR_RETURN(PlanOptions options,
                   MakePlanOptions(*model, source, {.targets = {target}, .generates = false}, ledger));
  options.files.clear();  // nobody asks for their checksums
  return MakeManifest(*model, options);
}

// Of the programs for the target that is asked for or, if none is, for the GPU that is here or the plan's first target,
// which `target` then is; `index` is that of manifest.targets().
absl::StatusOr<plan::Manifest> LoadManifest(const Options& options, Target* target, int* index, Progress* progress) {
  const ModelSource& source = options.source;
  if (!Plan::IsPlan(source.path)) return ManifestOfModel(source, *target, progress);
  RETURN_IF_ERROR(CheckNothingFixed(source.path, source.fixed));
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan,
                   Plan::Load(source.path, {.verify_weights = false, .map_external_files = false}));
  RETURN_IF_ERROR(CheckHasDeviceCode(*plan));
  const absl::StatusOr<KernelChoice> choice =
      ChooseKernels(*plan, {.name = target->name, .capability = target->capability});
  if (choice.ok()) {
    *index = choice->target;
  } else if (options.target.has_value()) {
    return choice.status();
  } else {
    ASSIGN_OR_RETURN(*target, FindTarget(plan->manifest().targets(0).target()));
  }
  return plan->manifest();
}

std::vector<int64_t> Contexts(const MemoryNeeds& needs) {
  std::vector<int64_t> contexts;
  for (int64_t context = 1024; context < needs.max_context; context *= 2) contexts.push_back(context);
  contexts.push_back(needs.max_context);
  return contexts;
}

// Of the dims of inputs, which --bound takes.
std::string BoundsText(const plan::Manifest& manifest) {
  std::set<std::string> of_inputs;
  for (const plan::EntryPoint& entry : manifest.entry_points()) {
    for (const plan::TensorSpec& input : entry.inputs()) of_inputs.insert(input.shape().begin(), input.shape().end());
  }
  std::string text;
  for (const plan::DimBound& bound : manifest.dims()) {
    if (!of_inputs.contains(bound.name())) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", bound.name(), " <= ", bound.max());
  }
  return text;
}

struct Fit {
  TargetCode code;
  Target target;
  MemoryNeeds needs;
  GpuMemory memory;
  int64_t pages = 0;
  absl::Status wanted;  // whether --context and --batch fit, or at least one page
};

absl::Status CheckWanted(const Options& options, const MemoryNeeds& needs, const GpuMemory& memory) {
  if (options.context > needs.max_context && !needs.pools.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--context ", options.context, ": the model's context is ", needs.max_context));
  }
  const int64_t pages =
      needs.PagesOfSequences(std::max<int64_t>(options.batch, 1), std::max<int64_t>(options.context, 1));
  return CheckFits(needs, pages, memory);
}

// Whether a run at the bounds has room; smaller ones may have where it has not. It is not held to the fraction.
bool LargestRunFits(const Fit& fit) {
  const GpuMemory whole = {.total = fit.memory.total, .free = fit.memory.free, .fraction = 1};
  return fit.needs.run_arena <= UsableBytes(whole) - fit.needs.Fixed();
}

// Seconds of a step of one token of each of `batch` sequences, or of as many as a step takes; 0 if there is none.
double FloorOfDecode(const Fit& fit, int64_t batch, int64_t context) {
  batch = std::min(batch, fit.needs.max_sequences);
  const absl::StatusOr<StepContract> contract = PagedContractOf(fit.code.manifest());
  if (batch <= 0 || fit.code.programs_size() == 0 || !contract.ok()) return 0;
  BenchStep run;
  run.sequences.assign(static_cast<size_t>(batch), {.position = context - 1});
  for (const StepAxis axis : {StepAxis::kToken, StepAxis::kSequence, StepAxis::kRow}) {
    run.dims[contract->SizeOf(axis)] = batch;
  }
  return FloorSeconds(CostOf(fit.code.program(0), run), fit.target);
}

Json ReportJson(const plan::Manifest& manifest, const Fit& fit) {
  const MemoryNeeds& n = fit.needs;
  Json json = {{"model", manifest.model_name()},
               {"target", fit.target.name},
               {"fits", fit.wanted.ok()},
               {"gpu_memory", fit.memory.total},
               {"memory_fraction", fit.memory.fraction},
               {"weights", n.weights},
               {"passing_weights", n.passing_weights},
               {"prepared", n.prepared},
               {"constants", n.constants},
               {"arena", n.arena},
               {"run_arena", n.run_arena < 0 ? Json() : Json(n.run_arena)},
               {"largest_run_fits", n.run_arena < 0 ? Json() : Json(LargestRunFits(fit))},
               {"persistent", n.persistent},
               {"penalty_counts", n.counts},
               {"workspace", n.workspace},
               {"graphs_estimate", n.code + n.graphs},
               {"driver_estimate", fit.memory.total - fit.memory.free},
               {"reserve", fit.memory.free - UsableBytes(fit.memory)},
               {"fixed", n.Fixed()},
               {"loading", n.Loading()}};
  if (!fit.wanted.ok()) json["reason"] = std::string(fit.wanted.message());
  if (n.pools.empty()) return json;
  json["kv_bytes_per_token"] = n.CacheBytes(1) / n.page_size;
  json["kv_tokens"] = fit.pages * n.page_size;
  json["kv_bytes"] = n.CacheBytes(fit.pages);
  json["max_context"] = n.max_context;
  json["max_sequences"] = n.max_sequences;
  json["table"] = Json::array();
  for (const int64_t context : Contexts(n)) {
    const int64_t batch = n.SequencesIn(fit.pages, context);
    json["table"].push_back({{"context", context}, {"batch", batch}});
    if (const double floor = FloorOfDecode(fit, batch, context); floor > 0) {
      json["table"].back()["floor_us"] = 1e6 * floor;
    }
  }
  return json;
}

void PrintReport(const Options& options, const plan::Manifest& manifest, const Fit& fit) {
  const MemoryNeeds& n = fit.needs;
  std::printf("%s on a GPU of %s (%s)\n", options.source.path.c_str(), BytesText(fit.memory.total).c_str(),
              fit.target.name.c_str());
  const auto line = [](const char* what, int64_t bytes, const std::string& note) {
    std::printf("  %-10s %12s  %s\n", what, BytesText(bytes).c_str(), note.c_str());
  };
  line("weights", n.weights,
       n.passing_weights == 0 ? "" : absl::StrCat("and ", BytesText(n.passing_weights), " more while loading"));
  line("prepared", n.prepared, "made of weights at load");
  if (n.run_arena < 0) {
    std::printf("  %-10s %12s  activations, made for each run: give --bound NAME=MAX for %s\n", "arena", "not known",
                BoundsText(manifest).c_str());
  } else {
    const char* each = LargestRunFits(fit) ? " of a run" : " of a run, which does not fit; smaller ones may";
    line("arena", n.arena + n.run_arena,
         absl::StrCat("activations", n.run_arena > 0 ? each : "", ", with ", BoundsText(manifest)));
  }
  line("constants", n.constants + n.persistent, "and what kernels keep between launches");
  line("penalties", n.counts, "counts of tokens, if all sequences sample with penalties");
  line("products", n.workspace, "workspace of cuBLASLt");
  line("graphs", n.code + n.graphs, "captured graphs and code, an estimate");
  line("driver", fit.memory.total - fit.memory.free, "an estimate");
  line("reserve", fit.memory.free - UsableBytes(fit.memory),
       absl::StrCat("left free, with --memory-fraction=", fit.memory.fraction));
  line("together", n.Fixed() + std::max<int64_t>(n.run_arena, 0) + fit.memory.total - UsableBytes(fit.memory), "");
  if (n.pools.empty()) return;
  line("KV cache", n.CacheBytes(fit.pages),
       absl::StrCat(BytesText(n.CacheBytes(1) / n.page_size), " a token, so ", fit.pages * n.page_size, " tokens"));
  for (const MemoryNeeds::Pool& pool : n.pools) {
    if (n.PagesOf(pool, fit.pages) < pool.max_pages) continue;
    line("", n.PagesOf(pool, fit.pages) * pool.page,
         absl::StrCat("of it for layers with a window of ", pool.window, ", which need no more"));
  }
  if (fit.pages == 0) return;
  std::printf("\n%10s %8s %12s    sequences that fit, and the floor of their step; a step takes at most %lld\n",
              "context", "batch", "floor", static_cast<long long>(n.max_sequences));
  for (const int64_t context : Contexts(n)) {
    const int64_t batch = n.SequencesIn(fit.pages, context);
    const double floor = FloorOfDecode(fit, batch, context);
    std::printf("%10lld %8lld %12s\n", static_cast<long long>(context), static_cast<long long>(batch),
                floor > 0 ? absl::StrFormat("%.2f ms", 1e3 * floor).c_str() : "");
  }
}

absl::StatusOr<int64_t> MemoryOfGpu() {
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open();
  if (!device.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("there is no GPU here to ask (", device.status().message(),
                                                      "): give --gpu-memory, such as 80GiB"));
  }
  ASSIGN_OR_RETURN(const Device::MemoryInfo info, (*device)->memory());
  return info.total;
}

absl::Status Run(const Options& options) {
  Progress progress;
  Fit fit{.memory = {.total = options.gpu_memory, .fraction = options.memory_fraction}};
  if (fit.memory.total == 0) {
    ASSIGN_OR_RETURN(const int64_t memory, MemoryOfGpu());
    fit.memory.total = memory;
  }
  fit.target = options.target.has_value() ? *options.target : TargetHere();
  int index = 0;
  ASSIGN_OR_RETURN(const plan::Manifest manifest, LoadManifest(options, &fit.target, &index, &progress));
  fit.code = TargetCode(manifest, index);
  ASSIGN_OR_RETURN(const MemoryNeeds needs, MemoryNeedsOf(fit.code));
  fit.needs = needs;
  fit.memory.free = std::max<int64_t>(fit.memory.total - kDriverBytes, 0);
  fit.pages = PagesThatFit(needs, fit.memory);
  fit.wanted = CheckWanted(options, needs, fit.memory);
  if (absl::IsInvalidArgument(fit.wanted)) return fit.wanted;
  progress.Clear();
  if (options.json) {
    PrintJson(ReportJson(manifest, fit));
  } else {
    PrintReport(options, manifest, fit);
    const bool asked = options.context > 0 || options.batch > 0;
    if (fit.wanted.ok() && asked) std::printf("\nwhat was asked for fits\n");
  }
  return fit.wanted;
}

}  // namespace
}  // namespace fit_command

void AddFit(CLI::App& app, Command* chosen) {
  using namespace fit_command;
  CLI::App* command = AddCommand(app, "fit", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source,
                  "a plan, an ONNX file, a Hugging Face folder (config.json is enough), a GGUF file or a dump (.lir)");
  command
      ->add_option_function<std::string>(
          "--gpu-memory", [options](const std::string& text) { ParseBytes(text, &options->gpu_memory); },
          "of the GPU, such as 80GiB; without it: that of the GPU that is there")
      ->check([](const std::string& text) {
        int64_t bytes = 0;
        return ParseBytes(text, &bytes);
      });
  AddMemoryFractionOption(command, &options->memory_fraction);
  AddOneTargetOption(command, &options->target,
                     "what to plan for, such as sm_80, or whose programs of a plan to take; default: the GPU that is "
                     "here, else " +
                         DefaultTarget().name + " or the plan's first");
  command->add_option("--context", options->context, "tokens of each sequence")->check(CLI::PositiveNumber);
  command->add_option("--batch", options->batch, "sequences")->check(CLI::PositiveNumber);
  AddPaginationOptions(command, &options->source);
  AddBoundOption(command, &options->source);
  command->add_flag("--json", options->json, "the report as JSON");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
