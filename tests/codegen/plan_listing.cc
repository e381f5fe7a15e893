#include "tests/codegen/plan_listing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cubins/kernel_resources.h"
#include "cubins/targets.h"
#include "files/sha256.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_text.h"
#include "runtime/plan/step_programs.h"
#include "tools/bench_cost.h"

namespace llmc {
namespace {

constexpr int64_t kDecodeContext = 1000, kPromptTokens = 512;  // of language models
constexpr int64_t kOtherSize = 64;                             // of each dim of other models

std::string ShortDigest(absl::string_view bytes) {
  const Digest digest = HashBytes(bytes);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), 3));
}

constexpr size_t kMostOps = 8;  // that are listed

// "rms_norm, matmul" of the lines of the language in a label; other labels as they are.
std::string OpsOf(absl::string_view label) {
  std::vector<std::string> ops;
  for (absl::string_view line : absl::StrSplit(label, '\n', absl::SkipEmpty())) {
    const size_t equals = line.find(" = ");
    if (equals < line.find('{')) line.remove_prefix(equals + 3);
    ops.emplace_back(absl::StrContains(label, " : ") ? line.substr(0, line.find(' ')) : line);
  }
  if (ops.size() > kMostOps) {
    const size_t more = ops.size() - kMostOps;
    ops.resize(kMostOps);
    ops.push_back(absl::StrCat(more, " more"));
  }
  return absl::StrJoin(ops, ", ");
}

struct KernelText {
  std::string name;  // "gather#1f3a9c40"
  std::string text;  // its function, template arguments, threads and memory
};

// `source` is one that EmitKernel made.
KernelText DescribeKernel(const plan::Kernel& kernel, absl::string_view source) {
  std::vector<std::string> arguments;
  std::string header, function;
  for (absl::string_view line : absl::StrSplit(source, '\n')) {
    std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" ;"), absl::SkipEmpty());
    if (absl::StartsWith(line, "#include \"kernels/")) {
      header = std::string(line.substr(line.rfind('/') + 1, line.find(".cuh") - line.rfind('/') - 1));
    } else if (words.size() >= 4 && words[0] == "using" && words[2] == "=") {
      arguments.push_back(absl::StrCat(words[1], "=", absl::StrJoin(words.begin() + 3, words.end(), " ")));
    } else if (words.size() >= 6 && absl::StartsWith(line, "  static constexpr int ")) {
      arguments.push_back(absl::StrCat(words[3], "=", words[5]));
    } else if (line == "struct Run {") {  // of many tasks, whose own constants say less
      arguments.clear();
      header = "persistent_run";
      function = "PersistentRun";
    } else if (const size_t call = line.find("<Config>("); call != line.npos && absl::StartsWith(line, "  llmc::")) {
      function = std::string(line.substr(8, call - 8));
    }
  }
  KernelText text;
  text.name = absl::StrCat(header, "#", ShortDigest(absl::StrReplaceAll(source, {{kernel.entry(), "ENTRY"}})));
  text.text = absl::StrCat(function, "<", absl::StrReplaceAll(absl::StrJoin(arguments, " "), {{"llmc::", ""}}), ">");
  if (kernel.shared_bytes() > 0 &&
      !absl::StrContains(text.text, absl::StrCat("kSharedBytes=", kernel.shared_bytes()))) {
    absl::StrAppend(&text.text, " shared=", kernel.shared_bytes());
  }
  if (kernel.adapts()) absl::StrAppend(&text.text, " adapts");
  absl::StrAppend(&text.text, ": ", OpsOf(kernel.label()));
  return text;
}

// Runs of lines that repeat stand once, under "x N".
std::string Folded(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size();) {
    size_t best_period = 1, best_saved = 0;
    for (size_t period = 1; 2 * period <= lines.size() - i; ++period) {
      size_t equal = 0;
      while (i + period + equal < lines.size() && lines[i + equal] == lines[i + period + equal]) ++equal;
      const size_t saved = equal / period * period;
      if (saved > best_saved) std::tie(best_period, best_saved) = std::pair(period, saved);
    }
    const bool repeats = best_saved > 0;
    if (repeats) absl::StrAppend(&text, "  x ", best_saved / best_period + 1, "\n");
    for (size_t k = 0; k < best_period; ++k) absl::StrAppend(&text, repeats ? "    " : "  ", lines[i + k], "\n");
    i += best_period + best_saved;
  }
  return text;
}

class PlanLister {
 public:
  PlanLister(const TargetCode& code, absl::string_view sources, const Target& rates)
      : code_(code), manifest_(code.manifest()), rates_(rates) {
    const plan::Manifest& manifest = manifest_;
    for (const int index : code.Kernels()) {
      const plan::Kernel& kernel = manifest.kernels(index);
      kernels_[static_cast<uint32_t>(index)] =
          DescribeKernel(kernel, sources.substr(kernel.source_offset(), kernel.source_bytes()));
    }
    for (const plan::EntryPoint& entry : manifest.entry_points()) {
      for (const plan::TensorSpec& input : entry.inputs()) AddSymbols(input);
    }
    if (manifest.entry_points_size() > 0) contract_ = ContractOf(manifest.entry_points(0)).value_or(StepContract());
  }

  PlanListing List() const {
    PlanListing listing = {.target = code_.target()};
    // By function and arguments, so that a new one moves no others.
    std::set<std::pair<std::string, std::string>> lines;
    for (const auto& [index, kernel] : kernels_) lines.emplace(kernel.text, kernel.name);
    for (const auto& [what, name] : lines) listing.kernels.push_back(absl::StrCat(name, " = ", what));
    std::string persistent;
    for (const plan::Buffer& buffer : code_.persistent()) {
      absl::StrAppend(&persistent, "  ", buffer.name(), " ", buffer.bytes(), "\n");
    }
    if (!persistent.empty()) listing.programs.push_back({"persistent", persistent});
    Add("prepare", code_.prepare(), &listing);
    for (const plan::Program* program : code_.programs()) Add(program->entry_point(), *program, &listing);
    return listing;
  }

 private:
  void AddSymbols(const plan::TensorSpec& input) {
    for (const std::string& dim : input.shape()) {
      for (const plan::DimBound& bound : manifest_.dims()) {
        if (bound.name() == dim) symbols_[dim] = bound.max();
      }
    }
  }

  // The sizes that bytes and floors are for.
  BenchStep RunOf(const plan::Program& program) const {
    BenchStep run;
    std::map<std::string, int64_t> bounds = symbols_;
    for (const plan::DimBound& bound : program.bounds()) bounds[bound.name()] = bound.max();
    const std::string &tokens_dim = contract_.SizeOf(StepAxis::kToken),
                      &sequences_dim = contract_.SizeOf(StepAxis::kSequence),
                      &rows_dim = contract_.SizeOf(StepAxis::kRow);
    const bool paged =
        !tokens_dim.empty() && !sequences_dim.empty() && !rows_dim.empty() && manifest_.states_size() > 0;
    for (const auto& [name, max] : symbols_) {
      run.dims[name] = std::min(bounds[name], paged ? std::numeric_limits<int64_t>::max() : kOtherSize);
    }
    if (!paged) {
      run.sequences = {{}};
    } else if (program.decode()) {
      run.sequences.resize(static_cast<size_t>(run.dims[tokens_dim]), {.position = kDecodeContext - 1});
    } else {
      const int64_t tokens = std::min(run.dims[tokens_dim], kPromptTokens);
      run.sequences = {{.position = 0, .tokens = tokens}};
      run.dims[tokens_dim] = tokens;
      run.dims[sequences_dim] = run.dims[rows_dim] = 1;
    }
    for (const plan::SizeRule& rule : program.size_rules()) {
      if (rule.symbol().empty() || run.dims.contains(rule.symbol())) continue;
      const auto size = DimExpression::Parse(rule.size());
      run.dims[rule.symbol()] = size.ok() && rule.input().empty() ? size->Evaluate(run.dims).value_or(0) : kOtherSize;
    }
    return run;
  }

  void Add(const std::string& name, const plan::Program& program, PlanListing* listing) const {
    if (program.tasks_size() == 0) return;
    std::string heading = absl::StrCat(name, program.decode() ? " decode" : "");
    for (const plan::DimBound& bound : program.bounds()) {
      if (symbols_.contains(bound.name())) absl::StrAppend(&heading, ", ", bound.name(), " <= ", bound.max());
    }
    std::string body = "  memory: ";
    if (program.unplanned().empty()) {
      absl::StrAppend(&body, "arena ", program.arena_bytes(), ", at least ", program.lower_bound_bytes());
    } else {
      absl::StrAppend(&body, "planned for each run");
    }
    absl::StrAppend(&body, ", buffers #", BuffersDigest(program), ", arguments #", ArgumentsDigest(program),
                    ", order #", OrderDigest(program));
    if (program.size_rules_size() > 0) absl::StrAppend(&body, ", size rules #", SizeRulesDigest(program));
    absl::StrAppend(&body, "\n");
    const BenchStep run = RunOf(program);
    double floor = 0;
    std::vector<std::string> lines;
    for (int i = 0; i < program.tasks_size(); ++i) lines.push_back(LineOf(program, i, run, &floor));
    absl::StrAppend(&body, "  floors: ", absl::StrFormat("%.4g", floor * 1e6), " us", SizesText(run), "\n",
                    Folded(lines));
    listing->programs.push_back({heading, body});
  }

  std::string SizesText(const BenchStep& run) const {
    std::vector<std::string> sizes;
    for (const auto& [name, max] : symbols_) sizes.push_back(absl::StrCat(name, "=", run.dims.at(name)));
    return sizes.empty() ? "" : absl::StrCat(" with ", absl::StrJoin(sizes, " "));
  }

  std::string LineOf(const plan::Program& program, int index, const BenchStep& run, double* floors) const {
    const plan::Task& task = program.tasks(index);
    std::string line;
    if (task.has_kernel()) {
      std::vector<std::string> tiles(task.kernel().tiles().begin(), task.kernel().tiles().end());
      while (tiles.size() > 1 && tiles.back() == "1") tiles.pop_back();
      line = absl::StrCat(kernels_.at(task.kernel().kernel()).name, " [", absl::StrJoin(tiles, ", "), "]",
                          program.launches(index).mode() == plan::Launch::DEPENDENT ? " PDL" : "");
    } else if (task.has_gemm()) {
      const plan::Gemm& gemm = task.gemm();
      line =
          absl::StrCat("product ", gemm.m(), " x ", gemm.n(), " x ", gemm.k(), gemm.transposed() ? " transposed" : "",
                       PartsText(gemm), " ", gemm.in_dtype(), "->", gemm.out_dtype());
      if (gemm.batch() != "1") {
        absl::StrAppend(&line, " ", gemm.batch(), " times, strides ", gemm.x_stride(), ", ", gemm.weight_stride());
      }
    } else {
      line = absl::StrCat("copy ", task.copy().bytes());
    }
    for (const int kind : task.sampling()) {
      absl::StrAppend(&line, kind == task.sampling(0) ? " for " : ", ",
                      plan::Sampling_Name(static_cast<plan::Sampling>(kind)));
    }
    const StepCost cost = CostOf(task, run);
    const double floor = FloorSeconds(cost, rates_);
    *floors += floor;
    return absl::StrCat(line, absl::StrFormat("  %.0f B %.3g us", cost.bytes(), floor * 1e6));
  }

  static std::string OrderDigest(const plan::Program& program) {
    std::string text;
    for (const plan::Task& task : program.tasks()) absl::StrAppend(&text, absl::StrJoin(task.after(), " "), "\n");
    return ShortDigest(text);
  }

  static std::string BuffersDigest(const plan::Program& program) {
    std::string text;
    for (const plan::Buffer& buffer : program.buffers()) {
      absl::StrAppend(&text, buffer.name(), " ", buffer.size(), " ", buffer.offset(), " ", buffer.first_task(), " ",
                      buffer.last_task(), "\n");
    }
    return ShortDigest(text);
  }

  static std::string SizeRulesDigest(const plan::Program& program) {
    std::string text;
    for (const plan::SizeRule& rule : program.size_rules()) {
      absl::StrAppend(&text, rule.symbol(), " = ", rule.size(), rule.input(), "[", rule.element(), "] ",
                      rule.expected(), "\n");
    }
    return ShortDigest(text);
  }

  std::string ArgumentsDigest(const plan::Program& program) const {
    std::string text;
    for (const plan::Task& task : program.tasks()) {
      for (const plan::Arg& arg : task.args()) {
        absl::StrAppend(&text, ArgumentText(program, arg), "+", arg.offset(), arg.writes() ? " written," : ",");
      }
      absl::StrAppend(&text, "\n");
    }
    return ShortDigest(text);
  }

  std::string ArgumentText(const plan::Program& program, const plan::Arg& arg) const {
    switch (arg.what_case()) {
      case plan::Arg::kBuffer:
        return program.buffers(static_cast<int>(arg.buffer())).name();
      case plan::Arg::kWeight:
        return manifest_.weights(static_cast<int>(arg.weight())).name();
      case plan::Arg::kState:
        return manifest_.states(static_cast<int>(arg.state())).name();
      case plan::Arg::kPrepared:
        return code_.prepare().buffers(static_cast<int>(arg.prepared())).name();
      case plan::Arg::kConstant:
        return absl::StrCat("constant #", ShortDigest(manifest_.constants(static_cast<int>(arg.constant()))));
      case plan::Arg::kDim:
        return arg.dim();
      case plan::Arg::kNumber:
        return absl::StrCat(arg.number());
      case plan::Arg::kPersistent:
        return code_.persistent()[static_cast<int>(arg.persistent())].name();
      case plan::Arg::kStepMessages:
        return "step messages";
      default:
        return "device error record";
    }
  }

  const TargetCode code_;
  const plan::Manifest& manifest_;
  const Target rates_;
  std::map<uint32_t, KernelText> kernels_;  // by their index in the manifest
  std::map<std::string, int64_t> symbols_;  // of inputs, with their bounds
  StepContract contract_;
};

// Which lines of two texts are the same, by their longest common subsequence: pairs in rising order.
std::vector<std::pair<size_t, size_t>> CommonLines(const std::vector<absl::string_view>& a,
                                                   const std::vector<absl::string_view>& b) {
  std::vector<std::vector<uint32_t>> longest(a.size() + 1, std::vector<uint32_t>(b.size() + 1));
  for (size_t i = a.size(); i-- > 0;) {
    for (size_t j = b.size(); j-- > 0;) {
      longest[i][j] = a[i] == b[j] ? longest[i + 1][j + 1] + 1 : std::max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  std::vector<std::pair<size_t, size_t>> common;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) {
      common.emplace_back(i++, j++);
    } else if (longest[i + 1][j] >= longest[i][j + 1]) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

}  // namespace

std::vector<std::string> ListResources(const plan::Manifest& manifest, int target, absl::string_view sources,
                                       absl::string_view cubins) {
  std::vector<std::string> lines;
  for (const int index : TargetCode(manifest, target).Kernels()) {
    const plan::Kernel& kernel = manifest.kernels(index);
    const std::string text = DescribeKernel(kernel, sources.substr(kernel.source_offset(), kernel.source_bytes())).text;
    for (const plan::Cubin& cubin : kernel.cubins()) {
      if (cubin.target() != manifest.targets(target).target()) continue;
      const auto resources = ResourcesOf(cubins.substr(cubin.offset(), cubin.bytes()));
      if (!resources.ok()) lines.push_back(absl::StrCat(text, "\n  ", resources.status().message()));
      for (const KernelResources& r : resources.ok() ? *resources : std::vector<KernelResources>()) {
        lines.push_back(absl::StrCat(text, "\n  ", r.registers, " registers, stack ", r.stack_bytes, " B, shared ",
                                     r.shared_bytes, " B, code ", r.code_bytes, " B"));
      }
    }
  }
  absl::c_sort(lines);
  return lines;
}

PlanListing ListPlan(const plan::Manifest& manifest, int target, absl::string_view sources, const Target& rates) {
  return PlanLister(TargetCode(manifest, target), sources, rates).List();
}

std::string ListingText(const PlanListing& listing, const PlanListing* base) {
  std::string text = absl::StrCat("target ", listing.target);
  if (base != nullptr) absl::StrAppend(&text, ", where it differs from ", base->target);
  absl::StrAppend(&text, "\n\nkernels\n");
  for (const std::string& kernel : listing.kernels) {
    if (base == nullptr || !absl::c_linear_search(base->kernels, kernel)) absl::StrAppend(&text, "  ", kernel, "\n");
  }
  for (const PlanListing::Program& program : listing.programs) {
    const bool same = base != nullptr && absl::c_linear_search(base->programs, program);
    absl::StrAppend(&text, "\n", program.heading, "\n", same ? "  the same\n" : program.body);
  }
  return text;
}

std::string LineDiff(absl::string_view expected, absl::string_view actual, size_t most_lines) {
  if (expected == actual) return "";
  constexpr size_t kAround = 1;
  const std::vector<absl::string_view> a = absl::StrSplit(expected, '\n'), b = absl::StrSplit(actual, '\n');
  std::vector<std::pair<size_t, size_t>> common = CommonLines(a, b);
  common.emplace_back(a.size(), b.size());
  std::vector<std::string> lines;
  size_t i = 0, j = 0, shown = 0;  // lines of `a` before `shown` are done with
  for (const auto& [next_i, next_j] : common) {
    if (i < next_i || j < next_j) {
      size_t heading = std::min(i, a.size() - 1);
      while (heading > 0 && (a[heading].empty() || a[heading][0] == ' ')) --heading;
      if (shown == 0 || i > shown + kAround) {
        lines.push_back(absl::StrCat("@@ line ", i + 1, ": ", a[heading]));
        shown = std::max({shown, heading + 1, i - std::min(i, kAround)});
      }
      for (; shown < i; ++shown) lines.push_back(absl::StrCat(" ", a[shown]));
      while (i < next_i) lines.push_back(absl::StrCat("-", a[i++]));
      while (j < next_j) lines.push_back(absl::StrCat("+", b[j++]));
      shown = i;
    }
    i = next_i + 1;
    j = next_j + 1;
  }
  if (lines.size() > most_lines) {
    const size_t left_out = lines.size() - most_lines;
    lines.resize(most_lines);
    lines.push_back(absl::StrCat("… ", left_out, " more lines"));
  }
  return absl::StrJoin(lines, "\n") + "\n";
}

}  // namespace llmc
