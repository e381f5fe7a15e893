#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "ir/ops.h"
#include "ir/text.h"
#include "tools/commands.h"
#include "tools/model_source.h"
#include "tools/output.h"

namespace llmc {
namespace opt_command {
namespace {

constexpr char kSummary[] = "Runs passes over a dump, or over an imported model, and prints the result.";
constexpr char kDetails[] =
    "Examples:\n"
    "  llmc opt ir/03-simplify.lir --from=4 --weights-folder=model      resume after the dump\n"
    "  llmc opt model.onnx --stop-after=fuse -o fused.lir\n"
    "  llmc opt model.onnx --passes=fold-constants,fuse\n"
    "  llmc opt model.onnx --stop-after=raise --expect=attention=28,softmax=0 -o raised.lir\n"
    "  llmc opt x.lir --passes=none                                  parse, check and print";

struct Options {
  ModelSource source;
  std::string out, passes, from, stop_after, dump_dir;
  std::vector<std::string> expect;
  bool ledger = false, check_numerics = false;
};

// --passes names what to run: everything else is skipped.
absl::Status ChoosePasses(const std::string& names, PipelineOptions* pipeline) {
  if (names.empty()) return absl::OkStatus();
  std::vector<int> wanted;
  if (names != "none") {
    for (const absl::string_view name : absl::StrSplit(names, ',')) {
      ASSIGN_OR_RETURN(int number, ParsePassNumber(name));
      wanted.push_back(number);
    }
  }
  for (size_t i = 0; i < Pipeline().size(); ++i) {
    if (std::find(wanted.begin(), wanted.end(), static_cast<int>(i) + 1) == wanted.end()) {
      pipeline->skip.push_back(std::string(Pipeline()[i].name));
    }
  }
  return absl::OkStatus();
}

// "attention=28": how many ops of a kind all steps together have.
struct Expectation {
  const OpDef* op = nullptr;
  int64_t count = 0;
};
absl::StatusOr<std::vector<Expectation>> ParseExpectations(const std::vector<std::string>& texts) {
  std::vector<Expectation> expectations;
  for (const std::string& text : texts) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    Expectation expectation{.op = FindOp(parts.first)};
    if (expectation.op == nullptr || !absl::SimpleAtoi(parts.second, &expectation.count)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--expect: '", text, "' is not OP=COUNT with an op of ir/OPS.md, such as attention=28"));
    }
    expectations.push_back(expectation);
  }
  return expectations;
}

absl::Status CheckExpectations(const Model& model, const std::vector<std::string>& texts) {
  ASSIGN_OR_RETURN(std::vector<Expectation> expectations, ParseExpectations(texts));
  std::map<const OpDef*, int64_t> counts;
  for (const auto& step : model.steps) {
    for (const auto& node : step->block.nodes) ++counts[node->op];
  }
  std::string wrong;
  for (const Expectation& expectation : expectations) {
    const int64_t count = counts[expectation.op];
    if (count == expectation.count) continue;
    absl::StrAppend(&wrong, wrong.empty() ? "" : ", ", expectation.op->info.name, " ", count, " times, not ",
                    expectation.count);
  }
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the result has ", wrong, "\n--ledger prints what the rules did, and why not"));
}

// The comment lines at the top of a dump. They say how to resume from it, which holds as long as no pass changes it.
absl::StatusOr<std::string> TopComment(const Options& options) {
  if (options.passes != "none" || !IsTextFile(options.source.path)) return std::string();
  absl::StatusOr<std::string> text = ReadTextFile(options.source.path, kMaxDumpBytes);
  if (!text.ok()) return text;
  size_t end = 0;
  while (text->compare(end, 2, "//") == 0 && text->find('\n', end) != std::string::npos) {
    end = text->find('\n', end) + 1;
  }
  return text->substr(0, end);
}

absl::Status Run(const Options& options) {
  PipelineOptions pipeline;
  pipeline.from = options.from;
  pipeline.stop_after = options.stop_after;
  pipeline.dump_dir = options.dump_dir;
  pipeline.check_numerics = options.check_numerics;
  RETURN_IF_ERROR(ChoosePasses(options.passes, &pipeline));
  Ledger ledger;
  absl::StatusOr<std::unique_ptr<Model>> model = absl::InternalError("not loaded");
  {
    Progress progress;
    model = LoadOptimized(options.source, pipeline, &ledger, &progress);
  }
  if (!model.ok()) return model.status();
  if (options.ledger) std::fputs(ledger.ToString().c_str(), stderr);
  RETURN_IF_ERROR(CheckExpectations(**model, options.expect));
  ASSIGN_OR_RETURN(std::string comment, TopComment(options));
  const std::string text = absl::StrCat(comment, PrintModel(**model));
  if (!options.out.empty()) return WriteWholeFile(options.out, text);
  PrintText(text);
  return absl::OkStatus();
}

}  // namespace
}  // namespace opt_command

void AddOpt(CLI::App& app, Command* chosen) {
  using namespace opt_command;
  CLI::App* command = AddCommand(app, "opt", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddModelOptions(command, &options->source, "a dump (.lir), an ONNX file, a Hugging Face folder or a GGUF file");
  command->add_option("-o", options->out, "file for the result; standard output if absent");
  command->add_option("--passes", options->passes, "only these passes, by name or number, with commas; or none");
  command->add_option("--from", options->from, "first pass, by name or number")->check(CheckFirstPassName);
  command->add_option("--stop-after", options->stop_after, "last pass, by name or number")->check(CheckPassName);
  command->add_option("--dump-ir", options->dump_dir, "folder for the text after each pass");
  command->add_flag("--ledger", options->ledger, "print to standard error what the rules did and why not");
  command->add_flag("--check-numerics", options->check_numerics, "compare numbers before and after each pass");
  command->add_option("--expect", options->expect, "OP=COUNT,…: fail unless the result has so many ops of these kinds")
      ->delimiter(',');
  AddPaginationOptions(command, &options->source);
  command->callback([options, chosen] {
    PipelineOptions ignored;
    RequireUsage(ParseExpectations(options->expect).status());
    RequireUsage(ChoosePasses(options->passes, &ignored));
    options->source.output = options->out;
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
