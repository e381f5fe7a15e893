// Runs tests that are text:
//
//   // TEST: opt --rules=fuse-add-rms-norm        what to do with the program below
//   in %x: f32[4, 64]                              a fragment (see ir/text.h) …
//   %y = …
//   // EXPECT:
//   …                                              … and its full text afterwards
//   // -----                                       the next test
//
// TEST lines:
//   opt [--rules=NAME,… | --passes=NAME,…] [--dtype=TYPE] [--ledger]
//                 Runs rules, or passes of the pipeline, and prints what became of the program. --ledger adds what the
//                 rules did. Numbers before and after are compared too, except with --dtype.
//   lower [--target=NAME] [--bound=NAME:MAX]... [--decode=MAX] [--ledger=RULE]...
//                 Lowers the program for a GPU, sm_90a if no other is named, and prints it. Numbers before and after
//                 are compared. --decode: as a step of one token of so many sequences at the most. --ledger adds what
//                 became of a rule or backend.
//   errors        The program, or a whole model, must fail to parse: the line and column of its first error, and what
//                 is wrong.
//
//   text_test_runner [--bless] FILE...             --bless writes what came out into the files
//   text_test_runner --check-rules FOLDER          fails if a rule has no FOLDER/<rule>.lir that fires it
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "codegen/tasks/select.h"
#include "cubins/targets.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/driver/numerics.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/lower/lower.h"
#include "passes/pipeline.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

struct TestCase {
  std::string head;     // comments and the TEST line, as written
  std::string command;  // after "TEST:"
  std::string program;
  std::string expect;
  int line = 0;  // of the TEST line
};

constexpr char kSeparator[] = "// -----";

std::vector<TestCase> ParseCases(const std::string& text) {
  std::vector<TestCase> cases(1);
  enum { kHead, kProgram, kExpect } where = kHead;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    ++number;
    TestCase& test = cases.back();
    if (absl::StartsWith(line, kSeparator)) {
      cases.emplace_back();
      where = kHead;
    } else if (absl::StartsWith(line, "// EXPECT:")) {
      where = kExpect;
    } else if (where == kHead) {
      absl::StrAppend(&test.head, line, "\n");
      if (!absl::StartsWith(line, "// TEST:")) continue;
      test.command = std::string(absl::StripAsciiWhitespace(line.substr(8)));
      test.line = number;
      where = kProgram;
    } else {
      absl::StrAppend(where == kProgram ? &test.program : &test.expect, line, "\n");
    }
  }
  return cases;
}

struct OptFlags {
  std::vector<std::string> rules, passes;
  std::optional<DType> dtype;
  bool ledger = false;
};

absl::StatusOr<OptFlags> ParseOptFlags(absl::string_view text) {
  OptFlags flags;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, "--rules=")) {
      flags.rules = absl::StrSplit(word, ',');
    } else if (absl::ConsumePrefix(&word, "--passes=")) {
      flags.passes = absl::StrSplit(word, ',');
    } else if (absl::ConsumePrefix(&word, "--dtype=")) {
      absl::StatusOr<DType> dtype = ParseDType(word);
      if (!dtype.ok()) return dtype.status();
      flags.dtype = *dtype;
    } else if (word == "--ledger") {
      flags.ledger = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", word));
    }
  }
  return flags;
}

absl::Status Optimize(Model* model, const OptFlags& flags, Ledger* ledger) {
  if (!flags.rules.empty()) {
    std::vector<const Rule*> rules;
    for (const std::string& name : flags.rules) {
      rules.push_back(FindRule(name));
      if (rules.back() == nullptr) return absl::InvalidArgumentError(absl::StrCat("there is no rule ", name));
    }
    if (absl::Status status = RunRules(model, rules, ledger).status(); !status.ok()) return status;
    RemoveDeadOps(model);
    return Verify(*model, Phase::kImported);
  }
  PipelineOptions options{.dtype = flags.dtype};
  for (const Pass& pass : Pipeline()) {
    const std::string name(pass.name);
    if (std::find(flags.passes.begin(), flags.passes.end(), name) == flags.passes.end()) options.skip.push_back(name);
  }
  return RunPipeline(model, options, ledger);
}

std::string PrintFragment(const Model& model) {
  std::string text;
  if (!model.prepare.nodes.empty()) absl::StrAppend(&text, "prepare {\n", PrintBlock(model.prepare), "}\n");
  for (absl::string_view line : absl::StrSplit(PrintBlock(model.steps[0]->block), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, absl::StripPrefix(line, "  "), "\n");
  }
  return text;
}

absl::StatusOr<std::string> RunOpt(const TestCase& test, absl::string_view file) {
  absl::StatusOr<OptFlags> flags = ParseOptFlags(test.command.substr(3));
  if (!flags.ok()) return flags.status();
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(test.program, file);
  if (!model.ok()) return model.status();
  if (absl::Status status = FillRandomWeights(model->get(), 7); !status.ok()) return status;
  absl::StatusOr<NamedTensors> inputs = SmallInputs(**model, 7);
  if (!inputs.ok()) return inputs.status();
  absl::StatusOr<NamedTensors> before = EvaluateSmall(**model, *inputs);
  if (!before.ok()) return before.status();
  Ledger ledger;
  if (absl::Status status = Optimize(model->get(), *flags, &ledger); !status.ok()) return status;
  if (flags->dtype.has_value()) inputs = SmallInputs(**model, 7);
  absl::StatusOr<NamedTensors> after = EvaluateSmall(**model, *inputs);
  if (!after.ok()) return after.status();
  if (!flags->dtype.has_value()) {
    const std::optional<DType> rounded =
        MayRound(ledger, {}, **model) ? std::optional(CoarsestFloat(**model)) : std::nullopt;
    if (absl::Status status = CompareResults(*before, *after, rounded); !status.ok()) return status;
  }
  std::string text = PrintFragment(**model);
  if (!flags->ledger) return text;
  for (absl::string_view line : absl::StrSplit(ledger.ToString(), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "// ", line, "\n");
  }
  return text;
}

struct LowerFlags {
  std::string target = "sm_90a";
  std::vector<std::pair<std::string, int64_t>> bounds;
  int64_t decode = 0;
  std::vector<std::string> ledger;
};

absl::StatusOr<LowerFlags> ParseLowerFlags(absl::string_view text) {
  LowerFlags flags;
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, "--target=")) {
      flags.target = std::string(word);
    } else if (absl::ConsumePrefix(&word, "--ledger=")) {
      flags.ledger.emplace_back(word);
    } else if (absl::ConsumePrefix(&word, "--bound=")) {
      const std::pair<std::string, std::string> parts = absl::StrSplit(word, absl::MaxSplits(':', 1));
      int64_t bound = 0;
      if (!absl::SimpleAtoi(parts.second, &bound))
        return absl::InvalidArgumentError(absl::StrCat("not a bound: ", word));
      flags.bounds.emplace_back(parts.first, bound);
    } else if (absl::ConsumePrefix(&word, "--decode=")) {
      if (!absl::SimpleAtoi(word, &flags.decode))
        return absl::InvalidArgumentError(absl::StrCat("not a number: ", word));
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", word));
    }
  }
  return flags;
}

absl::StatusOr<LoweredStep> LowerProgram(absl::string_view program, absl::string_view command, absl::string_view file) {
  absl::StatusOr<LowerFlags> flags = ParseLowerFlags(absl::StripPrefix(command, "lower"));
  if (!flags.ok()) return flags.status();
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(program, file);
  if (!model.ok()) return model.status();
  if (absl::Status status = FillRandomWeights(model->get(), 7); !status.ok()) return status;
  absl::StatusOr<Target> target = FindTarget(flags->target);
  if (!target.ok()) return target.status();
  ProgramScope scope = {.target = *target, .bounds = DimEnv((*model)->dims.begin(), (*model)->dims.end())};
  for (const auto& [name, bound] : flags->bounds) scope.bounds[name] = bound;
  scope.decode = flags->decode;
  return LowerStep(**model, *(*model)->steps[0], BackendsFor(scope), {.bounds = scope.bounds, .check_numerics = true});
}

absl::StatusOr<std::string> RunLower(const TestCase& test, absl::string_view file) {
  absl::StatusOr<LowerFlags> flags = ParseLowerFlags(absl::StripPrefix(test.command, "lower"));
  if (!flags.ok()) return flags.status();
  absl::StatusOr<LoweredStep> lowered = LowerProgram(test.program, test.command, file);
  if (!lowered.ok()) return lowered.status();
  std::string text = PrintFragment(*lowered->model);
  for (const std::string& missing : lowered->missing) absl::StrAppend(&text, "// missing: ", missing, "\n");
  Ledger shown;
  for (const std::string& name : flags->ledger) {
    const auto entry = lowered->ledger.entries().find(name);
    if (entry != lowered->ledger.entries().end()) shown.Put(name, entry->second);
  }
  for (absl::string_view line : absl::StrSplit(shown.ToString(), '\n', absl::SkipEmpty())) {
    absl::StrAppend(&text, "// ", line, "\n");
  }
  return text;
}

// "LINE:COLUMN: message", from "FILE:LINE: message\n LINE |source\n      |  ^"; a line must not be too long to be shown
// whole.
absl::StatusOr<std::string> PlaceAndMessage(absl::string_view error, absl::string_view file) {
  const std::vector<std::string> lines = absl::StrSplit(error, '\n');
  absl::string_view first = lines[0];
  const bool has_place = lines.size() >= 3 && absl::EndsWith(lines.back(), "^") &&
                         absl::ConsumePrefix(&first, absl::StrCat(file, ":")) && first.find(": ") != first.npos;
  if (!has_place) return absl::InternalError(absl::StrCat("the error has no place: ", error));
  const size_t colon = first.find(": "), column = lines.back().size() - lines.back().find('|') - 1;
  return absl::StrCat(first.substr(0, colon), ":", column, first.substr(colon));
}

absl::StatusOr<std::string> RunErrors(const TestCase& test, absl::string_view file) {
  const bool whole = absl::StartsWith(test.program, "model");
  absl::StatusOr<std::unique_ptr<Model>> model =
      whole ? ParseModel(test.program, file) : ParseFragment(test.program, file);
  if (model.ok()) return absl::InternalError("the program has no error");
  absl::StatusOr<std::string> error = PlaceAndMessage(model.status().message(), file);
  if (!error.ok()) return error;
  return absl::StrCat("// ", *error, "\n");
}

// Columns may be aligned by hand: spaces count as one.
std::string Squeeze(absl::string_view text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (!words.empty()) lines.push_back(absl::StrJoin(words, " "));
  }
  return absl::StrJoin(lines, "\n");
}

absl::StatusOr<std::string> RunCase(const TestCase& test, absl::string_view file) {
  if (test.command == "opt" || absl::StartsWith(test.command, "opt ")) return RunOpt(test, file);
  if (test.command == "lower" || absl::StartsWith(test.command, "lower ")) return RunLower(test, file);
  if (test.command == "errors") return RunErrors(test, file);
  return absl::InvalidArgumentError("the first line is not '// TEST: opt …', '// TEST: lower …' or '// TEST: errors'");
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return text.str();
}

// Returns the number of failed cases.
int RunFile(const std::string& path, bool bless) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    std::cerr << text.status().message() << "\n";
    return 1;
  }
  int failed = 0;
  std::vector<std::string> blessed;
  for (const TestCase& test : ParseCases(*text)) {
    absl::StatusOr<std::string> result = RunCase(test, path);
    if (!result.ok()) {
      std::cerr << path << ":" << test.line << ": " << result.status().message() << "\n";
      ++failed;
    } else if (!bless && Squeeze(*result) != Squeeze(test.expect)) {
      std::cerr << path << ":" << test.line << ": expected\n" << test.expect << "but got\n" << *result << "\n";
      ++failed;
    }
    blessed.push_back(absl::StrCat(test.head, test.program, "// EXPECT:\n", result.ok() ? *result : test.expect));
  }
  if (bless)
    std::ofstream(path, std::ios::binary | std::ios::trunc) << absl::StrJoin(blessed, absl::StrCat(kSeparator, "\n"));
  return failed;
}

// Each rule has a file of its own, in which it fires.
int CheckRules(const std::string& folder) {
  int failed = 0;
  for (const Rule* rule : AllRules()) {
    const std::string name(rule->name()), path = absl::StrCat(folder, "/", name, ".lir");
    absl::StatusOr<std::string> text = ReadFile(path);
    bool fires = false;
    for (const TestCase& test : ParseCases(text.ok() ? *text : "")) {
      if (rule->lowers()) {
        const absl::StatusOr<LoweredStep> lowered = LowerProgram(test.program, test.command, path);
        fires = fires || (lowered.ok() && lowered->ledger.CountFired(name) > 0);
        continue;
      }
      absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(test.program, path);
      const Rule* const rules[] = {rule};
      fires = fires || (model.ok() && RunRules(model->get(), rules, nullptr).value_or(0) > 0);
    }
    if (fires) continue;
    std::cerr << path << ": no test in which the rule " << name << " fires\n";
    ++failed;
  }
  return failed;
}

}  // namespace
}  // namespace llmc

int main(int argc, char** argv) {
  bool bless = false, check_rules = false;
  int failed = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--bless") {
      bless = true;
    } else if (arg == "--check-rules") {
      check_rules = true;
    } else {
      failed += check_rules ? llmc::CheckRules(arg) : llmc::RunFile(arg, bless);
    }
  }
  return failed == 0 ? 0 : 1;
}
