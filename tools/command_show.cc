#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "ir/text.h"
#include "runtime/plan.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/plan_summary.h"
#include "tools/summary.h"

namespace llmc {
namespace {

constexpr char kAbout[] =
    "Shows what is in a model, a plan or a dump: inputs, outputs, weights, ops, memory.\n"
    "Examples:\n"
    "  llmc show model.onnx\n"
    "  llmc show plan.bin --ir | less\n"
    "  llmc show plan.bin --memory\n"
    "  llmc show model-folder --json | jq .steps[0].ops";

struct Options {
  std::string path;
  bool ir = false, memory = false, ledger = false, json = false;
};

void Print(absl::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

absl::Status ShowPlan(const Options& options) {
  absl::StatusOr<std::unique_ptr<Plan>> plan = Plan::Load(options.path, {.verify_weights = false});
  if (!plan.ok()) return plan.status();
  if (options.ir) {
    Print((*plan)->ir_text());
  } else if (options.memory) {
    Print((*plan)->plan_text());
  } else if (options.ledger) {
    Print((*plan)->ledger());
  } else if (options.json) {
    Print(absl::StrCat(PlanJson(**plan).dump(2), "\n"));
  } else {
    Print(PlanText(**plan));
  }
  return absl::OkStatus();
}

absl::Status ShowModel(const Options& options) {
  if (options.memory || options.ledger) {
    return absl::InvalidArgumentError("--memory and --ledger are for plans; run `llmc compile` first");
  }
  absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not loaded");
  if (IsTextFile(options.path)) {
    absl::StatusOr<std::string> text = ReadTextFile(options.path, kMaxDumpBytes);
    if (!text.ok()) return text.status();
    model = ParseModel(*text, options.path);
  } else {
    Progress progress;
    model = LoadModel({.path = options.path, .dtype = "", .weights_folder = ""}, &progress);
  }
  if (!model.ok()) return model.status();
  if (options.ir) {
    Print(PrintModel(**model));
  } else if (options.json) {
    Print(absl::StrCat(SummaryJson(**model).dump(2), "\n"));
  } else {
    Print(SummaryText(**model));
  }
  return absl::OkStatus();
}

}  // namespace

void AddShow(CLI::App& app, Command* chosen) {
  CLI::App* command = app.add_subcommand("show", kAbout);
  auto options = std::make_shared<Options>();
  command->add_option("MODEL", options->path, "an ONNX file, a Hugging Face folder, a plan or a dump (.lir)")
      ->required();
  command->add_flag("--ir", options->ir, "print the whole text of the model (of a plan: after all passes)");
  command->add_flag("--memory", options->memory, "of a plan: buffers with sizes, offsets and lifetimes, and the peak");
  command->add_flag("--ledger", options->ledger, "of a plan: what each rewrite rule did, and where and why not");
  command->add_flag("--json", options->json, "the summary as JSON");
  command->callback([options, chosen] {
    *chosen = [options] { return Plan::IsPlan(options->path) ? ShowPlan(*options) : ShowModel(*options); };
  });
}

}  // namespace llmc
