#include "runtime/plan/plan_text.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace llmc {
namespace {

std::string BoundsText(const plan::Program& program) {
  return absl::StrJoin(program.bounds(), ", ", [](std::string* out, const plan::DimBound& bound) {
    absl::StrAppend(out, bound.name(), " <= ", bound.max());
  });
}

// "k3_rms_norm on (T, 1, 1) after 2  "; empty for tasks of the host.
std::string WhatRuns(const plan::Task& task, const plan::Manifest& manifest) {
  std::string what;
  if (task.has_kernel()) {
    what = absl::StrCat(manifest.kernels(static_cast<int>(task.kernel().kernel())).entry(), " on (",
                        absl::StrJoin(task.kernel().tiles(), ", "), ")");
  } else if (task.has_gemm()) {
    what = absl::StrCat("product of ", task.gemm().m(), " x ", task.gemm().k(), " x ", task.gemm().n(),
                        PartsText(task.gemm()));
  } else if (task.has_copy()) {
    what = absl::StrCat("copy of ", task.copy().bytes(), " bytes");
  }
  if (what.empty()) return "";
  if (task.after_size() > 0) absl::StrAppend(&what, " after ", absl::StrJoin(task.after(), ", "));
  return absl::StrFormat("%-40s  ", what);
}

// Every program once; where a plan has several targets, with those that run it.
std::string ProgramsText(const plan::Manifest& manifest) {
  std::vector<int> order;  // prepare, then what runs for each step
  std::vector<std::vector<std::string>> targets(static_cast<size_t>(manifest.programs_size()));
  const auto add = [&](uint32_t index, const plan::TargetPrograms& target) {
    if (targets[index].empty()) order.push_back(static_cast<int>(index));
    targets[index].push_back(target.target());
  };
  for (const plan::TargetPrograms& target : manifest.targets()) {
    if (manifest.programs(static_cast<int>(target.prepare())).tasks_size() > 0) add(target.prepare(), target);
    for (const uint32_t program : target.programs()) add(program, target);
  }
  for (int i = 0; manifest.targets().empty() && i < manifest.programs_size(); ++i) order.push_back(i);
  std::string text;
  for (const int index : order) {
    if (!text.empty()) text += "\n";
    if (manifest.targets_size() > 1) {
      absl::StrAppend(&text, "for ", absl::StrJoin(targets[static_cast<size_t>(index)], ", "), "\n");
    }
    text += ProgramText(manifest.programs(index), manifest);
  }
  return text;
}

// The products for which a proposal of cuBLASLt other than its first is used.
std::string TunedText(const plan::TunedProducts& tuned) {
  std::string out =
      absl::StrCat("products timed on ", tuned.gpu(), " with cuBLASLt ", tuned.library(), ": ", tuned.timed(),
                   ", others than the first proposal are used for ", tuned.products_size(), "\n");
  for (const plan::TunedProduct& p : tuned.products()) {
    plan::Gemm gemm;
    gemm.set_bias(p.bias());
    gemm.set_residual(p.residual());
    gemm.set_gelu_tanh(p.gelu_tanh());
    gemm.set_scales(p.scales());
    gemm.set_tf32(p.tf32());
    absl::StrAppend(&out, "  ", p.m(), " x ", p.k(), " x ", p.n(), " ", p.in_dtype(), PartsText(gemm), ": proposal ",
                    p.proposal(), "\n");
  }
  return out;
}

}  // namespace

std::string PartsText(const plan::Gemm& gemm) {
  return absl::StrCat(gemm.bias() ? " + bias" : "", gemm.residual() ? " + residual" : "",
                      gemm.gelu_tanh() ? ", gelu_tanh" : "", gemm.tf32() ? ", tf32" : "",
                      gemm.scales() == plan::SCALE_OF_ALL     ? ", one scale each"
                      : gemm.scales() == plan::SCALES_OF_ROWS ? ", scales of rows"
                                                              : "");
}

std::string ProgramText(const plan::Program& program, const plan::Manifest& manifest) {
  std::string out = absl::StrCat("program ", program.entry_point(), program.decode() ? ", decode" : "", "\nbounds ",
                                 BoundsText(program), "\n");
  if (!program.unplanned().empty()) {
    absl::StrAppend(&out, "no memory plan: ", program.unplanned(), "\n");
  } else {
    if (!program.sample().empty()) absl::StrAppend(&out, "a sample for these bounds: ", program.sample(), "\n");
    const double ratio = program.lower_bound_bytes() == 0 ? 1.0
                                                          : static_cast<double>(program.arena_bytes()) /
                                                                static_cast<double>(program.lower_bound_bytes());
    absl::StrAppend(&out, absl::StrFormat("peak %d bytes, lower bound %d bytes, ratio %.3f\n", program.arena_bytes(),
                                          program.lower_bound_bytes(), ratio));
  }
  absl::StrAppend(&out, "\ntasks\n");
  int number = 0;
  for (const plan::Task& task : program.tasks()) {
    const std::string lines = absl::StrReplaceAll(task.label(), {{"\n", absl::StrCat("\n", std::string(49, ' '))}});
    absl::StrAppendFormat(&out, "%5d  %s%s\n", number++, WhatRuns(task, manifest), lines);
  }
  for (const plan::Run& run : program.runs()) {
    absl::StrAppendFormat(&out, "%s: tasks %d to %d\n", manifest.kernels(static_cast<int>(run.kernel())).entry(),
                          run.first(), run.first() + run.count() - 1);
  }
  absl::StrAppendFormat(&out, "\nbuffers\n%14s %14s  %-13s  size, values\n", "offset", "bytes", "tasks");
  for (const plan::Buffer& buffer : program.buffers()) {
    const std::string tasks = absl::StrCat(buffer.first_task(), "..", buffer.last_task());
    absl::StrAppendFormat(&out, "%14d %14d  %-13s  %s: %s\n", buffer.offset(), buffer.bytes(), tasks, buffer.size(),
                          buffer.values().empty() ? buffer.name() : absl::StrJoin(buffer.values(), ", "));
  }
  return out;
}

std::string PlanText(const plan::Manifest& manifest) {
  std::string text = ProgramsText(manifest);
  if (manifest.has_tuned()) absl::StrAppend(&text, "\n", TunedText(manifest.tuned()));
  return text;
}

std::string KernelListing(const plan::Kernel& kernel, absl::string_view sources) {
  absl::string_view source = sources.substr(kernel.source_offset(), kernel.source_bytes());
  absl::ConsumeSuffix(&source, "\n");
  std::string out;
  if (!kernel.label().empty()) {
    out = absl::StrCat("// ", absl::StrReplaceAll(kernel.label(), {{"\n", "\n// "}}), "\n");
  }
  uint32_t line = 0;
  int next = 0;
  for (const absl::string_view text : absl::StrSplit(source, '\n')) {
    out.append(text.data(), text.size());
    for (; next < kernel.notes_size() && kernel.notes(next).line() == line; ++next) {
      absl::StrAppend(&out, "  // ", kernel.notes(next).text());
    }
    out += '\n';
    ++line;
  }
  return out;
}

}  // namespace llmc
