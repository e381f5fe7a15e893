#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/text.h"
#include "runtime/plan/plan.h"
#include "runtime/plan/plan_text.h"
#include "tools/commands.h"
#include "tools/fixed_options.h"
#include "tools/kernel_table.h"
#include "tools/ledger_json.h"
#include "tools/lowering_text.h"
#include "tools/model_folder.h"
#include "tools/model_source.h"
#include "tools/output.h"
#include "tools/plan_summary.h"
#include "tools/summary.h"

namespace llmc {
namespace show_command {
namespace {

constexpr char kSummary[] =
    "Shows what is in a model, a plan or a dump: dims, weights, states, inputs, outputs, ops, memory.";
constexpr char kDetails[] =
    "Examples:\n"
    "  llmc show model.onnx\n"
    "  llmc show plan.bin --ir | less\n"
    "  llmc show plan.bin --memory\n"
    "  llmc show plan.bin --kernels\n"
    "  llmc show plan.bin --kernels --json | jq '.[] | select(.stack_bytes > 0)'\n"
    "  llmc show plan.bin --kernel rms_norm\n"
    "  llmc show plan.bin --lowered sm_90a/main-1\n"
    "  llmc show model-folder --json | jq .steps[0].ops";

struct Options {
  std::string path, kernel, lowered;
  ImportOptions fixed;
  bool ir = false, memory = false, kernels = false, ledger = false, json = false;
};

absl::Status PrintPlanSummary(const Plan& plan, bool json) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ParseModel(plan.ir_text(), absl::StrCat(plan.path(), "(ir)")));
  if (json) {
    PrintJson(PlanJson(plan, *model));
  } else {
    PrintText(PlanText(plan, *model));
  }
  return absl::OkStatus();
}

// `name` is an entry, or the part of one that names its header ("rms_norm"): then all of those.
absl::Status PrintKernels(const Plan& plan, const std::string& name) {
  const absl::string_view sources = plan.section(plan::Section::kSources);
  std::string text;
  std::vector<std::string> entries;
  for (const plan::Kernel& kernel : plan.manifest().kernels()) {
    entries.push_back(kernel.entry());
    if (kernel.entry() != name && kernel.entry().substr(kernel.entry().find('_') + 1) != name) continue;
    absl::StrAppend(&text, text.empty() ? "" : "\n", KernelListing(kernel, sources));
  }
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(plan.path(), ": has no kernel ", name, "; it has ",
                                                   entries.empty() ? "none" : absl::StrJoin(entries, ", ")));
  }
  PrintText(text);
  return absl::OkStatus();
}

absl::Status PrintKernelTable(const Plan& plan, bool json) {
  if (json) {
    ASSIGN_OR_RETURN(const nlohmann::ordered_json table, KernelTableJson(plan));
    PrintJson(table);
  } else {
    ASSIGN_OR_RETURN(const std::string table, KernelTableText(plan));
    PrintText(table);
  }
  return absl::OkStatus();
}

absl::Status ShowPlan(const Options& options) {
  RETURN_IF_ERROR(CheckNothingFixed(options.path, options.fixed));
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Plan::Load(options.path, {.map_external_files = false}));
  if (options.ir) {
    PrintText(plan->ir_text());
  } else if (options.memory) {
    PrintText(plan->plan_text());
  } else if (options.kernels) {
    return PrintKernelTable(*plan, options.json);
  } else if (!options.lowered.empty()) {
    ASSIGN_OR_RETURN(const plan::Lowering lowering, plan->lowering());
    ASSIGN_OR_RETURN(const plan::LoweredProgram* program, FindLowered(lowering, options.lowered));
    PrintText(program->text());
  } else if (options.ledger) {
    ASSIGN_OR_RETURN(const Ledger ledger, ParseLedger(plan->ledger()));
    PrintText(ledger.ToString());
    ASSIGN_OR_RETURN(const plan::Lowering lowering, plan->lowering());
    for (const plan::LoweredProgram& program : lowering.programs()) {
      PrintText(absl::StrCat("\nin kernels of ", program.name(), "\n", program.ledger()));
    }
  } else if (!options.kernel.empty()) {
    return PrintKernels(*plan, options.kernel);
  } else {
    return PrintPlanSummary(*plan, options.json);
  }
  return absl::OkStatus();
}

absl::Status ShowModel(const Options& options) {
  if (options.memory || options.kernels || options.ledger || !options.kernel.empty() || !options.lowered.empty()) {
    return absl::InvalidArgumentError(
        "--memory, --kernels, --ledger, --kernel and --lowered are for plans; run `llmc compile` first");
  }
  absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not loaded");
  if (IsTextFile(options.path)) {
    ASSIGN_OR_RETURN(std::string text, ReadTextFile(options.path, kMaxDumpBytes));
    model = ParseModel(text, options.path);
    if (model.ok()) {
      const absl::StatusOr<ImportOptions> fixed = WithFiles(options.fixed);
      absl::Status status = fixed.ok() ? FixDump(*fixed, model->get()) : fixed.status();
      if (!status.ok()) return status;
    }
  } else {
    Progress progress;
    model = LoadModel({.path = options.path, .fixed = options.fixed}, &progress);
  }
  if (!model.ok()) return model.status();
  if (options.ir) {
    PrintText(PrintModel(**model));
  } else if (options.json) {
    PrintJson(SummaryJson(**model));
  } else {
    PrintText(SummaryText(**model, absl::StrCat("model ", (*model)->name)));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace show_command

void AddShow(CLI::App& app, Command* chosen) {
  using namespace show_command;
  CLI::App* command = AddCommand(app, "show", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelPath(command, &options->path, nullptr,
               "an ONNX file or a folder with one, a Hugging Face folder or the name of one in its cache (org/name), a "
               "GGUF file, a plan or a dump (.lir)");
  AddFixedOptions(command, &options->fixed);
  AddQuantizedOption(command, &options->fixed.quantized);
  // Each prints something else.
  CLI::Option_group* what = command->add_option_group("what");
  what->require_option(0, 1);
  const std::vector<CLI::Option*> texts = {
      what->add_flag("--ir", options->ir, "print the whole text of the model (of a plan: after all passes)"),
      what->add_flag("--memory", options->memory,
                     "of a plan: what runs; buffers with sizes, offsets and lifetimes, and the peak"),
      what->add_flag("--ledger", options->ledger, "of a plan: what each rewrite rule did, and where and why not"),
      what->add_option("--kernel", options->kernel, "of a plan: the CUDA source of a kernel that --memory names"),
      what->add_option("--lowered", options->lowered,
                       "of a plan: the text of a program in kernels, such as sm_90a/main-1; explain lists them")};
  what->add_flag("--kernels", options->kernels,
                 "of a plan: what each kernel takes of a GPU: registers and local memory (stack) of a thread, shared "
                 "memory of a block, bytes of code");
  CLI::Option* json = command->add_flag("--json", options->json, "the summary as JSON, or with --kernels its rows");
  for (CLI::Option* text : texts) text->excludes(json);
  command->callback([options, chosen] {
    *chosen = [options] { return Plan::IsPlan(options->path) ? ShowPlan(*options) : ShowModel(*options); };
  });
}

}  // namespace llmc
