#include "passes/self_test.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/match.h"
#include "passes/numerics.h"
#include "passes/pipeline.h"
#include "passes/rewrite_driver.h"

namespace llmc {
namespace {

constexpr int kSeeds = 3;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

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

std::string LineText(const OpLine& line, const Example& example) {
  std::string text;
  for (size_t i = 0; i < line.results.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : "", line.results[i]);
  absl::StrAppend(&text, text.empty() ? "" : " = ", line.op);
  for (size_t i = 0; i < line.operands.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : " ", line.operands[i]);
  std::string attrs;
  for (const auto& [name, value] : line.attrs) {
    auto it = example.attrs.find(value);
    if (value[0] == '$' && it == example.attrs.end()) continue;  // its default
    absl::StrAppend(&attrs, attrs.empty() ? "" : ", ", name, " = ", value[0] == '$' ? it->second : value);
  }
  return absl::StrCat(text, attrs.empty() ? "" : absl::StrCat(" {", attrs, "}"), "\n");
}

// The left side as a program. Values that the right side defines too are its outputs.
absl::StatusOr<std::unique_ptr<Model>> BuildProgram(const Rule& rule, std::string_view text) {
  Example example = ParseExample(text);
  absl::StatusOr<std::vector<OpLine>> lines = ParseOpLines(View(rule.find()), View(rule.name()));
  if (!lines.ok()) return lines.status();
  for (const OpLine& line : *lines) absl::StrAppend(&example.text, LineText(line, example));
  absl::StatusOr<std::unique_ptr<Model>> model = ParseFragment(example.text, View(rule.name()));
  if (!model.ok() || rule.function() != nullptr) return model;
  absl::StatusOr<CompiledRule> compiled = CompileRule(rule);
  if (!compiled.ok()) return compiled.status();
  std::vector<Output>& outputs = (*model)->steps[0]->outputs;
  outputs.clear();
  for (size_t slot = 0; slot < compiled->names.size(); ++slot) {
    Value* value = (*model)->Find(compiled->names[slot]);
    if (compiled->redefined[slot] && value != nullptr) outputs.push_back({value->name.substr(1), value});
  }
  return model;
}

absl::Status TestExample(const Rule& rule, std::string_view example) {
  absl::StatusOr<std::unique_ptr<Model>> model = BuildProgram(rule, example);
  if (!model.ok()) return model.status();
  if (absl::Status status = FillRandomWeights(model->get(), 1); !status.ok()) return status;
  if ((*model)->steps[0]->outputs.empty() && (*model)->states.empty()) return absl::InternalError("it keeps no value");
  std::vector<NamedTensors> before;
  for (int seed = 0; seed < kSeeds; ++seed) {
    absl::StatusOr<NamedTensors> results = EvaluateSmall(**model, seed);
    if (!results.ok()) return results.status();
    before.push_back(*std::move(results));
  }
  const Rule* const rules[] = {&rule};
  Ledger ledger;
  absl::StatusOr<int64_t> fired = RunRules(model->get(), rules, &ledger);
  if (!fired.ok()) return fired.status();
  if (*fired == 0) return absl::InternalError(absl::StrCat("it does not fire on its example\n", ledger.ToString()));
  RemoveDeadOps(model->get());
  if (absl::Status status = Verify(**model, Phase::kImported); !status.ok()) return status;
  for (int seed = 0; seed < kSeeds; ++seed) {
    absl::StatusOr<NamedTensors> after = EvaluateSmall(**model, seed);
    if (!after.ok()) return after.status();
    if (absl::Status status = CompareResults(before[seed], *after); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfTest(const Rule& rule) {
  if (rule.examples().empty()) return absl::InternalError(absl::StrCat(View(rule.name()), ": it has no example"));
  for (std::string_view example : rule.examples()) {
    absl::Status status = TestExample(rule, example);
    if (status.ok()) continue;
    return absl::Status(status.code(),
                        absl::StrCat(View(rule.name()), ", example ", View(example), ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace llmc
