#include "passes/driver/dump.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "ir/text.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

uint32_t HashText(absl::string_view text) {  // FNV-1a
  uint32_t hash = 2166136261u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

std::string Row(absl::string_view number, absl::string_view pass, absl::string_view ops, absl::string_view hash,
                absl::string_view file, absl::string_view what) {
  std::string row = absl::StrFormat("%2s  %-15s  %6s   %-8s  %-25s  %s", number, pass, ops, hash, file, what);
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(row), "\n");
}

// "merge-qkv x2", "merge-gate-up x2", in the order of the rule lists.
std::vector<std::string> FiredSince(const Ledger& ledger, const std::map<std::string, int64_t>& before) {
  std::vector<std::string> fired;
  std::vector<std::string> names = {std::string(kFoldConstant)};
  for (const Rule* rule : AllRules()) names.emplace_back(rule->name());
  names.emplace_back(kMergeEqualOps);
  names.emplace_back(kPaginate);
  for (const std::string& name : names) {
    auto it = before.find(name);
    const int64_t count = ledger.CountFired(name) - (it == before.end() ? 0 : it->second);
    if (count > 0) fired.push_back(absl::StrCat(name, " x", count));
  }
  return fired;
}

// As a shell reads it.
std::string ShellWord(const std::string& word) {
  const bool is_plain = std::all_of(word.begin(), word.end(),
                                    [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("_-=.,/:+", c); });
  return is_plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}, {"\n", " "}}), "'");
}

}  // namespace

Dump::Dump(std::string dir, std::string flags, absl::Span<const std::string> weight_flags)
    : dir_(std::move(dir)), flags_(std::move(flags)) {
  for (const std::string& flag : weight_flags) absl::StrAppend(&weight_flags_, " ", ShellWord(flag));
}

Dump::Counts Dump::CountsOf(const Model& model) {
  Counts counts{.prepare = static_cast<int64_t>(model.prepare.nodes.size())};
  for (const auto& step : model.steps) counts.ops += static_cast<int64_t>(step->block.nodes.size());
  return counts;
}

absl::Status Dump::Begin(const Model& model, const std::string& target, const std::string& label) {
  if (dir_.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(dir_, error);
  if (error) return absl::UnavailableError(absl::StrCat("cannot create the folder ", dir_, ": ", error.message()));
  index_ = absl::StrCat("model ", model.name, target.empty() ? "" : absl::StrCat("   target ", target), "\n");
  absl::StrAppend(&index_, Row("#", "pass", "ops", "hash", "file", "what"));
  return AddText(model, label, "");
}

absl::Status Dump::Add(const Model& model, const std::string& label, const Ledger& ledger,
                       const std::map<std::string, int64_t>& fired_before, double seconds) {
  if (dir_.empty()) return absl::OkStatus();
  absl::StrAppendFormat(&times_, "%-20s %9.3f ms\n", label, seconds * 1e3);
  const Counts now = CountsOf(model);
  std::vector<std::string> what = FiredSince(ledger, fired_before);
  if (now.ops != counts_.ops) what.push_back(absl::StrFormat("%+d ops", now.ops - counts_.ops));
  if (now.prepare != counts_.prepare) what.push_back(absl::StrFormat("%+d in prepare", now.prepare - counts_.prepare));
  return AddText(model, label, absl::StrJoin(what, ", "));
}

absl::Status Dump::AddText(const Model& model, const std::string& label, const std::string& what) {
  const std::string ops = absl::StrCat(CountsOf(model).ops);
  const std::string number = label.substr(0, 2), pass = label.substr(3);
  std::string text = PrintModel(model);
  if (text == text_) {
    absl::StrAppend(&index_, Row(number, pass, ops, "=", "", ""));
    return absl::OkStatus();
  }
  const std::string file = absl::StrCat(number, "-", pass, ".lir");
  absl::StrAppend(&index_, Row(number, pass, ops, absl::StrFormat("%08x", HashText(text)), file, what));
  const int next = std::stoi(number) + 1;
  absl::Status status = WriteWholeFile(absl::StrCat(dir_, "/", file),
                                       absl::StrCat("// llmc opt ", file, " --from=", next, flags_,
                                                    model.weights.empty() ? "" : weight_flags_, "\n", text));
  text_ = std::move(text);
  counts_ = CountsOf(model);
  return status;
}

absl::Status Dump::End() {
  if (dir_.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(WriteWholeFile(dir_ + "/index.txt", index_));
  return WriteWholeFile(dir_ + "/times.txt", times_);
}

}  // namespace llmc
