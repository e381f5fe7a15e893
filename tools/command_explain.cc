#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "runtime/plan/plan.h"
#include "tools/commands.h"
#include "tools/examine.h"
#include "tools/fixed_options.h"
#include "tools/ledger_json.h"
#include "tools/lowering_text.h"
#include "tools/model_source.h"
#include "tools/output.h"

namespace llmc {
namespace explain_command {
namespace {

constexpr size_t kShownPlaces = 8;

constexpr char kSummary[] =
    "Says why ops of a model or plan were not recognized, paginated or fused, and where; of a plan, of each kernel "
    "too.";
constexpr char kDetails[] =
    "For each rule that came near and did not fire: the op, its line in the dump (as --dump-ir writes it, or of a "
    "plan\n"
    "as `llmc show PLAN --ir` prints it), the place in the model, and the operand or dimension that stopped it. Of a "
    "plan\n"
    "it says what its compilation wrote down; and of each program for a GPU what every task is: the backend that runs "
    "it,\n"
    "what joined its kernel, what might have and why it did not, and why no other backend was taken.\n"
    "Examples:\n"
    "  llmc explain model.onnx\n"
    "  llmc explain model.onnx --dump-ir=ir --all\n"
    "  llmc explain plan.bin --json | jq '.findings[] | {rule, actual, expected}'";

struct Options {
  ModelSource source;
  std::string dump_dir;
  bool all = false, json = false;
};

absl::Status ExplainPlan(const Options& options) {
  RETURN_IF_ERROR(CheckNothingFixed(options.source.path, options.source.fixed));
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Plan::Load(options.source.path, {.map_external_files = false}));
  const absl::StatusOr<Ledger> ledger = ParseLedger(plan->ledger());
  if (!ledger.ok())
    return absl::Status(ledger.status().code(), absl::StrCat(options.source.path, ": ", ledger.status().message()));
  const DumpIndex index("ir", plan->ir_text(), 0);
  std::vector<Finding> findings = FindingsOf(*ledger, &index);
  // A paged cache does without masks.
  const bool is_paged = plan->manifest().states_size() > 0;
  if (is_paged) std::erase_if(findings, [](const Finding& finding) { return finding.kind == "mask"; });
  ASSIGN_OR_RETURN(const plan::Lowering lowering, plan->lowering());
  if (options.json) {
    PrintJson({{"findings", FindingsJson(findings)}, {"programs", LoweringJson(lowering, plan->manifest())}});
    return absl::OkStatus();
  }
  PrintText(FindingsText(findings, options.all ? SIZE_MAX : kShownPlaces));
  if (findings.empty()) PrintText("no rule came near without firing\n");
  if (lowering.programs_size() > 0) PrintText(absl::StrCat("\n", LoweringText(lowering, plan->manifest())));
  return absl::OkStatus();
}

absl::Status ExplainModel(const Options& options) {
  PipelineOptions pipeline;
  pipeline.dump_dir = options.dump_dir;
  pipeline.weight_flags = FixedFlags(options.source.fixed, /*with_paths=*/true);
  if (!options.source.dtype.empty()) {
    ASSIGN_OR_RETURN(DType dtype, ParseDType(options.source.dtype));
    pipeline.dtype = dtype;
  }
  absl::StatusOr<Examination> examination = absl::InternalError("not examined");
  {
    Progress progress;
    ASSIGN_OR_RETURN(std::unique_ptr<Model> model, LoadModel(options.source, &progress));
    progress.Stage("passes");
    examination = Examine(model.get(), pipeline);
  }
  if (!examination.ok()) return examination.status();
  if (options.json) {
    PrintJson(ExaminationJson(*examination));
  } else {
    PrintText(ExaminationText(*examination, options.all ? SIZE_MAX : kShownPlaces));
    if (examination->findings.empty()) PrintText("no rule came near without firing\n");
  }
  return absl::OkStatus();
}

absl::Status Run(const Options& options) {
  if (!Plan::IsPlan(options.source.path)) return ExplainModel(options);
  if (!options.dump_dir.empty() || !options.source.dtype.empty()) {
    return absl::InvalidArgumentError("--dump-ir and --dtype are for models: a plan is compiled already");
  }
  return ExplainPlan(options);
}

}  // namespace
}  // namespace explain_command

void AddExplain(CLI::App& app, Command* chosen) {
  using namespace explain_command;
  CLI::App* command = AddCommand(app, "explain", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source,
                  "an ONNX file, a Hugging Face folder or its name in the cache, a GGUF file, a dump (.lir) or a plan");
  AddFormOption(command, &options->source.fixed.form);
  AddRandomWeightsOptions(command, &options->source);
  command->add_option("--dump-ir", options->dump_dir, "folder for the text after each pass, whose lines are named");
  command->add_flag("--all", options->all, "all places, not the first 8 of each reason");
  command->add_flag("--json", options->json, "as JSON; docs/check.md describes it");
  command->callback([options, chosen] { *chosen = [options] { return Run(*options); }; });
}

}  // namespace llmc
