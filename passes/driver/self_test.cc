#include "passes/driver/self_test.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/driver/match.h"
#include "passes/driver/numerics.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/lower/lower.h"
#include "passes/pipeline.h"

namespace llmc {
namespace {

constexpr uint64_t kSeeds[] = {0, 1, 2, kEdgeSeed};

// The items of an example: fragment text, and values of attributes.
struct Example {
  std::string text;
  std::map<std::string, std::string> attrs;
};

Example ParseExample(std::string_view example) {
  Example parsed;
  for (absl::string_view item : absl::StrSplit(View(example), absl::ByAnyChar(";\n"))) {
    item = absl::StripAsciiWhitespace(item);
    if (item.empty()) continue;
    const size_t equals = item.find('='), colon = item.find(':');
    const bool is_op = equals < colon;
    if (item[0] == '$') {
      parsed.attrs[std::string(absl::StripAsciiWhitespace(item.substr(0, equals)))] =
          std::string(absl::StripAsciiWhitespace(item.substr(equals + 1)));
    } else if (!is_op && (item[0] == '%' || item[0] == '@')) {
      absl::StrAppend(&parsed.text, item[0] == '%' ? "in " : "weight ", item, "\n");
    } else {
      absl::StrAppend(&parsed.text, item, "\n");
    }
  }
  return parsed;
}

std::string WithAttrs(const OpLine& line, const Example& example) {
  std::string attrs;
  for (const auto& [name, value] : line.attrs) {
    auto it = example.attrs.find(value);
    if (value[0] == '$' && it == example.attrs.end()) continue;  // its default
    absl::StrAppend(&attrs, attrs.empty() ? "" : ", ", name, " = ", value[0] == '$' ? it->second : value);
  }
  OpLine given = line;
  for (std::string& operand : given.operands) {
    const bool optional = operand.size() > 1 && operand[1] == '_';
    if (optional && !absl::StrContains(example.text, absl::StrCat(operand, ":"))) operand = "_";
  }
  return absl::StrCat(LineText(given), attrs.empty() ? "" : absl::StrCat(" {", attrs, "}"), "\n");
}

// The left side as a program. Values that the right side defines too are its outputs.
absl::StatusOr<std::unique_ptr<Model>> BuildProgram(const Rule& rule, std::string_view text) {
  Example example = ParseExample(text);
  ASSIGN_OR_RETURN(std::vector<OpLine> lines, ParseOpLines(View(rule.find()), View(rule.name())));
  for (const OpLine& line : lines) absl::StrAppend(&example.text, WithAttrs(line, example));
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(example.text, View(rule.name()));
  if (!model.ok() || rule.function() != nullptr) return model;
  ASSIGN_OR_RETURN(CompiledRule compiled, CompileRule(rule));
  std::vector<Output>& outputs = (*model)->steps[0]->outputs;
  outputs.clear();
  for (size_t slot = 0; slot < compiled.names.size(); ++slot) {
    Value* value = (*model)->Find(compiled.names[slot]);
    if (compiled.redefined[slot] && value != nullptr) outputs.push_back({value->name.substr(1), value});
  }
  return model;
}

// A sum in another order may meet infinities in another order.
bool IsFairSeed(uint64_t seed, bool rounds) { return seed != kEdgeSeed || !rounds; }

// Of a variant, which has other types than were written: whether there is one, and whether it fires, is up to the rule.
absl::Status TestExample(const Rule& rule, std::string_view example, bool is_variant) {
  absl::StatusOr<std::unique_ptr<Model>> model = BuildProgram(rule, example);
  if (!model.ok()) return is_variant ? absl::OkStatus() : model.status();
  RETURN_IF_ERROR(FillRandomWeights(model->get(), 1));
  if ((*model)->steps[0]->outputs.empty() && (*model)->states.empty()) return absl::InternalError("it keeps no value");
  std::vector<NamedTensors> inputs, before;
  for (uint64_t seed : kSeeds) {
    ASSIGN_OR_RETURN(NamedTensors made, SmallInputs(**model, seed));
    inputs.push_back(std::move(made));
    ASSIGN_OR_RETURN(NamedTensors results, EvaluateSmall(**model, inputs.back()));
    before.push_back(std::move(results));
  }
  const Rule* const rules[] = {&rule};
  Ledger ledger;
  ASSIGN_OR_RETURN(int64_t fired, RunRules(model->get(), rules, &ledger));
  if (fired == 0 && is_variant) return absl::OkStatus();
  if (fired == 0) return absl::InternalError(absl::StrCat("it does not fire on its example\n", ledger.ToString()));
  RemoveDeadOps(model->get());
  RETURN_IF_ERROR(Verify(**model, Phase::kImported));
  const DType coarsest = CoarsestFloat(**model);
  const bool is_coarse = coarsest != DType::kF64 && coarsest != DType::kF32;
  const bool rounds = rule.rounding() == Rounding::kAnywhere || (rule.rounding() == Rounding::kIn16Bit && is_coarse);
  for (size_t i = 0; i < std::size(kSeeds); ++i) {
    if (!IsFairSeed(kSeeds[i], rounds)) continue;
    ASSIGN_OR_RETURN(NamedTensors after, EvaluateSmall(**model, inputs[i]));
    absl::Status status =
        rounds ? CompareResults(before[i], after, coarsest) : CompareResults(before[i], after, std::nullopt);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// The program of a rule that lowers: its lines stand before the kernel that reads what they define, or after the one
// that makes what they read.
absl::StatusOr<std::unique_ptr<Model>> BuildLowering(const Rule& rule, std::string_view text) {
  Example example = ParseExample(text);
  ASSIGN_OR_RETURN(const CompiledRule compiled, CompileRule(rule));
  std::string ops;
  if (compiled.trait.empty()) {
    std::string find;
    rule_text::ForEachLine(rule.find(), [&](std::string_view line) {
      if (!rule_text::ParseBorder(line).has_value()) absl::StrAppend(&find, View(line), "\n");
    });
    ASSIGN_OR_RETURN(const std::vector<OpLine> lines, ParseOpLines(find, View(rule.name())));
    for (const OpLine& line : lines) absl::StrAppend(&ops, WithAttrs(line, example));
  }
  const size_t kernel = example.text.find("kernel ");
  example.text.insert(compiled.kernel_reads && kernel != std::string::npos ? kernel : example.text.size(), ops);
  return ParseFragment(example.text, View(rule.name()));
}

// With a backend that can run everything: what the rule makes is legal, and keeps every bit.
absl::Status TestLowering(const Rule& rule, std::string_view example) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, BuildLowering(rule, example));
  RETURN_IF_ERROR(FillRandomWeights(model.get(), 1));
  Backends backends;
  for (const std::string_view name : {std::string_view("test"), rule.forms()}) {
    backends.push_back({.name = std::string(name), .misfit = [](const KernelBody&) { return std::nullopt; }});
  }
  ASSIGN_OR_RETURN(const LoweredStep lowered, LowerStep(*model, *model->steps[0], backends, {.rules = {&rule, 1}}));
  if (lowered.ledger.CountFired(View(rule.name())) == 0) {
    return absl::InternalError(absl::StrCat("it does not fire on its example\n", lowered.ledger.ToString()));
  }
  lowered.model->data = model->data;
  for (const uint64_t seed : kSeeds) {
    ASSIGN_OR_RETURN(const NamedTensors inputs, SmallInputs(*model, seed));
    ASSIGN_OR_RETURN(const NamedTensors before, EvaluateSmall(*model, inputs));
    ASSIGN_OR_RETURN(const NamedTensors after, EvaluateSmall(*lowered.model, inputs));
    RETURN_IF_ERROR(CompareResults(before, after, std::nullopt));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfTest(const Rule& rule) {
  if (rule.examples().empty()) return absl::InternalError(absl::StrCat(View(rule.name()), ": it has no example"));
  for (std::string_view example : rule.examples()) {
    for (const char* dtype : {"", "f16", "i32"}) {
      const std::string text =
          *dtype == 0 ? std::string(example) : absl::StrReplaceAll(View(example), {{"bf16", dtype}, {"f32", dtype}});
      if (rule.lowers() && *dtype != 0) continue;
      absl::Status status = rule.lowers() ? TestLowering(rule, text) : TestExample(rule, text, *dtype != 0);
      if (status.ok()) continue;
      return absl::Status(status.code(), absl::StrCat(View(rule.name()), ", example ", text, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace llmc
