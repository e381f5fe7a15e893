#include "passes/driver/rule.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/text.h"
#include "passes/driver/match.h"

namespace llmc {
namespace {

int SlotOf(absl::string_view name, std::vector<std::string>* names) {
  auto it = std::find(names->begin(), names->end(), name);
  if (it != names->end()) return static_cast<int>(it - names->begin());
  names->emplace_back(name);
  return static_cast<int>(names->size()) - 1;
}

absl::StatusOr<PatternLine> CompileLine(const OpLine& line, CompiledRule* rule) {
  PatternLine pattern{.op = FindOp(line.op), .text = LineText(line)};
  if (pattern.op == nullptr) return absl::InternalError(absl::StrCat("unknown op ", line.op));
  for (const std::string& name : line.operands) {
    pattern.operands.push_back(name == "_" ? -1 : SlotOf(name, &rule->names));
  }
  for (const std::string& name : line.results) pattern.results.push_back(SlotOf(name, &rule->names));
  for (const auto& [name, text] : line.attrs) {
    AttrPattern attr{.name = name};
    if (text[0] == '$') {
      attr.slot = SlotOf(text, &rule->attr_names);
    } else {
      auto like = pattern.op->defaults.find(name);
      if (like == pattern.op->defaults.end()) return absl::InternalError(absl::StrCat("unknown attribute ", name));
      ASSIGN_OR_RETURN(Attr value, ParseAttr(text, like->second));
      attr.literal = std::move(value);
    }
    pattern.attrs.push_back(std::move(attr));
  }
  return pattern;
}

// The text without border lines, which go to the rule, and without a line of a trait, which is its only line.
std::string TakeBorders(std::string_view text, CompiledRule* rule) {
  std::string ops;
  rule_text::ForEachLine(text, [&](std::string_view line) {
    if (const auto border = rule_text::ParseBorder(line)) {
      rule->border = SlotOf(View(border->value), &rule->names);
      rule->kernel_reads = border->reads;
      return;
    }
    const size_t trait = line.find(" :");
    if (trait == std::string_view::npos) {
      absl::StrAppend(&ops, View(line), "\n");
      return;
    }
    rule_text::Scanner scan(line);
    PatternLine& pattern = rule->find.emplace_back();
    pattern.text = std::string(absl::StripAsciiWhitespace(View(line)));
    pattern.results.push_back(SlotOf(View(scan.Word()), &rule->names));
    scan.Eat('=');
    rule->trait = std::string(scan.Word());
    if (const std::string_view operand = scan.Word(); !operand.empty()) {
      pattern.operands.push_back(SlotOf(View(operand), &rule->names));
    }
  });
  return ops;
}

absl::StatusOr<std::vector<PatternLine>> CompileLines(absl::string_view text, CompiledRule* rule) {
  ASSIGN_OR_RETURN(std::vector<OpLine> lines, ParseOpLines(text, View(rule->rule->name())));
  std::vector<PatternLine> compiled;
  for (const OpLine& line : lines) {
    ASSIGN_OR_RETURN(PatternLine pattern, CompileLine(line, rule));
    compiled.push_back(std::move(pattern));
  }
  return compiled;
}

bool SameLine(const PatternLine& a, const PatternLine& b) {
  auto same_attr = [](const AttrPattern& x, const AttrPattern& y) {
    return x.name == y.name && x.slot == y.slot && (x.slot >= 0 || x.literal == y.literal);
  };
  return a.op == b.op && a.operands == b.operands && a.results == b.results &&
         std::equal(a.attrs.begin(), a.attrs.end(), b.attrs.begin(), b.attrs.end(), same_attr);
}

}  // namespace

std::string LineText(const OpLine& line) {
  std::string text;
  for (size_t i = 0; i < line.results.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : "", line.results[i]);
  absl::StrAppend(&text, text.empty() ? "" : " = ", line.op);
  for (size_t i = 0; i < line.operands.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : " ", line.operands[i]);
  return text;
}

bool PatternLine::IsAlias() const { return op == DefOf<Identity>(); }

const AttrPattern* PatternLine::FindAttr(absl::string_view name) const {
  auto it = std::find_if(attrs.begin(), attrs.end(), [&](const AttrPattern& attr) { return attr.name == name; });
  return it == attrs.end() ? nullptr : &*it;
}

int CompiledRule::Slot(absl::string_view name) const {
  auto it = std::find(names.begin(), names.end(), name);
  return it == names.end() ? -1 : static_cast<int>(it - names.begin());
}

absl::StatusOr<CompiledRule> CompileRule(const Rule& rule) {
  CompiledRule compiled{.rule = &rule};
  if (rule.function() != nullptr) {
    compiled.anchor = FindOp(View(rule.op()));
    return compiled;
  }
  const std::string find = rule.lowers() ? TakeBorders(rule.find(), &compiled) : std::string(rule.find());
  if (!compiled.trait.empty()) return compiled;
  for (auto [text, lines] :
       {std::pair(absl::string_view(find), &compiled.find), std::pair(View(rule.replace()), &compiled.replace)}) {
    absl::StatusOr<std::vector<PatternLine>> parsed = CompileLines(text, &compiled);
    if (!parsed.ok()) {
      return absl::InternalError(absl::StrCat("rule ", View(rule.name()), ": ", parsed.status().message()));
    }
    *lines = *std::move(parsed);
  }
  for (const Rule::Binding& let : rule.lets()) SlotOf(View(let.name), &compiled.attr_names);
  compiled.anchor = compiled.find.back().op;
  compiled.line_stays.assign(compiled.find.size(), false);
  compiled.redefined.assign(compiled.names.size(), false);
  for (const PatternLine& line : compiled.replace) {
    for (int slot : line.results) compiled.redefined[slot] = true;
    auto it = std::find_if(compiled.find.begin(), compiled.find.end(),
                           [&](const PatternLine& other) { return SameLine(line, other) && !line.IsAlias(); });
    const int kept = it == compiled.find.end() ? -1 : static_cast<int>(it - compiled.find.begin());
    compiled.kept_line.push_back(kept);
    if (kept >= 0) compiled.line_stays[kept] = true;
  }
  return compiled;
}

}  // namespace llmc
